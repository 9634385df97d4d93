"""Memory of streams: with clients that do not read, and with thousands of open streams."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, LIMIT_S, ClientConnection, chat, connect, post, run_concurrently
from faults.dialects import MESSAGES, OLLAMA_CHAT, request
from faults.lightweight import (
    ENDING,
    OPENING,
    UpstreamConnection,
    UpstreamState,
    between,
    close_connections,
    settled,
    text_chunk,
    upstream,
)
from tests.support.faults import memory_of, metric, open_files_of
from tests.support.server import Running
from tests.support.upstream import ACTIVE

KB, MB = 2**10, 2**20
OFFERED, OFFERED_SHORT = 256, 48
"""MB that the upstream sends: more than socket buffers hold."""
WARM_ROUNDS = 2
"""Warm-up streams: permanent allocations are done after these."""
TEXT_BYTES = 65536
PIECE = text_chunk("w" * TEXT_BYTES)
HELD_MB = 40
"""Socket buffers of clients that do not read: up to 6 MB at each end of a connection, and twice as much with the
kernel's own overhead."""
EACH_MB, GROWTH_MB = 1.0, 4.0
"""Of each client that does not read, and of a single stream while much passes: pieces of 256 KB are read, and are there
some times over until they are sent."""
UNREAD = 64
"""Concurrent clients that do not read, for the memory of each. The first eight that begin at once let the heap grow by
12 MB, which stay for later ones; the next 56 need 2 MB."""
READ_BYTES = 256 * KB
LOOK_BYTES = 8 * MB
QUIET_S = 0.2
"""Without data for this long, backpressure has stopped the upstream."""
WRITE_S = 1
"""Limit after which the gateway disconnects a client that does not read."""
TOO_SLOW = 'welldone_stream_failures_total{reason="client_too_slow"}'


# A client that does not read.


class Flood(UpstreamConnection):
    """Upstream connection that sends as much as backpressure allows, up to a limit."""

    offered_bytes = 0
    _left = 0
    _is_held = False

    def answer(self, model: str) -> None:
        """Begin."""
        if not model:  # a probe
            super().answer(model)
            return
        self._left = self.offered_bytes
        self.send(OPENING)
        self._go_on()

    def pause_writing(self) -> None:
        """Stop: the receiver does not read."""
        self._is_held = True

    def resume_writing(self) -> None:
        """Resume sending."""
        self._is_held = False
        self._go_on()

    def _go_on(self) -> None:
        while self._left > 0 and not self._is_held:
            self._left -= len(PIECE)
            self.send(PIECE)
            if self._left <= 0:
                self.send(ENDING)
                self.done()


class Endpoint(msgspec.Struct, frozen=True):
    """A path through the gateway, and the end of its answer."""

    name: str
    path: str
    body: bytes
    end: bytes


ENDPOINTS = (
    Endpoint("chat", CHAT, chat(), b"data: [DONE]\n\n\r\n0\r\n\r\n"),
    Endpoint("passing", "/v1/audio/speech", chat(), b"data: [DONE]\n\n\r\n0\r\n\r\n"),
    Endpoint("messages", MESSAGES, request(MESSAGES), b'data: {"type":"message_stop"}\n\n\r\n0\r\n\r\n'),
    Endpoint("ollama", OLLAMA_CHAT, request(OLLAMA_CHAT), b"}\n\r\n0\r\n\r\n"),
)
"""The fast path, a passthrough endpoint, and two translations, to SSE events and to JSON lines."""


class Read(msgspec.Struct):
    """Result of a response that was read late."""

    held_mb: float = 0.0
    """Bytes read from the upstream before the client read any."""
    growth_mb: float = 0.0
    is_whole: bool = False


def slow_reader(context: CaseContext) -> Outcome:
    """Read late, and never read."""
    return asyncio.run(_slow_reader(context))


