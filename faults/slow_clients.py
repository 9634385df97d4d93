"""Clients that open connections and send too little: each is disconnected in time, and nobody else is delayed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import LIMIT_S, ClientConnection, chat, connect, health, parse, percentile, post, send_request
from faults.heartbeat import GapRecorder, beating, listening
from faults.lightweight import settled
from tests.support.faults import children, memory_of, open_files_of
from tests.support.server import Running
from tests.support.upstream import gateway

SOCKETS, SOCKETS_SHORT = 1_100, 60
AT_ONCE = 100
"""Connections that are being made at the same time: a listening socket of ours has room for 1,024."""
LIMIT_OF_US_S, LIMIT_OF_US_SHORT_S = 5.0, 1.0
"""Timeouts of the server for a head and a body, below the defaults of 10 s and 30 s to keep the plan short."""
LINGER_S = 1.0
"""Time that the server reads on after its reply, so that the reply is not lost."""
LATE_S = 1.0
"""Tolerance for the slowest of a thousand, including this client's own delay."""
DRIP_S = 0.5
PROBE_S = 0.05
BODY = chat("beat")


class Form(msgspec.Struct, frozen=True):
    """Kind of incomplete request."""

    name: str
    payload: Callable[[int], bytes]
    """Sent at once; called with the port of the server."""
    dripped: bytes = b""
    """Sent afterwards, byte by byte."""
    linger_s: float = 0.0


def _head(port: int) -> bytes:
    return post(BODY, port).partition(b"\r\n\r\n")[0]


FORMS = (
    Form("say nothing", lambda port: b""),
    Form("say half a head", _head),
    Form("drip a head", _head, b"\r\nX-Drip: " + b"a" * 1_000),
    Form("say half a body", lambda port: post(BODY, port)[:-10], linger_s=LINGER_S),
    Form("drip a body", lambda port: post(BODY + b" " * 1_000, port)[:-1_000], b" " * 999, linger_s=LINGER_S),
    Form("ask once, and stay", lambda port: b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port),
)


class Slow(msgspec.Struct):
    """Slow client."""

    form: Form
    connection: ClientConnection
    began_s: float
    opened_s: float
    closed_s: float | None = None

    async def stay(self) -> None:
        """Wait until the server disconnects."""
        try:
            while await self.connection.reader.read(65536):
                pass
        except ConnectionError:
            pass  # a reset is an end, too
        self.closed_s = time.monotonic()


class Observations(msgspec.Struct):
    """Observations over all waves."""

    count: int = 0
    open_after: int = 0
    late_s: list[float] = []
    early_s: list[float] = []
    health_ms: list[float] = []
    growth_bytes: float = 0.0
    """Memory per connection, in the worst wave."""
    problems: list[str] = []


def one(context: CaseContext) -> Outcome:
    """A server of one process: each form in a wave of its own, or in short all of them in one."""
    return _do(context, _waves(context))


def workers(context: CaseContext) -> Outcome:
    """The same with two workers, and all forms at the same time."""
    return _do(context, _mixed(context.times(SOCKETS, SOCKETS_SHORT)), "--workers", "2")


def _waves(context: CaseContext) -> list[Sequence[Form]]:
    return _mixed(SOCKETS_SHORT) if context.is_short else [[form] * SOCKETS for form in FORMS]


def _mixed(count: int) -> list[Sequence[Form]]:
    return [[FORMS[number % len(FORMS)] for number in range(count)]]


def _do(context: CaseContext, waves: Sequence[Sequence[Form]], *options: str) -> Outcome:
    limit_s = LIMIT_OF_US_SHORT_S if context.is_short else LIMIT_OF_US_S
    limits = ["--head-time", str(limit_s), "--body-time", str(limit_s), "--connections", str(2 * SOCKETS)]
    with beating() as beats, gateway(context.folder, beats, options=["--quiet", *limits, *options]) as server:
        return asyncio.run(_attack(context, server, waves, limit_s))


async def _attack(context: CaseContext, server: Running, waves: Sequence[Sequence[Form]], limit_s: float) -> Outcome:
    observations = Observations()
    async with listening(server, BODY) as recorder, _probed(server, observations):
        await _until(lambda: len(observations.health_ms) > 2)  # permanent allocations are done
        recorder.worst.clear()
        base = files(server)
        for number, wave in enumerate(waves, 1):
            context.note(f"wave {number} of {len(waves)}: {len(wave):,} that {wave[0].name}")
            await _wave(server, wave, limit_s, observations)
        left = await settled(lambda: max(0, files(server) - base))
    return _outcome(observations, recorder, left, limit_s)


async def _wave(server: Running, forms: Sequence[Form], limit_s: float, observations: Observations) -> None:
    before = memory(server)
    door = asyncio.Semaphore(AT_ONCE)

    async def come(form: Form) -> Slow:
        async with door:
            began_s = time.monotonic()
            connection = await connect(server.port, form.payload(server.port))
            return Slow(form, connection, began_s, time.monotonic())

    slow = await asyncio.gather(*map(come, forms))
    observations.growth_bytes = max(observations.growth_bytes, (memory(server) - before) / len(slow))
    stays = [asyncio.create_task(client.stay()) for client in slow]
    drips = asyncio.create_task(_drip([client for client in slow if client.form.dripped]))
    await asyncio.wait(stays, timeout=3 * limit_s + 10)
    for task in (*stays, drips):
        task.cancel()
    await asyncio.wait([*stays, drips])
    for client in slow:
        client.connection.disconnect(is_reset=True)
    observations.count += len(slow)
    _judge(slow, limit_s, observations)


