"""A connection of the HTTP server: parses requests with httptools, and runs a task while there are any.

Requests may be pipelined; they are answered one after the other. `HttpServer` closes idle connections.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import httptools

from welldone.http.address import PHRASES, decode_header_name
from welldone.http.turns import SlicedProtocol, next_turn

if TYPE_CHECKING:  # which makes the connections
    from welldone.http.server import HttpRequest, HttpResponse, HttpServer

LINGER_S = 1.0
"""For the rest of a body that nobody reads: a reset connection could lose the response."""
_LOGGER = logging.getLogger("welldone.http")
_LINE_LIMIT_BYTES = 8190  # of the request target and of each header; the default of Apache
_HEADERS_LIMIT = 128
_TWO_BLANKS = re.compile(rb"\s*[A-Z]+ [ \t]")
_OVERHEAD_LIMIT_BYTES = 2**16  # of an incomplete head, and of chunk extensions or trailers in a row


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


class ServerConnection(SlicedProtocol):
    """A connection: parses requests, and runs one task while there are any."""

    transport: asyncio.Transport
    slice_bytes: int = 64 * 1024
    SLICE_LINES: ClassVar[int] = 1024  # the smallest request has four, and takes 15 us to parse

    def __init__(self, server: "HttpServer") -> None:
        super().__init__()
        self.server = server
        self.is_connected: bool = False
        self.is_write_paused: bool = False
        self._is_last = False  # no further request is read
        self.on_backpressure: Callable[[], object] | None = None
        self.on_disconnect: Callable[[], object] | None = None
        self.on_upgraded_data: Callable[[bytes], object] | None = None
        """Receives the data after the connection was switched to another protocol."""
        self.has_early_data: bool = False
        """Whether data followed a request for another protocol before its response."""
        self.task: asyncio.Task[None] | None = None
        """Answers the requests that have arrived, one after the other."""
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = None  # only within a request
        self._is_between_requests = True  # the next byte begins a request
        self._target = b""
        self._fields: list[tuple[str, str]] = []
        self._field_count = 0  # of the headers and trailers
        self._overhead_bytes = 0  # received since the last part of a body or the last complete request
        self._receiving: HttpRequest | None = None  # its body is not complete
        self._pending: list[HttpRequest | None] = []  # None: a request that is not valid
        self._drain_waiter: asyncio.Future[None] | None = None

    @property
    def is_ending(self) -> bool:
        """Whether the connection is closed after the response in progress."""
        return self._is_last and not self._pending

    def close_when_idle(self) -> None:
        """Close the connection, now or after the response in progress."""
        self._is_last = True
        if self.task is None:
            self.transport.close()

    async def drain(self) -> None:
        """Wait until the write buffer is below its low-water mark. A disconnect cancels the caller."""
        while self.is_write_paused and self.is_connected:
            self._drain_waiter = self._loop.create_future()
            await self._drain_waiter

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
        request = self.server.make_request(self, method, target, headers, is_http_1_0=is_http_1_0)
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

    async def _answer(self, request: "HttpRequest") -> bool:
        """Run the handler and send its response. Returns whether the connection can be used further."""
        self.server.count_active(1)
        try:
            response = await self.server.handler(request)
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
        request = self.server.make_request(self, "GET", "/", RequestHeaders(()), is_http_1_0=False)
        self.transport.write(request.encode_response(self._error_response(400)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            await asyncio.sleep(LINGER_S)  # the client's disconnect cancels this task

    def _error_response(self, status: int) -> "HttpResponse":
        response = self.server.error_response(status, PHRASES[status])
        response.closes_connection = True
        return response


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
