"""WebSockets on the HTTP server: handshake, frames, limits and the end of a connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from tests.http.aio import LIMIT_S, run
from tests.http.certificates import make_pair
from tests.http.frames import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONT,
    HANDSHAKE,
    PING,
    PONG,
    TEXT,
    FrameClient,
    close_frame,
    connect,
    frame,
)
from tests.http.test_server import error_page, running_server
from tests.table import table
from welldone.http.messages import HttpRequest, HttpResponse
from welldone.http.server import HttpServer
from welldone.http.websocket import CloseCode, HandshakeError, WebSocket

LIMIT_BYTES = 1_000


class Echo:
    """A handler that sends each message back, until the client closes or sends `bye`."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.buffered = 0
        self.most_buffered = 0
        self.closed = 0
        self.sockets: list[WebSocket] = []
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, request: HttpRequest) -> HttpResponse | None:
        try:
            socket = WebSocket(
                request,
                {"X-Mine": "1"},
                limit_bytes=self.limit_bytes,
                on_buffered=self._count,
                on_close=self._count_closed,
            )
        except HandshakeError as error:
            return HttpResponse(400, str(error).encode())
        self.sockets.append(socket)
        try:
            while socket.is_open:
                await self.go.wait()
                message = await socket.receive(LIMIT_S)
                if message == b"bye":
                    break
                if message is not None:
                    socket.send(message)
                    await socket.connection.drain()
            await socket.close(CloseCode.GOING_AWAY, "done")
        finally:
            socket.release()
        return None

    def _count(self, change: int) -> None:
        self.buffered += change
        self.most_buffered = max(self.most_buffered, self.buffered)

    def _count_closed(self) -> None:
        self.closed += 1


@asynccontextmanager
async def echoing(handler: Echo | None = None) -> AsyncIterator[tuple[Echo, FrameClient, HttpServer]]:
    handler = handler or Echo()
    async with running_server(handler) as (server, port):
        client = await connect(port)
        yield handler, client, server
        client.writer.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_messages_are_received_and_sent(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        async with echoing() as (handler, client, server):
            assert client.head.startswith(b"HTTP/1.1 101 ")
            assert b"Sec-WebSocket-Accept: " + ACCEPT in client.head
            assert b"\r\nX-Mine: 1\r\n" in client.head
            for text in ("", "a", "fjørd \N{FOX FACE}", "x" * 125, "x" * 126, "x" * LIMIT_BYTES):
                client.send(frame(TEXT, text.encode()))
                assert await client.receive() == (TEXT, text.encode())
            assert handler.buffered == 0
            client.send(close_frame(1000, b"bye"))
            assert (await client.receive()).close_code == 1000
            assert await client.rest() == b""
            await until(lambda: server.active == 0)
            assert (handler.closed, handler.buffered) == (1, 0)

    run(work(), new_loop)


def test_frames_may_arrive_in_any_pieces() -> None:
    async def work() -> None:
        async with echoing() as (_, client, _):
            for byte in frame(TEXT, b"one") + frame(PING, b"p") + frame(TEXT, b"two"):
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert [await client.receive() for _ in range(3)] == [(TEXT, b"one"), (PONG, b"p"), (TEXT, b"two")]

    run(work())


def test_fragments_are_joined_and_control_frames_may_come_between() -> None:
    async def work() -> None:
        async with echoing() as (_, client, _):
            fox = "\N{FOX FACE}".encode()
            client.send(frame(TEXT, fox[:2], fin=False), frame(PING), frame(PONG), frame(CONT, b"", fin=False))
            client.send(frame(CONT, fox[2:]))
            assert [await client.receive() for _ in range(2)] == [(PONG, b""), (TEXT, fox)]

    run(work())


@table(
    ("sent", "code"),
    [
        (frame(TEXT, b"a", is_masked=False), 1002),
        (frame(TEXT, b"a", bits=4), 1002),  # a compressed frame, which was not negotiated
        (frame(3, b"a"), 1002),
        (frame(11), 1002),
        (frame(CONT, b"a"), 1002),
        (frame(TEXT, b"a", fin=False) + frame(TEXT, b"b"), 1002),
        (frame(TEXT, b"a", fin=False) + close_frame(1000), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(PING, fin=False), 1002),
        (frame(CLOSE, b"\x03"), 1002),
        (close_frame(1005), 1002),
        (close_frame(999), 1002),
        (close_frame(1000, b"\xff"), 1007),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"\xed\xa0\x80"), 1007),  # a surrogate
        (frame(TEXT, b"\xf0\x9f", fin=False) + frame(CONT, b"a"), 1007),
        (frame(TEXT, b"\xf0\x9f"), 1007),
        (frame(BINARY, b"a"), 1003),
        (frame(TEXT, b"x" * (LIMIT_BYTES + 1)), 1009),
        (frame(TEXT, b"x" * LIMIT_BYTES, fin=False) + frame(CONT, b"x"), 1009),
        (b"\x81\xff" + b"\xff" * 8, 1009),  # 2**64 - 1 bytes are announced
    ],
)
def test_a_wrong_frame_closes_the_connection(sent: bytes, code: int) -> None:
    async def work() -> None:
        async with echoing() as (handler, client, server):
            client.send(sent, frame(TEXT, b"ignored"))
            assert (await client.receive()).close_code == code
            assert await client.rest() == b""
            await until(lambda: server.active == 0)
            assert (handler.closed, handler.buffered) == (1, 0)

    run(work())


