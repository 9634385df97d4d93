"""Requests and responses of the HTTP server, and what they need of their connection."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import unquote

import msgspec

from welldone.http.address import BODILESS_STATUSES, PHRASES, check_header_line
from welldone.http.turns import SlicedProtocol

LINGER_S = 1.0
"""For the rest of a body that nobody reads: a reset connection could lose the response."""
_UNREAD_LIMIT_BYTES = 2**16  # of a body that the handler does not read yet
_LARGE_BODY_BYTES = 2**15  # a JSON schema of this size takes more than 5 ms to parse: one such body at a time
_LAST_CHUNK = b"0\r\n\r\n"
_CACHED_SIZES = 1024  # of chunks, which have a few hundred bytes


class RequestBodyError(Exception):
    """The request body is too long, too slow, or incomplete."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HttpResponse(msgspec.Struct):
    """A complete response."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    closes_connection: bool = False


class RequestHeaders(Mapping[str, str]):
    """Headers of a request, with names in lower case. Lookups ignore case and return the first value of a name."""

    __slots__ = ("_fields", "_values")

    def __init__(self, fields: Sequence[tuple[str, str]]) -> None:
        self._fields = fields
        self._values = dict(reversed(fields))

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return the first value of a name."""
        return self._values.get(name.lower(), default)

    def all_values(self, name: str) -> list[str]:
        """Return all values of a name."""
        name = name.lower()
        return [value for key, value in self._fields if key == name]

    def items(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        """Return all headers, also repeated ones."""
        return self._fields


class AcceptedConnection(SlicedProtocol):
    """What a request and its response need of their connection."""

    transport: asyncio.Transport

    def __init__(self, handler: "Handler", large_body_lock: asyncio.Lock) -> None:
        super().__init__()
        self.handler = handler
        self.large_body_lock = large_body_lock
        self.is_connected: bool = False
        self.is_write_paused: bool = False
        self.on_backpressure: Callable[[], object] | None = None
        self.on_disconnect: Callable[[], object] | None = None
        self.on_upgraded_data: Callable[[bytes], object] | None = None
        """Receives the data after the connection was switched to another protocol."""
        self.has_early_data: bool = False
        """Whether data followed a request for another protocol before its response."""
        self._loop = asyncio.get_running_loop()
        self._drain_waiter: asyncio.Future[None] | None = None

    @property
    @abstractmethod
    def is_ending(self) -> bool:
        """Whether the connection is closed after the response in progress."""

    async def drain(self) -> None:
        """Wait until the write buffer is below its low-water mark. A disconnect cancels the caller."""
        while self.is_write_paused and self.is_connected:
            self._drain_waiter = self._loop.create_future()
            await self._drain_waiter

    def pause_writing(self) -> None:
        """Report backpressure."""
        self.is_write_paused = True
        if self.on_backpressure is not None:
            self.on_backpressure()

    def resume_writing(self) -> None:
        """Wake a task that waits for the client."""
        self.is_write_paused = False
        if self._drain_waiter is not None and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)


@lru_cache(_CACHED_SIZES)
def _chunk_framing(size: int) -> tuple[bytes, bytes]:
    return b"%x\r\n" % size, b"\r\n"


def _no_framing(size: int) -> tuple[bytes, bytes]:
    return b"", b""


