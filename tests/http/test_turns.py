"""What a peer sends is processed in slices, one in each turn of the event loop, so that others are served in between.

The tests count turns, not times: a heartbeat gets one beat in each turn.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.http.aio import LIMIT_S, run
from tests.http.frames import CONT, PING, TEXT, close_frame, connect, frame
from tests.http.test_client_slices import FakeExchange, FakeTransport
from tests.http.test_server import GET, running_server
from tests.http.test_websocket import Echo, echoing
from tests.table import table
from welldone.http.messages import Handler, HttpRequest, HttpResponse
from welldone.http.turns import SMALL_BYTES, SlicedProtocol

LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
CHUNKED = b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"


class Heartbeat:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.beats = 0

    async def run(self) -> None:
        while True:
            self.beats += 1
            await asyncio.sleep(0)


class RecordingProtocol(SlicedProtocol):
    """A protocol that records its slices."""

    slice_bytes = 64 * 1024
    SLICE_LINES = 64

    def __init__(self) -> None:
        super().__init__()
        self.transport = FakeTransport()
        self._transport = self.transport
        self.slices: list[bytes] = []

    def _process(self, data: bytes) -> None:
        self.slices.append(data)


class FailingProtocol(RecordingProtocol):
    """A protocol that fails."""

    def _process(self, data: bytes) -> None:
        raise ValueError(f"{len(data)} bytes")


@asynccontextmanager
async def beating() -> AsyncIterator[Heartbeat]:
    heart = Heartbeat()
    task = asyncio.create_task(heart.run())
    try:
        yield heart
    finally:
        task.cancel()


def test_of_pipelined_requests_one_is_answered_in_each_turn() -> None:
    async def work() -> None:
        answered: list[int] = []
        paths: list[str] = []

        async def answer(request: HttpRequest) -> HttpResponse:
            answered.append(heart.beats)
            paths.append(request.path)
            return HttpResponse(200, b"ok")

        async with beating() as heart, running_server(answer) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            requests = [GET.replace(b"/x", b"/%d" % number) for number in range(1_000)]
            writer.write(b"".join(requests) + LAST)
            replies = await reader.read()
            writer.close()
        assert replies.count(b"HTTP/1.1 200 OK") == len(paths) == 1_001
        assert paths[:-1] == [f"/{number}" for number in range(1_000)]
        assert max(Counter(answered).values()) == 1

    run(work())


def test_pipelined_requests_of_several_connections_share_the_turns() -> None:
    async def work() -> None:
        answered: list[int] = []

        async def answer(request: HttpRequest) -> HttpResponse:
            answered.append(heart.beats)
            return HttpResponse(200, b"ok")

        async with beating() as heart, running_server(answer) as (_, port):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
            for _, writer in clients:
                writer.write(GET * 50 + LAST)
            for reader, writer in clients:
                assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 51
                writer.close()
        # The first requests of all connections may be answered in one turn.
        assert sum(count > 1 for count in Counter(answered).values()) <= 10

    run(work())


async def read_body(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"%d" % len(await request.read_body(limit_bytes=2**24, timeout_s=LIMIT_S)))


async def ignore_body(request: HttpRequest) -> HttpResponse:
    return HttpResponse(404, b"none")


@table(("handler", "answer"), [(read_body, b"50000"), (ignore_body, b"none")], ids=["read", "not read"])
def test_a_body_of_small_chunks_takes_many_turns(handler: Handler, answer: bytes) -> None:
    async def work() -> None:
        async with beating() as heart, running_server(handler) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            before = heart.beats
            writer.write(CHUNKED + b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n" + LAST)
            assert answer in await reader.read()
            assert heart.beats - before > 150  # at most 1,024 of 200,000 line breaks in one
            writer.close()

    run(work())


def test_a_large_body_of_few_lines_takes_few_turns() -> None:
    async def work() -> None:
        async with beating() as heart, running_server(read_body) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            before = heart.beats
            writer.write(b"POST /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % 2**20)
            writer.write(b"x" * 2**20)
            assert (await reader.read()).endswith(b"%d" % 2**20)
            assert heart.beats - before < 300
            writer.close()

    run(work())


def test_a_client_that_leaves_before_all_of_its_requests_are_parsed_ends_them() -> None:
    async def work() -> None:
        answered = 0
        gone = asyncio.Event()

        async def answer(request: HttpRequest) -> HttpResponse:
            nonlocal answered
            answered += 1
            if answered == 1:
                try:
                    await gone.wait()
                except asyncio.CancelledError:
                    gone.set()
                    raise
            return HttpResponse(200, b"x" * 2**20)

        async with running_server(answer) as (server, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET * 10_000)
            while not answered:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            writer.transport.abort()
            gone.set()
            while server.connections:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
            assert answered < 100
            assert server.active == 0

    run(work())


def test_requests_before_the_end_of_the_input_are_answered() -> None:
    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, b"ok")

    async def work() -> None:
        async with running_server(answer) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET * 3_000 + LAST + b"GET /after HTTP/1.1\r\n\r\n" * 3_000)
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 3_001
            writer.close()

    run(work())


def test_small_fragments_take_many_turns() -> None:
    async def work() -> None:
        async with beating() as heart, echoing(Echo(2**20)) as (_, client, _):
            before = heart.beats
            client.send(frame(TEXT, b"a", fin=False), frame(CONT, b"b", fin=False) * 8_000, frame(CONT, b"c"))
            assert await client.receive() == (TEXT, b"a" + b"b" * 8_000 + b"c")
            assert heart.beats - before > 25  # at most 2 KB of 56 in one
            client.send(close_frame(1000))
            await client.rest()

    run(work())


@table(
    "sent",
    [
        frame(PING) * 200,
        frame(TEXT, b"a", fin=False) + frame(CONT, b"b", fin=False) * 60_000,
        frame(TEXT, fin=False) + frame(CONT, fin=False) * 60_000,
    ],
    ids=["pings", "fragments", "empty fragments"],
)
def test_too_many_small_frames_in_a_second_close_the_connection(sent: bytes) -> None:
    async def work() -> None:
        async with echoing(Echo(2**20)) as (handler, client, server):
            client.send(sent)
            while (received := await client.receive()).opcode != 8:
                pass
            assert received.close_code == 1008
            await client.rest()
            while server.active:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.001)
            assert handler.buffered == 0

    run(work())


def test_early_frames_behind_a_long_head_are_not_read() -> None:
    async def work() -> None:
        async with running_server(Echo()) as (_, port):
            head = b"GET /v1/responses HTTP/1.1\r\n" + b"X-Long: %b\r\n" % (b"x" * 8_000) * 7
            upgrade = (
                b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            client = await connect(port, head + b"Host: h\r\n" + upgrade + frame(TEXT, b"x" * 16_000))
            assert client.head.startswith(b"HTTP/1.1 400 ")
            assert await client.rest()

    run(work())


@table("line", [b"a\n", b"a\r", b"\r\n"])
def test_an_upstream_gets_a_shorter_slice_for_many_lines(line: bytes) -> None:
    async def check() -> None:
        fake = FakeExchange()
        body = line * 4_000
        fake.exchange.data_received(b"HTTP/1.1 200 OK\r\n\r\n" + body)
        await fake.iterations()
        assert fake.body == body
        assert max(map(len, fake.pieces)) <= SMALL_BYTES

    run(check())


def test_the_slices_of_several_upstreams_share_the_turns() -> None:
    async def check() -> None:
        fakes = [FakeExchange() for _ in range(5)]
        for fake in fakes:
            fake.exchange.data_received(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 40_000)
        for turn in range(1, 26):
            await asyncio.sleep(0)
            assert sum(len(fake.pieces) for fake in fakes) == turn
        assert {len(fake.body) for fake in fakes} == {40_000}

    run(check())


@table("data", [b"x" * (2 * SMALL_BYTES), b"{}\n" * 20, b"{}\r" * 300], ids=["long", "some lines", "many lines"])
def test_of_many_connections_that_become_readable_at_once_one_is_processed_in_a_turn(data: bytes) -> None:
    async def check() -> None:
        connections = [RecordingProtocol() for _ in range(20)]
        for connection in connections:
            connection.data_received(data)
        assert sum(len(connection.slices) for connection in connections) == 1
        for _ in range(2 * len(connections)):
            await asyncio.sleep(0)
        assert [connection.slices for connection in connections] == [[data]] * len(connections)

    run(check())


def test_short_pieces_of_many_streams_are_processed_at_once() -> None:
    async def check() -> None:
        connections = [RecordingProtocol() for _ in range(200)]
        data = b"1f\r\ndata: {" + b"x" * 400 + b"}\n\n\r\n"
        for connection in connections:
            connection.data_received(data)
        assert [connection.slices for connection in connections] == [[data]] * len(connections)

    run(check())


def test_an_exception_in_a_later_slice_closes_the_connection() -> None:
    async def check() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        connection = FailingProtocol()
        connection.data_received(b"\n" * (8 * SMALL_BYTES))
        await asyncio.sleep(0)
        assert len(errors) == 1
        assert connection.transport.is_aborted

    errors: list[dict[str, Any]] = []
    run(check())


@table("data", [b"\n" * 20_000, b"x" * 200_000, b"xxxxxxx\n" * 25_000, b"x\r\n"])
def test_a_slice_has_at_most_its_bytes_and_lines(data: bytes) -> None:
    async def check() -> None:
        connection = RecordingProtocol()
        connection.data_received(data)
        for _ in range(1 + len(data) // SMALL_BYTES):
            await asyncio.sleep(0)
        assert b"".join(connection.slices) == data
        for piece in connection.slices:
            assert len(piece) <= RecordingProtocol.slice_bytes
            assert len(piece) <= SMALL_BYTES or piece.count(b"\n") <= RecordingProtocol.SLICE_LINES

    run(check())
