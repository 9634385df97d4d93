"""A probe of times: what comes while a long prompt is read."""

import itertools
import secrets

from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

HEAD_FIRST = "http-headers-before-prefill"

_SENTENCES = 50  # of ten words: they take a second or so on a small machine
_MORE_SENTENCES = 150  # for a fast one
_SOON = 3  # times `prefill_s`: a head that comes so soon is late for nobody, and lets a refusal have its status
_THINGS = ("house", "river", "letter", "garden", "engine", "window", "market", "bridge", "forest", "teacher", "kettle")
_PLACES = ("north", "old town", "valley", "harbour", "hills", "village", "station")


async def _long(session: Session) -> None:
    reply = session.answered(await _ask(session, _SENTENCES))
    if _is_quick(session, reply):
        longer = await _ask(session, _MORE_SENTENCES)
        reply = longer if longer.is_ok else reply
    if _is_quick(session, reply):
        raise NotHeardError("a long prompt was read too quickly to tell")
    head_s = reply.recording.head_s or 0.0
    heard = f"the head after {head_s:.2f} s, and the first text after {reply.text_times[0]:.2f} s"
    session.hold(HEAD_FIRST, reply, _is_head_first(reply), heard=heard, wanted="the head at once")


def _is_quick(session: Session, reply: Reply) -> bool:
    """Whether it says nothing: the text came at once, or its head came late but soon enough."""
    if not reply.text_times:
        raise NotHeardError("the answer had no text")
    prefill_s, head_s = session.patience.prefill_s, reply.recording.head_s or 0.0
    return reply.text_times[0] < prefill_s or (not _is_head_first(reply) and head_s < _SOON * prefill_s)


def _is_head_first(reply: Reply) -> bool:
    return (reply.recording.head_s or 0.0) <= reply.text_times[0] / 2


async def _ask(session: Session, sentences: int) -> Reply:
    return await session.ask(f"{filler(sentences)}\n\nSay OK.", max_tokens=8)


def filler(sentences: int) -> str:
    """Text that no server has read before: what it has read it may remember, and then there is no wait."""
    numbers = range(1, sentences + 1)
    words = zip(numbers, itertools.cycle(_THINGS), itertools.cycle(_PLACES), strict=False)
    story = " ".join(f"Number {number} is a {thing} from the {place}, seen today." for number, thing, place in words)
    return f"Note {secrets.token_hex(4)}. {story}"


PROBES = (Probe(name="long", says="a short answer to a long prompt", work=_long, rules=(HEAD_FIRST,), is_alone=True),)