class StreamingResponse:
    """A response whose body is written piece by piece."""

    def __init__(self, connection: AcceptedConnection, *, head: bytes, is_chunked: bool, has_body: bool) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._head = head  # not sent yet
        self._is_chunked = is_chunked
        self._has_body = has_body
        self.is_ended: bool = False
        self.write_framed: Callable[[bytes], None] = self._transport.write
        """Sends bytes that already have their chunk framing. Call it only while `is_open`."""

    @property
    def chunk_framing(self) -> Callable[[int], tuple[bytes, bytes]]:
        """Return the function that returns the bytes that precede and follow a chunk of a size."""
        return _chunk_framing if self._is_chunked else _no_framing

    def on_backpressure(self, callback: Callable[[], object]) -> None:
        """Set the callback for a full write buffer."""
        self._connection.on_backpressure = callback

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Set the callback for a disconnect of the client; it is called at once."""
        self._connection.on_disconnect = callback

    @property
    def has_backpressure(self) -> bool:
        """Whether the write buffer is full, because the client reads slowly."""
        return self._connection.is_write_paused

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._connection.is_connected

    def write(self, data: bytes) -> None:
        """Write a part of the body, without waiting. Empty writes are ignored: a zero-length chunk ends the body."""
        if data and not self._transport.is_closing():
            self._transport.write(self._framed(data))

    def _framed(self, data: bytes) -> bytes:
        """Return a part of the body with its framing, after the head if that is not sent yet."""
        head, self._head = self._head, b""
        if not data or not self._has_body:
            return head
        return b"%b%x\r\n%b\r\n" % (head, len(data), data) if self._is_chunked else head + data

    async def drain(self) -> None:
        """Wait until the write buffer is below its low-water mark."""
        await self._connection.drain()

    async def end(self, trailers: Mapping[str, str] | None = None, *, last: bytes = b"") -> None:
        """End the body after the `last` data. Trailers are sent only with chunked transfer encoding.

        Raises:
            ValueError: a trailer contains a character that is not allowed in a header.
        """
        self._connection.on_backpressure = self._connection.on_disconnect = None
        ending = _LAST_CHUNK
        if trailers:
            lines = [f"{name}: {value}" for name, value in trailers.items()]
            check_header_line("".join(lines))
            ending = "\r\n".join(["0", *lines, "", ""]).encode("latin-1")
        self.is_ended = True
        if not self._transport.is_closing():
            self._transport.write(self._framed(last) + (ending if self._is_chunked else b""))
            await self.drain()

    def abort(self) -> None:
        """Reset the connection, so that the client cannot mistake a partial response for a complete one."""
        self._transport.abort()


class HttpRequest:
    """An incoming request."""

    def __init__(
        self, connection: AcceptedConnection, method: str, target: str, headers: RequestHeaders, *, is_http_1_0: bool
    ) -> None:
        self._connection = connection
        self._is_http_1_0 = is_http_1_0
        self.method: str = method
        path, _, query = target.partition("#")[0].partition("?")
        self.query: str = query
        """The raw query string, without the question mark."""
        if "://" in path and not path.startswith("/"):  # absolute form
            path = "/" + path.partition("://")[2].partition("/")[2]
        self.path: str = _decode_path(path) if "%" in path else path
        self._headers = headers
        self.headers: Mapping[str, str] = headers
        self.stream: StreamingResponse | None = None
        """The response, after `start_stream`."""
        self.on_body_data: Callable[[int], object] | None = None
        """Is called with the size of each read of the body until its end; an exception from it ends `read_body`."""
        self.keeps_connection: bool = True
        """Whether another request may follow on the connection."""
        self.is_complete: bool = False
        """Whether the whole body has arrived."""
        self._body = bytearray()
        self._is_broken = False  # the rest of the body will not arrive
        self._is_reading = False
        self._is_discarding = False
        self._waiter: asyncio.Future[None] | None = None

    def header_values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._headers.all_values(name)

    async def read_body(self, *, limit_bytes: int, timeout_s: float) -> bytes:
        """Read the complete body.

        Raises:
            RequestBodyError: it is too long, too slow, or incomplete.
        """
        if int(self.headers.get("content-length", 0)) > limit_bytes:
            raise _body_too_large(limit_bytes)
        if not self.is_complete:
            # curl sends `Expect: 100-continue` before a long body, and waits a second without an answer.
            if self.headers.get("expect", "").lower() == "100-continue" and not self._is_http_1_0:
                self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            try:
                async with asyncio.timeout(timeout_s):
                    await self._receive_body(limit_bytes)
            except TimeoutError:
                message = f"The request body was not received within {timeout_s:g} seconds."
                raise RequestBodyError(408, message) from None
        elif self._body:
            self._count_body(0, limit_bytes)
        if len(self._body) > _LARGE_BODY_BYTES:
            async with self._connection.large_body_lock:
                await asyncio.sleep(0)  # serve other connections before the caller parses this body
        body, self._body = bytes(self._body), bytearray()
        self.on_body_data = None
        return body

    async def _receive_body(self, limit_bytes: int) -> None:
        self._is_reading = True
        counted = self._count_body(0, limit_bytes)
        while not self.is_complete:
            if self._is_broken:
                raise RequestBodyError(400, "The request body is incomplete.")
            await self._wait()
            counted = self._count_body(counted, limit_bytes)

    def _count_body(self, counted: int, limit_bytes: int) -> int:
        """Report the bytes that have arrived beyond the `counted` ones."""
        size = len(self._body)
        if size > limit_bytes:
            raise _body_too_large(limit_bytes)
        if size > counted and self.on_body_data is not None:
            self.on_body_data(size - counted)
        return size

    async def _wait(self) -> None:
        """Wait for more of the body."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._connection.resume_reading()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def discard_body(self) -> None:
        """Wait for the end of a body that the handler has not read, for a limited time."""
        self._is_discarding = True
        self._body.clear()
        try:
            async with asyncio.timeout(LINGER_S):
                while not (self.is_complete or self._is_broken):
                    await self._wait()
        except TimeoutError:
            pass

    # Called by the connection.

    def receive(self, data: bytes) -> bool:
        """Receive a part of the body. Returns False if reading must pause until the handler reads the body."""
        if not self._is_discarding:
            self._body += data
        self._wake()
        return self._is_reading or self._is_discarding or len(self._body) <= _UNREAD_LIMIT_BYTES

    def end_body(self, *, is_complete: bool) -> None:
        """Receive the end of the body, or of the connection."""
        self.is_complete, self._is_broken = is_complete, not is_complete
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def start_stream(
        self,
        headers: Mapping[str, str],
        *,
        status: int = 200,
        trailers: Sequence[str] = (),
        first: bytes = b"",
        holds_head: bool = False,
    ) -> StreamingResponse:
        """Send the head of a streamed response and the `first` data in one write.

        The head has a `Trailer` header for trailers that may follow. With `holds_head` it is sent by `end`, which must
        be the next call.
        """
        if not self._connection.is_connected:  # and the handler is not cancelled yet
            raise asyncio.CancelledError
        is_bodiless = status in BODILESS_STATUSES
        has_length = is_bodiless or "content-length" in map(str.lower, headers)
        is_chunked = not (has_length or self._is_http_1_0)
        fields = dict(headers)
        if is_bodiless:
            fields = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        if is_chunked:
            fields["Transfer-Encoding"] = "chunked"
            if trailers:
                fields["Trailer"] = ", ".join(trailers)
        elif not has_length:
            self.keeps_connection = False  # the end of the connection is the end of the body
        has_body = self.method != "HEAD" and not is_bodiless
        head = self.encode_head(status, fields)
        stream = StreamingResponse(self._connection, head=head, is_chunked=is_chunked and has_body, has_body=has_body)
        self.stream = stream
        if not holds_head:
            self._connection.transport.write(stream._framed(first))
        return stream

    def upgrade(self, head: bytes, receive: Callable[[bytes], object]) -> AcceptedConnection:
        """Switch the connection to another protocol: send the head of the response, and pass on further data.

        The connection is closed when the handler returns.

        Raises:
            ValueError: the client has not waited for the response (RFC 6455 §4.1), or uses HTTP/1.0.
        """
        connection = self._connection
        if not connection.is_connected:  # and the handler is not cancelled yet
            raise asyncio.CancelledError
        if connection.has_early_data or self._is_http_1_0:
            raise ValueError("An upgrade needs HTTP/1.1, and no data before its response.")
        self.keeps_connection = False
        connection.on_upgraded_data = receive
        connection.transport.write(head)
        return connection

    def encode_head(self, status: int, headers: Mapping[str, str]) -> bytes:
        """Encode the head of a response.

        Raises:
            ValueError: a header contains a line break.
        """
        self.keeps_connection = self.keeps_connection and not self._connection.is_ending
        lines = [f"{name}: {value}" for name, value in headers.items()]
        text = "".join(lines)
        if "\n" in text or "\r" in text or "\0" in text:
            raise ValueError("A response header contains a line break.")
        if not self.keeps_connection:
            lines.append("Connection: close")
        elif self._is_http_1_0:
            lines.append("Connection: keep-alive")
        start = f"HTTP/1.1 {status} {PHRASES.get(status, 'Unknown')}"
        date = _http_date(int(time.time()))
        return "\r\n".join((start, *lines, f"Date: {date}", "Server: welldone", "", "")).encode("utf-8", "replace")

    def encode_response(self, response: HttpResponse) -> bytes:
        """Encode a complete response."""
        if response.closes_connection:
            self.keeps_connection = False
        headers = {**response.headers, "Content-Type": response.content_type}
        if response.status in BODILESS_STATUSES:
            return self.encode_head(response.status, response.headers)
        head = self.encode_head(response.status, {**headers, "Content-Length": str(len(response.body))})
        return head if self.method == "HEAD" else head + response.body


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse | None]]
"""Answers a request; returns None if it has streamed the response."""


def _body_too_large(limit_bytes: int) -> RequestBodyError:
    # A function, since an exception in a local variable of the raising frame is a reference cycle that keeps the body.
    return RequestBodyError(413, f"The request body exceeds the limit of {limit_bytes:,} bytes.")


def _decode_path(path: str) -> str:
    """Decode percent-encoded characters, unless they are not UTF-8."""
    try:
        return unquote(path, errors="strict")
    except UnicodeDecodeError:
        return path


@lru_cache(maxsize=1)
def _http_date(second: int) -> str:
    return formatdate(second, usegmt=True)
