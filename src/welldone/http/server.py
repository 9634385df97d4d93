"""HTTP/1.1 server on aiohttp. One handler function answers all requests; routing is the caller's.

A handler is cancelled when its client disconnects. Streams are written synchronously, without a task switch.
"""

import asyncio
import http
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, cast

import msgspec
from aiohttp import web
from aiohttp.http import StreamWriter
from aiohttp.web_exceptions import HTTPException

from welldone.http.address import check_header_line
from welldone.http.sockets import BACKLOG, reserve_descriptors

_LINE_LIMIT_BYTES = 8190  # of the request line and of each header; the default of aiohttp and Apache
_HEADERS_LIMIT = 128
_LARGE_BODY_BYTES = 2**15  # a JSON schema of this size takes more than 5 ms to parse: one such body at a time
_SPARE_SOCKETS = 64
"""Connections beyond one per concurrent request and one idle per request: health checks, metrics, the web pages."""
_SHUTDOWN_GRACE_S = 1.0  # for handlers to react to their cancellation
_SERVER_HEADER = {"Server": "welldone"}  # replaces aiohttp's, which discloses versions


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


class _StreamResponse(web.StreamResponse):
    """aiohttp's response without its own write of the head, which is sent together with the first data."""

    _send_headers_immediately = False


class StreamingResponse:
    """A response whose body is written piece by piece."""

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._protocol = cast("_ServerConnection", request.protocol)
        self._transport = cast("asyncio.Transport", request.transport)
        self._is_chunked = response.chunked
        self.write_framed: Callable[[bytes], None] = self._transport.write
        """Sends bytes that already have their chunk framing. Call it only while `is_open`."""

    def chunk_framing(self, size: int) -> tuple[bytes, bytes]:
        """Return the bytes that precede and follow a chunk of this size."""
        return (b"%x\r\n" % size, b"\r\n") if self._is_chunked else (b"", b"")

    def on_backpressure(self, callback: Callable[[], object]) -> None:
        """Set the callback for a full write buffer."""
        self._protocol.on_backpressure = callback

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Set the callback for a disconnect of the client; it is called at once."""
        self._protocol.on_disconnect = callback

    @property
    def has_backpressure(self) -> bool:
        """Whether the write buffer is full, because the client reads slowly."""
        return self._request.protocol.writing_paused

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._request.protocol.connected

    def write(self, data: bytes) -> None:
        """Write a part of the body, without waiting. Empty writes are ignored: a zero-length chunk ends the body."""
        if data and not self._transport.is_closing():
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    async def drain(self) -> None:
        """Wait until the write buffer is below its low-water mark."""
        await self._request.writer.drain()

    async def end(self, trailers: Mapping[str, str] | None = None, *, last: bytes = b"") -> None:
        """End the body after the `last` data. Trailers are sent only with chunked transfer encoding.

        Raises:
            ValueError: a trailer contains a character that is not allowed in a header.
        """
        self._protocol.clear_callbacks()
        if not self._request.protocol.connected or self._transport.is_closing():
            return
        if trailers and self._is_chunked:
            lines = [f"{name}: {value}" for name, value in trailers.items()]
            check_header_line("".join(lines))
            writer = cast("StreamWriter", self._request.writer)
            writer.send_headers()
            self.write(last)
            self._transport.write("\r\n".join(["0", *lines, "", ""]).encode("latin-1"))
            writer.chunked = False  # the last chunk is sent: aiohttp must add none
            last = b""
        await self._response.write_eof(last)

    def abort(self) -> None:
        """Reset the connection, so that the client cannot mistake a partial response for a complete one."""
        self._transport.abort()


class HttpRequest:
    """An incoming request."""

    def __init__(self, request: web.BaseRequest, large_body_lock: asyncio.Lock) -> None:
        self._request = request
        self._large_body_lock = large_body_lock
        self.method: str = request.method
        self.path: str = request.path
        self.query: str = request.raw_path.partition("#")[0].partition("?")[2]
        """The raw query string, without the question mark."""
        self.headers: Mapping[str, str] = request.headers
        self.stream: StreamingResponse | None = None
        """The response, after `start_stream`."""
        self.on_body_data: Callable[[int], object] | None = None
        """Is called with the size of each read of the body; an exception from it ends `read_body`."""

    def header_values(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._request.headers.getall(name, [])

    async def read_body(self, *, limit_bytes: int, timeout_s: float) -> bytes:
        """Read the complete body.

        Raises:
            RequestBodyError: it is too long, too slow, or incomplete.
        """
        if (self._request.content_length or 0) > limit_bytes:
            raise _body_too_large(limit_bytes)
        # curl sends `Expect: 100-continue` before a long body, and waits a second without an answer.
        is_expected = self._request.headers.get("Expect", "").lower() == "100-continue"
        if is_expected and self._request.version >= (1, 1) and self._request.transport is not None:
            self._request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in self._request.content.iter_any():
                    body += piece
                    if len(body) > limit_bytes:
                        raise _body_too_large(limit_bytes)
                    if self.on_body_data is not None:
                        self.on_body_data(len(piece))
        except TimeoutError:
            raise RequestBodyError(408, f"The request body was not received within {timeout_s:g} seconds.") from None
        except (web.RequestPayloadError, ConnectionError):
            raise RequestBodyError(400, "The request body is incomplete.") from None
        if len(body) > _LARGE_BODY_BYTES:
            async with self._large_body_lock:
                await asyncio.sleep(0)  # serve other connections before the caller parses this body
        return bytes(body)

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
        response = _StreamResponse(status=status, headers={**headers, **_SERVER_HEADER})
        if self._request.version >= (1, 1) and response.content_length is None:
            response.enable_chunked_encoding()
            if trailers:
                response.headers["Trailer"] = ", ".join(trailers)
        try:
            await response.prepare(self._request)
            writer = cast("StreamWriter", self._request.writer)
            if first:
                await writer.write(first, drain=False)
            elif not holds_head:
                writer.send_headers()
        except ConnectionError:  # the client has disconnected, and aiohttp has not cancelled the handler yet
            raise asyncio.CancelledError from None
        self.stream = StreamingResponse(self._request, response)
        self.streamed_response: web.StreamResponse = response
        return self.stream


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse | None]]
"""Answers a request; returns None if it has streamed the response."""


ErrorResponseFactory: TypeAlias = Callable[[int, str], HttpResponse]
"""Creates the response to a request that is not valid HTTP, from its status and a message."""


class HttpServer(web.Server):
    """A listening server, with a connection limit and our own error responses.

    `keep_alive_s` limits how long a connection may be idle, how long the head of a request may take, and the TLS
    handshake and shutdown. `write_timeout_s` limits how long a client may leave sent bytes unacknowledged.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        error_response: ErrorResponseFactory,
        connections: int,
        keep_alive_s: float,
        write_timeout_s: float,
    ) -> None:
        super().__init__(self._handle, handler_cancellation=True)
        self.error_response = error_response
        self.keep_alive_s = keep_alive_s
        self._handler = handler
        self._write_timeout_s = write_timeout_s
        self._connections_limit = reserve_descriptors(2 * connections + _SPARE_SOCKETS)
        self._servers: Sequence[asyncio.Server] = ()
        self.active: int = 0
        """Number of requests in progress."""
        self.idle_connections: dict[_ServerConnection, None] = {}
        """Connections without a request, oldest first."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._large_body_lock = asyncio.Lock()  # eight large bodies parsed in a row would stall all streams

    def __call__(self) -> web.RequestHandler:
        """Create the protocol of a connection."""
        return _ServerConnection(self)

    def admits_connection(self) -> bool:
        """Return whether a new connection fits the limit; at the limit, close the connection that is idle longest.

        Otherwise a client could lock out all others by opening connections without sending a request.
        """
        if len(self.connections) < self._connections_limit:
            return True
        oldest = next((connection for connection in self.idle_connections if connection.is_idle), None)
        if oldest is None:
            return False
        oldest.force_close()
        return True

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> int:
        """Listen and return the port; with port 0 the system chooses it. `sockets` replace host and port.

        Raises:
            OSError: the address is not available.
        """
        tls_timeout_s = None if tls is None else self.keep_alive_s
        listen = partial(
            asyncio.get_running_loop().create_server,
            self,
            ssl=tls,
            ssl_handshake_timeout=tls_timeout_s,
            ssl_shutdown_timeout=tls_timeout_s,
            backlog=BACKLOG,
        )
        self._servers = [await listen(sock=sock) for sock in sockets] or [await listen(host, port)]
        for server in self._servers:
            for sock in server.sockets:
                _set_user_timeout(sock, self._write_timeout_s)
        address = self._servers[0].sockets[0].getsockname()
        return int(address[1]) if isinstance(address, tuple) else 0  # a Unix socket has no port

    async def stop_accepting(self) -> None:
        """Stop listening and close idle connections."""
        for server in self._servers:
            server.close()
        self._servers = ()
        await asyncio.sleep(0)  # start the handlers of requests that have arrived
        self.pre_shutdown()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in progress; return whether that happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close all connections."""
        await self.stop_accepting()
        await self.shutdown(_SHUTDOWN_GRACE_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast("_ServerConnection", request.protocol)
        if _is_ambiguous(request):
            return connection.handle_error(request, 400)
        http_request = HttpRequest(request, self._large_body_lock)
        self.idle_connections.pop(connection, None)
        self.active += 1
        self._idle.clear()
        try:
            response = await self._handler(http_request)
        finally:
            if connection.connected:
                self.idle_connections[connection] = None
            self.active -= 1
            if self.active == 0:
                self._idle.set()
        return http_request.streamed_response if response is None else _aiohttp_response(response)


class _ServerConnection(web.RequestHandler):
    __slots__ = ("_server", "on_backpressure", "on_disconnect")

    def __init__(self, server: HttpServer) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=server.keep_alive_s,
            access_log=None,  # type: ignore[arg-type]  # disables it: the server writes its own log
            max_line_size=_LINE_LIMIT_BYTES,
            max_field_size=_LINE_LIMIT_BYTES,
            max_headers=_HEADERS_LIMIT,
            lingering_time=1.0,
            read_bufsize=65536,
            auto_decompress=False,
        )
        self._server = server
        self.on_backpressure: Callable[[], object] | None = None
        self.on_disconnect: Callable[[], object] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is no response in progress and no complete request; a part of a head may have arrived."""
        return self._waiter is not None and not self._waiter.done()

    def clear_callbacks(self) -> None:
        """Remove the callbacks of a response that has ended."""
        self.on_backpressure = self.on_disconnect = None

    def pause_writing(self) -> None:
        """Report backpressure."""
        super().pause_writing()
        if self.on_backpressure is not None:
            self.on_backpressure()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Report the disconnect of the client."""
        if self.on_disconnect is not None:
            self.on_disconnect()
        self.clear_callbacks()
        self._server.idle_connections.pop(self, None)
        super().connection_lost(exc)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it at the connection limit: an error response would need a slot itself."""
        if not self._server.admits_connection():
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)
        self._server.idle_connections[self] = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is not valid HTTP, or whose handler failed. Exception messages are not disclosed."""
        if isinstance(exc, HTTPException):
            status = exc.status
        if status == 500 and exc is not None:
            self.log_exception("a request failed", exc_info=exc)
        response = _aiohttp_response(self._server.error_response(status, http.HTTPStatus(status).phrase))
        response.force_close()
        return response


