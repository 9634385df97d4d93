"""What a stream costs in memory: one whose client does not read, and a great many that are open at once."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from faults.asking import CHAT, LIMIT_S, Talk, chat, post, say, side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.dialects import MESSAGES, OLLAMA_CHAT, request
from faults.light import ENDING, OPENING, Desk, Speaker, between, hang_up, says, settled, upstream
from tests.live.faults import files_of, memory_of, metric
from tests.live.server import Running
from tests.live.upstream import ACTIVE

KB, MB = 2**10, 2**20
OFFERED, OFFERED_SHORT = 256, 48
"""MB that the upstream has to say: more than the system itself may keep."""
WARM_ROUNDS = 2
"""What the server needs for such streams, it has after these."""
TEXT_BYTES = 65536
PIECE = says("w" * TEXT_BYTES)
HELD_MB = 40
"""What the system itself may keep on the way, for those who do not read: up to 6 MB at each end of a connection, and
twice as much where it reckons with what it needs for itself."""
EACH_MB, GROWTH_MB = 1.0, 4.0
"""Of each client that does not read, and of a single stream while much passes: pieces of 256 KB are read, and are there
some times over until they are sent."""
UNREAD = 8
"""Clients at once that do not read, for what each of them costs."""
READ_BYTES = 256 * KB
LOOK_BYTES = 8 * MB
QUIET_S = 0.2
"""If nothing was said for so long, the upstream is held back."""
WRITE_S = 1
"""The limit of the gateway that cuts who does not read."""
TOO_SLOW = 'welldone_stream_failures_total{reason="client_too_slow"}'


# A client that does not read.


class Flood(Speaker):
    """It says as much as it is let, up to what it has."""

    offered_bytes = 0
    _left = 0
    _is_held = False

    def answer(self, model: str) -> None:
        """Begin."""
        if not model:  # no answer is asked for
            super().answer(model)
            return
        self._left = self.offered_bytes
        self.say(OPENING)
        self._go_on()

    def pause_writing(self) -> None:
        """The other side does not take it."""
        self._is_held = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_held = False
        self._go_on()

    def _go_on(self) -> None:
        while self._left > 0 and not self._is_held:
            self._left -= len(PIECE)
            self.say(PIECE)
            if self._left <= 0:
                self.say(ENDING)
                self.done()


class Way(msgspec.Struct, frozen=True):
    """A path through the gateway, and how its answer ends."""

    name: str
    path: str
    body: bytes
    end: bytes


WAYS = (
    Way("chat", CHAT, chat(), b"data: [DONE]\n\n\r\n0\r\n\r\n"),
    Way("passing", "/v1/audio/speech", chat(), b"data: [DONE]\n\n\r\n0\r\n\r\n"),
    Way("messages", MESSAGES, request(MESSAGES), b'data: {"type":"message_stop"}\n\n\r\n0\r\n\r\n'),
    Way("ollama", OLLAMA_CHAT, request(OLLAMA_CHAT), b"}\n\r\n0\r\n\r\n"),
)
"""The short way, the one without a look at what passes, and two that write each chunk anew, as events and as lines."""


class Read(msgspec.Struct):
    """What became of an answer that was read late."""

    held_mb: float = 0.0
    """What was taken from the upstream before the client read a byte."""
    growth_mb: float = 0.0
    is_whole: bool = False


def slow_reader(stage: Stage) -> Outcome:
    """Read nothing for a while, then all; and read nothing at all."""
    return asyncio.run(_slow_reader(stage))


async def _slow_reader(stage: Stage) -> Outcome:
    offered = stage.times(OFFERED, OFFERED_SHORT)
    ways = WAYS[: stage.times(len(WAYS), 2)]
    desk, reads = Desk(), list[Read]()

    class Offering(Flood):
        offered_bytes = offered * MB

    async with upstream(desk, Offering) as port, between(stage.folder, port) as server:
        for _ in stage.each(range(stage.times(WARM_ROUNDS, 0) + 1)):
            reads = [await _read_late(desk, server, way, offered * MB) for way in ways]
        stage.note(f"{UNREAD} who do not read")
        costs = [await _unread(desk, server, way) for way in ways[: stage.times(len(ways), 1)]]
    async with (
        upstream(desk, Offering) as port,
        between(stage.folder, port, options=["--write", str(WRITE_S)]) as server,
    ):
        stage.note("reading never")
        cut = await _never_read(desk, server, ways)
        counted = await asyncio.to_thread(metric, server, TOO_SLOW)
    troubles = [f"{way.name}: not whole" for way, read in zip(ways, reads, strict=True) if not read.is_whole]
    held, growth = max(read.held_mb for read in reads), max(read.growth_mb for read in reads)
    whole = len(reads) - len(troubles)
    happened = (
        f"of {offered} MB the upstream could say {held:.0f} before it was held back; {whole} of {len(ways)} clients had"
        f" all of it in the end, and {cut:g} of {len(ways)} that never read were cut"
    )
    figures = (
        Figure("memory of each that does not read", max(costs), "MB", most=EACH_MB),
        Figure("growth while all of it passes", growth, "MB", most=GROWTH_MB),
        Figure("taken from the upstream unread", held, "MB", most=HELD_MB),
        Figure("whole in the end", whole, f"of {len(ways)}", least=len(ways)),
        Figure("cut at the limit", cut, f"of {len(ways)}", least=len(ways)),
        Figure("streams cut by the metrics", counted, least=len(ways) - 1),  # what only passes is no stream there
    )
    return Outcome(2 * len(ways) + UNREAD * len(costs), happened, figures, tuple(troubles))


@asynccontextmanager
async def _asked(server: Running, way: Way) -> AsyncIterator[socket.socket]:
    """A connection on which it was asked, with little room for what is not read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KB)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(LIMIT_S):
            await loop.sock_connect(connection, ("127.0.0.1", server.port))
            await loop.sock_sendall(connection, post(way.body, server.port, path=way.path))
        yield connection


