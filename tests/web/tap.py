"""Stands between the browser and the server and notes every byte: what the inspector shows is held against it."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.live.server import LIMIT_S

_STREAM = re.compile(rb"\r\ncontent-type: text/event-stream.*?\r\n\r\n", re.DOTALL | re.IGNORECASE)


class Tap:
    """A port that leads to another."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._replied: list[bytearray] = []
        """What the server said, on each connection."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def root(self) -> str:
        """Where the page is, seen from here."""
        return f"http://127.0.0.1:{self.port}"

    def streams(self) -> list[bytes]:
        """The bodies of all streams that have ended, without HTTP's own marks."""
        return [_body(said, head.end()) for said in self._replied for head in _STREAM.finditer(said)]

    async def listen(self) -> asyncio.Server:
        """Begin."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def end(self, server: asyncio.Server) -> None:
        """Leave all connections."""
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        replied = bytearray()
        self._replied.append(replied)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        ways = {
            asyncio.create_task(_pass(reader, there_writer, bytearray())),
            asyncio.create_task(_pass(there_reader, writer, replied)),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            there_writer.close()
            writer.close()
            self._tasks.discard(task)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: bytearray) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            note += data
            writer.write(data)
            await writer.drain()


def _body(said: bytearray, at: int) -> bytes:
    """The body whose first chunk begins here."""
    body = b""
    while True:
        end = said.index(b"\r\n", at)
        size = int(said[at:end], 16)
        at = end + 2 + size + 2
        if size == 0:
            return body
        body += said[end + 2 : end + 2 + size]


@contextmanager
def tapped(port: int) -> Iterator[Tap]:
    """A tap before a port of this machine, in a thread of its own."""
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
