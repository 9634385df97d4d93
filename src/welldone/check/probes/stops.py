"""Probes of stop strings. What the model says is learned first; the stop strings are cut out of it."""

from collections.abc import Awaitable, Callable, Iterator

from welldone.check import prompts
from welldone.check.places import borders, frame_of, from_difference
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

NOT_LEAKED = "live-stop-not-leaked"
HOLDBACK_FLUSHED = "live-stop-holdback-flushed"
EMPTY_GENERATION = "live-empty-generation"
FORMS = "req-stop-forms"

COUNTED = f"{prompts.COUNT}\n\n1, 2, 3,"
"""For the completions endpoint, where a model may think that all is said."""
_TOKENS = 24
_LEAST = 8
"""Characters of an answer that has a beginning, a middle and an end."""
_CUTS = ((1, 4), (1, 3), (2, 3), (1, 2), (2, 2), (3, 3), (3, 1), (2, 1))
"""Characters of a stop string before and after a border between chunks."""
_NEVER = "~ZQ~"
"""No answer has it."""
_OTHER = "with a stop string the model gives another answer"
Ask = Callable[..., Awaitable[Reply]]


def _chat(session: Session) -> Ask:
    return lambda **members: session.ask(prompts.COUNT, max_tokens=_TOKENS, **members)


def _complete(session: Session) -> Ask:
    return lambda **members: session.complete(COUNTED, max_tokens=_TOKENS, **members)


async def _learn(session: Session, ask: Ask) -> Reply:
    """The answer without stop strings."""
    known = session.answered(await ask())
    if len(known.text.strip()) < _LEAST:
        raise NotHeardError("the answer is too short to cut a stop string out of it")
    return known


# ---- nothing of a stop string is sent, in whatever form it is given


async def _stops(session: Session) -> None:
    ask = _chat(session)
    known = await _learn(session, ask)
    stop = _cut(known)
    listed = await ask(stop=[f"{_NEVER}1", f"{_NEVER}2", stop, f"{_NEVER}3"])
    single = await ask(stop=stop)
    if is_refused(listed) and is_refused(single):
        session.answered(single)  # some models take no stop strings at all: newer ones of OpenAI
    _hold_form(session, listed, known, stop)
    _hold_form(session, await session.ask(prompts.HELLO, max_tokens=8, stop=None), known, None)
    _hold_form(session, single, known, stop)
    await _hold_leak(session, ask, known, single, stop)
    whole = await ask(stop=stop, stream=False)
    _hold_form(session, whole, known, stop)
    await _hold_leak(session, ask, known, whole, stop)


def _hold_form(session: Session, reply: Reply, known: Reply, stop: str | None) -> None:
    """A form must be taken, and the answer may not run on as if there were no stop string."""
    if is_refused(reply):
        session.hold(FORMS, reply, is_kept=False, heard=reply.complaint, wanted="an answer: the form is taken")
        return
    session.answered(reply)
    runs_on = stop is not None and stop in reply.text and (reply.finish != "stop" or reply.text == known.text)
    session.hold(FORMS, reply, not runs_on, heard=reply.text, wanted=f"the text ends before {stop!r}")


async def _completions(session: Session) -> None:
    ask = _complete(session)
    known = await _learn(session, ask)
    stop = _cut(known)
    await _hold_leak(session, ask, known, await ask(stop=stop), stop)
    await _hold_flush(session, ask, known)


async def _hold_leak(session: Session, ask: Ask, known: Reply, reply: Reply, stop: str) -> None:
    session.answered(reply)
    before = known.text.partition(stop)[0]
    place = reply.text.find(stop)
    if place < 0 and reply.text != before:
        again = await ask(stop=stop, stream=reply.is_stream)
        is_part = reply.text.startswith(before) and stop.startswith(reply.text[len(before) :])
        if not is_part or again.text != reply.text or (await ask()).text != known.text:
            session.not_heard(NOT_LEAKED, _OTHER)
            return
        place = len(before)
    session.hold(
        NOT_LEAKED,
        reply,
        place < 0,
        heard=from_difference(reply.text, before),
        wanted=f"the text ends before {stop!r}",
        frame=None if place < 0 else frame_of(reply, place),
    )


