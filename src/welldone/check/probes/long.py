"""A probe of times: what comes while a long prompt is read."""

import itertools
import secrets

from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

HEAD_FIRST = "http-headers-before-prefill"

_SENTENCES = 150  # of ten words: a prompt that takes a second or more on a small machine
_THINGS = ("house", "river", "letter", "garden", "engine", "window", "market", "bridge", "forest", "teacher", "kettle")
_PLACES = ("north", "old town", "valley", "harbour", "hills", "village", "station")


async def _long(session: Session) -> None:
    reply = await _ask(session, _SENTENCES)
    if reply.status in (400, 413, 422):  # too long for it
        reply = await _ask(session, _SENTENCES // 3)
    _judge(session, session.answered(reply))


def _judge(session: Session, reply: Reply) -> None:
    if not reply.text_times:
        raise NotHeardError("the answer had no text")
    first_s, head_s = reply.text_times[0], reply.recording.head_s
    if head_s is None or first_s < session.patience.prefill_s:
        raise NotHeardError(f"the prompt was read within {first_s:.2f} s: too quickly to tell")
    heard = f"the head after {head_s:.2f} s, and the first text after {first_s:.2f} s"
    session.hold(HEAD_FIRST, reply, head_s <= first_s / 2, heard=heard, wanted="the head at once")


async def _ask(session: Session, sentences: int) -> Reply:
    return await session.chat(f"{filler(sentences)}\n\nSay OK.", max_tokens=8)


def filler(sentences: int) -> str:
    """Text that no server has read before: what it has read it may remember, and then there is no wait."""
    numbers = range(1, sentences + 1)
    words = zip(numbers, itertools.cycle(_THINGS), itertools.cycle(_PLACES), strict=False)
    story = " ".join(f"Number {number} is a {thing} from the {place}, seen today." for number, thing, place in words)
    return f"Note {secrets.token_hex(4)}. {story}"


PROBES = (Probe(name="long", says="a short answer to a long prompt", work=_long, rules=(HEAD_FIRST,), is_alone=True),)
