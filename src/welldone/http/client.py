"""HTTP/1.1 client with a connection pool. Response bytes are pushed to a receiver, without a task in between.

Bytes go from `data_received` straight to the receiver. A slow receiver pauses reading, so that backpressure reaches the
server through the kernel's buffers. Redirects are not followed, and bodies are not decompressed.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, auto
from functools import lru_cache
from typing import ClassVar, Protocol, TypedDict, Unpack, cast

import httptools
import msgspec

from welldone.http.address import Address, check_headers, decode_header_name, encode_request
from welldone.http.connect import HttpClientError, connect
from welldone.http.response_parser import CONNECTION_LOST, HEAD_LIMIT_BYTES, HEAD_TOO_LONG, NOT_HTTP
from welldone.http.turns import SlicedProtocol

_SLICE_BYTES = 8 * 1024
"""Bytes of a response that are processed in one turn: those of the worst input with few lines take 1 us each."""
_PARSE_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)
_CHUNK_SIZE_LINE = re.compile(rb"[0-9a-fA-F]{1,7}\r\n")
_REQUEST_TIMEOUT = 408
STALE_S = 1.0
"""A server that has closed an idle connection answers a request on it with a reset, or with a 408, within one round
trip: 0.3 s around the world. After a longer time it may have started to process the request."""
_CACHED_HEADS = 64  # requests to a server differ only in their body
_CACHED_SIZES = 1024  # of chunks, which have a few hundred bytes
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class ResponseReceiver(Protocol):
    """Receives a response as it arrives. The methods must neither raise nor block."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the head. Header names are in lower case; of a repeated header the first value counts."""

    def data(self, data: bytes) -> None:
        """Receive a part of the body."""

    def end(self, error: HttpClientError | None) -> None:
        """Receive the end: None for a complete response. Called exactly once, possibly without a head."""


class RequestOptions(TypedDict, total=False):
    """Optional parts of a request."""

    body: bytes
    accept: str
    content_type: str
    headers: Iterable[tuple[str, str | None]]
    """They replace those of the address; None removes one."""
    own_headers: Iterable[tuple[str, str]]
    """Valid headers that no other request has. They are not cached."""


class _State(IntEnum):
    """State of an exchange."""

    AWAITING_HEAD = auto()
    READING_BODY = auto()
    COMPLETE = auto()
    IDLE_TIMEOUT = auto()  # the server closed an idle connection with a 408 that answers no request
    CLOSED = auto()  # the receiver is not called any more


# Python 3.11 takes 15 times as long to look up a member of an enum, and each exchange needs a dozen.
_AWAITING_HEAD, _READING_BODY, _COMPLETE, _IDLE_TIMEOUT, _CLOSED = _State
_NEXT_STATES = {
    _AWAITING_HEAD: (_READING_BODY, _IDLE_TIMEOUT, _CLOSED),
    _READING_BODY: (_COMPLETE, _CLOSED),
    _COMPLETE: (_CLOSED,),
    _IDLE_TIMEOUT: (_CLOSED,),
    _CLOSED: (),
}


