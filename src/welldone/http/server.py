"""HTTP/1.1 server: its connections parse requests with httptools, and one handler function answers all of them.

A handler is cancelled when its client disconnects. Streams are written synchronously, without a task switch. Requests
may be pipelined; they are answered one after the other.
"""

import asyncio
import logging
import re
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, cast

import httptools

from welldone.http.address import PHRASES, decode_header_name
from welldone.http.messages import LINGER_S, AcceptedConnection, Handler, HttpRequest, HttpResponse, RequestHeaders
from welldone.http.shared_memory import WorkerLoads
from welldone.http.sockets import BACKLOG, SharedListener, reserve_descriptors
from welldone.http.turns import next_turn

_LOGGER = logging.getLogger("welldone.http")
_LINE_LIMIT_BYTES = 8190  # of the request target and of each header; the default of Apache
_HEADERS_LIMIT = 128
_TWO_BLANKS = re.compile(rb"\s*[A-Z]+ [ \t]")
_OVERHEAD_LIMIT_BYTES = 2**16  # of an incomplete head, and of chunk extensions or trailers in a row
_SPARE_SOCKETS = 64
"""Connections beyond one per concurrent request and one idle per request: health checks, metrics, the web pages."""
_SHUTDOWN_GRACE_S = 1.0  # for handlers to react to their cancellation


ErrorResponseFactory: TypeAlias = Callable[[int, str], HttpResponse]
"""Creates the response to a request that is not valid HTTP, from its status and a message."""


