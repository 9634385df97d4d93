"""A long run of normal load with some disconnects and failures: nothing may accumulate."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from faults.case import EVIDENCE_LIMIT, Case, CaseContext, Figure, Outcome
from faults.client import CHAT, chat, connect, post
from faults.dialects import MESSAGES, OLLAMA_CHAT, RESPONSES, request
from faults.lightweight import (
    TEXTS,
    PersistentClient,
    UpstreamState,
    between,
    call,
    close_connections,
    settled,
    upstream,
)
from tests.support.faults import engine_of, memory_of, metric, open_files_of, small_server
from tests.support.server import Running
from tests.support.upstream import ACTIVE, RUNNING

REQUESTS, REQUESTS_SHORT = 100_000, 300
LOCAL_REQUESTS, LOCAL_REQUESTS_SHORT, LOCAL_PER = 5_000, 30, 1_000
LOCAL_CALLERS = 4
"""Concurrent clients: two have a slot, two are queued."""
CALLERS = 16
"""Concurrent clients: enough that the server is never idle."""
LEAVING, FAILING, RENEWING = 0.01, 0.02, 0.1
"""Shares of requests whose client disconnects, whose upstream fails, and that use a new connection."""
CHUNKS = TEXTS + 2
"""Chunks of an answer, with its role and its end."""
LOOKS = 100
WARM = 0.3
"""Share of the measurements for the warm-up of buffers, caches and tables."""
SLOPE_MB = 1.0
"""Noise: the memory of a process varies by some hundred kilobytes."""
TASKS = "welldone_tasks"
MB = 2**20


class Endpoint(msgspec.Struct, frozen=True):
    """A kind of request, and the end of a complete answer."""

    path: str
    body: bytes
    whole: bytes

    def payload(self, port: int) -> bytes:
        """Encode the request with keep-alive."""
        return post(self.body, port, path=self.path, headers={"Connection": "keep-alive"})


ENDPOINTS = (
    Endpoint(CHAT, chat(), b"data: [DONE]\n\n"),
    Endpoint(CHAT, chat(stream=False), b'"finish_reason":"stop"'),
    Endpoint(RESPONSES, request(RESPONSES), b"event: response.completed\n"),
    Endpoint(MESSAGES, request(MESSAGES), b"event: message_stop\n"),
    Endpoint(OLLAMA_CHAT, request(OLLAMA_CHAT), b'"done":true'),
    Endpoint("/v1/embeddings", chat(), b"data: [DONE]\n\n"),
)
"""The dialects, and a passthrough endpoint whose reply is forwarded unchanged."""
FAILURES = {"fails": ("refused", "error event"), "cut": ("error event",)}
"""Failing models and the accepted endings: a queued client has received the head already."""


class Load:
    """Runs requests with a few concurrent clients and collects problems."""

    def __init__(self, port: int, requests: int, draw: random.Random, on_step: Callable[[int], None]) -> None:
        self.whole = self.left = self.failed = 0
        self.problems: list[str] = []
        self._port = port
        self._draw = draw
        self._numbers = iter(range(requests))
        self._step = max(1, requests // LOOKS)
        self._on_step = on_step
        self._plain = [(endpoint, endpoint.payload(port)) for endpoint in ENDPOINTS]

    async def run(self, callers: int = CALLERS) -> None:
        """All of them."""
        await asyncio.gather(*(self._send_repeatedly() for _ in range(callers)))

    async def _send_repeatedly(self) -> None:
        client_connection = await call(self._port)
        try:
            for number in self._numbers:  # shared by all clients
                if number % self._step == 0:
                    self._on_step(number)
                if not client_connection.is_open or self._draw.random() < RENEWING:
                    client_connection.transport.abort()
                    client_connection = await call(self._port)
                await self._send(client_connection)
        finally:
            client_connection.transport.abort()

    async def _send(self, client_connection: PersistentClient) -> None:
        drawn = self._draw.random()
        if drawn < LEAVING:
            await self._leave()
        elif drawn < LEAVING + FAILING:
            await self._fail(client_connection)
        else:
            endpoint, payload = self._draw.choice(self._plain)
            received = await client_connection.send(payload)
            if received.status == 200 and received.is_whole and endpoint.whole in received.body:
                self.whole += 1
            else:
                self._problem(f"{endpoint.path}: status {received.status}, {received.body[-200:]!r}")

    async def _leave(self) -> None:
        connection = await connect(self._port, post(chat("stalls"), self._port))
        await connection.read_until(b" well")
        connection.disconnect(is_reset=self._draw.random() < 0.5)
        self.left += 1

    async def _fail(self, client_connection: PersistentClient) -> None:
        model, endings = self._draw.choice(tuple(FAILURES.items()))
        received = await client_connection.send(post(chat(model), self._port, headers={"Connection": "keep-alive"}))
        if received.ending in endings:
            self.failed += 1
        else:
            self._problem(f"{model}: {received.ending}, status {received.status}, {received.body[-200:]!r}")

    def _problem(self, words: str) -> None:
        if len(self.problems) < EVIDENCE_LIMIT:
            self.problems.append(words)


def through_the_gateway(context: CaseContext) -> Outcome:
    """Run the load against the gateway."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_through_the_gateway(context))


