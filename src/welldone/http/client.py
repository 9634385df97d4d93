"""The HTTP client: one request, and its reply pushed on as it comes, without a task between socket and socket.

Bytes go from `data_received` straight to the receiver. Who is slow to send them on pauses the reading, and the kernel's
buffers fill up to the server: nothing piles up here. Redirects are not followed, and nothing is unpacked.
"""

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, TypedDict, Unpack, cast

import httptools
import msgspec

from welldone.http.address import (
    CONNECT_TIMEOUT_S,
    Address,
    check_header_line,
    check_headers,
    check_path,
    describe_connect_error,
    is_local_failure,
    ssl_context,
)
from welldone.http.resolver import RESOLVER

_HEAD_LIMIT_BYTES = 65536  # of a head with those of early hints, or of trailers; aiohttp and nginx refuse 8 to 32 KB
_SLICE_BYTES = 8 * 1024
"""What one reply may say before others have their turn. uvloop reads up to 256 KB at once, and 32 times in a row: bytes
as odd as can be, which take 3 us each to mend, would silence all other streams for seconds."""
_PARSE_ERRORS = (httptools.HttpParserError, httptools.HttpParserUpgrade)
_CHUNK_SIZE_LINE = re.compile(rb"[0-9a-fA-F]{1,7}\r\n")
_REQUEST_TIMEOUT = 408
STALE_S = 1.0
"""A server that has closed an idle connection answers what is sent there with a reset, or with the 408 of its time-out,
within one round trip: 0.3 s around the world. One that took longer may have worked on the request."""
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class HttpClientError(Exception):
    """The server could not be reached, or its reply is no whole HTTP reply. The message names no address."""

    def __init__(self, message: str, *, is_stale: bool = False, is_local_failure: bool = False) -> None:
        super().__init__(message)
        self.is_local_failure = is_local_failure
        """This machine could not make a connection: the server is not to blame."""
        self.is_stale = is_stale
        """A connection that had been used before was lost at once, before any byte of the reply, or answered with the
        408 of an idle connection: the server had closed it and never read the request, which may be sent again."""


