"""A probe of times: what comes while a long prompt is read."""

import itertools
import secrets

from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session

HEADERS_BEFORE_PREFILL = "http-headers-before-prefill"

_PROMPT_SENTENCES = 50  # of ten words: they take a second or so on a small machine
_LONGER_PROMPT_SENTENCES = 150  # for a fast one
_PREFILL_FACTOR = (
    3  # times `prefill_s`: a head that comes so soon is late for nobody, and lets a refusal have its status
)
_FILLER_NOUNS = (
    "house",
    "river",
    "letter",
    "garden",
    "engine",
    "window",
    "market",
    "bridge",
    "forest",
    "teacher",
    "kettle",
)
_FILLER_LOCATIONS = ("north", "old town", "valley", "harbour", "hills", "village", "station")


async def _probe_prefill(session: Session) -> None:
    reply = session.require_ok(await _send_long_prompt(session, _PROMPT_SENTENCES))
    if _is_inconclusive(session, reply):
        longer = await _send_long_prompt(session, _LONGER_PROMPT_SENTENCES)
        reply = longer if longer.is_ok else reply
    if _is_inconclusive(session, reply):
        raise NotApplicableError("a long prompt was read too quickly to tell")
    head_s = reply.recording.head_s or 0.0
    heard = f"the head after {head_s:.2f} s, and the first text after {reply.delta_times[0]:.2f} s"
    session.check_rule(
        HEADERS_BEFORE_PREFILL, reply, _has_early_headers(reply), observed=heard, expected="the head at once"
    )


def _is_inconclusive(session: Session, reply: ProbeReply) -> bool:
    """Whether it says nothing: the text came at once, or its head came late but soon enough."""
    if not reply.delta_times:
        raise NotApplicableError("the answer had no text")
    prefill_s, head_s = session.timeouts.prefill_s, reply.recording.head_s or 0.0
    return reply.delta_times[0] < prefill_s or (not _has_early_headers(reply) and head_s < _PREFILL_FACTOR * prefill_s)


def _has_early_headers(reply: ProbeReply) -> bool:
    return (reply.recording.head_s or 0.0) <= reply.delta_times[0] / 2


async def _send_long_prompt(session: Session, sentences: int) -> ProbeReply:
    return await session.generate(f"{filler_text(sentences)}\n\nSay OK.", max_tokens=8)


def filler_text(sentences: int) -> str:
    """Text that no server has read before: what it has read it may remember, and then there is no wait."""
    numbers = range(1, sentences + 1)
    words = zip(numbers, itertools.cycle(_FILLER_NOUNS), itertools.cycle(_FILLER_LOCATIONS), strict=False)
    story = " ".join(f"Number {number} is a {thing} from the {place}, seen today." for number, thing, place in words)
    return f"Note {secrets.token_hex(4)}. {story}"


PREFILL_PROBES = (
    Probe(
        name="long",
        description="a short answer to a long prompt",
        run=_probe_prefill,
        rules=(HEADERS_BEFORE_PREFILL,),
        is_exclusive=True,
    ),
)
