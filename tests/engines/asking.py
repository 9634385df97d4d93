"""A client that hears every byte of a scripted engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from welldone.rules.trace import Trace, read_capture


class Asker:
    """A connection to an engine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def ask(self, body: dict[str, Any] | None = None, *headers: str, path: str = "/v1/chat/completions") -> None:
        """Send a request."""
        data = json.dumps(body or {}).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *headers]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    async def reply(self) -> Trace:
        """A reply in chunks, whose end is heard."""
        return read_capture(await self.reader.readuntil(b"\r\n0\r\n\r\n"))

    async def rest(self) -> bytes:
        """All that comes until the engine closes."""
        return await self.reader.read()

    def leave(self) -> None:
        """Hang up."""
        self.writer.close()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Asker]:
    """A new connection, left at the end."""
    asker = Asker(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield asker
    finally:
        asker.leave()


async def ask(port: int, body: dict[str, Any] | None = None, *, path: str = "/v1/chat/completions") -> Trace:
    """The reply to one request, on a connection of its own."""
    async with connect(port) as asker:
        asker.ask(body, "Connection: close", path=path)
        return read_capture(await asker.rest())