class ResponseReceiver(Protocol):
    """Who gets a reply, piece by piece. Nothing here may raise or wait."""

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins; names of headers are in lower case. Of a header that comes twice the first counts."""

    def data(self, data: bytes) -> None:
        """More of its body."""

    def end(self, error: HttpClientError | None) -> None:
        """It has ended: whole, or with what went wrong. Called once, also where nothing else was."""


class TransportPool(Protocol):
    """Where connections wait to be used again."""

    stale_s: float
    """How soon one that was closed while it waited shows it."""

    def take(self, address: Address) -> asyncio.Transport | None:
        """A connection that waits, if there is one."""

    def give_back(self, address: Address, transport: asyncio.Transport) -> None:
        """A connection whose reply was whole, and which may stay open."""

    def drop(self, address: Address) -> None:
        """One that had waited was dead: so are the others, most likely."""


class RequestOptions(TypedDict, total=False):
    """What a request may have beside its method and path."""

    body: bytes
    accept: str
    content_type: str
    headers: Iterable[tuple[str, str]]


class Exchange(asyncio.Protocol):
    """One request and its reply. The connection is its own until the reply is whole."""

    def __init__(
        self, request: bytes, receiver: ResponseReceiver, address: Address, pool: TransportPool | None = None
    ) -> None:
        self._request = request
        self._receiver = receiver
        self._address = address
        self.pool = pool
        """Where the connection goes after the reply; without one it is closed."""
        self._body_parts: list[bytes] = []
        self.on_body = self._body_parts.append  # httptools calls it for each piece: no function of ours stands between
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._is_between_chunks = False  # the parser stands between two chunks of the body
        self.fast_path: Callable[[bytes], bool] | None = None
        """Gets a chunk of the body before the parser does, as it came, with its frame; tells whether it took it."""
        self._transport: asyncio.Transport | None = None
        self._unprocessed = bytearray()  # what was read, and waits for its turn
        self._slice_handle: asyncio.Handle | None = None
        self._is_paused = False
        self._pending_loss: tuple[Exception | None] | None = None  # the connection, while something waits for its turn
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._has_head = False
        self._has_length = False
        self._stale_until = 0.0  # on a connection that had another request before
        self._is_idle_timeout = False  # by a server that closes an idle connection
        self._is_done = False
        self._is_complete = False
        self._is_reusable = False

    def close(self) -> None:
        """Leave: the server sees at once that nobody listens. The receiver hears nothing more."""
        self._release()
        if self._transport is not None:
            self._transport.abort()

    def _release(self) -> None:
        self._is_done = True
        self._unprocessed.clear()
        if self._slice_handle is not None:
            self._slice_handle.cancel()  # it holds us
            self._slice_handle = None
        self.fast_path = None
        self._parser = None  # it holds us, and we held it: rings are left to the collector, which stops all for a while

    @property
    def is_chunked(self) -> bool:
        """Whether the reply comes in chunks."""
        return "chunked" in self._headers.get("transfer-encoding", "")

    def pause(self) -> None:
        """Read no more for now."""
        self._is_paused = True
        if self._transport is not None and not self._is_done:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._is_paused = False
        if self._unprocessed or self._pending_loss is not None:
            self._schedule_slice()
        elif self._transport is not None and not self._is_done:
            self._transport.resume_reading()

    def start_on_reused(self, transport: asyncio.Transport, stale_s: float) -> None:
        """Send the request on a connection that had another before."""
        self._stale_until = asyncio.get_running_loop().time() + stale_s
        transport.set_protocol(self)
        self.connection_made(transport)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        if self._is_done:
            self._transport.abort()
            return
        self._transport.write(self._request)
        self._request = b""

    def data_received(self, data: bytes) -> None:
        """Hand on what came: in one piece, or a little at a time."""
        if len(data) > _SLICE_BYTES or self._unprocessed:
            self._unprocessed += data
            if self._transport is not None:
                self._transport.pause_reading()
            self._schedule_slice()
        else:
            self._process(data)

    @property
    def unsent_bytes(self) -> int:
        """What of the request the server has not taken yet."""
        return len(self._request) if self._transport is None else self._transport.get_write_buffer_size()

    def _schedule_slice(self) -> None:
        if self._slice_handle is None and not self._is_done:
            self._slice_handle = asyncio.get_running_loop().call_soon(self._process_slice)

    def _process_slice(self) -> None:
        """Hand on a little of what was read; then others have their turn."""
        self._slice_handle = None
        if self._is_paused:
            return
        data = bytes(self._unprocessed[:_SLICE_BYTES])
        del self._unprocessed[:_SLICE_BYTES]
        self._process(data)
        if self._is_done or self._is_paused:
            return
        if self._unprocessed:
            self._schedule_slice()
        elif self._pending_loss is not None:
            self.connection_lost(*self._pending_loss)
        elif self._transport is not None:
            self._transport.resume_reading()

    def _process(self, data: bytes) -> None:
        shortcut = self.fast_path
        if shortcut is not None and self._is_between_chunks:
            if shortcut(data):
                return
            data = self._offer_chunks(data, shortcut)
        if data:
            self._parse(data)

    def _offer_chunks(self, data: bytes, fast_path: Callable[[bytes], bool]) -> bytes:
        """Hand on whole chunks that came together, as long as each is taken; what is left."""
        start = 0
        while size := _CHUNK_SIZE_LINE.match(data, start):
            end = size.end() + int(size[0], 16) + 2
            if end >= len(data) or not fast_path(data[start:end]):
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
            error = HttpClientError("the reply is not HTTP")
        if self._is_idle_timeout:
            self._finish_stale()
            return
        # What has begun after a chunk and is no whole line yet shows in that the data does not end with one.
        self._is_between_chunks = self._is_between_chunks and not self._is_complete and data.endswith(b"\r\n")
        if self._body_parts:
            self._head_bytes = 0
            body = self._body_parts[0] if len(self._body_parts) == 1 else b"".join(self._body_parts)
            self._body_parts.clear()
            if not self._is_done:
                self._receiver.data(body)
        else:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_LIMIT_BYTES:
                error = HttpClientError("the head of the reply is too long")
        if self._is_complete:
            self._finish(None)
        elif error is not None:
            self._finish(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The reply is over, whole or not."""
        if self._is_done:
            return
        if self._unprocessed:
            self._pending_loss = (error,)
            return
        # Without a length the end of the connection is the end of the reply.
        if self._has_head and not self._has_length and error is None:
            self._finish(None)
            return
        if self._may_be_stale and not self._has_head and not self._head_bytes:
            self._finish_stale()
            return
        self._finish(HttpClientError("the connection was lost before the reply was whole"))

    @property
    def _may_be_stale(self) -> bool:
        return bool(self._stale_until) and asyncio.get_running_loop().time() < self._stale_until

    def _finish_stale(self) -> None:
        """The server had closed the connection before the request came."""
        if self.pool is not None:
            self.pool.drop(self._address)
        self._is_reusable = False
        self._body_parts.clear()
        self._finish(HttpClientError("the connection was lost before the reply was whole", is_stale=True))

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A reply begins; after the one that was asked for there is no other."""
        if self._is_complete:
            raise HttpClientError("there is more than the reply")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the reply; after its body it is a trailer, which nobody here needs."""
        if not self._has_head:
            self._headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        status = 0 if self._parser is None else self._parser.get_status_code()
        if status < 200:
            self._headers = {}
            return
        if status == _REQUEST_TIMEOUT and self._may_be_stale:
            self._is_idle_timeout = True
            return
        self._has_head = True
        self._has_length = "content-length" in self._headers or "transfer-encoding" in self._headers
        self._receiver.head(status, self._headers)

    def on_chunk_header(self) -> None:
        """A chunk of the body begins."""
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk of the body is whole."""
        self._is_between_chunks = True

    def on_message_complete(self) -> None:
        """The reply is whole."""
        self._is_complete = self._has_head
        self._is_reusable = self._is_complete and self._parser is not None and self._parser.should_keep_alive()

    def _finish(self, error: HttpClientError | None) -> None:
        if self._is_done:
            return
        transport = self._transport
        # A reply that came before the whole request was sent leaves the rest of it in the way of the next.
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
    """What stands before and after the content of a chunk; None where this is not one whole chunk with content."""
    line = _CHUNK_SIZE_LINE.match(data)
    size = 0 if line is None else int(line[0], 16)
    if line is None or not size or len(data) != line.end() + size + 2 or not data.endswith(b"\r\n"):
        return None
    return line[0], b"\r\n"


async def send(
    address: Address,
    method: str,
    path: str,
    receiver: ResponseReceiver,
    *,
    pool: TransportPool | None = None,
    is_fresh: bool = False,
    **options: Unpack[RequestOptions],
) -> Exchange:
    """Begin an exchange. The reply goes to the receiver. Without a home the connection ends with it.

    `is_fresh`: on a new connection. One that waits may be closed just now, and who asks again has met one that was.

    Raises:
        OutboundError: there is no connection.
        ValueError: the path or a header cannot be sent.
    """
    request = _encode_request(address, method, path, is_last=pool is None, **options)
    exchange = Exchange(request, receiver, address)
    transport = None if pool is None or is_fresh else pool.take(address)
    if pool is not None and transport is not None:
        exchange.start_on_reused(transport, pool.stale_s)
    else:
        await _connect(address, exchange)
    # Not before: whoever is cancelled while it connects may have its reply already, and uvloop closes that connection
    # without a word to anybody.
    exchange.pool = pool
    return exchange


async def _connect(address: Address, exchange: Exchange) -> None:
    loop = asyncio.get_running_loop()
    tls = None if address.tls is None else ssl_context(address.tls)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if address.socket is not None:
                await loop.create_unix_connection(lambda: exchange, address.socket)
            else:
                await _connect_tcp(address, exchange, tls)
    except OSError as error:
        exchange.close()
        raise HttpClientError(describe_connect_error(error), is_local_failure=is_local_failure(error)) from None
    except asyncio.CancelledError:
        exchange.close()
        raise


async def _connect_tcp(address: Address, exchange: Exchange, tls: ssl.SSLContext | None) -> None:
    """Connect to the first address of a name that takes the connection."""
    loop = asyncio.get_running_loop()
    name = None if tls is None else address.host
    found = await RESOLVER.resolve(address.host)
    for place, host in enumerate(found, 1):
        try:
            await loop.create_connection(lambda: exchange, host, address.port, ssl=tls, server_hostname=name)
        except OSError:
            if place == len(found):
                raise
        else:
            return


class BufferedResponse(msgspec.Struct, frozen=True):
    """A whole reply."""

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
    pool: TransportPool | None = None,
    is_fresh: bool = False,
    **options: Unpack[RequestOptions],
) -> BufferedResponse:
    """A whole reply, bounded in time and size.

    Raises:
        OutboundError: there is none.
        ValueError: the path or a header cannot be sent.
    """
    gathered = _BufferingReceiver(limit_bytes)
    exchange: Exchange | None = None
    options.setdefault("accept", "application/json")
    try:
        async with asyncio.timeout(timeout_s):
            exchange = await send(address, method, path, gathered, pool=pool, is_fresh=is_fresh, **options)
            return await gathered.response
    except TimeoutError:
        raise HttpClientError(f"no reply within {timeout_s:g} s") from None
    finally:
        if exchange is not None:
            exchange.close()


class _BufferingReceiver:
    """A receiver that gathers a whole reply."""

    def __init__(self, limit_bytes: int) -> None:
        self.response: asyncio.Future[BufferedResponse] = asyncio.get_running_loop().create_future()
        self._limit_bytes = limit_bytes
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._body = bytearray()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers

    def data(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._limit_bytes:
            self._resolve(HttpClientError(f"a reply of more than {self._limit_bytes:,} bytes"))

    def end(self, error: HttpClientError | None) -> None:
        self._resolve(error)

    def _resolve(self, error: HttpClientError | None) -> None:
        if self.response.done():
            return
        if error is not None:
            self.response.set_exception(error)
        else:
            self.response.set_result(BufferedResponse(self._status, self._headers, bytes(self._body)))


def _encode_request(
    address: Address,
    method: str,
    path: str,
    *,
    is_last: bool,
    body: bytes = b"",
    accept: str = "*/*",
    content_type: str = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    more = (*address.headers, *headers)
    check_headers(more)
    check_path(address.prefix + path)
    # Some front servers refuse a request that does not say who sends it.
    fields = {"Host": address.authority, "User-Agent": "welldone", "Accept": accept, "Accept-Encoding": "identity"}
    if is_last:
        fields["Connection"] = "close"
    if address.key is not None:
        fields["Authorization"] = f"Bearer {address.key}"
    fields.update((name.title(), value) for name, value in more)
    if body or method in _METHODS_WITH_BODY:
        fields |= {"Content-Type": content_type, "Content-Length": str(len(body))}
    lines = [f"{method} {address.prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    for line in lines:
        check_header_line(line)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


# Connections that are used again. They wait here between two requests, a bounded number for a bounded time.
#
# How many are open at once is not decided here: whoever sends requests limits those.


class ConnectionPool:
    """The connections to all servers, by their addresses. The one that waited least is used first."""

    def __init__(self, *, idle_per_address: int = 64, idle_s: float = 4.0, stale_s: float = STALE_S) -> None:
        self.stale_s = stale_s
        # uvicorn and llama.cpp close a connection that was silent for 5 s: we are a little earlier than they.
        self._idle_per_address = idle_per_address
        self._idle_s = idle_s
        self._idle: dict[Address, deque[_IdleConnection]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def idle_count(self) -> int:
        """How many connections wait."""
        return sum(map(len, self._idle.values()))

    async def send(
        self,
        address: Address,
        method: str,
        path: str,
        receiver: ResponseReceiver,
        *,
        is_fresh: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Exchange:
        """Begin an exchange, on a connection that waits or on a new one. The reply goes to the receiver.

        `is_fresh`: on a new one in any case. Who asks again, since a connection that waited was dead, meets no second.

        Raises:
            OutboundError: there is no connection.
            ValueError: the path or a header cannot be sent.
        """
        return await send(address, method, path, receiver, pool=self, is_fresh=is_fresh, **options)

    async def fetch(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        timeout_s: float,
        limit_bytes: int = 1 << 20,
        **options: Unpack[RequestOptions],
    ) -> BufferedResponse:
        """A whole reply, bounded in time and size. Sent again once where a connection that waited was dead.

        Raises:
            OutboundError: there is none.
            ValueError: the path or a header cannot be sent.
        """

        once = partial(fetch, address, method, path, timeout_s=timeout_s, limit_bytes=limit_bytes, pool=self, **options)
        try:
            return await once()
        except HttpClientError as error:
            if not error.is_stale:
                raise
        return await once(is_fresh=True)

    async def close(self) -> None:
        """End the connections that wait. Those that are still in use end with their reply."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for address in list(self._idle):
            self.drop(address)
        await asyncio.sleep(0)  # the loop closes a socket in its next turn

    # What an exchange calls.

    def take(self, address: Address) -> asyncio.Transport | None:
        """A connection that waits, if there is one."""
        waiting = self._idle.get(address)
        now = asyncio.get_running_loop().time()
        while waiting:
            newest = waiting.pop()
            if not newest.transport.is_closing() and newest.idle_since + self._idle_s > now:
                return newest.transport
            newest.transport.abort()
        return None

    def give_back(self, address: Address, transport: asyncio.Transport) -> None:
        """A connection whose reply was whole, and which may stay open."""
        if self._is_closed or transport.is_closing():
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        waiting = self._idle.setdefault(address, deque())
        if len(waiting) >= self._idle_per_address:
            waiting.popleft().transport.abort()
        newest = _IdleConnection(transport, waiting, loop.time())
        transport.set_protocol(newest)
        waiting.append(newest)
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._close_expired)

    def drop(self, address: Address) -> None:
        """End the connections to an address that wait."""
        for one in self._idle.pop(address, ()):
            one.transport.abort()

    def _close_expired(self) -> None:
        """End the connections that have waited for too long, and come again when the next has."""
        loop = asyncio.get_running_loop()
        for address, waiting in list(self._idle.items()):
            while waiting and waiting[0].idle_since + self._idle_s <= loop.time():
                waiting.popleft().transport.abort()
            if not waiting:
                del self._idle[address]
        self._timer = None
        if self._idle:
            oldest = min(waiting[0].idle_since for waiting in self._idle.values())
            self._timer = loop.call_at(oldest + self._idle_s, self._close_expired)


class _IdleConnection(asyncio.Protocol):
    """A connection that waits. Whatever its server does now, it is of no more use."""

    def __init__(self, transport: asyncio.Transport, siblings: "deque[_IdleConnection]", idle_since: float) -> None:
        self.transport = transport
        self.idle_since = idle_since
        self._siblings = siblings

    def data_received(self, data: bytes) -> None:
        """It speaks without being asked."""
        self._discard()

    def eof_received(self) -> None:
        """It closes."""
        self._discard()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._discard()

    def _discard(self) -> None:
        if self in self._siblings:
            self._siblings.remove(self)
        self.transport.abort()
