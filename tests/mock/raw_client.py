"""HTTP client that returns every byte of a mock server's reply."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from welldone.rules.trace import Trace, read_capture


class RawClient:
    """A connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, body: dict[str, Any] | None = None, *headers: str, path: str = "/v1/chat/completions") -> None:
        """Send a POST request."""
        data = json.dumps(body or {}).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *headers]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    async def read_reply(self) -> Trace:
        """Read a chunked reply up to its last chunk."""
        return read_capture(await self.reader.readuntil(b"\r\n0\r\n\r\n"))

    async def read_rest(self) -> bytes:
        """Read until the server closes the connection."""
        return await self.reader.read()

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[RawClient]:
    """Open a connection and close it at the end."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield client
    finally:
        client.close()


async def send_request(port: int, body: dict[str, Any] | None = None, *, path: str = "/v1/chat/completions") -> Trace:
    """Send a request on a new connection and return the complete reply."""
    async with connect(port) as client:
        client.send(body, "Connection: close", path=path)
        return read_capture(await client.read_rest())
