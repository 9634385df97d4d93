"""Probes of the token limit and of stop strings."""

from functools import partial

from welldone.check import settings
from welldone.check.probes.errors import is_refused
from welldone.check.reply import ProbeReply, RequestFunction, chunk_boundaries, frame_at_offset, text_from_difference
from welldone.check.session import NOT_REPRODUCIBLE, NotApplicableError, Probe, Session, stream_and_whole

_LIMIT_TOKENS = 8
_LONGER_LIMIT_TOKENS = 40
_TOO_MANY_FRAMES = 64
"""Frames after which the stream is aborted: a server that ignores the limit would continue for minutes."""
_TOO_MANY_TOKENS = 2 * _LIMIT_TOKENS
"""Servers differ by one or two tokens in what they count."""
_TOO_MANY_CHARACTERS = 16 * _LIMIT_TOKENS
"""For servers that send many tokens in one chunk. Few tokens have 16 characters, and numbers have far fewer."""
_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")


async def _probe_limits(session: Session) -> None:
    for name in _LIMIT_FIELDS:
        reply = await _send_limited(session, name, _LIMIT_TOKENS)
        if is_refused(reply) and name != session.facts.limit_field:
            session.check_rule("req-max-tokens-both", reply, False, reply.error_summary, f"an answer limited by {name}")
            continue
        session.require_ok(reply)
        if _check_limit(session, reply, name):
            await _check_length_reason(session, reply, "fin-length")


async def _probe_truncation(session: Session, *, rule: str, stream: bool) -> None:
    reply = session.require_ok(await _send_limited(session, session.facts.limit_field, _LIMIT_TOKENS, stream=stream))
    await _check_length_reason(session, reply, rule)


async def _send_limited(session: Session, name: str, tokens: int, *, stream: bool = True) -> ProbeReply:
    request = partial(session.generate, settings.COUNT_PROMPT, max_tokens=tokens, limit_field=name, is_exact=True)
    if not stream:
        return await request(stream=False)
    return await request(abort_when=lambda body: body.count(b"\ndata:") > _TOO_MANY_FRAMES)


def _check_limit(session: Session, reply: ProbeReply, name: str) -> bool:
    """Judge whether the answer is within its limit; returns the result."""
    tokens, characters = reply.usage_count("completion_tokens") or 0, len(_generated_text(reply))
    is_within = not reply.recording.is_aborted and tokens <= _TOO_MANY_TOKENS and characters <= _TOO_MANY_CHARACTERS
    observed = f"more than {_TOO_MANY_FRAMES} chunks" if reply.recording.is_aborted else f"{characters} characters"
    observed = f"{tokens} tokens" if tokens > _TOO_MANY_TOKENS else observed
    session.check_rule("req-max-tokens-both", reply, is_within, observed, f"an answer within {name} {_LIMIT_TOKENS}")
    return is_within


async def _check_length_reason(session: Session, reply: ProbeReply, rule: str) -> None:
    """Judge the finish reason of an answer that reached its limit."""
    expected = session.dialect.length_reason
    if reply.finish_reason != expected and (why := await _not_truncated_reason(session, reply)):
        session.not_applicable(rule, why)
        return
    reason = reply.finish_reason
    session.check_rule(rule, reply, reason == expected, reason, f"{expected}: the text is truncated")


async def _not_truncated_reason(session: Session, reply: ProbeReply) -> str | None:
    """Why the answer may be complete; None where the same request with a higher limit shows that it is truncated."""
    if reply.finish_reason is None:
        return "the answer has no finish reason"
    request = partial(_send_limited, session, session.facts.limit_field, stream=reply.is_stream)
    longer = _generated_text(session.require_ok(await request(_LONGER_LIMIT_TOKENS)))
    repeated = _generated_text(session.require_ok(await request(_LIMIT_TOKENS)))
    text = _generated_text(reply)
    if repeated != text or not longer.startswith(text):
        return NOT_REPRODUCIBLE
    return "the answer ended before its limit" if longer == text else None


def _generated_text(reply: ProbeReply) -> str:
    return reply.first_choice.reasoning + reply.text


def truncation_probes(rule: str) -> tuple[Probe, Probe]:
    """Probes of a dialect whose rule about truncated answers is `rule`."""
    run = partial(_probe_truncation, rule=rule)
    return stream_and_whole("limits", "an answer that reaches its token limit", run, (rule,), is_exclusive=True)


