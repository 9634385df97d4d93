"""A probe of times: whether words come when they are made."""

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session

FLUSH_EACH_EVENT = "http-flush-each-event"

_MIN_DELTAS = 8  # chunks with text: of fewer there is no saying that they were collected
_FLUSH_TOKENS = 48
_LONGER_FLUSH_TOKENS = 192  # where nothing is collected, they take longer than a network waits to fill a packet
_BURST_S = 0.005  # no model makes so many tokens in that time


async def _probe_flush(session: Session) -> None:
    reply = await _stream_deltas(session, _FLUSH_TOKENS)
    if not _is_burst(session, reply):
        session.check_rule(FLUSH_EACH_EVENT, reply, passed=True)
        return
    # A single burst may be the network's. Who collects twice does so always.
    reply = await _stream_deltas(session, _LONGER_FLUSH_TOKENS)
    times = reply.delta_times
    heard = f"nothing for {times[0]:.2f} s, then {len(times)} pieces of text within {times[-1] - times[0]:.3f} s"
    session.check_rule(
        FLUSH_EACH_EVENT, reply, not _is_burst(session, reply), observed=heard, expected="each piece when it is made"
    )


async def _stream_deltas(session: Session, tokens: int) -> ProbeReply:
    """A stream with many pieces of text."""
    reply = session.require_ok(await session.generate(prompts.COUNT_PROMPT, max_tokens=tokens))
    if len(reply.delta_times) < _MIN_DELTAS:
        raise NotApplicableError(f"{len(reply.delta_times)} pieces of text are too few to show when each is sent")
    return reply


def _is_burst(session: Session, reply: ProbeReply) -> bool:
    """Whether all came at once, after a time in which some could have come."""
    times = reply.delta_times
    if times[-1] - times[0] > _BURST_S:
        return False
    if times[-1] < session.timeouts.stream_s:
        raise NotApplicableError("the answer came too quickly to tell")
    return True


FLUSH_PROBES = (
    Probe(
        name="flush",
        description="whether words come as they are made",
        run=_probe_flush,
        rules=(FLUSH_EACH_EVENT,),
        is_exclusive=True,
    ),
)