async def _through_the_gateway(context: CaseContext) -> Outcome:
    requests = context.times(REQUESTS, REQUESTS_SHORT)
    state, looks = UpstreamState(), list[int]()
    options = ["--stored-responses", "100"]  # so that the store is full soon
    async with upstream(state) as port, between(context.folder, port, options=options) as server:
        pid = server.process.pid
        warm = Load(server.port, CALLERS * len(ENDPOINTS), random.Random(context.seed), lambda _: None)
        await warm.run()
        before = await _left(state, server)

        def look(number: int) -> None:
            looks.append(memory_of(pid))
            context.note(f"{number:,} of {requests:,} requests, {looks[-1] / MB:.1f} MB")

        load = Load(server.port, requests, random.Random(context.seed), look)
        await load.run()
        after = await _left(state, server, before)
    whole, problems = load.whole, (*warm.problems, *load.problems)
    happened = (
        f"{whole:,} responses were complete, {load.failed:,} failures were reported and {load.left:,} clients "
        f"disconnected; {looks[-1] / MB:.0f} MB of memory at the end"
    )
    figures = (
        Figure("requests", requests, least=requests),
        Figure("chunks", whole * CHUNKS, least=context.times(10**6, 0)),
        Figure("wrong responses", requests - whole - load.failed - load.left, most=0),
        Figure(
            "growth of memory",
            _slope(looks, requests, REQUESTS),
            "MB per 100,000 requests",
            most=SLOPE_MB,
            is_timing=True,
        ),
        *(Figure(f"growth of {name}", after[name] - before[name], most=0) for name in before),
    )
    return Outcome(requests, happened, figures, problems)


async def _left(state: UpstreamState, server: Running, wanted: dict[str, float] | None = None) -> dict[str, float]:
    """Open resources of an idle server, polled until they are as wanted or time is up."""
    await settled(lambda: state.running)
    close_connections(state)
    pid, goal = server.process.pid, wanted or {}
    open_files = await settled(lambda: open_files_of(pid), goal["files"]) if wanted else await _steady(pid)
    seen = {"files": open_files}
    for name, key in (("tasks", TASKS), ("running requests", RUNNING), ("open streams", ACTIVE)):
        seen[name] = await asyncio.to_thread(metric, server, key)
    seen["threads"] = _threads(pid)
    return seen


async def _steady(pid: int) -> float:
    """Number of open files when it is stable."""
    last = -1.0
    while (now := float(open_files_of(pid))) != last:
        last = now
        await asyncio.sleep(0.2)
    return now


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _slope(looks: list[int], requests: int, per: int) -> float:
    """Growth in MB over `per` requests, of the line that fits the looks after the warm-up best."""
    late = looks[int(len(looks) * WARM) :]
    middle, mean = (len(late) - 1) / 2, sum(late) / len(late)
    above = sum((at - middle) * (look - mean) for at, look in enumerate(late))
    below = sum((at - middle) ** 2 for at in range(len(late)))
    return above / below * len(looks) / requests * per / MB if below else 0.0


# A local model.


def local(context: CaseContext) -> Outcome:
    """Run the load against a local model."""
    # The prompt cache of the engine would look like a leak.
    with small_server(context.model, "-np", "2", "--cache-ram", "0", "--quiet", is_awaited=False) as server:
        return asyncio.run(_local(context, server))


async def _local(context: CaseContext, server: Running) -> Outcome:
    requests = context.times(LOCAL_REQUESTS, LOCAL_REQUESTS_SHORT)
    draw, problems = random.Random(context.seed), list[str]()
    await _load(server, draw)
    with engine_of(server) as engine:
        pids = {"server": server.process.pid, "engine": engine.pid}
        looks = {name: list[int]() for name in pids}
        files = {name: await _steady(pid) for name, pid in pids.items()}
        numbers = iter(range(requests))

        async def send_repeatedly() -> None:
            client_connection = await call(server.port)
            for number in numbers:  # shared by all clients
                if number % max(1, requests // LOOKS) == 0:
                    for name, pid in pids.items():
                        looks[name].append(memory_of(pid))
                    context.note(f"{number:,} of {requests:,} requests")
                received = await client_connection.send(_question(server, draw, number))
                if received.ending != "whole":
                    problems.append(f"{received.ending} {received.status} {received.body[-200:]!r}")
            client_connection.transport.abort()

        await asyncio.gather(*(send_repeatedly() for _ in range(LOCAL_CALLERS)))
        more = {name: await settled(partial(_files_since, pid, files[name])) for name, pid in pids.items()}
    happened = f"{requests - len(problems):,} responses were complete; memory at the end: " + ", ".join(
        f"{name} {seen[-1] / MB:.0f} MB" for name, seen in looks.items()
    )
    unit = f"MB per {LOCAL_PER:,} requests"
    figures = (
        Figure("wrong responses", len(problems), most=0),
        *(
            Figure(
                f"memory growth of the {name}", _slope(seen, requests, LOCAL_PER), unit, most=SLOPE_MB, is_timing=True
            )
            for name, seen in looks.items()
        ),
        *(Figure(f"growth of open files of the {name}", number, most=0) for name, number in more.items()),
    )
    return Outcome(requests, happened, figures, tuple(problems))


async def _load(server: Running, draw: random.Random) -> None:
    """Wait until the model has answered."""
    client_connection = await call(server.port)
    received = await client_connection.send(_question(server, draw, 0))
    client_connection.transport.abort()
    assert received.ending == "whole", received


def _files_since(pid: int, before: float) -> float:
    return open_files_of(pid) - before


def _question(server: Running, draw: random.Random, number: int) -> bytes:
    """A short request. The number is in it, so that no two are the same."""
    body = chat(server.model, f"Hello {number}", stream=draw.random() < 0.5, max_tokens=4, temperature=0)
    return post(body, server.port, headers={"Connection": "keep-alive"})


CASES = (
    Case(
        "soak",
        "100,000 responses of eleven chunks through the gateway, in all dialects, 3 % of them aborted",
        through_the_gateway,
    ),
    Case("soak-local", "many short responses of a local model", local),
)