_LIMITS = "an answer that reaches max_tokens and max_completion_tokens"
LIMIT_PROBES = (
    Probe("limits", _LIMITS, _probe_limits, ("fin-length", "req-max-tokens-both"), is_exclusive=True),
    *truncation_probes("fin-length")[1:],
)


# ---- stop strings: a first answer without them supplies strings that occur in it


STOP_NOT_LEAKED = "live-stop-not-leaked"
STOP_HOLDBACK_FLUSHED = "live-stop-holdback-flushed"

STOP_PROMPT = f"{settings.COUNT_PROMPT}\n\n1, 2, 3,"
"""For the completions endpoint: after the bare prompt a model may end at once."""
_STOP_TOKENS = 24
_MIN_ANSWER_CHARS = 8
"""Characters of an answer from which a stop string can be taken."""
_STOP_SPLITS = ((1, 4), (1, 3), (2, 3), (1, 2), (2, 2), (3, 3), (3, 1), (2, 1))
"""Characters of a stop string before and after a chunk boundary."""
UNMATCHED_STOP = "~ZQ~"
"""A stop string that no answer contains."""
_ANSWER_CHANGED = "with a stop string the model gives another answer"


async def _baseline_answer(session: Session, *, is_completion: bool = False) -> tuple[RequestFunction, ProbeReply]:
    """A request, and the answer to it without stop strings."""
    request = partial(session.generate, settings.COUNT_PROMPT, max_tokens=_STOP_TOKENS)
    if is_completion:
        request = partial(session.complete, STOP_PROMPT, max_tokens=_STOP_TOKENS)
    baseline = session.require_ok(await request())
    if len(baseline.text.strip()) < _MIN_ANSWER_CHARS:
        raise NotApplicableError("the answer is too short to take a stop string from it")
    return request, baseline


async def _probe_stops(session: Session) -> None:
    request, baseline = await _baseline_answer(session)
    stop = _pick_stop(baseline)
    listed = await request(stop=[f"{UNMATCHED_STOP}1", f"{UNMATCHED_STOP}2", stop, f"{UNMATCHED_STOP}3"])
    single = await request(stop=stop)
    if is_refused(listed) and is_refused(single):
        session.require_ok(single)  # some models accept no stop strings, for example OpenAI's o3
    _check_stop_form(session, listed, baseline, stop)
    _check_stop_form(session, await session.generate(settings.HELLO_PROMPT, max_tokens=8, stop=None), baseline, None)
    _check_stop_form(session, single, baseline, stop)
    await _check_stop_leak(session, request, baseline, single, stop)
    buffered = await request(stop=stop, stream=False)
    _check_stop_form(session, buffered, baseline, stop)
    await _check_stop_leak(session, request, baseline, buffered, stop)


def _check_stop_form(session: Session, reply: ProbeReply, baseline: ProbeReply, stop: str | None) -> None:
    """A string, a list and null must be accepted, and a matching stop string must end the answer."""
    if is_refused(reply):
        session.check_rule("req-stop-forms", reply, False, reply.error_summary, "an answer: the form is valid")
        return
    session.require_ok(reply)
    runs_on = stop is not None and stop in reply.text and (reply.finish_reason != "stop" or reply.text == baseline.text)
    session.check_rule("req-stop-forms", reply, not runs_on, reply.text, f"the text ends before {stop!r}")


async def _probe_stops_completions(session: Session) -> None:
    request, baseline = await _baseline_answer(session, is_completion=True)
    stop = _pick_stop(baseline)
    await _check_stop_leak(session, request, baseline, await request(stop=stop), stop)
    await _check_holdback(session, request, baseline)


async def _check_stop_leak(
    session: Session, request: RequestFunction, baseline: ProbeReply, reply: ProbeReply, stop: str
) -> None:
    """Neither the stop string nor its beginning may be in the text."""
    session.require_ok(reply)
    before = baseline.text.partition(stop)[0]
    offset = reply.text.find(stop)
    if offset < 0 and reply.text != before:
        is_part = reply.text.startswith(before) and stop.startswith(reply.text[len(before) :])
        if not is_part or not await _is_repeated(request, baseline, reply, stop):
            session.not_applicable(STOP_NOT_LEAKED, _ANSWER_CHANGED)
            return
        offset = len(before)
    observed, expected = text_from_difference(reply.text, before), f"the text ends before {stop!r}"
    frame = None if offset < 0 else frame_at_offset(reply, offset)
    session.check_rule(STOP_NOT_LEAKED, reply, offset < 0, observed, expected, frame=frame)