def test_the_close_frame_arrives_while_the_client_still_sends() -> None:
    async def work() -> None:
        async with echoing() as (_, client, _):
            client.send(frame(TEXT, b"x" * 2**20))
            assert (await client.receive()).close_code == 1009

    run(work())


def test_the_server_can_close_and_waits_for_the_client() -> None:
    async def work() -> None:
        async with echoing() as (handler, client, server):
            client.send(frame(TEXT, b"bye"))
            assert await client.receive() == (CLOSE, b"\x03\xe9done")
            handler.sockets[0].send(b"too late")
            handler.sockets[0].ping()
            assert server.active == 1
            client.send(frame(TEXT, b"not read"), close_frame(1001))
            assert await client.rest() == b""
            await until(lambda: server.active == 0)

    run(work())


def test_a_disconnect_cancels_the_handler() -> None:
    async def work() -> None:
        async with echoing() as (handler, client, server):
            client.send(frame(TEXT, b"a" * 10)[:-3])
            await until(lambda: handler.buffered > 0)
            client.writer.transport.abort()
            await until(lambda: server.active == 0 and not server.connections)
            assert handler.buffered == 0

    run(work())


def test_messages_that_are_not_taken_are_limited() -> None:
    async def work() -> None:
        handler = Echo()
        handler.go.clear()
        async with echoing(handler) as (_, client, _):
            client.writer.transport.set_write_buffer_limits(0)
            client.send(*[frame(TEXT, b"x" * LIMIT_BYTES)] * 8_000)  # more than the kernel buffers
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await client.writer.drain()
            assert handler.most_buffered < 2**19  # one read of the event loop more than the limit
            handler.go.set()
            for _ in range(8_000):
                assert await client.receive() == (TEXT, b"x" * LIMIT_BYTES)

    run(work())


def test_a_client_that_reads_nothing_gets_no_endless_pongs() -> None:
    async def work() -> None:
        async with echoing() as (handler, client, _):
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            socket = handler.sockets[0]
            transport = socket.connection.transport
            socket.send(b"x" * 2**24)  # more than the kernel buffers of both sides
            await until(lambda: socket.connection.is_write_paused)
            before = transport.get_write_buffer_size()
            client.send(frame(PING, b"p" * 125) * 50, frame(TEXT, b"a" * 10)[:-3])
            await until(lambda: handler.buffered > 0)
            assert transport.get_write_buffer_size() <= before

    run(work())


@table(
    ("old", "new"),
    [
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"eDM0MDk="),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"not base64 at all"),
        (b"Sec-WebSocket-Key", b"X-Key"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"\r\n\r\n", b"\r\n\r\n" + frame(TEXT, b"early")),
    ],
)
def test_an_invalid_handshake_is_rejected(old: bytes, new: bytes) -> None:
    async def work() -> None:
        async with running_server(Echo()) as (_, port):
            client = await connect(port, HANDSHAKE.replace(old, new))
            assert client.head.startswith(b"HTTP/1.1 400 ")
            assert await client.rest()

    run(work())


@pytest.mark.tier2
def test_a_websocket_works_over_tls(tmp_path: Path) -> None:
    async def work() -> None:
        pair = make_pair(tmp_path)
        server = HttpServer(Echo(), error_response=error_page, connections=9, keep_alive_s=10.0, write_timeout_s=60.0)
        port = await server.start("127.0.0.1", 0, tls=pair.serving())
        trusting = ssl.create_default_context(cafile=pair.certificate)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.write(HANDSHAKE)
            client = FrameClient(reader, writer, await reader.readuntil(b"\r\n\r\n"))
            client.send(frame(TEXT, b"a"))
            assert await client.receive() == (TEXT, b"a")
            client.send(frame(3))
            assert (await client.receive()).close_code == 1002
            await client.rest()
        finally:
            await server.close()

    run(work())
