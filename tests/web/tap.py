"""Recording TCP proxy between browser and server, as a reference for what the inspector shows."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.server import LIMIT_S

_STREAM = re.compile(rb"\r\ncontent-type: text/event-stream.*?\r\n\r\n", re.DOTALL | re.IGNORECASE)


class Tap:
    """TCP proxy in front of a local port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._replies: list[bytearray] = []
        """Bytes sent by the server, per connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def root(self) -> str:
        """Base URL of the proxy."""
        return f"http://127.0.0.1:{self.port}"

    def streams(self) -> list[bytes]:
        """The bodies of all complete SSE responses, with chunked framing removed."""
        return [_body(reply, head.end()) for reply in self._replies for head in _STREAM.finditer(reply)]

    async def listen(self) -> asyncio.Server:
        """Start listening."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def end(self, server: asyncio.Server) -> None:
        """Close all connections."""
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        reply = bytearray()
        self._replies.append(reply)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        directions = {
            asyncio.create_task(_pass(reader, server_writer, bytearray())),
            asyncio.create_task(_pass(server_reader, writer, reply)),
        }
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.wait(directions)
            server_writer.close()
            writer.close()
            self._tasks.discard(task)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, recorded: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            recorded += data
            writer.write(data)
            await writer.drain()


def _body(reply: bytearray, at: int) -> bytes:
    """Decode the chunked body that starts at an offset."""
    body = b""
    while True:
        end = reply.index(b"\r\n", at)
        size = int(reply[at:end], 16)
        at = end + 2 + size + 2
        if size == 0:
            return body
        body += reply[end + 2 : end + 2 + size]


@contextmanager
def tapped(port: int) -> Iterator[Tap]:
    """Run a proxy in front of a local port, in its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    tap = Tap(port)
    server = asyncio.run_coroutine_threadsafe(tap.listen(), loop).result(LIMIT_S)
    try:
        yield tap
    finally:
        asyncio.run_coroutine_threadsafe(tap.end(server), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()