async def _slow_reader(context: CaseContext) -> Outcome:
    offered = context.times(OFFERED, OFFERED_SHORT)
    endpoints = ENDPOINTS[: context.times(len(ENDPOINTS), 2)]
    state, reads = UpstreamState(), list[Read]()

    class Offering(Flood):
        offered_bytes = offered * MB

    async with upstream(state, Offering) as port, between(context.folder, port) as server:
        for _ in context.each(range(context.times(WARM_ROUNDS, 0) + 1)):
            reads = [await _read_late(state, server, endpoint, offered * MB) for endpoint in endpoints]
        context.note(f"{UNREAD} who do not read")
        costs = [await _unread(state, server, endpoint) for endpoint in endpoints[: context.times(len(endpoints), 1)]]
    async with (
        upstream(state, Offering) as port,
        between(context.folder, port, options=["--write", str(WRITE_S)]) as server,
    ):
        context.note("reading never")
        cut = await _never_read(state, server, endpoints)
        counted = await asyncio.to_thread(metric, server, TOO_SLOW)
    problems = [
        f"{endpoint.name}: not whole" for endpoint, read in zip(endpoints, reads, strict=True) if not read.is_whole
    ]
    held, growth = max(read.held_mb for read in reads), max(read.growth_mb for read in reads)
    whole = len(reads) - len(problems)
    happened = (
        f"backpressure stopped the upstream after {held:.0f} of {offered} MB; {whole} of {len(endpoints)} late readers"
        f" received everything, and {cut:g} of {len(endpoints)} clients that never read were disconnected"
    )
    figures = (
        Figure("memory per client that does not read", max(costs), "MB", most=EACH_MB),
        Figure("memory growth during the transfer", growth, "MB", most=GROWTH_MB),
        Figure("read from the upstream before backpressure", held, "MB", most=HELD_MB),
        Figure("complete responses", whole, f"of {len(endpoints)}", least=len(endpoints)),
        Figure("disconnected at the limit", cut, f"of {len(endpoints)}", least=len(endpoints)),
        # The metric does not count passthrough responses.
        Figure("slow clients in the metrics", counted, least=len(endpoints) - 1),
    )
    return Outcome(2 * len(endpoints) + UNREAD * len(costs), happened, figures, tuple(problems))


