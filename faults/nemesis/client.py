"""A client that does what is wished: asks in its dialect, reads, perhaps slowly, and leaves if it is to leave."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import msgspec

from faults.asking import Talk
from faults.nemesis import dialects
from faults.nemesis.history import Heard
from faults.nemesis.order import Json
from faults.nemesis.wish import Wish

LIMIT_S = 120.0
"""No answer takes that long, also on a busy machine: a hang is a failure."""
_SLOW_S = 0.02
_SLOW_BYTES = 4096
"""What a slow reader's socket holds, so that it is soon full."""
_PATIENCE_S = 0.002
"""For each token after which it would leave, of who waits for a whole reply and hears none."""


class _LeftError(Exception):
    """The client has enough."""


class Client:
    """One client, with a key of its own, one request at a time."""

    def __init__(self, port: int, key: str, moments: Iterator[int], body_of: Callable[[Wish], Json]) -> None:
        self._port = port
        self._key = key
        self._moments = moments
        self._body_of = body_of
        self._line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, wish: Wish) -> Heard:
        """All that is heard of a request."""
        heard, body = Heard(), bytearray()
        try:
            reader, writer = await self._connect(wish)
        except (ConnectionError, TimeoutError):
            return heard
        is_kept = False
        try:
            async with asyncio.timeout(LIMIT_S):
                is_kept = await self._talk(wish, heard, body, reader, writer)
        except _LeftError:
            heard.has_left = True
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            pass  # then it is not closed
        finally:
            if is_kept:
                self._line = reader, writer
            else:
                Talk(reader, writer).leave(is_rude=heard.has_left and wish.is_rude)
        dialects.read("chat" if wish.wrong == "no path" else wish.dialect, heard, bytes(body))
        return heard

    def close(self) -> None:
        """Leave a connection that was kept."""
        if self._line is not None:
            self._line[1].close()
            self._line = None

    async def _connect(self, wish: Wish) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        line, self._line = self._line, None
        if line is not None and not wish.is_slow:
            return line
        if line is not None:
            line[1].close()
        connection = socket.socket()
        connection.setblocking(False)
        if wish.is_slow:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BYTES)
        try:
            async with asyncio.timeout(LIMIT_S):
                await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
                return await asyncio.open_connection(sock=connection, limit=_SLOW_BYTES if wish.is_slow else 2**16)
        except BaseException:
            connection.close()
            raise

    async def _talk(
        self, wish: Wish, heard: Heard, body: bytearray, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Ask and hear; whether the connection can be used again."""
        said = self._request(wish)
        if wish.leaves_after == 0 and wish.is_slow:
            writer.write(said[: len(said) // 2])
            raise _LeftError
        writer.write(said)
        if wish.leaves_after is None or (wish.is_stream and wish.leaves_after):
            return await self._hear(wish, heard, body, reader)
        try:
            async with asyncio.timeout(_PATIENCE_S * wish.leaves_after):
                return await self._hear(wish, heard, body, reader)
        except TimeoutError:
            raise _LeftError from None

    async def _hear(self, wish: Wish, heard: Heard, body: bytearray, reader: asyncio.StreamReader) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        heard.status = int(head.removeprefix(b"http/1.1 ")[:3])
        heard.is_stream = b"text/event-stream" in head or b"application/x-ndjson" in head
        sign = f"{wish.order.marker}:".encode()
        async for data in _pieces(reader, head):
            body += data
            if wish.is_slow:
                await asyncio.sleep(_SLOW_S)
            if sign in data or (heard.first_text_at is None and sign in body):
                if heard.first_text_at is None:
                    heard.first_text_at = next(self._moments)
                if wish.is_stream and wish.leaves_after and body.count(sign) >= wish.leaves_after:
                    raise _LeftError
        heard.is_closed = True
        if wish.is_kept and b"\r\nconnection: close" not in head:
            return True
        with suppress(ConnectionError):
            heard.beyond = await reader.read()
        return False

    def _request(self, wish: Wish) -> bytes:
        body = self._body_of(wish)
        if wish.wrong == "no text":
            said = {name: value for name, value in body.items() if name not in ("messages", "prompt", "input")}
            body = said | ({"messages": 7} if wish.dialect == "ollama" else {})  # there, none means: load the model
        data = b'{"model": ' if wish.wrong == "no json" else msgspec.json.encode(body)
        key = "wd-nobody-has-this-key-0" if wish.wrong == "wrong key" else self._key
        head = [
            f"POST {'/v1/nowhere' if wish.wrong == 'no path' else dialects.PATHS[wish.dialect]} HTTP/1.1",
            f"Host: 127.0.0.1:{self._port}",
            "Content-Type: application/json",
            f"Content-Length: {len(data)}",
            f"Connection: {'keep-alive' if wish.is_kept else 'close'}",
            *([] if wish.wrong == "no key" else [f"Authorization: Bearer {key}"]),
            *(["Content-Encoding: gzip"] if wish.wrong == "packed" else []),
        ]
        return "\r\n".join([*head, "", ""]).encode() + data


async def _pieces(reader: asyncio.StreamReader, head: bytes) -> AsyncIterator[bytes]:
    """The body as it comes, without the marks of its chunks."""
    if b"\r\ntransfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # trailers
    else:
        yield await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0]))
