"""An engine that says what a script says: `python -m welldone.mock.server --port N --script FILE`.

For tests, and for trying a client without a model. POSTs are answered with given bytes and given pauses, in the order
of the script; the last reply is used again. `GET /seen` tells what was asked and whether the asker stayed to the end,
`GET /counts` how many connections and requests there were.
"""

import argparse
import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, Self, TypeVar

import msgspec

from welldone.mock.script import (
    CHUNK_TEMPLATE,
    HELLO_REPLY,
    MockChunk,
    MockReply,
    MockScript,
    json_reply,
    with_raw_http,
)

__all__ = [
    "CHUNK_TEMPLATE",
    "HELLO_REPLY",
    "MockChunk",
    "MockReply",
    "MockScript",
    "MockServer",
    "MockHttpRequest",
    "start_mock_server",
]

HEAD_LIMIT_BYTES = 65536
BODY_LIMIT_BYTES = 64 * 2**20
"""Twice what the server takes by default."""
REQUESTS_LIMIT = 1000
"""Far more than a test looks at."""

QueueItem = TypeVar("QueueItem")


class MockHttpRequest(msgspec.Struct):
    """A request that came, and how its reply ended. Times are those of the machine's monotonic clock."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    is_utf8: bool = True
    """Whether the body is what was sent; what is no UTF-8 cannot be shown."""
    end: Literal["running", "whole", "cut", "reset", "left"] = "running"
    begun_s: float = 0.0
    ended_s: float | None = None


class MockCounts(msgspec.Struct):
    """How much there was of all, those who ask for this included."""

    connections: int = 0
    open: int = 0
    """Connections that are there now."""
    requests: int = 0


class MockServer:
    """The engine's HTTP. A connection is kept for the next request, unless a reply ends otherwise.

    `choose` finds the reply to a POST where the order of the script is not enough. `for_all`: it answers all methods on
    all paths, but for `/seen` and `/counts`.
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
        self._handler = handler or (lambda seen: _pop_or_last(self._posts))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.requests: deque[MockHttpRequest] = deque(maxlen=REQUESTS_LIMIT)
        self.counts = MockCounts()

    async def listen(self, *, socket: str | None = None, host: str = "127.0.0.1", port: int = 0) -> Self:
        """Listens. Port 0: the system chooses one."""
        loop = asyncio.get_running_loop()
        if socket is not None:
            self._server = await loop.create_unix_server(self._new_connection, socket)
        else:
            self._server = await loop.create_server(self._new_connection, host, port)
        return self

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """Those that it listens on."""
        return () if self._server is None else self._server.sockets

    @property
    def port(self) -> int:
        """The one that it listens on."""
        port: int = self.sockets[0].getsockname()[1]
        return port

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until something is so: looked at whenever a request comes or ends, or a connection does."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Listens no more, and leaves all connections."""
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

    def _on_connection(
        self, connection: "_MockConnection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.create_task(self._serve_connection(connection, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_connection(
        self, connection: "_MockConnection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers the requests of one connection, one after the other."""
        self.counts.connections += 1
        self.counts.open += 1
        self._changed.set()
        try:
            while await self._serve_request(connection, reader, writer):
                pass
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # not a request, or nobody is there any more
        finally:
            writer.close()
            self.counts.open -= 1
            self._changed.set()

    async def _serve_request(
        self, connection: "_MockConnection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answers one request; whether there may be another."""
        async with asyncio.timeout(self._script.idle_s):
            seen = await _read_request(reader)
        self.counts.requests += 1
        path = seen.path.partition("?")[0]
        is_chosen = seen.method == "POST" or (self._handles_all and path not in ("/seen", "/counts"))
        if is_chosen or path in self._script.paths:
            self.requests.append(seen)
        self._changed.set()
        reply = self._script.paths.get(path) or (self._handler(seen) if is_chosen else self._builtin_reply(path))
        seen.end = await _send_reply(reply, self._script.speed, connection.disconnected, writer)
        seen.ended_s = time.monotonic()
        self._changed.set()
        if seen.end == "reset" and not writer.is_closing():
            _reset(writer)
        return seen.end == "whole" and not _closes_connection(seen, reply)

    def _builtin_reply(self, path: str) -> MockReply:
        if path == "/health":
            return json_reply({"status": "scripted"}, _pop_or_last(self._health))
        if path == "/v1/models":
            return json_reply(self._script.models)
        if path == "/props" and self._script.props is not None:
            return json_reply(self._script.props)
        if path == "/seen":
            return json_reply(list(self.requests))
        if path == "/counts":
            return json_reply(self.counts)
        return json_reply({"error": {"message": "not found"}}, 404)


class _MockConnection(asyncio.StreamReaderProtocol):
    """A connection that also knows when the other side has left, without reading on."""

    def __init__(
        self, on_connection: Callable[["_MockConnection", asyncio.StreamReader, asyncio.StreamWriter], None]
    ) -> None:
        self.disconnected = asyncio.Event()
        super().__init__(asyncio.StreamReader(limit=HEAD_LIMIT_BYTES), partial(on_connection, self))

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
    """The next request. Raises `ValueError` for one that is none."""
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
        raise ValueError("a body beyond the limit")
    return await reader.readexactly(size)


async def _send_reply(
    reply: MockReply, speed: float, disconnected: asyncio.Event, writer: asyncio.StreamWriter
) -> Literal["whole", "cut", "reset", "left"]:
    """Sends the reply, until its end or until the asker leaves."""
    leaving = asyncio.create_task(disconnected.wait())
    sending = asyncio.create_task(_send_chunks(with_raw_http(reply), speed, writer))
    try:
        await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() or sending.exception() is not None:
            return "left"
        return reply.end if reply.end in ("cut", "reset") else "whole"
    finally:
        for task in (leaving, sending):
            task.cancel()
        await asyncio.wait({leaving, sending})


async def _send_chunks(reply: MockReply, speed: float, writer: asyncio.StreamWriter) -> None:
    for piece in reply.pieces:
        await _send_chunk(piece, speed, writer)
    while reply.end == "endless" and reply.pieces:
        await _send_chunk(reply.pieces[-1], speed, writer)
        await asyncio.sleep(0)  # an asker who reads fast would keep all others from being heard
    if reply.end in ("hang", "endless"):
        await asyncio.Event().wait()


async def _send_chunk(chunk: MockChunk, speed: float, writer: asyncio.StreamWriter) -> None:
    if chunk.after_s and speed:
        await asyncio.sleep(chunk.after_s / speed)
    writer.write(chunk.data)
    await writer.drain()


def _closes_connection(http_request: MockHttpRequest, reply: MockReply) -> bool:
    """Whether the connection ends with this reply."""
    announced = {value.lower() for name, value in reply.headers.items() if name.lower() == "connection"}
    is_asked = http_request.headers.get("connection", "").lower() == "close"
    return is_asked or reply.end == "close" or reply.framing == "close" or "close" in announced


def _reset(writer: asyncio.StreamWriter) -> None:
    """Leaves without a farewell, as a process does that is killed with bytes unread."""
    connection: socket.socket = writer.get_extra_info("socket")
    if connection.family != socket.AF_UNIX:  # there is no such thing there
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def start_mock_server(script: MockScript, *, socket: str | None = None, port: int = 0) -> MockServer:
    """A listening engine. Port 0: the system chooses one."""
    return await MockServer(script).listen(socket=socket, port=port)


async def _serve(script: MockScript, socket: str | None, port: int) -> None:
    async with await start_mock_server(script, socket=socket, port=port):
        await asyncio.Event().wait()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m welldone.mock.server", description="An engine with a script.")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--socket", help="the path of a unix socket to listen on")
    place.add_argument("--port", type=int, default=0, help="a port of the loopback interface to listen on")
    parser.add_argument("--script", type=Path, help="a JSON file; without it the engine says hello")
    given = parser.parse_args()
    script = MockScript() if given.script is None else msgspec.json.decode(given.script.read_bytes(), type=MockScript)
    asyncio.run(_serve(script, given.socket, given.port))


if __name__ == "__main__":
    main()