class ServerConnection(AcceptedConnection):
    """A connection: parses requests, and runs one task while there are any."""

    slice_bytes: int = 64 * 1024
    SLICE_LINES: ClassVar[int] = 1024  # the smallest request has four, and takes 15 us to parse
    # Assigned here too: type checkers infer attributes of the base differently.
    transport: asyncio.Transport
    is_connected: bool
    on_backpressure: Callable[[], object] | None
    on_disconnect: Callable[[], object] | None
    on_upgraded_data: Callable[[bytes], object] | None
    has_early_data: bool

    def __init__(self, server: "HttpServer") -> None:
        super().__init__(server.handler, server.large_body_lock)
        self.server = server
        self._is_last = False  # no further request is read
        self.task: asyncio.Task[None] | None = None
        """Answers the requests that have arrived, one after the other."""
        self._parser: httptools.HttpRequestParser | None = None  # only within a request
        self._is_between_requests = True  # the next byte begins a request
        self._target = b""
        self._fields: list[tuple[str, str]] = []
        self._field_count = 0  # of the headers and trailers
        self._overhead_bytes = 0  # received since the last part of a body or the last complete request
        self._receiving: HttpRequest | None = None  # its body is not complete
        self._pending: list[HttpRequest | None] = []  # None: a request that is not valid

    @property
    def is_ending(self) -> bool:
        """Whether the connection is closed after the response in progress."""
        return self._is_last and not self._pending

    def close_when_idle(self) -> None:
        """Close the connection, now or after the response in progress."""
        self._is_last = True
        if self.task is None:
            self.transport.close()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it at the connection limit: an error response would need a slot itself."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = self._transport = cast("asyncio.Transport", transport)
        if not self.server.admits_connection():
            self.transport.abort()
            return
        self.is_connected = True
        self.server.add_connection(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the handler."""
        self.is_connected = False
        self._is_last = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        self.on_backpressure = self.on_disconnect = self.on_upgraded_data = None
        self.server.idle_connections.pop(self, None)
        self._parser = None  # break the reference cycle
        self._unprocessed = b""
        self._pending.clear()
        if self._receiving is not None:
            self._receiving.end_body(is_complete=False)
        if self.task is None:
            self.server.remove_connection(self)
        else:
            self.task.cancel()

    def _process(self, data: bytes) -> None:
        """Parse the data, and start to answer the requests in it."""
        if not self.is_connected or (self._is_last and self._receiving is None):
            self.has_early_data = True
            if self.on_upgraded_data is not None:
                self.on_upgraded_data(data)
            return
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        self._overhead_bytes += len(data)
        try:
            if self._is_between_requests and _TWO_BLANKS.match(data):  # which llhttp accepts
                self._reject()
            else:
                self._parser.feed_data(data)
            if self._overhead_bytes > _OVERHEAD_LIMIT_BYTES:
                self._reject()
        except httptools.HttpParserUpgrade as upgrade:
            self._is_last = True  # the request is answered, but what follows may not be HTTP
            self.has_early_data = upgrade.args[0] < len(data) or bool(self._unprocessed)
        except httptools.HttpParserError:
            self._reject()
        if self._is_between_requests:
            self._parser = None
        if not self._pending:
            return
        if self.task is None:
            self.server.idle_connections.pop(self, None)
            self.task = self._loop.create_task(self._answer_requests())
        else:
            self.pause_reading()  # at most the requests of one slice are stored

    def _reject(self) -> None:
        """End the request that is being received with a 400. What follows the last request is not one."""
        if self._receiving is not None:
            self._receiving.end_body(is_complete=False)
            self._receiving = None
        elif not self._is_last:
            self._pending.append(None)
        self._is_last = True

    # Callbacks of httptools. An exception ends the parsing.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._is_between_requests = False
        self._target = b""
        self._fields = []
        self._field_count = 0

    def on_url(self, target: bytes) -> None:
        """Receive the target or a part of it."""
        self._target += target
        if len(self._target) > _LINE_LIMIT_BYTES:
            raise ValueError("target too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header, or a trailer, which is ignored."""
        self._field_count += 1
        if len(name) + len(value) > _LINE_LIMIT_BYTES or self._field_count > _HEADERS_LIMIT:
            raise ValueError("headers too long")
        if self._receiving is None:
            text = value.strip(b" \t").decode("utf-8", "surrogateescape")
            self._fields.append((decode_header_name(name), text))

    def on_headers_complete(self) -> None:
        """Make the request, whose handler starts before its body is complete."""
        parser = self._parser
        assert parser is not None
        target = self._target.decode("utf-8", "surrogateescape")
        headers = RequestHeaders(self._fields)
        version = parser.get_http_version()
        is_http_1_0 = version == "1.0"
        if version not in ("1.0", "1.1") or _is_ambiguous(target, headers, is_http_1_0=is_http_1_0):
            raise ValueError("ambiguous request")
        method = parser.get_method().decode()
        request = HttpRequest(self, method, target, headers, is_http_1_0=is_http_1_0)
        request.keeps_connection = parser.should_keep_alive()
        self._receiving = request
        self._pending.append(request)

    def on_body(self, data: bytes) -> None:
        """Receive a part of the body."""
        self._overhead_bytes = 0
        if self._receiving is not None and not self._receiving.receive(data):
            self.pause_reading()

    def on_message_complete(self) -> None:
        """Receive the end of a request."""
        self._is_between_requests = True
        self._overhead_bytes = 0
        request, self._receiving = self._receiving, None
        if request is not None:
            request.end_body(is_complete=True)
            self._is_last = self._is_last or not request.keeps_connection

    # The task of the connection.

    async def _answer_requests(self) -> None:
        try:
            while self._pending:
                request = self._pending.pop(0)
                if request is None:
                    await self._answer_invalid()
                elif not await self._answer(request):
                    self.transport.close()
                    return
                await self.drain()
                if self._pending:
                    await next_turn()
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        finally:
            self.task = None
            if not self.is_connected:
                self.server.remove_connection(self)
        if self._is_last:
            self.transport.close()
        else:
            self.server.mark_idle(self)
            self.resume_reading()

    async def _answer(self, request: HttpRequest) -> bool:
        """Run the handler and send its response. Returns whether the connection can be used further."""
        self.server.count_active(1)
        try:
            response = await self.handler(request)
            data = b"" if response is None else request.encode_response(response)
        except Exception as error:  # the outermost layer: the client gets a 500 without the message
            _LOGGER.exception("a request failed", exc_info=error)
            response = self._error_response(500)
            data = request.encode_response(response)
        finally:
            self.server.count_active(-1)
        stream = request.stream
        if stream is not None and (response is not None or not stream.is_ended):
            self.transport.abort()  # the stream has failed
            return False
        if data:
            self.transport.write(data)
        if not request.is_complete:
            if not request.keeps_connection and self.transport.can_write_eof():
                self.transport.write_eof()
            await request.discard_body()
        return request.keeps_connection and request.is_complete

    async def _answer_invalid(self) -> None:
        """Answer a request that cannot be parsed, and close the connection when the client has read the response."""
        request = HttpRequest(self, "GET", "/", RequestHeaders(()), is_http_1_0=False)
        self.transport.write(request.encode_response(self._error_response(400)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            await asyncio.sleep(LINGER_S)  # the client's disconnect cancels this task

    def _error_response(self, status: int) -> HttpResponse:
        response = self.server.error_response(status, PHRASES[status])
        response.closes_connection = True
        return response


class HttpServer:
    """A listening server, with a connection limit and our own error responses.

    `keep_alive_s` limits how long a connection may be idle, how long the head of a request may take, and the TLS
    handshake and shutdown. `write_timeout_s` limits how long a client may leave sent bytes unacknowledged. `worker` is
    this process among those that share the sockets.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        error_response: ErrorResponseFactory,
        connections: int,
        keep_alive_s: float,
        write_timeout_s: float,
        worker: tuple[WorkerLoads, int] | None = None,
    ) -> None:
        self.error_response = error_response
        self.keep_alive_s = keep_alive_s
        self.handler = handler
        self._write_timeout_s = write_timeout_s
        self._connections_limit = reserve_descriptors(2 * connections + _SPARE_SOCKETS)
        self._servers: Sequence[asyncio.Server | SharedListener] = ()
        self._worker = worker
        self.active: int = 0
        """Number of requests in progress."""
        self.connections: set[ServerConnection] = set()
        self.idle_connections: dict[ServerConnection, float] = {}
        """Connections without a request, oldest first, and when they are closed."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._idle_timer: asyncio.TimerHandle | None = None  # for the connection that is idle longest
        self.large_body_lock: asyncio.Lock = asyncio.Lock()  # eight large bodies in a row would stall all streams

    def count_active(self, change: int) -> None:
        """Count a request that begins or ends."""
        self.active += change
        self._publish_load()
        if self.active == 0:
            self._idle.set()
        elif self.active == change:
            self._idle.clear()

    def admits_connection(self) -> bool:
        """Return whether a new connection fits the limit; at the limit, close the connection that is idle longest.

        Otherwise a client could lock out all others by opening connections without sending a request.
        """
        if len(self.connections) < self._connections_limit:
            return True
        oldest = next(iter(self.idle_connections), None)
        if oldest is None:
            return False
        del self.idle_connections[oldest]
        oldest.transport.close()
        return True

    def mark_idle(self, connection: ServerConnection) -> None:
        """Add an idle connection, which is closed after `keep_alive_s`."""
        loop = asyncio.get_running_loop()
        self.idle_connections[connection] = loop.time() + self.keep_alive_s
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(self.keep_alive_s, self._close_expired)

    def _close_expired(self) -> None:
        """Close the connections that are idle for too long, or whose head takes too long."""
        loop = asyncio.get_running_loop()
        while (oldest := next(iter(self.idle_connections), None)) is not None:
            deadline = self.idle_connections[oldest]
            if deadline > loop.time():
                self._idle_timer = loop.call_at(deadline, self._close_expired)
                return
            del self.idle_connections[oldest]
            oldest.transport.close()
        self._idle_timer = None

    def add_connection(self, connection: ServerConnection) -> None:
        """Add an open connection, which is idle."""
        self.connections.add(connection)
        self.mark_idle(connection)
        self._publish_load()

    def remove_connection(self, connection: ServerConnection) -> None:
        """Remove a connection that was lost and has no request."""
        self.connections.discard(connection)
        self._publish_load()

    def _publish_load(self) -> None:
        if self._worker is not None:
            loads, number = self._worker
            loads.publish(number, len(self.connections), self.active)

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] = ()
    ) -> int:
        """Listen and return the port; with port 0 the system chooses it.

        `sockets` replace host and port; a worker shares them with others.

        Raises:
            OSError: the address is not available.
        """
        loop = asyncio.get_running_loop()
        tls_timeout_s = None if tls is None else self.keep_alive_s
        options: dict[str, Any] = {
            "ssl": tls,
            "ssl_handshake_timeout": tls_timeout_s,
            "ssl_shutdown_timeout": tls_timeout_s,
        }
        if self._worker is not None and sockets:
            loads, number = self._worker
            connect = partial(loop.connect_accepted_socket, partial(ServerConnection, self), **options)
            self._servers = [SharedListener(sockets, connect, partial(loads.is_ahead, number))]
        else:
            listen = partial(loop.create_server, partial(ServerConnection, self), backlog=BACKLOG, **options)
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
        for connection in tuple(self.connections):
            connection.close_when_idle()

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
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SHUTDOWN_GRACE_S)
        for connection in tuple(self.connections):
            connection.transport.abort()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await asyncio.sleep(0)  # the loop closes an aborted socket in its next iteration


def _set_user_timeout(listening: socket.socket, timeout_s: float) -> None:
    """Have the kernel reset connections whose client acknowledges nothing for this time (Linux only).

    A closed connection lives on until its last byte is acknowledged.
    """
    if sys.platform == "linux" and listening.family != socket.AF_UNIX:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout_s * 1000))


def _is_ambiguous(target: str, headers: RequestHeaders, *, is_http_1_0: bool) -> bool:
    """Return whether a proxy in front of this server might read the request differently (request smuggling)."""
    if "transfer-encoding" in headers:
        codings = [value.lower() for value in headers.all_values("transfer-encoding")]
        if codings != ["chunked"] or "content-length" in headers or is_http_1_0:  # RFC 9112 §6.1
            return True
    if len(headers.all_values("host")) > 1:
        return True
    if target.startswith("/") or target == "*":
        return target.startswith("//")  # which others may take for a host
    # Absolute form: its host overrides the Host header (RFC 9112 §3.2.2), which is the one that is checked elsewhere.
    scheme, _, rest = target.partition("://")
    host = rest.partition("/")[0].partition("?")[0] if scheme.lower() in ("http", "https") else ""
    return not host or host.lower() != (headers.get("host") or "").lower()
