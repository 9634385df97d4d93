"""Upstreams that hang: the client gets an error at the timeout, neither sooner nor much later."""

import asyncio
import json
import time
from collections import Counter
from random import Random

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientReply, connect, post, run_concurrently
from faults.dialects import PATHS, ending, reply, request, text
from tests.support.server import Running
from tests.support.upstream import gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

WORDS = ("one ", "two ", "three ", "four ")
SAID = 3
"""Words before the upstream hangs."""
LAST = WORDS[SAID - 1].encode()
TOLERANCE_PERCENT = 10.0
HANGS = {"in mid-stream": True, "before the first byte": True, "within a whole reply": False}
"""Position of the hang, and whether the answer is streamed."""
AT_ONCE = 12


class Waited(msgspec.Struct, frozen=True):
    """What a client received from a hanging upstream."""

    where: str
    path: str
    received: ClientReply
    seconds: float
    """Seconds from the last text, or from the request, to the end."""

    @property
    def is_reported(self) -> bool:
        """Whether the client got an error: an event in a started stream, else a status."""
        end, words = ending(self.path, self.received), text(self.path, self.received)
        if self.where == "in mid-stream":
            return end == "error event" and words == "".join(WORDS[:SAID])
        return end == "refused" and self.received.status == 504

    def __str__(self) -> str:
        end, words = ending(self.path, self.received), text(self.path, self.received)
        return f"{self.where}, {self.path}: {self.received.status}, {end}, {words!r}, after {self.seconds:.2f} s"


def hang(context: CaseContext) -> Outcome:
    """Hang at every position, on every path, with several concurrent clients and one upstream."""
    limit_s = 2.0 if context.is_short else 1.0  # the short form runs on busy machines, too
    limits = {"first_byte_s": limit_s, "idle_s": limit_s}
    # The head of a stream is delayed beyond the limit, so that the reply can be an error status.
    options = ["--early", "30"]
    with upstream(_choose) as one, gateway(context.folder, one.url, each=limits, options=options) as server:
        waited = asyncio.run(_wait_all(context, server))
        attempts = len(one.posts())
    unreported = [one for one in waited if not one.is_reported]
    off = [abs(one.seconds / limit_s - 1) * 100 for one in waited]
    statuses = Counter(one.received.status for one in waited if one.where != "in mid-stream")
    events = sum(one.is_reported for one in waited if one.where == "in mid-stream")
    return Outcome(
        len(waited),
        f"with a limit of {limit_s:g} s, {events} streams ended with an error event after their last chunk; "
        f"{statuses[504]} responses that had not started were a 504",
        (
            Figure("timeouts without an error", len(unreported), most=0),
            Figure("largest deviation from the limit", max(off), "%", most=TOLERANCE_PERCENT, is_timing=True),
            Figure("attempts per request", attempts / len(waited), most=1),
        ),
        tuple(map(str, unreported)),
    )


def _choose(seen: MockHttpRequest) -> MockReply:
    body = json.loads(seen.body)
    if body["model"] == "before the first byte":
        return MockReply(end="hang", raw=True)
    right = reply(seen.path, WORDS, stream=True)
    last = next(index for index, piece in enumerate(right.pieces) if LAST in piece.data)
    return msgspec.structs.replace(right, pieces=right.pieces[: last + 1], end="hang")


async def _wait_all(context: CaseContext, server: Running) -> list[Waited]:
    draw = Random(context.seed)
    waiting = [(where, path) for where in HANGS for path in PATHS] * context.times(20, 1)
    draw.shuffle(waiting)
    return await run_concurrently(context, waiting, AT_ONCE, lambda one: _wait(server, *one))


async def _wait(server: Running, where: str, path: str) -> Waited:
    body = request(path, model=where, stream=HANGS[where])
    since = time.monotonic()
    connection = await connect(server.port, post(body, server.port, path=path, key=server.key))
    try:
        before = b""
        if where == "in mid-stream":
            before = await connection.read_until(LAST)
            since = time.monotonic()
        received = await connection.read_reply(before)
        return Waited(where, path, received, time.monotonic() - since)
    finally:
        connection.disconnect()


CASES = (
    Case(
        "hangs-midstream",
        "the upstream hangs: in mid-stream, before the first byte, during a reply that is not streamed",
        hang,
    ),
)
