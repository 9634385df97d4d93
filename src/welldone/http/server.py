"""The HTTP server. It knows sockets and HTTP/1.1 and nothing of what is asked: one function answers every request.

A handler is cancelled when its client leaves. A stream is written by whoever has its bytes, without a task switch.
"""

import asyncio
import http
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeAlias, cast

import msgspec
from aiohttp import web
from aiohttp.http import StreamWriter
from aiohttp.web_exceptions import HTTPException

from welldone.http.address import check_header_line
from welldone.http.sockets import reserve_descriptors

_LINE_LIMIT_BYTES = 8190  # of the request line and of each header, as most servers have it
_HEADERS_LIMIT = 128
_BACKLOG = 1024  # connections that wait to be taken; the kernel has its own limit, 4,096 on Linux
_LARGE_BODY_BYTES = 2**15  # a body that may take more than 5 ms to read, if it is a schema: they are read one at a time
_SPARE_SOCKETS = 64
"""A socket for each request at once, as many that idle between two requests, and these for who only looks on."""
_SHUTDOWN_GRACE_S = 1.0  # for handlers that were not done in time to see that they are cancelled
_SERVER_HEADER = {"Server": "welldone"}  # which version of which library this is helps nobody but an attacker


class RequestBodyError(Exception):
    """A body that was not read: too long, too slow, or cut off."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HttpResponse(msgspec.Struct):
    """A whole reply."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    closes_connection: bool = False
    """Whether the connection is closed after it."""


class StreamingResponse:
    """A reply that goes out as it comes to be."""

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._protocol = cast("_ServerConnection", request.protocol)
        self._transport = cast("asyncio.Transport", request.transport)
        self._is_chunked = response.chunked

        self.write_framed: Callable[[bytes], None] = self._transport.write
        """Sends bytes that have their frame, while the client is there."""

    def chunk_framing(self, size: int) -> tuple[bytes, bytes]:
        """What stands before and after so many bytes."""
        return (b"%x\r\n" % size, b"\r\n") if self._is_chunked else (b"", b"")

    def on_backpressure(self, callback: Callable[[], object]) -> None:
        """Have it told when the client takes less than it is given."""
        self._protocol.on_backpressure = callback

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Have it told, at once, when the client has left."""
        self._protocol.on_disconnect = callback

    @property
    def has_backpressure(self) -> bool:
        """Whether the client takes less than it is given."""
        return self._request.protocol.writing_paused

    @property
    def is_open(self) -> bool:
        """Whether the client is still there."""
        return self._request.protocol.connected

    def write(self, data: bytes) -> None:
        """Send bytes now; what the socket does not take waits in its buffer. Nothing is nothing: no empty chunk."""
        if data and not self._transport.is_closing():  # an empty chunk would be the end of the reply
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    async def drain(self) -> None:
        """Wait until the client has taken what waits."""
        await self._request.writer.drain()

    async def end(self, trailers: Mapping[str, str] | None = None) -> None:
        """Say that the reply is whole. Trailers go with it where it goes out in chunks; others have no place for them.

        Raises:
            ValueError: a trailer has a character that no header can carry.
        """
        self._protocol.clear_callbacks()
        if not self._request.protocol.connected or self._transport.is_closing():
            return
        if trailers and self._is_chunked:
            self._transport.write(b"0\r\n%b\r\n" % b"".join(_trailer_line(*trailer) for trailer in trailers.items()))
            cast("StreamWriter", self._request.writer).chunked = False  # that was the last chunk: aiohttp adds none
        await self._response.write_eof()

    def abort(self) -> None:
        """Cut the connection, so that nobody takes what was sent for a whole reply."""
        self._transport.abort()


class HttpRequest:
    """One request as it came in."""

    def __init__(self, request: web.BaseRequest, large_body_lock: asyncio.Lock) -> None:
        self._request = request
        self._large_body_lock = large_body_lock
        self.method: str = request.method
        self.path: str = request.path
        self.query: str = request.raw_path.partition("#")[0].partition("?")[2]
        """What stands behind the path's question mark, as it came."""
        self.headers: Mapping[str, str] = request.headers
        self.peer: str = request.remote or ""
        self.stream: StreamingResponse | None = None
        """The reply, once it is streamed."""
        self.on_body_data: Callable[[int], object] | None = None
        """Is told of so many more bytes of the body; what it raises ends the reading."""

    def header_values(self, name: str) -> list[str]:
        """All values of a header."""
        return self._request.headers.getall(name, [])

    async def read_body(self, *, limit_bytes: int, timeout_s: float) -> bytes:
        """The whole body.

        Raises:
            BodyError: it is too long, too slow, or cut off.
        """
        if (self._request.content_length or 0) > limit_bytes:
            raise _body_too_large(limit_bytes)
        self._send_continue()
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
            raise RequestBodyError(408, f"The body did not come within {timeout_s:g} seconds.") from None
        except (web.RequestPayloadError, ConnectionError):
            raise RequestBodyError(400, "The body is not whole.") from None
        if len(body) > _LARGE_BODY_BYTES:
            async with self._large_body_lock:
                await asyncio.sleep(0)  # what was said to others meanwhile is heard before this is read
        return bytes(body)

    def _send_continue(self) -> None:
        """Tell a client that asks first, as curl does with a long body, to send it; else it waits a second."""
        transport = self._request.transport
        is_asked = self._request.headers.get("Expect", "").lower() == "100-continue"
        if is_asked and self._request.version >= (1, 1) and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def start_stream(
        self, headers: Mapping[str, str], *, status: int = 200, trailers: Sequence[str] = ()
    ) -> StreamingResponse:
        """Begin a reply that is streamed; its head goes out at once, and names the trailers that may follow."""
        response = web.StreamResponse(status=status, headers={**headers, **_SERVER_HEADER})
        if self._request.version >= (1, 1) and response.content_length is None:
            response.enable_chunked_encoding()
            if trailers:
                response.headers["Trailer"] = ", ".join(trailers)
        try:
            await response.prepare(self._request)
        except ConnectionError:  # the client has left, and aiohttp has not told us yet
            raise asyncio.CancelledError from None
        self.stream = StreamingResponse(self._request, response)
        self._response = response
        return self.stream

    @property
    def streamed_response(self) -> web.StreamResponse:
        """The reply that was streamed."""
        return self._response


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse | None]]
"""Answers a request; None where it has streamed the answer."""


