"""Clients of the gateway disconnect, in each phase of a response: how long until the upstream notices.

The client and a scripted upstream share a process and hence a clock. A time is measured from the disconnect of the
client to the moment when the connection of the upstream is closed.
"""

import asyncio
import itertools
import json
import time

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import LIMIT_S, connect, percentile, post
from faults.dialects import PATHS, request
from tests.support.server import Running
from tests.support.upstream import REPLIES, gateway
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer

MOST_MS = 50.0
"""p99 limit: about the time of one token of a fast model, so that hardly a token is wasted."""
WINDOWS = {
    "before the first byte": ("silent", True),
    "in mid-stream": ("stalls", True),
    "during a buffered reply": ("stalls", False),
}
"""Model of the request, and whether its answer is streamed."""
FORMS = [(window, is_rude) for window in WINDOWS for is_rude in (False, True)]


def leave(context: CaseContext) -> Outcome:
    """The windows alternate, so that drift of the machine affects all of them."""
    rounds = context.times(200, 6)
    times = asyncio.run(_times(context, rounds))
    closed = {window: [one for one in seconds if one is not None] for window, seconds in times.items()}
    request_count, closed_count = rounds * len(FORMS), sum(map(len, closed.values()))
    slowest = (
        Figure(f"p99 {window}", percentile(seconds, 99) * 1000, "ms", most=MOST_MS, is_timing=True)
        for window, seconds in closed.items()
        if seconds
    )
    return Outcome(
        request_count,
        f"{closed_count:,} of {request_count:,} upstream connections were closed, on {min(rounds, len(PATHS))} paths",
        (*slowest, Figure("upstream connections not closed", request_count - closed_count, most=0)),
    )


async def _times(context: CaseContext, rounds: int) -> dict[str, list[float | None]]:
    """Seconds by window; None: the upstream connection was not closed."""
    times: dict[str, list[float | None]] = {window: [] for window in WINDOWS}
    async with await MockServer(MockScript(), _choose).listen() as upstream:
        with gateway(context.folder, f"http://127.0.0.1:{upstream.port}/v1") as server:
            for round_, path in zip(range(rounds), itertools.cycle(PATHS), strict=False):
                context.note(f"round {round_ + 1} of {rounds}")
                for window, is_rude in FORMS:
                    times[window].append(await _time(upstream, server, path, window, is_rude=is_rude))
    return times


def _choose(seen: MockHttpRequest) -> MockReply:
    return REPLIES[json.loads(seen.body)["model"]]


async def _time(upstream: MockServer, server: Running, path: str, window: str, *, is_rude: bool) -> float | None:
    """Send a request, disconnect in the window, and return the seconds until the upstream connection closed."""
    model, is_stream = WINDOWS[window]
    before = upstream.requests[-1] if upstream.requests else None
    body = request(path, model=model, stream=is_stream)
    connection = await connect(server.port, post(body, server.port, path=path, key=server.key))
    try:
        async with asyncio.timeout(LIMIT_S):
            await upstream.wait_until(lambda: bool(upstream.requests) and upstream.requests[-1] is not before)
        if model == "stalls" and is_stream:
            await connection.read_until(b"Hello")
    finally:
        left_s = time.monotonic()
        connection.disconnect(is_reset=is_rude)
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
        "a client disconnects, with FIN or RST: before the first byte, in mid-stream, during a buffered reply",
        leave,
    ),
)