async def _read_late(desk: Desk, server: Running, way: Way, offered_bytes: int) -> Read:
    """Ask, wait until the upstream is held back, and read then."""
    read, before, pid = Read(), desk.sent_bytes, server.process.pid
    base = memory_of(pid)
    async with _asked(server, way) as connection:
        await _quiet(desk, before)
        read.held_mb = (desk.sent_bytes - before) / MB
        looks, heard, last = [memory_of(pid)], 0, b""
        async with asyncio.timeout(LIMIT_S):
            while data := await asyncio.get_running_loop().sock_recv(connection, READ_BYTES):
                heard += len(data)
                last = (last + data)[-len(way.end) :]
                if heard > len(looks) * LOOK_BYTES:
                    looks.append(memory_of(pid))
    read.growth_mb = (max(looks) - base) / MB
    # Each way has frames of its own: what is the same in all is the text.
    read.is_whole = last == way.end and heard >= offered_bytes * TEXT_BYTES / len(PIECE)
    return read


async def _unread(desk: Desk, server: Running, way: Way) -> float:
    """MB that each of some clients costs that do not read."""
    base, before = memory_of(server.process.pid), desk.sent_bytes
    async with AsyncExitStack() as stack:
        for _ in range(UNREAD):
            await stack.enter_async_context(_asked(server, way))
        await settled(lambda: desk.running, UNREAD)
        await _quiet(desk, before)
        grown = memory_of(server.process.pid) - base
    await settled(lambda: desk.running)
    return grown / UNREAD / MB


async def _quiet(desk: Desk, before: int) -> None:
    """Wait until the upstream has begun and can say no more."""
    last = before
    async with asyncio.timeout(LIMIT_S):
        while desk.sent_bytes == before or desk.sent_bytes != last:
            last = desk.sent_bytes
            await asyncio.sleep(QUIET_S)