class ErrorResponseFactory(Protocol):
    """The body for a request that HTTP itself forbids."""

    def __call__(self, status: int, message: str) -> HttpResponse:
        """The reply."""


class HttpServer:
    """A listening server.

    `keep_alive_s`: how long an idle connection stays open, and how long the head of a request may take, or what TLS has
    to say before it and after all. `unread_s`: how long a client may take nothing of what was sent to it.
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
        self._handler = handler
        self._write_timeout_s = write_timeout_s
        sockets = reserve_descriptors(2 * connections + _SPARE_SOCKETS)
        self._server = _AiohttpServer(
            self._handle, error_response, connections_limit=sockets, keep_alive_s=keep_alive_s
        )
        self._keep_alive_s = keep_alive_s
        self._servers: Sequence[asyncio.Server] = ()
        self.active = 0
        """Requests that are being answered."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._large_body_lock = (
            asyncio.Lock()
        )  # of long bodies: eight that are read in a row would be a stall for all others

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> int:
        """Listen; the port, which the system chooses where it is 0. Sockets that listen already stand for both.

        Raises:
            OSError: the address cannot be had.
        """
        greeting_s = None if tls is None else self._keep_alive_s
        listen = partial(
            asyncio.get_running_loop().create_server,
            self._server,
            ssl=tls,
            ssl_handshake_timeout=greeting_s,
            ssl_shutdown_timeout=greeting_s,
            backlog=_BACKLOG,
        )
        if sockets:
            self._servers = [await listen(sock=one) for one in sockets]
        else:
            self._servers = [await listen(host, port)]
        for door in self._servers:
            for one in door.sockets:
                _set_user_timeout(one, self._write_timeout_s)
        address = self._servers[0].sockets[0].getsockname()
        return int(address[1]) if isinstance(address, tuple) else 0  # a unix socket has a path and no port

    async def stop_accepting(self) -> None:
        """Take no new connections, and close those that wait for a request."""
        for door in self._servers:
            door.close()
        self._servers = ()
        await asyncio.sleep(0)  # what has come in is begun
        self._server.pre_shutdown()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is being answered; whether that came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End all connections."""
        await self.stop_accepting()
        await self._server.shutdown(_SHUTDOWN_GRACE_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if _is_ambiguous(request):
            return cast("_ServerConnection", request.protocol).handle_error(request, 400)
        call = HttpRequest(request, self._large_body_lock)
        protocol = cast("_ServerConnection", request.protocol)
        self._server.idle_connections.pop(protocol, None)
        self.active += 1
        self._idle.clear()
        try:
            reply = await self._handler(call)
        finally:
            if protocol.connected:
                self._server.idle_connections[protocol] = None
            self.active -= 1
            if self.active == 0:
                self._idle.set()
        if reply is None:
            return call.streamed_response
        return _aiohttp_response(reply)


class _AiohttpServer(web.Server):
    """aiohttp's server, with replies in our own words where HTTP itself is broken."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        error_response: ErrorResponseFactory,
        *,
        connections_limit: int,
        keep_alive_s: float,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._error_response = error_response
        self._connections_limit = connections_limit
        self._keep_alive_s = keep_alive_s
        self.idle_connections: dict[_ServerConnection, None] = {}
        """Connections without a request; those that have waited longest come first."""

    def admits_connection(self) -> bool:
        """Whether one more connection may be. If need be, the one goes that has waited longest without a request.

        Else who opens connections and says nothing would keep everybody out.
        """
        if len(self.connections) < self._connections_limit:
            return True
        longest = next((one for one in self.idle_connections if one.is_idle), None)
        if longest is None:
            return False
        longest.force_close()
        return True

    def __call__(self) -> web.RequestHandler:
        return _ServerConnection(self, self._error_response, self._keep_alive_s)


