"""Scripted HTTP server: `python -m welldone.mock.server --port N --script FILE`.

For tests, and to try a client without a model. POST requests are answered with the bytes and delays of the script, in
order; the last reply is repeated. `GET /seen` returns the received requests and how each reply ended, `GET /counts` the
number of connections and requests.
"""

import argparse
import asyncio
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from welldone.http.websocket_frames import FrameDecoder, Opcode, encode_frame
from welldone.mock.script import (
    MockChunk,
    MockReply,
    MockScript,
    json_reply,
    opens_socket,
    socket_messages,
    with_raw_http,
)

HEAD_LIMIT_BYTES = 65536
BODY_LIMIT_BYTES = 64 * 2**20
"""Twice the default limit of `welldone serve`."""
REQUESTS_LIMIT = 1000
"""Requests that are kept for /seen: far more than a test needs."""

_STOP_TIMEOUT_S = 10.0  # connections are closed at once; more means that the machine hangs

QueueItem = TypeVar("QueueItem")
ResultT = TypeVar("ResultT")


class MockHttpRequest(msgspec.Struct):
    """A received request and how its reply ended. Times are of the monotonic clock."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    is_utf8: bool = True
    """False: invalid bytes in `body` are replaced."""
    end: Literal["running", "whole", "cut", "reset", "left"] = "running"
    """`left`: the client disconnected first; `whole`, `cut`, `reset`: see `MockReply.end`."""
    begun_s: float = 0.0
    ended_s: float | None = None


class MockCounts(msgspec.Struct):
    """Counters of connections and requests, including those for /seen and /counts."""

    connections: int = 0
    open: int = 0
    """Connections that are open now."""
    requests: int = 0


class MockServer:
    """HTTP/1.1 server with keep-alive connections.

    `handler` replaces the script's replies to POST requests; with `handles_all` it answers all methods and paths except
    `/seen` and `/counts`.
    """

    def __init__(
        self,
        script: MockScript,
        handler: Callable[[MockHttpRequest], MockReply] | None = None,
        *,
        handles_all: bool = False,
    ) -> None:
        self._script = script
        self._handles_all = handles_all
        self._posts = deque(script.posts)
        self._health = deque(script.health)
        self._handler = handler or (lambda _: _pop_or_last(self._posts))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.requests: deque[MockHttpRequest] = deque(maxlen=REQUESTS_LIMIT)
        self.counts: MockCounts = MockCounts()

    async def listen(self, *, socket: str | None = None, host: str = "127.0.0.1", port: int = 0) -> Self:
        """Listen on a Unix socket or a port; with port 0 the system chooses it."""
        loop = asyncio.get_running_loop()
        if socket is not None:
            self._server = await loop.create_unix_server(self._new_connection, socket)
        else:
            self._server = await loop.create_server(self._new_connection, host, port)
        return self

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets."""
        return () if self._server is None else self._server.sockets

    @property
    def port(self) -> int:
        """The listening port."""
        port: int = self.sockets[0].getsockname()[1]
        return port

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, which is checked whenever a request or a connection starts or ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _new_connection(self) -> "_MockConnection":
        return _MockConnection(self._on_connection)

    def _on_connection(self, connection: "_MockConnection", writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve_connection(connection, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_connection(self, connection: "_MockConnection", writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        self.counts.open += 1
        self._changed.set()
        try:
            while await self._serve_request(connection, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # not a valid request or frame, an idle timeout, or the client has disconnected
        finally:
            writer.close()
            self.counts.open -= 1
            self._changed.set()

    async def _serve_request(self, connection: "_MockConnection", writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection is kept open."""
        async with asyncio.timeout(self._script.idle_s):
            request = await _read_request(connection.reader)
        self.counts.requests += 1
        path = request.path.partition("?")[0]
        is_handled = request.method == "POST" or (self._handles_all and path not in ("/seen", "/counts"))
        if is_handled or path in self._script.paths:
            self.requests.append(request)
        self._changed.set()
        reply = self._script.paths.get(path) or (self._handler(request) if is_handled else self._builtin_reply(path))
        request.end = await _send_reply(reply, self._script.speed, connection.disconnected, writer)
        request.ended_s = time.monotonic()
        self._changed.set()
        if request.end == "reset" and not writer.is_closing():
            _reset(writer)
        if opens_socket(reply):
            await self._serve_socket(request, connection.reader, writer)
            return False
        return request.end == "whole" and not _closes_connection(request, reply)

    async def _serve_socket(
        self, handshake: MockHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer the messages of a WebSocket: each is a POST with the headers of the handshake."""
        decoder = FrameDecoder(BODY_LIMIT_BYTES, is_masked=True)
        while True:
            async with asyncio.timeout(self._script.idle_s):
                data = await reader.read(HEAD_LIMIT_BYTES)
            if not data:
                return
            for message in decoder.feed(data):
                if message.opcode is Opcode.CLOSE:
                    await _send_frame(Opcode.CLOSE, message.data, writer)
                    return
                if message.opcode is Opcode.PING:
                    await _send_frame(Opcode.PONG, message.data, writer)
                elif message.opcode is not Opcode.PONG and not await self._answer_message(
                    handshake, message.data, writer
                ):
                    return

    async def _answer_message(self, handshake: MockHttpRequest, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer a message; return whether the WebSocket stays open."""
        text = data.decode(errors="replace")
        is_utf8, begun_s = text.encode() == data, time.monotonic()
        request = MockHttpRequest("POST", handshake.path, handshake.headers, text, is_utf8=is_utf8, begun_s=begun_s)
        self.requests.append(request)
        self._changed.set()
        reply = self._handler(request)
        request.end = "left"  # unless all messages are sent
        try:
            for delay_s, event in socket_messages(reply):
                if delay_s and self._script.speed:
                    await asyncio.sleep(delay_s / self._script.speed)
                await _send_frame(Opcode.TEXT, event, writer)
            request.end = "whole"
        finally:
            request.ended_s = time.monotonic()
            self._changed.set()
        return reply.end == "whole"

    def _builtin_reply(self, path: str) -> MockReply:
        if path == "/health":
            return json_reply({"status": "scripted"}, _pop_or_last(self._health))
        values = {"/v1/models": self._script.models, "/props": self._script.props, "/counts": self.counts}
        value = list(self.requests) if path == "/seen" else values.get(path)
        return json_reply({"error": {"message": "not found"}}, 404) if value is None else json_reply(value)


class _MockConnection(asyncio.StreamReaderProtocol):
    """A connection that detects a disconnect of the client without reading."""

    def __init__(self, on_connection: Callable[["_MockConnection", asyncio.StreamWriter], None]) -> None:
        self.disconnected = asyncio.Event()
        self.reader = asyncio.StreamReader(limit=HEAD_LIMIT_BYTES)
        super().__init__(self.reader, lambda _, writer: on_connection(self, writer))

    def eof_received(self) -> bool:
        self.disconnected.set()
        super().eof_received()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.disconnected.set()
        super().connection_lost(error)


def _pop_or_last(queue: deque[QueueItem]) -> QueueItem:
    return queue.popleft() if len(queue) > 1 else queue[0]


async def _read_request(reader: asyncio.StreamReader) -> MockHttpRequest:
    """Read a request. Raises `ValueError` if it is not valid."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    begun_s = time.monotonic()
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunks(reader)
    else:
        body = await _read_exactly(reader, int(headers.get("content-length", "0")))
    method, path, _ = first.split(" ", 2)
    text = body.decode(errors="replace")
    return MockHttpRequest(method, path, headers, text, is_utf8=text.encode() == body, begun_s=begun_s)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        body += await _read_exactly(reader, size, limit_bytes=BODY_LIMIT_BYTES - len(body))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return bytes(body)


async def _read_exactly(reader: asyncio.StreamReader, size: int, limit_bytes: int = BODY_LIMIT_BYTES) -> bytes:
    if not 0 <= size <= limit_bytes:
        raise ValueError(f"the body exceeds the limit of {limit_bytes:,} bytes")
    return await reader.readexactly(size)


async def _send_reply(
    reply: MockReply, speed: float, disconnected: asyncio.Event, writer: asyncio.StreamWriter
) -> Literal["whole", "cut", "reset", "left"]:
    """Send the reply until its end or until the client disconnects."""
    disconnect = asyncio.create_task(disconnected.wait())
    sending = asyncio.create_task(_send_chunks(with_raw_http(reply), speed, writer))
    try:
        await asyncio.wait({disconnect, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() or sending.exception() is not None:
            return "left"
        return reply.end if reply.end in ("cut", "reset") else "whole"
    finally:
        for task in (disconnect, sending):
            task.cancel()
        await asyncio.wait({disconnect, sending})


async def _send_chunks(reply: MockReply, speed: float, writer: asyncio.StreamWriter) -> None:
    for chunk in reply.pieces:
        await _send_chunk(chunk, speed, writer)
    while reply.end == "endless" and reply.pieces:
        await _send_chunk(reply.pieces[-1], speed, writer)
        await asyncio.sleep(0)  # drain() returns at once for a fast client, which would block all other tasks
    if reply.end in ("hang", "endless"):
        await asyncio.Event().wait()


async def _send_chunk(chunk: MockChunk, speed: float, writer: asyncio.StreamWriter) -> None:
    if chunk.after_s and speed:
        await asyncio.sleep(chunk.after_s / speed)
    writer.write(chunk.data)
    await writer.drain()


async def _send_frame(opcode: Opcode, data: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(encode_frame(opcode, data))
    await writer.drain()


def _closes_connection(http_request: MockHttpRequest, reply: MockReply) -> bool:
    announced = {value.lower() for name, value in reply.headers.items() if name.lower() == "connection"}
    is_requested = http_request.headers.get("connection", "").lower() == "close"
    return is_requested or reply.end == "close" or reply.framing == "close" or "close" in announced


def _reset(writer: asyncio.StreamWriter) -> None:
    """Send a TCP reset, like a process that is killed with unread input."""
    connection: socket.socket = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX:  # Unix sockets have no SO_LINGER
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class BackgroundMock:
    """Runs a mock server in a thread of this process, on a free port, until `close`: for tests of clients."""

    def __init__(self, server: MockServer) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="welldone-mock", daemon=True)
        self._thread.start()
        self._server = self._run(server.listen())
        self.url: str = f"http://127.0.0.1:{self._server.port}/v1"
        """Base URL, as clients want it."""

    @property
    def requests(self) -> list[MockHttpRequest]:
        """The requests so far: method, path, headers, body, and how each reply ended (`end`)."""
        return list(self._server.requests)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for a condition, which is checked whenever a request or a connection starts or ends.

        Raises:
            TimeoutError: it did not become true.
        """
        self._run(asyncio.wait_for(self._server.wait_until(condition), timeout_s))

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop the server and close its connections. Later calls do nothing."""
        if self._loop.is_closed():
            return
        self._run(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def start_mock_server(script: MockScript, *, socket: str | None = None, port: int = 0) -> MockServer:
    """Start a mock server on a Unix socket or a port; with port 0 the system chooses it."""
    return await MockServer(script).listen(socket=socket, port=port)


async def _serve(script: MockScript, socket: str | None, port: int) -> None:
    async with await start_mock_server(script, socket=socket, port=port):
        await asyncio.Event().wait()


def main() -> None:
    """Run the server until it is killed."""
    parser = argparse.ArgumentParser(prog="python -m welldone.mock.server", description="Scripted HTTP server.")
    address = parser.add_mutually_exclusive_group(required=True)
    address.add_argument("--socket", help="path of a Unix socket to listen on")
    address.add_argument("--port", type=int, default=0, help="port of the loopback interface to listen on")
    parser.add_argument("--script", type=Path, help="JSON file with the replies; default: a stream with 'Hello'")
    arguments = parser.parse_args()
    script = MockScript()
    if arguments.script is not None:
        script = msgspec.json.decode(arguments.script.read_bytes(), type=MockScript)
    asyncio.run(_serve(script, arguments.socket, arguments.port))


if __name__ == "__main__":
    main()
