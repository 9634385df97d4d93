"""A probe of who leaves: whether a server stops when nobody listens any more.

A server that shows how many requests it works on is looked at. Of any other there are only times to see: a small
request that has to wait shows that something else runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.gauges import Gauge, find_gauge
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

CANCEL = "live-cancel-on-disconnect"
_WANTED = "a server that stops when its client goes away"

_TOKENS = 400  # of an answer that is left: it would go on for seconds
_FRAMES = 3  # that are heard before: by then it surely runs
_PAUSE_S = 0.05  # between two looks; they cost the server next to nothing
_STREAMS = 3  # that make it busy: with a small request there are four at once, as by default
_NOISE_S = 0.1  # by which two times may differ for no reason

Running: TypeAlias = "asyncio.Task[Reply]"


class _Listener:
    """One who hears the beginning of long answers, and then leaves when told to."""

    def __init__(self) -> None:
        self.has_heard = False
        self.is_leaving = False

    def leave(self, body: bytes) -> bool:
        self.has_heard = self.has_heard or body.count(b"data:") > _FRAMES
        return self.has_heard and self.is_leaving

    async def ask(self, session: Session) -> Reply:
        return await session.ask(prompts.COUNT, max_tokens=_TOKENS, leave=self.leave)


async def _leaving(session: Session) -> None:
    if session.side_by_side == 1:
        raise NotHeardError("it takes two requests at once: --jobs 2")
    gauge = await find_gauge(session)
    if gauge is None:
        await _by_time(session)
    else:
        await _by_gauge(session, gauge)


# ---- with a gauge


async def _by_gauge(session: Session, gauge: Gauge) -> None:
    if await _idle_after(session, gauge) is None:
        raise NotHeardError("the server has other work to do")
    left = await _leave_when_seen(session, gauge)
    idle_s = await _idle_after(session, gauge)
    if idle_s is not None:
        _keep(session, left, idle_s)
        return
    # Some gauges stand still while nothing is asked.
    session.answered(await _ask_little(session))
    if not await gauge(session):
        raise NotHeardError("the server's own count of its requests is late")
    heard = f"a request that still runs {session.patience.leave_s:g} s after its client went away"
    session.hold(CANCEL, left, is_kept=False, heard=heard, wanted=_WANTED)


async def _leave_when_seen(session: Session, gauge: Gauge) -> Reply:
    """A long answer that was left once the gauge had shown it."""
    listener = _Listener()
    async with _running(listener.ask(session)) as (stream,):
        while not stream.done() and not listener.is_leaving:
            listener.is_leaving = bool(await gauge(session))
            await asyncio.sleep(_PAUSE_S)
        left = session.answered(await stream)
    if not left.recording.is_left:
        raise NotHeardError("the answer was over before the server showed that it was at work")
    return left


async def _idle_after(session: Session, gauge: Gauge) -> float | None:
    """Seconds until the server works on nothing; None: it goes on for longer than we wait."""
    begun = time.monotonic()
    while await gauge(session):
        if time.monotonic() - begun > session.patience.leave_s:
            return None
        await asyncio.sleep(_PAUSE_S)
    return time.monotonic() - begun


# ---- with a clock


async def _by_time(session: Session) -> None:
    alone_s = max([session.answered(await _ask_little(session)).recording.ended_s for _ in range(2)])
    listener = _Listener()
    count = min(_STREAMS, session.side_by_side - 1)
    async with _running(*(listener.ask(session) for _ in range(count))) as streams:
        pending = set(streams)
        while pending and not listener.has_heard:
            _, pending = await asyncio.wait(streams, timeout=_PAUSE_S)
        busy_s = await _time_beside(session, alone_s)
        listener.is_leaving = True
        await asyncio.wait(streams, timeout=busy_s)  # those that wait for their turn are left by force
        left = [stream.result() for stream in streams if stream.done() and stream.exception() is None]
    left = [reply for reply in left if reply.recording.is_left]
    if not left:
        raise NotHeardError("the answers were over before anybody could leave")
    free_s = await _free_after(session, (alone_s + busy_s) / 2)
    if free_s is not None:
        _keep(session, left[0], free_s)
        return
    heard = f"a small request waits {session.patience.leave_s:g} s after all others were left; alone {alone_s:.2f} s"
    session.hold(CANCEL, left[0], is_kept=False, heard=heard, wanted=_WANTED)


async def _time_beside(session: Session, alone_s: float) -> float:
    """How long a small request takes while others run: at least so long, where it waits for them to end."""
    slow_s = max(2 * alone_s, alone_s + _NOISE_S)
    begun = time.monotonic()
    async with _running(_ask_little(session)) as asked:
        done, _ = await asyncio.wait(asked, timeout=2 * slow_s)
        busy_s = time.monotonic() - begun
    for task in done:
        session.answered(task.result())
    if busy_s < slow_s:
        raise NotHeardError("nothing shows whether it still works: no /slots, no /metrics, and no request has to wait")
    return busy_s


async def _free_after(session: Session, free_s: float) -> float | None:
    """Seconds until a small request is answered quickly again; None: it is not, for longer than we wait."""
    begun = time.monotonic()
    while session.answered(await _ask_little(session)).recording.ended_s > free_s:
        if time.monotonic() - begun > session.patience.leave_s:
            return None
    return time.monotonic() - begun


# ---- both


def _keep(session: Session, left: Reply, after_s: float) -> None:
    """The server stopped: of its own accord only where there was much left to say."""
    times = left.text_times
    pace_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    if after_s > pace_s * (_TOKENS - len(times)) / 2:
        raise NotHeardError("the answer may have been over by itself")
    session.hold(CANCEL, left, is_kept=True)


async def _ask_little(session: Session) -> Reply:
    return await session.ask(prompts.HELLO, max_tokens=1, is_exact=True)


@asynccontextmanager
async def _running(*work: Coroutine[Any, Any, Reply]) -> AsyncIterator[list[Running]]:
    """Requests that run beside. Whatever happens, none is left behind."""
    tasks = [asyncio.create_task(request) for request in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


PROBES = (
    Probe(
        name="leaving",
        says="whether a long answer stops when its client goes away",
        work=_leaving,
        rules=(CANCEL,),
        is_alone=True,
    ),
)
