"""Reused connections: upstreams close them at the worst moment, and clients disconnect at any point."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import LIMIT_S, ClientReply, chat, connect, post, reset, run_concurrently, send_request
from faults.lightweight import UpstreamConnection, UpstreamState, between, close_connections, settled, upstream
from tests.support.faults import metric, open_files_of
from tests.support.server import Running
from tests.support.upstream import ACTIVE, RUNNING

IDLE_S = 0.02
"""Idle time after which the upstream closes; requests arrive at just that time."""
AT_ONCE = 4
"""Concurrent clients: a connection may close while another one returns to the pool."""
LIMIT = 10
"""Concurrent requests to the upstream whose clients disconnect."""
LEAVERS = 25
"""Concurrent clients that disconnect: more than the limit, so that some disconnect while queued."""
AFTERWARDS = 30
LONGEST_S = 0.03
"""Longest random delay before a disconnect; a request takes some milliseconds."""
WINDOWS = ("within the request", "at once", "after a while", "before the first byte", "amid the stream")
"""When a client disconnects. With an immediate disconnect the request is often still queued."""


# Connections that are closed between two requests.


class Fickle(UpstreamConnection):
    """Upstream connection that closes instead of being reused, as the model name selects."""

    def answer(self, model: str) -> None:
        """Answer, then close."""
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


BEHAVIOURS = {
    "closes": "after its reply, which it has not announced",
    "rests": "when it was idle for a moment, while requests come at just that time",
    "resets": "when the second request comes, as one does that has forgotten the connection",
}


def stale(context: CaseContext) -> Outcome:
    """Send requests while the upstream closes connections between them."""
    return asyncio.run(_stale(context))


async def _stale(context: CaseContext) -> Outcome:
    state, draw = UpstreamState(), random.Random(context.seed)
    problems: list[str] = []
    requests = context.times(1000, 60) // AT_ONCE

    async def send_repeatedly(server: Running, behaviour: str) -> None:
        for _ in range(requests):
            received = await send_request(server, chat(behaviour, stream=draw.random() < 0.5))
            if received.ending != "whole":
                problems.append(f"{behaviour}: {received.ending} {received.status} {received.body[-200:]!r}")
            if behaviour == "rests":
                await asyncio.sleep(draw.uniform(0.5, 1.5) * IDLE_S)

    async with upstream(state, Fickle) as port, between(context.folder, port) as server:
        before = state.request_count
        for behaviour in BEHAVIOURS:
            context.note(f"the upstream {behaviour}")
            await asyncio.gather(*(send_repeatedly(server, behaviour) for _ in range(AT_ONCE)))
    request_count = requests * AT_ONCE * len(BEHAVIOURS)
    whole = request_count - len(problems)
    retries = state.request_count - before - request_count
    happened = f"{whole:,} of {request_count:,} requests got a complete response, with {retries:,} retries"
    return Outcome(request_count, happened, (Figure("errors", len(problems), most=0),), tuple(problems))


# Clients that disconnect.


def cancels(context: CaseContext) -> Outcome:
    """Disconnect repeatedly, then send a complete request."""
    return asyncio.run(_cancels(context))


async def _cancels(context: CaseContext) -> Outcome:
    state, draw = UpstreamState(), random.Random(context.seed)
    count = context.times(1200, 200)
    async with upstream(state) as port, between(context.folder, port, each={"limit": LIMIT}) as server:
        await asyncio.gather(*(send_request(server, chat()) for _ in range(LIMIT)))
        close_connections(state)
        await settled(lambda: len(state.open))
        files, request_count = open_files_of(server.process.pid), state.request_count
        await run_concurrently(context, range(count), LEAVERS, lambda number: _leave(state, server, draw, number))
        running = await settled(lambda: state.running)
        reached = state.request_count - request_count
        received = await asyncio.gather(*(send_request(server, chat()) for _ in range(AFTERWARDS)))
        problems = [f"afterwards: {one.ending} {one.status} {one.body[-200:]!r}" for one in received]
        problems = [problem for problem, one in zip(problems, received, strict=True) if one.ending != "whole"]
        streams = await asyncio.to_thread(metric, server, ACTIVE)
        leases = await asyncio.to_thread(metric, server, RUNNING)
        open_connections = len(state.open)
        close_connections(state)
        more = await settled(lambda: open_files_of(server.process.pid) - files)
    well = AFTERWARDS - len(problems)
    happened = (
        f"{reached:,} of {count:,} requests had reached the upstream, {reached - running:,.0f} were cancelled there;"
        f" afterwards {well} of {AFTERWARDS} requests got a complete response"
    )
    figures = (
        Figure("requests answered afterwards", well, f"of {AFTERWARDS}", least=AFTERWARDS),
        Figure("requests still running at the upstream", running, most=0),
        Figure("connections to the upstream", open_connections, most=LIMIT),
        Figure("leaked leases and streams", leases + streams, most=0),
        Figure("leaked file descriptors", more, most=0),
    )
    return Outcome(count, happened, figures, tuple(problems))


async def _first(reached: Coroutine[Any, Any, object], answered: Coroutine[Any, Any, ClientReply]) -> None:
    """Wait until the upstream has the request; a reply before that is a problem."""
    reaching, answering = asyncio.create_task(reached), asyncio.create_task(answered)
    await asyncio.wait({reaching, answering}, return_when=asyncio.FIRST_COMPLETED)
    was_reached = reaching.done()
    for task in (reaching, answering):
        task.cancel()
    await asyncio.wait({reaching, answering})
    assert was_reached, f"answered before it reached the upstream: {answering.result()}"


async def _leave(state: UpstreamState, server: Running, draw: random.Random, number: int) -> None:
    """Send a request and disconnect in one of the windows."""
    window = draw.choice(WINDOWS)
    model = f"{'stalls' if window == 'amid the stream' else draw.choice(('silent', 'stalls'))}-{number}"
    payload = post(chat(model, stream=window == "amid the stream" or draw.random() < 0.5), server.port)
    state.awaited[model] = asyncio.Event()
    connection = await connect(server.port, payload[: len(payload) // 2] if window == "within the request" else payload)
    async with asyncio.timeout(LIMIT_S):
        if window == "after a while":
            await asyncio.sleep(draw.uniform(0, LONGEST_S))
        elif window == "before the first byte":
            await _first(state.awaited[model].wait(), connection.read_reply())
        elif window == "amid the stream":
            await connection.read_until(b" well")
    del state.awaited[model]
    connection.disconnect(is_reset=draw.random() < 0.5)


CASES = (
    Case("stale-keepalive", "an upstream closes kept-alive connections just as they are reused, in three ways", stale),
    Case("cancels", f"clients leave at random moments, with {LIMIT} connections to the upstream at most", cancels),
)
