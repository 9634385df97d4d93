"""Connections that are used again: upstreams that close them at the worst moment, and clients that leave in all."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from faults.asking import LIMIT_S, Heard, ask, chat, post, reset, say, side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.light import Desk, Speaker, between, hang_up, settled, upstream
from tests.live.faults import files_of, metric
from tests.live.server import Running
from tests.live.upstream import ACTIVE, RUNNING

IDLE_S = 0.02
"""After so long without a request the upstream closes: requests come at just that time."""
AT_ONCE = 4
"""Clients beside each other: a connection may be closed while another one is given back."""
LIMIT = 10
"""Requests at once to the upstream whose clients leave."""
LEAVERS = 25
"""Clients at once that leave: more than the limit, so that some leave while they wait for their turn."""
AFTERWARDS = 30
LONGEST_S = 0.03
"""A client that leaves after a random time leaves within so long: a request here needs some milliseconds of it."""
WINDOWS = ("within the request", "at once", "after a while", "before the first byte", "amid the stream")
"""Where a client leaves. Who leaves at once may be anywhere, and is often still in the queue."""


# Connections that are closed between two requests.


class Fickle(Speaker):
    """It does not keep its connections, in the way that the model's name says."""

    def answer(self, model: str) -> None:
        """Answer, and go."""
        if model == "resets" and self.answered:
            reset(self.transport)
            return
        super().answer(model)
        if model == "closes":
            self.transport.close()
        elif model == "rests":
            asyncio.get_running_loop().call_later(IDLE_S, self._close_if_at_rest, self.answered)

    def _close_if_at_rest(self, answered: int) -> None:
        if self.answered == answered:
            self.transport.close()


WAYS = {
    "closes": "after its reply, which it has not announced",
    "rests": "when it was idle for a moment, while requests come at just that time",
    "resets": "when the second request comes, as one does that has forgotten the connection",
}


def stale(stage: Stage) -> Outcome:
    """Ask again and again while connections are closed between the requests."""
    return asyncio.run(_stale(stage))


async def _stale(stage: Stage) -> Outcome:
    desk, draw = Desk(), random.Random(stage.seed)
    troubles: list[str] = []
    requests = stage.times(1000, 60) // AT_ONCE

    async def ask_often(server: Running, way: str) -> None:
        for _ in range(requests):
            heard = await ask(server, chat(way, stream=draw.random() < 0.5))
            if heard.ending != "whole":
                troubles.append(f"{way}: {heard.ending} {heard.status} {heard.body[-200:]!r}")
            if way == "rests":
                await asyncio.sleep(draw.uniform(0.5, 1.5) * IDLE_S)

    async with upstream(desk, Fickle) as port, between(stage.folder, port) as server:
        before = desk.asked
        for way in WAYS:
            stage.note(f"the upstream {way}")
            await asyncio.gather(*(ask_often(server, way) for _ in range(AT_ONCE)))
    asked = requests * AT_ONCE * len(WAYS)
    whole = asked - len(troubles)
    happened = f"{whole:,} of {asked:,} were answered whole; {desk.asked - before - asked:,} reached it a second time"
    return Outcome(asked, happened, (Figure("errors", len(troubles), most=0),), tuple(troubles))


# Clients that leave.


def cancels(stage: Stage) -> Outcome:
    """Leave again and again, and then ask."""
    return asyncio.run(_cancels(stage))


async def _cancels(stage: Stage) -> Outcome:
    desk, draw = Desk(), random.Random(stage.seed)
    count = stage.times(1200, 200)
    async with upstream(desk) as port, between(stage.folder, port, each={"limit": LIMIT}) as server:
        await asyncio.gather(*(ask(server, chat()) for _ in range(LIMIT)))
        hang_up(desk)
        await settled(lambda: len(desk.open))
        files, asked = files_of(server.process.pid), desk.asked
        await side_by_side(stage, range(count), LEAVERS, lambda number: _leave(desk, server, draw, number))
        running = await settled(lambda: desk.running)
        reached = desk.asked - asked
        heard = await asyncio.gather(*(ask(server, chat()) for _ in range(AFTERWARDS)))
        troubles = [f"afterwards: {one.ending} {one.status} {one.body[-200:]!r}" for one in heard]
        troubles = [trouble for trouble, one in zip(troubles, heard, strict=True) if one.ending != "whole"]
        streams = await asyncio.to_thread(metric, server, ACTIVE)
        seats = await asyncio.to_thread(metric, server, RUNNING)
        kept = len(desk.open)
        hang_up(desk)
        more = await settled(lambda: files_of(server.process.pid) - files)
    well = AFTERWARDS - len(troubles)
    happened = (
        f"{reached:,} of {count:,} had reached the upstream, where {reached - running:,.0f} were ended;"
        f" then {well} of {AFTERWARDS} requests were answered whole"
    )
    figures = (
        Figure("requests answered afterwards", well, f"of {AFTERWARDS}", least=AFTERWARDS),
        Figure("requests left at the upstream", running, most=0),
        Figure("connections to the upstream", kept, most=LIMIT),
        Figure("seats and streams left", seats + streams, most=0),
        Figure("files left open", more, most=0),
    )
    return Outcome(count, happened, figures, tuple(troubles))


async def _first(reached: Coroutine[Any, Any, object], answered: Coroutine[Any, Any, Heard]) -> None:
    """Wait until the upstream has the request. An answer that comes instead is one that should not be."""
    reaching, answering = asyncio.create_task(reached), asyncio.create_task(answered)
    await asyncio.wait({reaching, answering}, return_when=asyncio.FIRST_COMPLETED)
    was_reached = reaching.done()
    for task in (reaching, answering):
        task.cancel()
    await asyncio.wait({reaching, answering})
    assert was_reached, f"answered before it reached the upstream: {answering.result()}"


async def _leave(desk: Desk, server: Running, draw: random.Random, number: int) -> None:
    """Ask, and leave in one of the windows."""
    window = draw.choice(WINDOWS)
    model = f"{'stalls' if window == 'amid the stream' else draw.choice(('silent', 'stalls'))}-{number}"
    said = post(chat(model, stream=window == "amid the stream" or draw.random() < 0.5), server.port)
    desk.awaited[model] = asyncio.Event()
    talk = await say(server.port, said[: len(said) // 2] if window == "within the request" else said)
    async with asyncio.timeout(LIMIT_S):
        if window == "after a while":
            await asyncio.sleep(draw.uniform(0, LONGEST_S))
        elif window == "before the first byte":
            await _first(desk.awaited[model].wait(), talk.heard())
        elif window == "amid the stream":
            await talk.first(b" well")
    del desk.awaited[model]
    talk.leave(is_rude=draw.random() < 0.5)


CASES = (
    Case("stale-keepalive", "an upstream closes connections just as they are used again, in three ways", stale),
    Case("cancels", f"clients leave at random moments, with {LIMIT} connections to the upstream at most", cancels),
)