@asynccontextmanager
async def _requested(server: Running, endpoint: Endpoint) -> AsyncIterator[socket.socket]:
    """Open a connection with a small receive buffer and send a request."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KB)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_S):
            await loop.sock_connect(connection, ("127.0.0.1", server.port))
            await loop.sock_sendall(connection, post(endpoint.body, server.port, path=endpoint.path))
        yield connection


async def _read_late(state: UpstreamState, server: Running, endpoint: Endpoint, offered_bytes: int) -> Read:
    """Send a request, wait until backpressure stops the upstream, then read."""
    read, before, pid = Read(), state.sent_bytes, server.process.pid
    base = memory_of(pid)
    async with _requested(server, endpoint) as connection:
        await _quiet(state, before)
        read.held_mb = (state.sent_bytes - before) / MB
        looks, received, last = [memory_of(pid)], 0, b""
        async with asyncio.timeout(LIMIT_S):
            while data := await asyncio.get_running_loop().sock_recv(connection, READ_BYTES):
                received += len(data)
                last = (last + data)[-len(endpoint.end) :]
                if received > len(looks) * LOOK_BYTES:
                    looks.append(memory_of(pid))
    read.growth_mb = (max(looks) - base) / MB
    # Each endpoint has its own frames; only the text is the same.
    read.is_whole = last == endpoint.end and received >= offered_bytes * TEXT_BYTES / len(PIECE)
    return read


async def _unread(state: UpstreamState, server: Running, endpoint: Endpoint) -> float:
    """Memory per client that does not read, in MB."""
    base, before = memory_of(server.process.pid), state.sent_bytes
    async with AsyncExitStack() as stack:
        for _ in range(UNREAD):
            await stack.enter_async_context(_requested(server, endpoint))
        await settled(lambda: state.running, UNREAD)
        await _quiet(state, before)
        grown = memory_of(server.process.pid) - base
    await settled(lambda: state.running)
    return grown / UNREAD / MB


async def _quiet(state: UpstreamState, before: int) -> None:
    """Wait until the upstream has started and is blocked by backpressure."""
    last = before
    async with asyncio.timeout(LIMIT_S):
        while state.sent_bytes == before or state.sent_bytes != last:
            last = state.sent_bytes
            await asyncio.sleep(QUIET_S)


async def _never_read(state: UpstreamState, server: Running, endpoints: Sequence[Endpoint]) -> float:
    """Share of clients that never read and are disconnected."""
    before = state.whole
    async with AsyncExitStack() as stack:
        for endpoint in endpoints:
            await stack.enter_async_context(_requested(server, endpoint))
        await settled(lambda: state.running, len(endpoints))
        left = await settled(lambda: state.running)
    return len(endpoints) - left - (state.whole - before)


# Many streams.

STREAMS, MORE_STREAMS, STREAMS_SHORT = 1_000, 5_000, 100
PER_STREAM_KB = 64.0
FILES_SPARE = 500
AT_ONCE = 50
"""Streams opened concurrently: the accept queue has room for them."""


def many_streams(context: CaseContext) -> Outcome:
    """Open many streams and close them."""
    return asyncio.run(_many_streams(context))


async def _many_streams(context: CaseContext) -> Outcome:
    count = context.times(STREAMS, STREAMS_SHORT)
    counts = (count,) if context.is_short or not _has_files_for(MORE_STREAMS) else (count, count, MORE_STREAMS)
    state, costs, stayed, more_files = UpstreamState(), list[float](), list[float](), list[float]()
    options, each = ["--connections", str(MORE_STREAMS + 100)], {"limit": MORE_STREAMS + 100}
    async with upstream(state) as port, between(context.folder, port, options=options, each=each) as server:
        pid = server.process.pid
        await _with_streams(context, state, server, AT_ONCE, lambda: asyncio.sleep(0))  # permanent allocations are done
        files, base = await settled(lambda: open_files_of(pid), open_files_of(pid)), memory_of(pid)
        for number in counts:

            async def look(number: int = number) -> None:
                costs.append((memory_of(pid) - base) / number / KB)

            await _with_streams(context, state, server, number, look)
            more_files.append(await settled(lambda: open_files_of(pid) - files))
            stayed.append((memory_of(pid) - base) / MB)
        active = await asyncio.to_thread(metric, server, ACTIVE)
    happened = (
        f"{counts[-1]:,} streams were open at once; {stayed[-1]:.0f} MB stayed allocated for reuse after they closed"
    )
    figures = [Figure(f"memory per stream, {counts[0]:,} open", costs[0], "KB", most=PER_STREAM_KB, is_timing=True)]
    if len(counts) > 1:
        figures += [
            Figure(f"memory per stream, {counts[-1]:,} open", costs[-1], "KB", most=PER_STREAM_KB, is_timing=True),
            Figure(
                "growth per stream from the first thousand to the second",
                costs[1] - costs[0],
                "KB",
                most=8,
                is_timing=True,
            ),
        ]
    figures += [Figure("leaked file descriptors", max(more_files), most=0), Figure("streams left open", active, most=0)]
    return Outcome(sum(counts), happened, tuple(figures))


async def _with_streams(
    context: CaseContext, state: UpstreamState, server: Running, count: int, look: Callable[[], Awaitable[None]]
) -> None:
    """Measure while this many streams are open."""
    connections: list[ClientConnection] = []

    async def open_one(_: int) -> None:
        connection = await connect(server.port, post(chat("stalls"), server.port))
        connections.append(connection)
        await connection.read_until(b" well")

    try:
        await run_concurrently(context, range(count), AT_ONCE, open_one)
        await look()
    finally:
        for connection in connections:
            connection.disconnect()
        await settled(lambda: state.running)
        close_connections(state)


def _has_files_for(streams: int) -> bool:
    """Whether as many files may be open as this needs here, where both ends of both connections are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft >= 2 * streams + FILES_SPARE


CASES = (
    Case("slow-reader", f"an upstream offers {OFFERED} MB to a client that reads late, or never", slow_reader),
    Case("many-streams", "thousands of streams are open at once, each in the middle of its answer", many_streams),
)
