"""A probe of times: whether words come when they are made."""

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

FLUSH = "http-flush-each-event"

_FEWEST = 8  # chunks with text: of fewer there is no saying that they were collected
_TOKENS = 48
_MORE_TOKENS = 192  # where nothing is collected, they take longer than a network waits to fill a packet
_BURST_S = 0.005  # no model makes so many tokens in that time


async def _flush(session: Session) -> None:
    reply = await _count(session, _TOKENS)
    if not _is_burst(session, reply):
        session.hold(FLUSH, reply, is_kept=True)
        return
    # A single burst may be the network's. Who collects twice does so always.
    reply = await _count(session, _MORE_TOKENS)
    times = reply.text_times
    heard = f"nothing for {times[0]:.2f} s, then {len(times)} pieces of text within {times[-1] - times[0]:.3f} s"
    session.hold(FLUSH, reply, not _is_burst(session, reply), heard=heard, wanted="each piece when it is made")


async def _count(session: Session, tokens: int) -> Reply:
    """A stream with many pieces of text."""
    reply = session.answered(await session.ask(prompts.COUNT, max_tokens=tokens))
    if len(reply.text_times) < _FEWEST:
        raise NotHeardError(f"{len(reply.text_times)} pieces of text are too few to show when each is sent")
    return reply


def _is_burst(session: Session, reply: Reply) -> bool:
    """Whether all came at once, after a time in which some could have come."""
    times = reply.text_times
    if times[-1] - times[0] > _BURST_S:
        return False
    if times[-1] < session.patience.stream_s:
        raise NotHeardError("the answer came too quickly to tell")
    return True


PROBES = (Probe(name="flush", says="whether words come as they are made", work=_flush, rules=(FLUSH,), is_alone=True),)