async def _is_repeated(request: RequestFunction, baseline: ProbeReply, reply: ProbeReply, stop: str) -> bool:
    """Whether the answers with and without the stop string are the same again."""
    repeated = await request(stop=stop, stream=reply.is_stream)
    return repeated.text == reply.text and (await request()).text == baseline.text


def _pick_stop(baseline: ProbeReply) -> str:
    """A few characters from the middle of the answer, across a chunk boundary if possible.

    They have no white space at their ends or before them, since some servers strip it.
    """
    text = baseline.text
    middle = len(text) // 2
    for offsets in (chunk_boundaries(baseline), range(len(text))):
        for boundary in sorted(offsets, key=lambda offset: abs(offset - middle)):
            for before, after in _STOP_SPLITS:
                start = boundary - before
                stop = text[max(start, 0) : boundary + after]
                is_first_match = start > 0 and text.find(stop) == start
                has_no_space = not any(map(str.isspace, text[start - 1 : start + 1] + stop[-1:]))
                if is_first_match and has_no_space and len(stop) == before + after and stop.isprintable():
                    return stop
    raise NotApplicableError("no part of the answer can be a stop string")


async def _probe_unfinished_stop(session: Session) -> None:
    await _check_holdback(session, *await _baseline_answer(session))


async def _check_holdback(session: Session, request: RequestFunction, baseline: ProbeReply) -> None:
    """Text that a server holds back, because it may begin a stop string, must be sent at the end of the answer."""
    end = baseline.text[-2:]
    if not end.isprintable():
        session.not_applicable(STOP_HOLDBACK_FLUSHED, "the answer's end cannot be the beginning of a stop string")
        return
    stop = end + UNMATCHED_STOP
    reply = session.require_ok(await request(stop=stop))
    is_same = reply.text == baseline.text
    is_prefix = baseline.text.startswith(reply.text)
    if not is_same and not (is_prefix and await _is_repeated(request, baseline, reply, stop)):
        session.not_applicable(STOP_HOLDBACK_FLUSHED, _ANSWER_CHANGED)
        return
    observed = text_from_difference(reply.text, baseline.text)
    expected = f"as without stop: {text_from_difference(baseline.text, reply.text)}"
    session.check_rule(STOP_HOLDBACK_FLUSHED, reply, is_same, observed, expected)


async def _probe_empty_answer(session: Session) -> None:
    """A stop string at the start of the answer makes it empty."""
    request, baseline = await _baseline_answer(session)
    stop = baseline.text.lstrip()[:3]
    if not stop.isprintable():
        raise NotApplicableError("the answer's beginning cannot be a stop string")
    reply = session.require_ok(await request(stop=stop))
    if reply.text.strip():
        raise NotApplicableError(f"with the stop string {stop!r} the answer is still not empty")
    parts = {
        "role": bool(reply.first_choice.role),
        "finish_reason": reply.finish_reason is not None,
        "[DONE]": not reply.is_stream or bool(reply.view.done_messages),
    }
    missing = ", ".join(name for name, is_present in parts.items() if not is_present)
    expected = "a role, a finish_reason and [DONE]"
    session.check_rule("live-empty-generation", reply, not missing, f"an answer without {missing}", expected)


_STOPS = "stop strings in all forms and across chunks"
_UNFINISHED = "an answer that ends with the beginning of a stop string"
_COMPLETIONS = "stop strings on the completions endpoint"
_COMPLETION_RULES = (STOP_NOT_LEAKED, STOP_HOLDBACK_FLUSHED)
_EMPTY = "a stop string at the start of the answer"
STOP_PROBES = (
    Probe("stops", _STOPS, _probe_stops, (STOP_NOT_LEAKED, "req-stop-forms"), is_exclusive=True),
    Probe("stops-unfinished", _UNFINISHED, _probe_unfinished_stop, (STOP_HOLDBACK_FLUSHED,), is_exclusive=True),
    Probe("stops-completions", _COMPLETIONS, _probe_stops_completions, _COMPLETION_RULES, is_exclusive=True),
    Probe("stops-empty", _EMPTY, _probe_empty_answer, ("live-empty-generation",), is_exclusive=True),
)