class _ServerConnection(web.RequestHandler):
    __slots__ = ("_error_response", "_server", "on_disconnect", "on_backpressure")

    def __init__(self, server: _AiohttpServer, error_response: ErrorResponseFactory, keep_alive_s: float) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=keep_alive_s,
            access_log=None,  # type: ignore[arg-type]  # none at all: we write our own
            max_line_size=_LINE_LIMIT_BYTES,
            max_field_size=_LINE_LIMIT_BYTES,
            max_headers=_HEADERS_LIMIT,
            lingering_time=1.0,
            read_bufsize=65536,
            auto_decompress=False,
        )
        self._error_response = error_response
        self._server = server
        self.on_backpressure: Callable[[], object] | None = None
        self.on_disconnect: Callable[[], object] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way out, and no whole request came in: at most the half of one."""
        return self._waiter is not None and not self._waiter.done()

    def clear_callbacks(self) -> None:
        """Nobody needs to be told any more."""
        self.on_backpressure = self.on_disconnect = None

    def pause_writing(self) -> None:
        """The client does not take what it is given."""
        super().pause_writing()
        if self.on_backpressure is not None:
            self.on_backpressure()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has left."""
        if self.on_disconnect is not None:
            self.on_disconnect()
        self.clear_callbacks()
        self._server.idle_connections.pop(self, None)
        super().connection_lost(exc)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; where there are too many at work, end at once: a reply in words would cost more than it tells."""
        if not self._server.admits_connection():
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)
        self._server.idle_connections[self] = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The reply to a request that could not be read, or whose handler failed: never the exception's own words."""
        if isinstance(exc, HTTPException):
            status = exc.status
        if status == 500 and exc is not None:
            self.log_exception("a request failed", exc_info=exc)
        response = _aiohttp_response(self._error_response(status, http.HTTPStatus(status).phrase))
        response.force_close()
        return response


def _body_too_large(limit_bytes: int) -> RequestBodyError:
    # Made where it is raised: an error that its own frame holds is a ring, and keeps the body with it.
    return RequestBodyError(413, f"The body is longer than {limit_bytes:,} bytes, which is the limit here.")


def _is_ambiguous(request: web.BaseRequest) -> bool:
    """Whether a server before this one might read the request in another way."""
    codings = [value.strip().lower() for value in request.headers.getall("Transfer-Encoding", [])]
    if codings not in ([], ["chunked"]):
        return True
    target = request.raw_path
    if target.startswith("/") or target == "*":
        return False
    # A whole address. Its host is the one that counts (RFC 9112, 3.2.2), and what we check is the Host header.
    host = target.partition("://")[2].partition("/")[0].partition("?")[0]
    return not host or host.lower() != request.headers.get("Host", "").strip().lower()


def _set_user_timeout(listening: socket.socket, timeout_s: float) -> None:
    """Have the system end the connections of this door whose client takes nothing for so long.

    It sees what we do not: aiohttp sends a whole reply without a limit, and a connection that was closed stays until
    its last byte was taken. Other systems than Linux have no such limit.
    """
    if sys.platform == "linux" and listening.family != socket.AF_UNIX:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1000))


def _aiohttp_response(reply: HttpResponse) -> web.Response:
    response = web.Response(
        status=reply.status,
        body=reply.body,
        headers={**reply.headers, **_SERVER_HEADER, "Content-Type": reply.content_type},
    )
    if reply.closes_connection:
        response.force_close()
    return response


def _trailer_line(name: str, value: str) -> bytes:
    line = f"{name}: {value}"
    check_header_line(line)
    return line.encode("latin-1") + b"\r\n"