async def _never_read(desk: Desk, server: Running, ways: Sequence[Way]) -> float:
    """How many of those who never read are cut, so that the upstream is free."""
    before = desk.whole
    async with AsyncExitStack() as stack:
        for way in ways:
            await stack.enter_async_context(_asked(server, way))
        await settled(lambda: desk.running, len(ways))
        left = await settled(lambda: desk.running)
    return len(ways) - left - (desk.whole - before)


# Many streams.

STREAMS, MORE_STREAMS, STREAMS_SHORT = 1_000, 5_000, 100
PER_STREAM_KB = 64.0
FILES_SPARE = 500
AT_ONCE = 50
"""Streams that are opened side by side: a queue of the system has room for them."""


def many_streams(stage: Stage) -> Outcome:
    """Open a great many streams, and close them."""
    return asyncio.run(_many_streams(stage))


async def _many_streams(stage: Stage) -> Outcome:
    count = stage.times(STREAMS, STREAMS_SHORT)
    counts = (count,) if stage.is_short or not _has_files_for(MORE_STREAMS) else (count, count, MORE_STREAMS)
    desk, costs, stayed, more_files = Desk(), list[float](), list[float](), list[float]()
    options, each = ["--connections", str(MORE_STREAMS + 100)], {"limit": MORE_STREAMS + 100}
    async with upstream(desk) as port, between(stage.folder, port, options=options, each=each) as server:
        pid = server.process.pid
        await _with_streams(stage, desk, server, AT_ONCE, lambda: asyncio.sleep(0))  # what it needs for all, it has now
        files, base = await settled(lambda: files_of(pid), files_of(pid)), memory_of(pid)
        for number in counts:

            async def look(number: int = number) -> None:
                costs.append((memory_of(pid) - base) / number / KB)

            await _with_streams(stage, desk, server, number, look)
            more_files.append(await settled(lambda: files_of(pid) - files))
            stayed.append((memory_of(pid) - base) / MB)
        active = await asyncio.to_thread(metric, server, ACTIVE)
    happened = (
        f"{counts[-1]:,} streams were open at once; after they were closed {stayed[-1]:.0f} MB stayed for the next"
    )
    figures = [Figure(f"memory of a stream, {counts[0]:,} open", costs[0], "KB", most=PER_STREAM_KB, is_timing=True)]
    if len(counts) > 1:
        figures += [
            Figure(f"memory of a stream, {counts[-1]:,} open", costs[-1], "KB", most=PER_STREAM_KB, is_timing=True),
            Figure(
                "growth from the first thousand to the second", costs[1] - costs[0], "KB each", most=8, is_timing=True
            ),
        ]
    figures += [Figure("files left open", max(more_files), most=0), Figure("streams left", active, most=0)]
    return Outcome(sum(counts), happened, tuple(figures))


async def _with_streams(
    stage: Stage, desk: Desk, server: Running, count: int, look: Callable[[], Awaitable[None]]
) -> None:
    """Look while so many streams are open, each amid its answer."""
    talks: list[Talk] = []

    async def open_one(_: int) -> None:
        talk = await say(server.port, post(chat("stalls"), server.port))
        talks.append(talk)
        await talk.first(b" well")

    try:
        await side_by_side(stage, range(count), AT_ONCE, open_one)
        await look()
    finally:
        for talk in talks:
            talk.leave()
        await settled(lambda: desk.running)
        hang_up(desk)


def _has_files_for(streams: int) -> bool:
    """Whether as many files may be open as this needs here, where both ends of both connections are."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft >= 2 * streams + FILES_SPARE


CASES = (
    Case("slow-reader", f"an upstream offers {OFFERED} MB to a client that reads late, or never", slow_reader),
    Case("many-streams", "a great many streams are open at once, each amid its answer", many_streams),
)