class Exchange(SlicedProtocol):
    """One request and its response. It owns the connection until the response is complete."""

    slice_bytes: int = _SLICE_BYTES
    SLICE_LINES: ClassVar[int] = 256  # each takes up to 30 us to repair; 8 KB of usual chunks have 150

    def __init__(
        self,
        request: tuple[bytes, ...],
        receiver: ResponseReceiver,
        address: Address,
        pool: "ConnectionPool | None" = None,
    ) -> None:
        super().__init__()
        self._request = request
        self._receiver = receiver
        self._address = address
        self.pool = pool
        """Receives the connection after the response; None: the connection is closed."""
        self._body_parts: list[bytes] = []
        # Called by httptools; a bound built-in is faster than a method of ours.
        self.on_body: Callable[[bytes], None] = self._body_parts.append
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._is_between_chunks = False  # the parser is between two chunks of the body
        self.fast_path: Callable[[bytes], bool] | None = None
        """Is offered a chunk with its framing before the parser is; returns whether it has consumed it."""
        self._pending_loss: tuple[Exception | None] | None = None  # loss of the connection, deferred behind slices
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._has_length = False
        self._stale_until = 0.0  # nonzero on a reused connection
        self._state = _AWAITING_HEAD
        self._is_reusable = False

    def close(self) -> None:
        """Abort the exchange: the server sees the disconnect at once, the receiver is not called again."""
        self._release()
        if self._transport is not None:
            self._transport.abort()

    def _enter(self, state: _State) -> None:
        """Change the state. The parser may still report what follows after the receiver has closed the exchange."""
        if state in _NEXT_STATES[self._state]:
            self._state = state

    def _release(self) -> None:
        self._enter(_CLOSED)
        self._unprocessed = b""
        self.fast_path = None
        self._parser = None  # break the reference cycle: the garbage collector, which frees cycles, stalls all streams

    @property
    def is_complete(self) -> bool:
        """Whether the response is complete, so that `end` of the receiver is the next call."""
        return self._state is _COMPLETE

    @property
    def is_chunked(self) -> bool:
        """Whether the response has chunked transfer encoding."""
        return "chunked" in self._headers.get("transfer-encoding", "")

    def resume_reading(self) -> None:
        """Read on, or report the loss of the connection."""
        if self._pending_loss is not None:
            self._is_read_paused = False
            self._wait_for_turn()
        else:
            super().resume_reading()

    def _read_on(self) -> None:
        if self._pending_loss is not None:
            self.connection_lost(*self._pending_loss)
        else:
            super()._read_on()

    def start_on_reused(self, transport: asyncio.Transport, stale_s: float) -> None:
        """Send the request on a reused connection, which may turn out to be stale within `stale_s`."""
        self._stale_until = asyncio.get_running_loop().time() + stale_s
        transport.set_protocol(self)
        self.connection_made(transport)

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        if self._state is _CLOSED:
            self._transport.abort()
            return
        self._transport.writelines(self._request)
        self._request = ()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the request that are not sent yet."""
        return sum(map(len, self._request)) if self._transport is None else self._transport.get_write_buffer_size()

    def data_received(self, data: bytes) -> None:
        """Process the data. What the fast path accepts is one chunk, so it needs no turn."""
        fast_path = self.fast_path
        if fast_path is None or self._unprocessed or not self._is_between_chunks or not fast_path(data):
            super().data_received(data)

    def _process(self, data: bytes) -> None:
        fast_path = self.fast_path
        if fast_path is not None and self._is_between_chunks:
            if fast_path(data):
                return
            data = self._offer_chunks(data, fast_path)
        if data:
            self._parse(data)

    def _offer_chunks(self, data: bytes, fast_path: Callable[[bytes], bool]) -> bytes:
        """Offer complete chunks one by one until the fast path rejects one; return the rest."""
        start = 0
        while size := _CHUNK_SIZE_LINE.match(data, start):
            end = size.end() + int(size[0], 16) + 2
            if end > len(data) or end - start == len(data) or not fast_path(data[start:end]):
                break
            start = end
        return data[start:]

    def _parse(self, data: bytes) -> None:
        if self._parser is None:
            return
        self._is_between_chunks = False
        error = None
        try:
            self._parser.feed_data(data)
        except _PARSE_ERRORS:
            self._is_reusable = False
            error = HttpClientError(NOT_HTTP)
        if self._state is _IDLE_TIMEOUT:
            self._finish_stale()
            return
        # httptools does not report a partial chunk-size line after a chunk: then the data does not end with CRLF.
        is_complete = self._state is _COMPLETE
        self._is_between_chunks = self._is_between_chunks and not is_complete and data.endswith(b"\r\n")
        if self._body_parts:
            self._head_bytes = 0
            body = self._body_parts[0] if len(self._body_parts) == 1 else b"".join(self._body_parts)
            self._body_parts.clear()
            if self._state is not _CLOSED:
                self._receiver.data(body)
        else:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT_BYTES:
                error = HttpClientError(HEAD_TOO_LONG)
        if is_complete:
            self._finish(None)
        elif error is not None:
            self._finish(error)

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange, after the bytes that are still to be processed."""
        if self._state is _CLOSED:
            return
        if self._unprocessed:
            self._pending_loss = (error,)
            return
        # RFC 9112 §6.3: without a length, the end of the connection is the end of the response.
        if self._state is _READING_BODY and not self._has_length and error is None:
            self._finish(None)
            return
        if self._may_be_stale and self._state is _AWAITING_HEAD and not self._head_bytes:
            self._finish_stale()
            return
        self._finish(HttpClientError(CONNECTION_LOST))

    @property
    def _may_be_stale(self) -> bool:
        return bool(self._stale_until) and asyncio.get_running_loop().time() < self._stale_until

    def _finish_stale(self) -> None:
        if self.pool is not None:
            self.pool.drop(self._address)
        self._is_reusable = False
        self._body_parts.clear()
        self._finish(HttpClientError(CONNECTION_LOST, is_stale=True))

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        """Reject a second response to the same request."""
        if self._state is _COMPLETE:
            raise HttpClientError("the server sent a second response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers are ignored."""
        if self._state is _AWAITING_HEAD:
            self._headers.setdefault(decode_header_name(name), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Forward the head to the receiver, except for informational responses and the 408 of an idle connection."""
        status = 0 if self._parser is None else self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        if status == _REQUEST_TIMEOUT and self._may_be_stale:
            self._enter(_IDLE_TIMEOUT)
            return
        self._enter(_READING_BODY)
        self._has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._receiver.head(status, self._headers)

    def on_chunk_header(self) -> None:
        """Note that the parser is within a chunk."""
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        """Note that the parser is between two chunks."""
        self._is_between_chunks = True

    def on_message_complete(self) -> None:
        """Note whether the response is complete and the connection reusable."""
        self._enter(_COMPLETE)  # not after an informational response: the head is still awaited
        self._is_reusable = self.is_complete and self._parser is not None and self._parser.should_keep_alive()

    def _finish(self, error: HttpClientError | None) -> None:
        if self._state is _CLOSED:
            return
        transport = self._transport
        # After an early response the rest of the request is still in the write buffer: then it cannot be reused.
        is_clean = self._is_reusable and not self._unprocessed
        if is_clean and self.pool and transport and not transport.get_write_buffer_size():
            self._release()
            self._transport = None
            transport.resume_reading()
            self.pool.give_back(self._address, transport)
        else:
            self.close()
        self._receiver.end(error)


def split_chunk_framing(data: bytes) -> tuple[bytes, bytes] | None:
    """Return what precedes and follows the content of a chunk; None unless the data is exactly one such chunk."""
    usual_line = _usual_size_line(len(data))
    if usual_line and data.startswith(usual_line) and data.endswith(b"\r\n"):
        return usual_line, b"\r\n"
    line = _CHUNK_SIZE_LINE.match(data)
    size = 0 if line is None else int(line[0], 16)
    if line is None or not size or len(data) != line.end() + size + 2 or not data.endswith(b"\r\n"):
        return None
    return line[0], b"\r\n"


@lru_cache(_CACHED_SIZES)
def _usual_size_line(length: int) -> bytes:
    """Return the first line of a chunk that has this length with its framing; empty if there is none."""
    for digits in range(1, 8):
        line = b"%x\r\n" % max(0, length - digits - 4)
        if len(line) == digits + 2 and length > digits + 4:
            return line
    return b""


async def send(
    address: Address,
    method: str,
    path: str,
    receiver: ResponseReceiver,
    *,
    pool: "ConnectionPool | None" = None,
    is_fresh: bool = False,
    **options: Unpack[RequestOptions],
) -> Exchange:
    """Send a request; the response goes to the receiver. Without a pool the connection is closed afterwards.

    `is_fresh` forces a new connection, for the retry after a stale one.

    Raises:
        HttpClientError: there is no connection.
        ValueError: the path or a header is not valid.
    """
    request = _encode_request(address, method, path, options, is_last=pool is None)
    exchange = Exchange(request, receiver, address)
    transport = None if pool is None or is_fresh else pool.take(address)
    if pool is not None and transport is not None:
        exchange.start_on_reused(transport, pool.stale_s)
    else:
        try:
            await connect(address, exchange)
        except (HttpClientError, asyncio.CancelledError):
            exchange.close()
            raise
    # Set after the connect: a caller that is cancelled while connecting may already have its response, and uvloop
    # closes that connection without calling the protocol.
    exchange.pool = pool
    return exchange


class BufferedResponse(msgspec.Struct, frozen=True):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    address: Address,
    method: str,
    path: str,
    *,
    timeout_s: float,
    limit_bytes: int = 1 << 20,
    **options: Unpack[RequestOptions],
) -> BufferedResponse:
    """Send a request on a new connection and return the complete response, bounded in time and size.

    Raises:
        HttpClientError: there is no complete response.
        ValueError: the path or a header is not valid.
    """
    receiver = BufferingReceiver(limit_bytes)
    exchange: Exchange | None = None
    options.setdefault("accept", "application/json")
    try:
        async with asyncio.timeout(timeout_s):
            exchange = await send(address, method, path, receiver, **options)
            return await receiver.response
    except TimeoutError:
        raise HttpClientError(f"no reply within {timeout_s:g} s") from None
    finally:
        if exchange is not None:
            exchange.close()


class BufferingReceiver:
    """Collects a response, up to a number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.is_too_large: bool = False
        self.response: asyncio.Future[BufferedResponse] = asyncio.get_running_loop().create_future()
        self._limit_bytes = limit_bytes
        self.status: int = 0
        """0 until the head was received."""
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self._headers = status, headers

    def data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit_bytes:
            self.is_too_large = True
            self.end(HttpClientError(f"a reply of more than {self._limit_bytes:,} bytes"))

    def end(self, error: HttpClientError | None) -> None:
        if self.response.done():
            return
        if error is not None:
            self.response.set_exception(error)
        else:
            self.response.set_result(BufferedResponse(self.status, self._headers, bytes(self._body)))


def _encode_request(
    address: Address, method: str, path: str, options: RequestOptions, *, is_last: bool
) -> tuple[bytes, ...]:
    body = options.get("body", b"")
    defaults = [("Accept", options.get("accept", "*/*")), ("Accept-Encoding", "identity")]
    if is_last:
        defaults.append(("Connection", "close"))
    has_body = bool(body) or method in _METHODS_WITH_BODY
    if has_body:
        defaults.append(("Content-Type", options.get("content_type", "application/json")))
    head = _encode_head(address, method, path, tuple(defaults), tuple(options.get("headers", ())))
    if own_headers := options.get("own_headers"):
        head = head[:-2] + "".join([f"{name}: {value}\r\n" for name, value in own_headers]).encode("ascii") + b"\r\n"
    return (b"%bContent-Length: %d\r\n\r\n" % (head[:-2], len(body)), body) if has_body else (head,)


@lru_cache(_CACHED_HEADS)
def _encode_head(
    address: Address,
    method: str,
    path: str,
    defaults: tuple[tuple[str, str], ...],
    headers: tuple[tuple[str, str | None], ...],
) -> bytes:
    check_headers((name, value) for name, value in headers if value is not None)
    return encode_request(address, method, path, defaults=defaults, headers=headers)


class ConnectionPool:
    """Idle connections by address; the most recently used one is reused first.

    The pool bounds the number and the age of idle connections, not the number of connections in use.
    """

    # idle_s: uvicorn and llama.cpp close connections that are idle for 5 s; the pool closes them a little earlier.
    def __init__(self, *, idle_per_address: int = 64, idle_s: float = 4.0, stale_s: float = STALE_S) -> None:
        self.stale_s = stale_s
        """How long after a request on a reused connection a disconnect counts as stale."""
        self._idle_per_address = idle_per_address
        self._idle_s = idle_s
        self._idle: dict[Address, deque[_IdleConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def idle_count(self) -> int:
        """Number of idle connections."""
        return sum(map(len, self._idle.values()))

    async def close(self) -> None:
        """Close the idle connections. Those in use are closed after their response."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for address in list(self._idle):
            self.drop(address)
        await asyncio.sleep(0)  # the loop closes an aborted socket in its next iteration

    # Called by Exchange.

    def take(self, address: Address) -> asyncio.Transport | None:
        """Remove and return an idle connection, if there is one."""
        idle = self._idle.get(address)
        now = asyncio.get_running_loop().time()
        while idle:
            newest = idle.pop()
            if not newest.transport.is_closing() and newest.idle_since + self._idle_s > now:
                return newest.transport
            newest.transport.abort()
        return None

    def give_back(self, address: Address, transport: asyncio.Transport) -> None:
        """Add a connection whose response is complete and which the server keeps open."""
        if self._is_closed or transport.is_closing():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        idle = self._idle.setdefault(address, deque())
        if len(idle) >= self._idle_per_address:
            idle.popleft().transport.abort()
        newest = _IdleConnection(transport, idle, loop.time())
        transport.set_protocol(newest)
        idle.append(newest)
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._close_expired)

    def drop(self, address: Address) -> None:
        """Close the idle connections to an address: one of them was stale, so the others most likely are too."""
        for connection in self._idle.pop(address, ()):
            connection.transport.abort()

    def _close_expired(self) -> None:
        loop = asyncio.get_running_loop()
        for address, idle in list(self._idle.items()):
            while idle and idle[0].idle_since + self._idle_s <= loop.time():
                idle.popleft().transport.abort()
            if not idle:
                del self._idle[address]
        self._timer = None
        if self._idle:
            oldest = min(idle[0].idle_since for idle in self._idle.values())
            self._timer = loop.call_at(oldest + self._idle_s, self._close_expired)


class _IdleConnection(asyncio.Protocol):
    """An idle connection in the pool. Any event on it makes it unusable."""

    def __init__(self, transport: asyncio.Transport, siblings: "deque[_IdleConnection]", idle_since: float) -> None:
        self.transport = transport
        self.idle_since = idle_since
        self._siblings = siblings

    def data_received(self, data: bytes) -> None:
        """Discard the connection: the server sent bytes without a request."""
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        """Discard the connection."""
        if self in self._siblings:
            self._siblings.remove(self)
        self.transport.abort()
