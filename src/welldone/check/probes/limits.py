"""Probes of the token limit: an answer that reaches it, by either of its names."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.probes.errors import is_refused
from welldone.check.reply import ProbeReply, chunk_boundaries, frame_at_offset, text_from_difference
from welldone.check.session import NotApplicableError, Session

FIN_LENGTH = "fin-length"
MAX_TOKENS_BOTH = "req-max-tokens-both"

_LIMIT_TOKENS = 8
_LONGER_LIMIT_TOKENS = 40
_TOO_MANY_FRAMES = 64
"""No server sends that many for eight tokens. Who does not know the limit would go on for minutes."""
_TOO_MANY_TOKENS = 2 * _LIMIT_TOKENS
"""Servers differ by one or two in what they count."""
_TOO_MANY_CHARACTERS = 16 * _LIMIT_TOKENS
"""Few words are that long, and a number is far shorter. It counts where many tokens come in one chunk."""
_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")


async def _probe_limits(session: Session) -> None:
    for name in _LIMIT_FIELDS:
        reply = await _send_limited(session, name, _LIMIT_TOKENS)
        if is_refused(reply) and name != session.facts.limit_field:
            heard, wanted = reply.error_summary, f"an answer within {name}"
            session.check_rule(MAX_TOKENS_BOTH, reply, passed=False, observed=heard, expected=wanted)
            continue
        session.require_ok(reply)
        if _check_limit(session, reply, name):
            await _check_length_reason(session, reply, FIN_LENGTH)


async def _probe_truncation(session: Session, *, rule: str, stream: bool) -> None:
    reply = session.require_ok(await _send_limited(session, session.facts.limit_field, _LIMIT_TOKENS, stream=stream))
    await _check_length_reason(session, reply, rule)


async def _send_limited(session: Session, name: str, tokens: int, *, stream: bool = True) -> ProbeReply:
    leave = _is_over_limit if stream else None
    return await session.generate(
        settings.COUNT_PROMPT, stream=stream, max_tokens=tokens, limit_field=name, is_exact=True, abort_when=leave
    )


def _is_over_limit(body: bytes) -> bool:
    return body.count(b"\ndata:") > _TOO_MANY_FRAMES


def _check_limit(session: Session, reply: ProbeReply, name: str) -> bool:
    """Whether the answer kept within its limit."""
    counted, said = reply.usage_count("completion_tokens") or 0, len(_generated_text(reply))
    is_kept = not reply.recording.is_aborted and counted <= _TOO_MANY_TOKENS and said <= _TOO_MANY_CHARACTERS
    heard = f"more than {_TOO_MANY_FRAMES} chunks" if reply.recording.is_aborted else f"{said} characters"
    heard = f"{counted} tokens" if counted > _TOO_MANY_TOKENS else heard
    session.check_rule(
        MAX_TOKENS_BOTH, reply, is_kept, observed=heard, expected=f"an answer within {name} {_LIMIT_TOKENS}"
    )
    return is_kept


async def _check_length_reason(session: Session, reply: ProbeReply, rule: str) -> None:
    """Where another reason is given, the same answer with more room tells whether it was cut."""
    word = session.dialect.length_reason
    if reply.finish_reason != word and (why := await _not_truncated_reason(session, reply)):
        session.not_applicable(rule, why)
        return
    session.check_rule(
        rule, reply, reply.finish_reason == word, observed=reply.finish_reason, expected=f"{word}: the text is cut"
    )


async def _not_truncated_reason(session: Session, reply: ProbeReply) -> str | None:
    """Why an answer cannot be said to be cut; None where it surely is."""
    if reply.finish_reason is None:
        return "the answer came without a reason for its end"
    longer, again = [
        session.require_ok(await _send_limited(session, session.facts.limit_field, tokens, stream=reply.is_stream))
        for tokens in (_LONGER_LIMIT_TOKENS, _LIMIT_TOKENS)
    ]
    if _generated_text(again) != _generated_text(reply) or not _generated_text(longer).startswith(
        _generated_text(reply)
    ):
        return "the server does not repeat itself at temperature 0"
    return "the answer ended before its limit" if _generated_text(longer) == _generated_text(reply) else None


def _generated_text(reply: ProbeReply) -> str:
    return reply.first_choice.reasoning + reply.text


def truncation_probes(rule: str) -> tuple[Probe, ...]:
    """The probes of a dialect in which this rule speaks about answers that are cut."""
    streamed, whole = (partial(_probe_truncation, rule=rule, stream=stream) for stream in (True, False))
    return (
        Probe(
            name="limits",
            description="an answer that is cut at its limit",
            run=streamed,
            rules=(rule,),
            is_exclusive=True,
        ),
        Probe(
            name="limits-whole",
            description="an answer that is cut at its limit, in one piece",
            run=whole,
            rules=(rule,),
            is_exclusive=True,
        ),
    )


LIMIT_PROBES = (
    Probe(
        name="limits",
        description="an answer that is cut at its limit, by both of its names",
        run=_probe_limits,
        rules=(FIN_LENGTH, MAX_TOKENS_BOTH),
        is_exclusive=True,
    ),
    *truncation_probes(FIN_LENGTH)[1:],
)


# Probes of stop strings. What the model says is learned first; the stop strings are cut out of it.


STOP_NOT_LEAKED = "live-stop-not-leaked"
STOP_HOLDBACK_FLUSHED = "live-stop-holdback-flushed"
EMPTY_GENERATION = "live-empty-generation"
STOP_FORMS = "req-stop-forms"

STOP_PROMPT = f"{settings.COUNT_PROMPT}\n\n1, 2, 3,"
"""For the completions endpoint, where a model may think that all is said."""
_STOP_TOKENS = 24
_MIN_ANSWER_CHARS = 8
"""Characters of an answer that has a beginning, a middle and an end."""
_STOP_SPLITS = ((1, 4), (1, 3), (2, 3), (1, 2), (2, 2), (3, 3), (3, 1), (2, 1))
"""Characters of a stop string before and after a border between chunks."""
_UNMATCHED_STOP = "~ZQ~"
"""No answer has it."""
_ANSWER_CHANGED = "with a stop string the model gives another answer"
StopRequest = Callable[..., Awaitable[ProbeReply]]


def _chat_request(session: Session) -> StopRequest:
    return lambda **members: session.generate(settings.COUNT_PROMPT, max_tokens=_STOP_TOKENS, **members)


def _completion_request(session: Session) -> StopRequest:
    return lambda **members: session.complete(STOP_PROMPT, max_tokens=_STOP_TOKENS, **members)


async def _baseline_answer(session: Session, ask: StopRequest) -> ProbeReply:
    """The answer without stop strings."""
    known = session.require_ok(await ask())
    if len(known.text.strip()) < _MIN_ANSWER_CHARS:
        raise NotApplicableError("the answer is too short to cut a stop string out of it")
    return known


# ---- nothing of a stop string is sent, in whatever form it is given


async def _probe_stops(session: Session) -> None:
    ask = _chat_request(session)
    known = await _baseline_answer(session, ask)
    stop = _pick_stop(known)
    listed = await ask(stop=[f"{_UNMATCHED_STOP}1", f"{_UNMATCHED_STOP}2", stop, f"{_UNMATCHED_STOP}3"])
    single = await ask(stop=stop)
    if is_refused(listed) and is_refused(single):
        session.require_ok(single)  # some models take no stop strings at all: newer ones of OpenAI
    _check_stop_form(session, listed, known, stop)
    _check_stop_form(session, await session.generate(settings.HELLO_PROMPT, max_tokens=8, stop=None), known, None)
    _check_stop_form(session, single, known, stop)
    await _check_stop_leak(session, ask, known, single, stop)
    whole = await ask(stop=stop, stream=False)
    _check_stop_form(session, whole, known, stop)
    await _check_stop_leak(session, ask, known, whole, stop)


def _check_stop_form(session: Session, reply: ProbeReply, baseline: ProbeReply, stop: str | None) -> None:
    """A form must be taken, and the answer may not run on as if there were no stop string."""
    if is_refused(reply):
        session.check_rule(
            STOP_FORMS, reply, passed=False, observed=reply.error_summary, expected="an answer: the form is taken"
        )
        return
    session.require_ok(reply)
    runs_on = stop is not None and stop in reply.text and (reply.finish_reason != "stop" or reply.text == baseline.text)
    session.check_rule(STOP_FORMS, reply, not runs_on, observed=reply.text, expected=f"the text ends before {stop!r}")


async def _probe_stops_completions(session: Session) -> None:
    ask = _completion_request(session)
    known = await _baseline_answer(session, ask)
    stop = _pick_stop(known)
    await _check_stop_leak(session, ask, known, await ask(stop=stop), stop)
    await _check_holdback(session, ask, known)


async def _check_stop_leak(
    session: Session, ask: StopRequest, baseline: ProbeReply, reply: ProbeReply, stop: str
) -> None:
    session.require_ok(reply)
    before = baseline.text.partition(stop)[0]
    place = reply.text.find(stop)
    if place < 0 and reply.text != before:
        again = await ask(stop=stop, stream=reply.is_stream)
        is_part = reply.text.startswith(before) and stop.startswith(reply.text[len(before) :])
        if not is_part or again.text != reply.text or (await ask()).text != baseline.text:
            session.not_applicable(STOP_NOT_LEAKED, _ANSWER_CHANGED)
            return
        place = len(before)
    session.check_rule(
        STOP_NOT_LEAKED,
        reply,
        place < 0,
        observed=text_from_difference(reply.text, before),
        expected=f"the text ends before {stop!r}",
        frame=None if place < 0 else frame_at_offset(reply, place),
    )


def _pick_stop(baseline: ProbeReply) -> str:
    """A few characters from the middle of the answer, across a border between chunks where there is one."""
    stop = next(_stop_candidates(baseline), None)
    if stop is None:
        raise NotApplicableError("the answer has nothing that could be a stop string")
    return stop


def _stop_candidates(baseline: ProbeReply) -> Iterator[str]:
    """No white space at its ends or before it: some servers take that off the ends of strings."""
    text = baseline.text
    middle = len(text) // 2
    for places in (chunk_boundaries(baseline), range(len(text))):
        for border in sorted(places, key=lambda place: abs(place - middle)):
            for before, after in _STOP_SPLITS:
                start = border - before
                stop = text[max(start, 0) : border + after]
                is_there_first = start > 0 and text.find(stop) == start
                is_apart = not any(map(str.isspace, text[start - 1 : start + 1] + stop[-1:]))
                if is_there_first and is_apart and len(stop) == before + after and stop.isprintable():
                    yield stop


# ---- what was held back comes in the end


async def _probe_unfinished_stop(session: Session) -> None:
    ask = _chat_request(session)
    await _check_holdback(session, ask, await _baseline_answer(session, ask))


async def _check_holdback(session: Session, ask: StopRequest, baseline: ProbeReply) -> None:
    """The answer ends where a stop string could have begun."""
    end = baseline.text[-2:]
    if not end.isprintable():
        session.not_applicable(STOP_HOLDBACK_FLUSHED, "the answer's end cannot be the beginning of a stop string")
        return
    stop = end + _UNMATCHED_STOP
    reply = session.require_ok(await ask(stop=stop))
    is_kept = reply.text == baseline.text
    if not is_kept:
        again = await ask(stop=stop)
        if not baseline.text.startswith(reply.text) or again.text != reply.text or (await ask()).text != baseline.text:
            session.not_applicable(STOP_HOLDBACK_FLUSHED, _ANSWER_CHANGED)
            return
    session.check_rule(
        STOP_HOLDBACK_FLUSHED,
        reply,
        is_kept,
        observed=text_from_difference(reply.text, baseline.text),
        expected=f"as without stop: {text_from_difference(baseline.text, reply.text)}",
    )


# ---- an answer of nothing


async def _probe_empty_answer(session: Session) -> None:
    """The answer is over before its first word."""
    ask = _chat_request(session)
    stop = (await _baseline_answer(session, ask)).text.lstrip()[:3]
    if not stop.isprintable():
        raise NotApplicableError("the answer's beginning cannot be a stop string")
    reply = session.require_ok(await ask(stop=stop))
    if reply.text.strip():
        raise NotApplicableError(f"with the stop string {stop!r} the answer is still not empty")
    lacking = ", ".join(_missing_in_answer(reply))
    wanted = "a role, a finish_reason and [DONE]"
    session.check_rule(EMPTY_GENERATION, reply, not lacking, observed=f"an answer without {lacking}", expected=wanted)


def _missing_in_answer(reply: ProbeReply) -> Iterator[str]:
    if not reply.first_choice.role:
        yield "role"
    if reply.finish_reason is None:
        yield "finish_reason"
    if reply.is_stream and not reply.view.done_messages:
        yield "[DONE]"


STOP_PROBES = (
    Probe(
        name="stops",
        description="stop strings in all forms, and across tokens",
        run=_probe_stops,
        rules=(STOP_NOT_LEAKED, STOP_FORMS),
        is_exclusive=True,
    ),
    Probe(
        name="stops-unfinished",
        description="a stop string that only begins",
        run=_probe_unfinished_stop,
        rules=(STOP_HOLDBACK_FLUSHED,),
        is_exclusive=True,
    ),
    Probe(
        name="stops-completions",
        description="stop strings on the completions endpoint",
        run=_probe_stops_completions,
        rules=(STOP_NOT_LEAKED, STOP_HOLDBACK_FLUSHED),
        is_exclusive=True,
    ),
    Probe(
        name="stops-empty",
        description="an answer that is over before its first word",
        run=_probe_empty_answer,
        rules=(EMPTY_GENERATION,),
        is_exclusive=True,
    ),
)
