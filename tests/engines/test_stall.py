"""Stalls: all requests of an engine have received text, and none receives more."""

import asyncio
import time

import msgspec

from welldone.engines.stall import RequestProgress, StallWatch


class Progress(msgspec.Struct):
    """A request that has received text, unless a test says otherwise."""

    last_received_at: float = 0.0
    is_generating: bool = True
    is_paused: bool = False
    survives_restart: bool = True


class Request(msgspec.Struct):
    """A request to an engine."""

    progress: RequestProgress | None = None


def stalls(*progress: Progress | None, now: float = 30.0) -> list[float]:
    """Check the requests once, with a limit of 30 s; return the reported silences."""
    found: list[float] = []
    watch = StallWatch(30.0, found.append)
    asyncio.run(_add(watch, [Request(one) for one in progress]))
    watch.check(now=now)
    return found


async def _add(watch: StallWatch, requests: list[Request]) -> None:
    for request in requests:
        watch.add(request)


def test_an_engine_stalls_when_no_request_receives_anything() -> None:
    assert stalls(Progress(0.0), Progress(-5.0)) == [30.0]
    assert stalls(Progress(0.0), now=29.9) == []


def test_one_request_that_receives_tokens_is_enough() -> None:
    assert stalls(Progress(0.0), Progress(29.0)) == []


def test_silence_is_normal_while_a_prompt_or_another_request_is_processed() -> None:
    assert stalls(Progress(0.0), Progress(0.0, is_generating=False)) == []
    assert stalls(Progress(0.0), None) == []
    assert stalls() == []


def test_requests_of_slow_clients_prove_nothing() -> None:
    assert stalls(Progress(0.0, is_paused=True)) == []
    assert stalls(Progress(0.0), Progress(0.0, is_paused=True)) == [30.0]


def test_a_timer_checks_while_there_are_requests() -> None:
    async def run() -> None:
        stalled = asyncio.Event()
        watch = StallWatch(0.01, lambda _: stalled.set())
        request = Request(Progress(time.monotonic()))
        watch.add(request)
        await asyncio.wait_for(stalled.wait(), 60)
        watch.remove(request)
        assert watch.silence_s() == 0

    asyncio.run(run())


def test_a_limit_of_0_turns_the_watch_off() -> None:
    async def run() -> None:
        watch = StallWatch(0.0, lambda _: None)
        watch.add(Request(Progress()))
        assert not [handle for handle in vars(watch).values() if isinstance(handle, asyncio.TimerHandle)]

    asyncio.run(run())


def test_an_engine_is_not_replaced_if_a_request_would_fail() -> None:
    watch = StallWatch(0.0, lambda _: None)
    assert watch.survives_restart
    requests = [Request(Progress()), Request(None), Request(Progress(survives_restart=False))]
    asyncio.run(_add(watch, requests))
    assert not watch.survives_restart
    watch.remove(requests[2])
    assert watch.survives_restart
