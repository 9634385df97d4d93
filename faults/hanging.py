"""Upstreams that stand still: the client is told when the limit is reached, neither sooner nor much later."""

import asyncio
import json
import time
from collections import Counter
from random import Random

import msgspec

from faults.asking import Heard, post, say, side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.dialects import PATHS, ending, reply, request, text
from tests.live.server import Running
from tests.live.upstream import gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

WORDS = ("one ", "two ", "three ", "four ")
SAID = 3
"""So many words come, and then nothing."""
LAST = WORDS[SAID - 1].encode()
TOLERANCE_PERCENT = 10.0
HANGS = {"in mid-stream": True, "before the first byte": True, "within a whole reply": False}
"""Where it stands still, and whether the answer is streamed."""
AT_ONCE = 12


class Waited(msgspec.Struct, frozen=True):
    """What a client heard of an upstream that stands still."""

    where: str
    path: str
    heard: Heard
    seconds: float
    """From the last word, or from the request, to the end."""

    @property
    def is_told(self) -> bool:
        """Whether it is said: by an event in a stream that has begun, and else by a status."""
        end, words = ending(self.path, self.heard), text(self.path, self.heard)
        if self.where == "in mid-stream":
            return end == "error event" and words == "".join(WORDS[:SAID])
        return end == "refused" and self.heard.status == 504

    def __str__(self) -> str:
        end, words = ending(self.path, self.heard), text(self.path, self.heard)
        return f"{self.where}, {self.path}: {self.heard.status}, {end}, {words!r}, after {self.seconds:.2f} s"


def hang(stage: Stage) -> Outcome:
    """Every place to stand still, on every path, several clients at once. There is one upstream."""
    limit_s = 2.0 if stage.is_short else 1.0  # the short form runs on busy machines, too
    limits = {"first_byte_s": limit_s, "idle_s": limit_s}
    # The status of a stream waits for longer than the limit, so that it can be an error.
    options = ["--early", "30"]
    with upstream(_choose) as one, gateway(stage.folder, one.url, each=limits, options=options) as server:
        waited = asyncio.run(_wait_all(stage, server))
        attempts = len(one.posts())
    untold = [one for one in waited if not one.is_told]
    off = [abs(one.seconds / limit_s - 1) * 100 for one in waited]
    statuses = Counter(one.heard.status for one in waited if one.where != "in mid-stream")
    events = sum(one.is_told for one in waited if one.where == "in mid-stream")
    return Outcome(
        len(waited),
        f"with a limit of {limit_s:g} s, {events} streams ended with an error event after their last word; "
        f"{statuses[504]} answers that had not begun were a 504",
        (
            Figure("ends that were not told", len(untold), most=0),
            Figure("furthest from the limit", max(off), "%", most=TOLERANCE_PERCENT, is_timing=True),
            Figure("attempts for a request", attempts / len(waited), most=1),
        ),
        tuple(map(str, untold)),
    )


def _choose(seen: MockHttpRequest) -> MockReply:
    body = json.loads(seen.body)
    if body["model"] == "before the first byte":
        return MockReply(end="hang", raw=True)
    right = reply(seen.path, WORDS, stream=True)
    last = next(place for place, piece in enumerate(right.pieces) if LAST in piece.data)
    return msgspec.structs.replace(right, pieces=right.pieces[: last + 1], end="hang")


async def _wait_all(stage: Stage, server: Running) -> list[Waited]:
    draw = Random(stage.seed)
    waiting = [(where, path) for where in HANGS for path in PATHS] * stage.times(20, 1)
    draw.shuffle(waiting)
    return await side_by_side(stage, waiting, AT_ONCE, lambda one: _wait(server, *one))


async def _wait(server: Running, where: str, path: str) -> Waited:
    body = request(path, model=where, stream=HANGS[where])
    since = time.monotonic()
    talk = await say(server.port, post(body, server.port, path=path, key=server.key))
    try:
        before = b""
        if where == "in mid-stream":
            before = await talk.first(LAST)
            since = time.monotonic()
        heard = await talk.heard(before)
        return Waited(where, path, heard, time.monotonic() - since)
    finally:
        talk.leave()


CASES = (
    Case(
        "hangs-midstream",
        "the upstream stands still: in mid-stream, before the first byte, while a whole reply is made",
        hang,
    ),
)
