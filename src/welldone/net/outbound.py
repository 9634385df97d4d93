"""The HTTP client: one request, and its reply pushed on as it comes, without a task between socket and socket.

Bytes go from `data_received` straight to the receiver. Who is slow to send them on pauses the reading, and the kernel's
buffers fill up to the server: nothing piles up here.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol, cast

import httptools
import msgspec

CONNECT_S = 5.0
"""How long a connection may take; a server that needs longer is away."""
_HEAD_LIMIT_BYTES = 65536  # of a reply's head; aiohttp and nginx refuse 8 to 32 KB


class Address(msgspec.Struct, frozen=True):
    """Where a server listens, and the key that it wants."""

    socket: str | None = None
    """The path of a unix socket; else host and port."""
    host: str = "127.0.0.1"
    port: int = 0
    key: str | None = None
    prefix: str = ""
    """What stands before each path."""

    def __repr__(self) -> str:
        """Where it is, and no key."""
        return f"Address({self.socket or f'{self.host}:{self.port}'}{self.prefix})"


class OutboundError(Exception):
    """The server could not be reached, or its reply is no whole HTTP reply."""


class Receiver(Protocol):
    """Who gets a reply, piece by piece. Nothing here may raise or wait."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins; names of headers are in lower case."""

    def data(self, data: bytes) -> None:
        """More of its body."""

    def end(self, error: OutboundError | None) -> None:
        """It has ended: whole, or with what went wrong. Called once, also where nothing else was."""


class Exchange(asyncio.Protocol):
    """One request and its reply, on a connection of its own."""

    def __init__(self, request: bytes, receiver: Receiver) -> None:
        self._request = request
        self._receiver = receiver
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._has_head = False
        self._has_length = False
        self._is_over = False
        self._is_whole = False
        self._bodies: list[bytes] = []

    def close(self) -> None:
        """Leave: the server sees at once that nobody listens. The receiver hears nothing more."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Read no more for now."""
        if self._transport is not None and not self._is_over:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._is_over:
            self._transport.resume_reading()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Hand on what came, in one piece."""
        if self._is_over:
            return
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._finish(OutboundError("the reply is not HTTP"))
            return
        if not self._has_head and self._head_bytes > _HEAD_LIMIT_BYTES:
            self._finish(OutboundError("the head of the reply is too long"))
            return
        if self._bodies:
            body = self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies)
            self._bodies.clear()
            self._receiver.data(body)
        if self._is_whole:
            self._finish(None)

    def connection_lost(self, error: Exception | None) -> None:
        """The reply is over, whole or not."""
        # Without a length the end of the connection is the end of the reply.
        is_whole = self._has_head and not self._has_length and error is None
        self._finish(None if is_whole else OutboundError("the connection was lost before the reply was whole"))

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the reply."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        self._has_head = True
        self._has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        if not self._is_over:
            self._receiver.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """More of the body."""
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        """The reply is whole."""
        self._is_whole = self._has_head

    def _finish(self, error: OutboundError | None) -> None:
        if self._is_over:
            return
        self.close()
        self._receiver.end(error)


async def send(
    address: Address, method: str, path: str, receiver: Receiver, *, body: bytes = b"", accept: str = "*/*"
) -> Exchange:
    """Begin an exchange. The reply goes to the receiver.

    Raises:
        OutboundError: there is no connection.
    """
    request = _request(address, method, path, body, accept)
    loop = asyncio.get_running_loop()
    exchange = Exchange(request, receiver)
    try:
        async with asyncio.timeout(CONNECT_S):
            if address.socket is not None:
                await loop.create_unix_connection(lambda: exchange, address.socket)
            else:
                await loop.create_connection(lambda: exchange, address.host, address.port)
    except (OSError, TimeoutError):
        raise OutboundError("no connection to the server") from None
    except asyncio.CancelledError:
        exchange.close()
        raise
    return exchange


class Fetched(msgspec.Struct, frozen=True):
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    address: Address, method: str, path: str, *, body: bytes = b"", within_s: float, limit_bytes: int = 1 << 20
) -> Fetched:
    """A whole reply, bounded in time and size.

    Raises:
        OutboundError: there is none.
    """
    gathered = _Gathered(limit_bytes)
    exchange: Exchange | None = None
    try:
        async with asyncio.timeout(within_s):
            exchange = await send(address, method, path, gathered, body=body, accept="application/json")
            return await gathered.whole
    except TimeoutError:
        raise OutboundError(f"no reply within {within_s:g} s") from None
    finally:
        if exchange is not None:
            exchange.close()


class _Gathered:
    """A receiver that gathers a whole reply."""

    def __init__(self, limit_bytes: int) -> None:
        self.whole: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._limit = limit_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit:
            self._settle(OutboundError(f"a reply of more than {self._limit:,} bytes"))

    def end(self, error: OutboundError | None) -> None:
        self._settle(error)

    def _settle(self, error: OutboundError | None) -> None:
        if self.whole.done():
            return
        if error is not None:
            self.whole.set_exception(error)
        else:
            self.whole.set_result(Fetched(self._status, self._headers, bytes(self._body)))


def _request(address: Address, method: str, path: str, body: bytes, accept: str) -> bytes:
    host = "localhost" if address.socket is not None else f"{address.host}:{address.port}"
    lines = [
        f"{method} {address.prefix}{path} HTTP/1.1",
        f"Host: {host}",
        "Connection: close",
        f"Accept: {accept}",
        "Accept-Encoding: identity",
    ]
    if address.key is not None:
        lines.append(f"Authorization: Bearer {address.key}")
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