async def _drip(slow: Sequence[Slow]) -> None:
    """Send one byte per client in turn."""
    for index in range(max((len(client.form.dripped) for client in slow), default=0)):
        await asyncio.sleep(DRIP_S)
        for client in slow:
            if client.closed_s is None and index < len(client.form.dripped):
                client.connection.writer.write(client.form.dripped[index : index + 1])


def _judge(slow: Sequence[Slow], limit_s: float, observations: Observations) -> None:
    for client in slow:
        if client.closed_s is None:
            observations.open_after += 1
            observations.problems.append(f"still open: a client that would {client.form.name}")
        else:
            observations.late_s.append(client.closed_s - client.opened_s - limit_s - client.form.linger_s)
            observations.early_s.append(client.began_s + limit_s - client.closed_s)


@asynccontextmanager
async def _probed(server: Running, observations: Observations) -> AsyncIterator[None]:
    """Request /health on new connections until the context ends."""

    async def probe() -> None:
        while True:
            began = time.monotonic()
            status = await health(server)
            observations.health_ms.append((time.monotonic() - began) * 1000)
            if status != 200:
                observations.problems.append(f"/health: status {status}")
            await asyncio.sleep(PROBE_S)

    task = asyncio.create_task(probe())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()  # raises if the task failed


def _outcome(observations: Observations, recorder: GapRecorder, left: float, limit_s: float) -> Outcome:
    silence_ms = max(recorder.worst.values(), default=0.0)
    return Outcome(
        observations.count,
        f"{len(observations.late_s):,} clients were disconnected at the limit of {limit_s:g} s; "
        f"of {len(observations.health_ms):,} concurrent requests for /health half took less than "
        f"{percentile(observations.health_ms, 50):.0f} ms",
        (
            Figure("clients never disconnected", observations.open_after, most=0),
            Figure(
                "latest disconnect after the limit",
                max(observations.late_s, default=0) * 1000,
                "ms",
                most=LATE_S * 1000,
                is_timing=True,
            ),
            Figure(
                "earliest disconnect before the limit",
                max(observations.early_s, default=0) * 1000,
                "ms",
                most=250,
                is_timing=True,
            ),
            Figure("/health p99", percentile(observations.health_ms, 99), "ms", most=100, is_timing=True),
            Figure("longest pause of a concurrent stream", silence_ms, "ms", most=200, is_timing=True),
            Figure("memory per client", observations.growth_bytes / 1024, "KB", most=32, is_timing=True),
            Figure("leaked file descriptors", left, most=0),
        ),
        tuple(observations.problems),
    )


def crowd(context: CaseContext) -> Outcome:
    """More silent connections than the limit, then as many incomplete requests as may run at once."""
    limits = ["--connections", "8", "--body-time", "1"]  # so there is room for 80 connections
    with beating() as beats, gateway(context.folder, beats, options=["--quiet", *limits]) as server:
        return asyncio.run(_crowd(context, server))


async def _crowd(context: CaseContext, server: Running) -> Outcome:
    count = context.times(SOCKETS, 2 * SOCKETS_SHORT)
    short = chat("beat", max_tokens=2)
    request_count = rejected = 0
    silent: list[ClientConnection] = []
    for number in context.each(range(count)):
        silent.append(await connect(server.port, b""))
        if number % 20 == 19:
            request_count += 1
            rejected += await _ending(server, short) != "whole"
    halves = [await connect(server.port, post(BODY, server.port)[:-10]) for _ in range(8)]
    refused = await _refused(server, short)
    status = await health(server)
    answers = [parse(await half.read_until()) for half in halves]
    after = await _ending(server, short)
    for connection in (*silent, *halves):
        connection.disconnect(is_reset=True)
    return Outcome(
        count,
        f"{request_count - rejected} of {request_count} other requests were answered; with all connections held by "
        f"incomplete requests, others got {refused} and /health {status}; after the body timeout, a response was "
        f"{after}",
        (
            Figure("other requests rejected", rejected, most=0),
            Figure("incomplete requests answered with 408", sum(one.status == 408 for one in answers), least=8, most=8),
        ),
        tuple(
            words
            for words, is_so in (
                (f"with all connections in use, others got {refused}", refused != "503 server_busy"),
                (f"with all connections in use, /health returned {status}", status != 200),
                (f"afterwards a response was {after}", after != "whole"),
            )
            if is_so
        ),
    )


async def _ending(server: Running, body: bytes) -> str:
    try:
        return (await send_request(server, body)).ending
    except ConnectionError:
        return "kept out"


async def _refused(server: Running, body: bytes) -> str:
    """Status of one more request when all connections are in use."""
    deadline = time.monotonic() + LIMIT_S
    while (received := await send_request(server, body)).status == 200:
        assert time.monotonic() < deadline
    return received.status_text


def files(server: Running) -> int:
    """The files and connections that a server has open, with its workers."""
    return sum(open_files_of(pid) for pid in _processes(server))


def memory(server: Running) -> int:
    """The bytes of memory that it holds, with its workers."""
    return sum(memory_of(pid) for pid in _processes(server))


def _processes(server: Running) -> list[int]:
    return [server.process.pid, *children(server.process.pid)]


async def _until(is_so: Callable[[], bool]) -> None:
    assert await settled(lambda: float(is_so()), 1.0)


CASES = (
    Case("slow-clients", "1,100 clients that send nothing, half a head or half a body, send slowly, or stay idle", one),
    Case("slow-clients-workers", "the same at once, with two workers", workers),
    Case("silent-crowd", "more silent connections than the limit, and incomplete requests on all connections", crowd),
)