def _body_too_large(limit_bytes: int) -> RequestBodyError:
    # A function, since an exception in a local variable of the raising frame is a reference cycle that keeps the body.
    return RequestBodyError(413, f"The request body exceeds the limit of {limit_bytes:,} bytes.")


def _is_ambiguous(request: web.BaseRequest) -> bool:
    """Return whether a proxy in front of this server might read the request differently (request smuggling)."""
    codings = [value.strip().lower() for value in request.headers.getall("Transfer-Encoding", [])]
    if codings not in ([], ["chunked"]):
        return True
    target = request.raw_path
    if target.startswith("/") or target == "*":
        return False
    # Absolute form: its host overrides the Host header (RFC 9112 §3.2.2), which is the one that is checked elsewhere.
    host = target.partition("://")[2].partition("/")[0].partition("?")[0]
    return not host or host.lower() != request.headers.get("Host", "").strip().lower()


def _set_user_timeout(listening: socket.socket, timeout_s: float) -> None:
    """Have the kernel reset connections whose client acknowledges nothing for this time (Linux only).

    aiohttp has no write timeout for complete responses, and a closed connection lives on until its last byte is
    acknowledged.
    """
    if sys.platform == "linux" and listening.family != socket.AF_UNIX:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1000))


def _aiohttp_response(response: HttpResponse) -> web.Response:
    converted = web.Response(
        status=response.status,
        body=response.body,
        headers={**response.headers, **_SERVER_HEADER, "Content-Type": response.content_type},
    )
    if response.closes_connection:
        converted.force_close()
    return converted