def _cut(known: Reply) -> str:
    """A few characters from the middle of the answer, across a border between chunks where there is one."""
    stop = next(_cuts(known), None)
    if stop is None:
        raise NotHeardError("the answer has nothing that could be a stop string")
    return stop


def _cuts(known: Reply) -> Iterator[str]:
    """No white space at its ends or before it: some servers take that off the ends of strings."""
    text = known.text
    middle = len(text) // 2
    for places in (borders(known), range(len(text))):
        for border in sorted(places, key=lambda place: abs(place - middle)):
            for before, after in _CUTS:
                start = border - before
                stop = text[max(start, 0) : border + after]
                is_there_first = start > 0 and text.find(stop) == start
                is_apart = not any(map(str.isspace, text[start - 1 : start + 1] + stop[-1:]))
                if is_there_first and is_apart and len(stop) == before + after and stop.isprintable():
                    yield stop


# ---- what was held back comes in the end


async def _unfinished(session: Session) -> None:
    ask = _chat(session)
    await _hold_flush(session, ask, await _learn(session, ask))


async def _hold_flush(session: Session, ask: Ask, known: Reply) -> None:
    """The answer ends where a stop string could have begun."""
    end = known.text[-2:]
    if not end.isprintable():
        session.not_heard(HOLDBACK_FLUSHED, "the answer's end cannot be the beginning of a stop string")
        return
    stop = end + _NEVER
    reply = session.answered(await ask(stop=stop))
    is_kept = reply.text == known.text
    if not is_kept:
        again = await ask(stop=stop)
        if not known.text.startswith(reply.text) or again.text != reply.text or (await ask()).text != known.text:
            session.not_heard(HOLDBACK_FLUSHED, _OTHER)
            return
    session.hold(
        HOLDBACK_FLUSHED,
        reply,
        is_kept,
        heard=from_difference(reply.text, known.text),
        wanted=f"as without stop: {from_difference(known.text, reply.text)}",
    )


# ---- an answer of nothing


async def _empty(session: Session) -> None:
    """The answer is over before its first word."""
    ask = _chat(session)
    stop = (await _learn(session, ask)).text.lstrip()[:3]
    if not stop.isprintable():
        raise NotHeardError("the answer's beginning cannot be a stop string")
    reply = session.answered(await ask(stop=stop))
    if reply.text.strip():
        raise NotHeardError(f"with the stop string {stop!r} the answer is still not empty")
    lacking = ", ".join(_lacking(reply))
    wanted = "a role, a finish_reason and [DONE]"
    session.hold(EMPTY_GENERATION, reply, not lacking, heard=f"an answer without {lacking}", wanted=wanted)


def _lacking(reply: Reply) -> Iterator[str]:
    if not reply.first.role:
        yield "role"
    if reply.finish is None:
        yield "finish_reason"
    if reply.is_stream and not reply.heard.dones:
        yield "[DONE]"


PROBES = (
    Probe(
        name="stops",
        says="stop strings in all forms, and across tokens",
        work=_stops,
        rules=(NOT_LEAKED, FORMS),
        is_alone=True,
    ),
    Probe(
        name="stops-unfinished",
        says="a stop string that only begins",
        work=_unfinished,
        rules=(HOLDBACK_FLUSHED,),
        is_alone=True,
    ),
    Probe(
        name="stops-completions",
        says="stop strings on the completions endpoint",
        work=_completions,
        rules=(NOT_LEAKED, HOLDBACK_FLUSHED),
        is_alone=True,
    ),
    Probe(
        name="stops-empty",
        says="an answer that is over before its first word",
        work=_empty,
        rules=(EMPTY_GENERATION,),
        is_alone=True,
    ),
)
