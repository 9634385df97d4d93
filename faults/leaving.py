"""Clients of the gateway leave, in each window of an answer: how long until the upstream knows.

The client and a scripted upstream share a process, and so one clock. A time is from the client's leaving to the moment
in which the upstream sees its own connection closed.
"""

import asyncio
import itertools
import json
import time

from faults.asking import LIMIT_S, percentile, post, say
from faults.case import Case, Figure, Outcome, Stage
from faults.dialects import PATHS, request
from tests.live.server import Running
from tests.live.upstream import REPLIES, gateway
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer

MOST_MS = 50.0
"""Of the slowest of a hundred: about what a token of a fast model takes, so that hardly one is made for nobody."""
WINDOWS = {
    "before the first byte": ("silent", True),
    "in mid-stream": ("stalls", True),
    "while a whole reply is made": ("stalls", False),
}
"""The model that is asked for, and whether its answer is streamed."""
WAYS = [(window, is_rude) for window in WINDOWS for is_rude in (False, True)]


def leave(stage: Stage) -> Outcome:
    """All windows take turns, so that a machine that gets slower is slower for all."""
    rounds = stage.times(200, 6)
    times = asyncio.run(_times(stage, rounds))
    closed = {window: [one for one in seconds if one is not None] for window, seconds in times.items()}
    asked, told = rounds * len(WAYS), sum(map(len, closed.values()))
    slowest = (
        Figure(f"p99 {window}", percentile(seconds, 99) * 1000, "ms", most=MOST_MS, is_timing=True)
        for window, seconds in closed.items()
        if seconds
    )
    return Outcome(
        asked,
        f"{told:,} of {asked:,} upstream connections were closed, on {min(rounds, len(PATHS))} paths",
        (*slowest, Figure("connections that were not closed", asked - told, most=0)),
    )


async def _times(stage: Stage, rounds: int) -> dict[str, list[float | None]]:
    """The seconds of each window; None where the upstream was not told."""
    times: dict[str, list[float | None]] = {window: [] for window in WINDOWS}
    async with await MockServer(MockScript(), _choose).listen() as upstream:
        with gateway(stage.folder, f"http://127.0.0.1:{upstream.port}/v1") as server:
            for round_, path in zip(range(rounds), itertools.cycle(PATHS), strict=False):
                stage.note(f"round {round_ + 1} of {rounds}")
                for window, is_rude in WAYS:
                    times[window].append(await _time(upstream, server, path, window, is_rude=is_rude))
    return times


def _choose(seen: MockHttpRequest) -> MockReply:
    return REPLIES[json.loads(seen.body)["model"]]


async def _time(upstream: MockServer, server: Running, path: str, window: str, *, is_rude: bool) -> float | None:
    """Ask, leave in the window, and give the seconds until the upstream knew."""
    model, is_stream = WINDOWS[window]
    before = upstream.requests[-1] if upstream.requests else None
    body = request(path, model=model, stream=is_stream)
    talk = await say(server.port, post(body, server.port, path=path, key=server.key))
    try:
        async with asyncio.timeout(LIMIT_S):
            await upstream.wait_until(lambda: bool(upstream.requests) and upstream.requests[-1] is not before)
        if model == "stalls" and is_stream:
            await talk.first(b"Hello")
    finally:
        left_s = time.monotonic()
        talk.leave(is_rude=is_rude)
    seen = upstream.requests[-1]
    try:
        async with asyncio.timeout(LIMIT_S):
            await upstream.wait_until(lambda: seen.ended_s is not None)
    except TimeoutError:
        return None
    return None if seen.ended_s is None or seen.end != "left" else seen.ended_s - left_s


CASES = (
    Case(
        "leaving",
        "a client leaves, politely or rudely: before the first byte, in mid-stream, while a whole reply is made",
        leave,
    ),
)
