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

from welldone.net.address import check_line
from welldone.net.files import room_for

_LINE_LIMIT_BYTES = 8190  # of the request line and of each header, as most servers have it
_HEADERS_LIMIT = 128
_BACKLOG = 1024  # connections that wait to be taken; the kernel has its own limit, 4,096 on Linux
_LONG_BYTES = 2**15  # a body that may take more than 5 ms to read, if it is a schema: they are read one at a time
_MORE_SOCKETS = 64
"""A socket for each request at once, as many that idle between two requests, and these for who only looks on."""
_FAREWELL_S = 1.0  # for handlers that were not done in time to see that they are cancelled
_SERVER = {"Server": "welldone"}  # which version of which library this is helps nobody but an attacker


class BodyError(Exception):
    """A body that was not read: too long, too slow, or cut off."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Reply(msgspec.Struct):
    """A whole reply."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    is_last: bool = False
    """Whether the connection is closed after it."""


class Stream:
    """A reply that goes out as it comes to be."""

    def __init__(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._protocol = cast("_Protocol", request.protocol)
        self._transport = cast("asyncio.Transport", request.transport)
        self._is_chunked = response.chunked

        self.push: Callable[[bytes], None] = self._transport.write
        """Sends bytes that have their frame, while the client is there."""

    def frame(self, size: int) -> tuple[bytes, bytes]:
        """What stands before and after so many bytes."""
        return (b"%x\r\n" % size, b"\r\n") if self._is_chunked else (b"", b"")

    def when_congested(self, tell: Callable[[], object]) -> None:
        """Have it told when the client takes less than it is given."""
        self._protocol.tell_paused = tell

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Have it told, at once, when the client has left."""
        self._protocol.tell_lost = tell

    @property
    def is_congested(self) -> bool:
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
        self._protocol.forget()
        if not self._request.protocol.connected or self._transport.is_closing():
            return
        if trailers and self._is_chunked:
            self._transport.write(b"0\r\n%b\r\n" % b"".join(_field(*trailer) for trailer in trailers.items()))
            cast("StreamWriter", self._request.writer).chunked = False  # that was the last chunk: aiohttp adds none
        await self._response.write_eof()

    def abort(self) -> None:
        """Cut the connection, so that nobody takes what was sent for a whole reply."""
        self._transport.abort()


class Call:
    """One request as it came in."""

    def __init__(self, request: web.BaseRequest, turn: asyncio.Lock) -> None:
        self._request = request
        self._turn = turn
        self.method: str = request.method
        self.path: str = request.path
        self.query: str = request.raw_path.partition("#")[0].partition("?")[2]
        """What stands behind the path's question mark, as it came."""
        self.headers: Mapping[str, str] = request.headers
        self.peer: str = request.remote or ""
        self.stream: Stream | None = None
        """The reply, once it is streamed."""
        self.when_read: Callable[[int], object] | None = None
        """Is told of so many more bytes of the body; what it raises ends the reading."""

    def header_values(self, name: str) -> list[str]:
        """All values of a header."""
        return self._request.headers.getall(name, [])

    async def body(self, *, limit_bytes: int, within_s: float) -> bytes:
        """The whole body.

        Raises:
            BodyError: it is too long, too slow, or cut off.
        """
        if (self._request.content_length or 0) > limit_bytes:
            raise _too_long(limit_bytes)
        self._invite()
        body = bytearray()
        try:
            async with asyncio.timeout(within_s):
                async for piece in self._request.content.iter_any():
                    body += piece
                    if len(body) > limit_bytes:
                        raise _too_long(limit_bytes)
                    if self.when_read is not None:
                        self.when_read(len(piece))
        except TimeoutError:
            raise BodyError(408, f"The body did not come within {within_s:g} seconds.") from None
        except (web.RequestPayloadError, ConnectionError):
            raise BodyError(400, "The body is not whole.") from None
        if len(body) > _LONG_BYTES:
            async with self._turn:
                await asyncio.sleep(0)  # what was said to others meanwhile is heard before this is read
        return bytes(body)

    def _invite(self) -> None:
        """Tell a client that asks first, as curl does with a long body, to send it; else it waits a second."""
        transport = self._request.transport
        is_asked = self._request.headers.get("Expect", "").lower() == "100-continue"
        if is_asked and self._request.version >= (1, 1) and transport is not None:
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def open(self, headers: Mapping[str, str], *, status: int = 200, trailers: Sequence[str] = ()) -> Stream:
        """Begin a reply that is streamed; its head goes out at once, and names the trailers that may follow."""
        response = web.StreamResponse(status=status, headers={**headers, **_SERVER})
        if self._request.version >= (1, 1) and response.content_length is None:
            response.enable_chunked_encoding()
            if trailers:
                response.headers["Trailer"] = ", ".join(trailers)
        try:
            await response.prepare(self._request)
        except ConnectionError:  # the client has left, and aiohttp has not told us yet
            raise asyncio.CancelledError from None
        self.stream = Stream(self._request, response)
        self._response = response
        return self.stream

    @property
    def streamed(self) -> web.StreamResponse:
        """The reply that was streamed."""
        return self._response


Handler: TypeAlias = Callable[[Call], Awaitable[Reply | None]]
"""Answers a request; None where it has streamed the answer."""


class ErrorPage(Protocol):
    """The body for a request that HTTP itself forbids."""

    def __call__(self, status: int, message: str) -> Reply:
        """The reply."""


class Listener:
    """A listening server.

    `keep_alive_s`: how long an idle connection stays open, and how long the head of a request may take, or what TLS has
    to say before it and after all. `unread_s`: how long a client may take nothing of what was sent to it.
    """

    def __init__(
        self, handler: Handler, *, error_page: ErrorPage, connections: int, keep_alive_s: float, unread_s: float
    ) -> None:
        self._handler = handler
        self._unread_s = unread_s
        sockets = room_for(2 * connections + _MORE_SOCKETS)
        self._server = _Server(self._handle, error_page, sockets=sockets, keep_alive_s=keep_alive_s)
        self._keep_alive_s = keep_alive_s
        self._doors: Sequence[asyncio.Server] = ()
        self.active = 0
        """Requests that are being answered."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn = asyncio.Lock()  # of long bodies: eight that are read in a row would be a stall for all others

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
            self._doors = [await listen(sock=one) for one in sockets]
        else:
            self._doors = [await listen(host, port)]
        for door in self._doors:
            for one in door.sockets:
                _limit_unread(one, self._unread_s)
        address = self._doors[0].sockets[0].getsockname()
        return int(address[1]) if isinstance(address, tuple) else 0  # a unix socket has a path and no port

    async def stop_accepting(self) -> None:
        """Take no new connections, and close those that wait for a request."""
        for door in self._doors:
            door.close()
        self._doors = ()
        await asyncio.sleep(0)  # what has come in is begun
        self._server.pre_shutdown()

    async def idle(self, within_s: float) -> bool:
        """Wait until no request is being answered; whether that came in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """End all connections."""
        await self.stop_accepting()
        await self._server.shutdown(_FAREWELL_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if _is_ambiguous(request):
            return cast("_Protocol", request.protocol).handle_error(request, 400)
        call = Call(request, self._turn)
        protocol = cast("_Protocol", request.protocol)
        self._server.waiting.pop(protocol, None)
        self.active += 1
        self._idle.clear()
        try:
            reply = await self._handler(call)
        finally:
            if protocol.connected:
                self._server.waiting[protocol] = None
            self.active -= 1
            if self.active == 0:
                self._idle.set()
        if reply is None:
            return call.streamed
        return _response(reply)


class _Server(web.Server):
    """aiohttp's server, with replies in our own words where HTTP itself is broken."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        page: ErrorPage,
        *,
        sockets: int,
        keep_alive_s: float,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._page = page
        self._sockets = sockets
        self._keep_alive_s = keep_alive_s
        self.waiting: dict[_Protocol, None] = {}
        """Connections without a request; those that have waited longest come first."""

    def has_room(self) -> bool:
        """Whether one more connection may be. If need be, the one goes that has waited longest without a request.

        Else who opens connections and says nothing would keep everybody out.
        """
        if len(self.connections) < self._sockets:
            return True
        longest = next((one for one in self.waiting if one.is_waiting), None)
        if longest is None:
            return False
        longest.force_close()
        return True

    def __call__(self) -> web.RequestHandler:
        return _Protocol(self, self._page, self._keep_alive_s)


class _Protocol(web.RequestHandler):
    __slots__ = ("_page", "_server", "tell_lost", "tell_paused")

    def __init__(self, server: _Server, page: ErrorPage, keep_alive_s: float) -> None:
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
        self._page = page
        self._server = server
        self.tell_paused: Callable[[], object] | None = None
        self.tell_lost: Callable[[], object] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is on its way out, and no whole request came in: at most the half of one."""
        return self._waiter is not None and not self._waiter.done()

    def forget(self) -> None:
        """Nobody needs to be told any more."""
        self.tell_paused = self.tell_lost = None

    def pause_writing(self) -> None:
        """The client does not take what it is given."""
        super().pause_writing()
        if self.tell_paused is not None:
            self.tell_paused()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has left."""
        if self.tell_lost is not None:
            self.tell_lost()
        self.forget()
        self._server.waiting.pop(self, None)
        super().connection_lost(exc)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; where there are too many at work, end at once: a reply in words would cost more than it tells."""
        if not self._server.has_room():
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(transport)
        self._server.waiting[self] = None

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
        response = _response(self._page(status, http.HTTPStatus(status).phrase))
        response.force_close()
        return response


def _too_long(limit_bytes: int) -> BodyError:
    # Made where it is raised: an error that its own frame holds is a ring, and keeps the body with it.
    return BodyError(413, f"The body is longer than {limit_bytes:,} bytes, which is the limit here.")


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


def _limit_unread(door: socket.socket, within_s: float) -> None:
    """Have the system end the connections of this door whose client takes nothing for so long.

    It sees what we do not: aiohttp sends a whole reply without a limit, and a connection that was closed stays until
    its last byte was taken. Other systems than Linux have no such limit.
    """
    if sys.platform == "linux" and door.family != socket.AF_UNIX:
        door.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(within_s * 1000))


def _response(reply: Reply) -> web.Response:
    response = web.Response(
        status=reply.status, body=reply.body, headers={**reply.headers, **_SERVER, "Content-Type": reply.content_type}
    )
    if reply.is_last:
        response.force_close()
    return response


def _field(name: str, value: str) -> bytes:
    line = f"{name}: {value}"
    check_line(line)
    return line.encode("latin-1") + b"\r\n"
