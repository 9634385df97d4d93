"""Responses over WebSocket: `GET /v1/responses` with an upgrade.

Each message of the client, a `response.create` event, is handled like a `POST /v1/responses` of its own: with access
control, rate limits, a line in the log. Its events are sent as messages. Responses of a connection are generated one
after the other. A response that is not stored can be continued on its connection (`local_id`).

https://developers.openai.com/api/docs/guides/websocket-mode, and the Open Responses specification (2026-04-24).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from welldone.core.events import Json
from welldone.core.sse import Frame, SseDecoder
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.messages import HttpRequest, HttpResponse, RequestHeaders, StreamingResponse
from welldone.http.websocket import VERSION, CloseCode, HandshakeError, WebSocket, is_handshake
from welldone.schemas.responses import SocketEvent
from welldone.server.api.response_store import ResponseStore
from welldone.server.context import RequestContext, random_hex, response_headers, server_busy, upgrade_required
from welldone.server.inspector.captures import CAPTURE_HEADER
from welldone.server.parts import ServerParts
from welldone.server.requests import fields
from welldone.server.resume.api import RESUME_HEADER

_PING_S = 30.0
"""While nothing else is sent. Proxies close connections without data after 60 s (nginx) or later."""
_CREATE = "response.create"
_EVENT_FIELDS = ("type", "event_id", "stream_id", "generate")
"""Fields of the event that are not fields of the request."""
_OWN_HEADERS = frozenset({"connection", "upgrade", "content-length", "content-type", "content-encoding", "expect"})
_OWN_HEADERS |= {"transfer-encoding", "x-request-id", "x-client-request-id", RESUME_HEADER, CAPTURE_HEADER.lower()}
"""Headers of the handshake that do not apply to each request, besides `Sec-WebSocket-*`."""
_ERROR_HEADERS = ("Retry-After", "x-request-id")
"""Headers of an error response that the error event has."""
_LIFE_CODE = "websocket_connection_limit_reached"


class SocketResponse(StreamingResponse):
    """A response whose events are sent as messages. Keep-alive comments become pings."""

    def __init__(self, socket: WebSocket, stream_id: str | None) -> None:
        super().__init__(socket.connection, head=b"", is_chunked=False, has_body=True)
        self.write_framed: Callable[[bytes], None] = self.write
        self._socket = socket
        self._tail = b"}" if stream_id is None else b',"stream_id":' + msgspec.json.encode(stream_id) + b"}"
        self._decoder = SseDecoder(eager=True)

    @property
    def is_open(self) -> bool:
        """Whether the client is connected."""
        return self._socket.is_open and super().is_open

    def write(self, data: bytes) -> None:
        """Send the events that are complete."""
        for frame in self._decoder.feed(data):
            self._send(frame)

    async def end(self, trailers: Mapping[str, str] | None = None, *, last: bytes = b"") -> None:
        """Send the last events. There are no trailers."""
        self.write(last)
        for frame in self._decoder.close():
            self._send(frame)
        self._connection.on_backpressure = self._connection.on_disconnect = None
        self.is_ended = True
        await self.drain()

    def _send(self, frame: Frame) -> None:
        data = frame.data
        if data is None:
            self._socket.ping()
        elif data.endswith(b"}"):  # not [DONE]
            self._socket.send(data[:-1] + self._tail)


class SocketRequest(HttpRequest):
    """A message as a request for a response."""

    def __init__(self, handshake: HttpRequest, socket: WebSocket, message: bytes, local_id: str) -> None:
        headers = [(name, value) for name, value in handshake.headers.items() if _is_kept(name)]
        own = RequestHeaders([*headers, ("content-type", "application/json"), ("content-length", str(len(message)))])
        super().__init__(socket.connection, "POST", handshake.path, own, is_http_1_0=False)
        self.receive(message)
        self.end_body(is_complete=True)
        self.local_id: str = local_id
        """Owner of the responses that can be continued on this connection only."""
        self.stream_id: str | None = None
        self.previous_id: str | None = None
        self.is_warm_up: bool = False
        """Nothing is generated."""
        self._socket = socket

    def read_event(self, event: Json) -> Json:
        """Return the body of the request in a client's event.

        Raises:
            ApiError: it is not a valid `response.create` event.
        """
        parsed = fields.read_fields(event, SocketEvent)
        self.stream_id = parsed.stream_id
        if parsed.type != _CREATE:
            raise fields.wrong_value("type", parsed.type, (_CREATE,))
        if parsed.background:
            raise fields.unsupported("background", "is not supported on a WebSocket.")
        self.is_warm_up = parsed.generate is False
        body = {name: value for name, value in event.items() if name not in _EVENT_FIELDS}
        return body | {"stream": True}

    async def start_stream(
        self,
        headers: Mapping[str, str],
        *,
        status: int = 200,
        trailers: Sequence[str] = (),
        first: bytes = b"",
        holds_head: bool = False,
    ) -> StreamingResponse:
        """Send the first events; there is no head."""
        response = SocketResponse(self._socket, self.stream_id)
        self.stream: StreamingResponse | None = response
        response.write(first)
        return response


def _is_kept(name: str) -> bool:
    return name not in _OWN_HEADERS and not name.startswith("sec-websocket-")


class ResponseSockets:
    """The open WebSockets of a server."""

    def __init__(self, parts: ServerParts, local_store: ResponseStore) -> None:
        self._parts = parts
        self._local_store = local_store
        self._open: set[_Connection] = set()

    def drain(self) -> None:
        """Close each connection, now or after the response in progress."""
        for connection in self._open:
            connection.drain()

    async def connect(self, ctx: RequestContext) -> HttpResponse | None:
        """Handle a handshake, and the connection until its end."""
        headers = ctx.request.headers
        if not is_handshake(headers):
            raise upgrade_required("POST")
        if headers.get("sec-websocket-version") != VERSION:
            message = f"This server supports version {VERSION} of the WebSocket protocol."
            raise ApiError(426, message, code="upgrade_required", headers={"Sec-WebSocket-Version": VERSION})
        if len(self._open) >= self._parts.settings.connections:
            raise server_busy()
        connection = _Connection(ctx, self._parts)
        ctx.endpoint, ctx.stream_status = "sockets", 101
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.discard(connection)
            connection.release()
            self._local_store.delete_all(connection.local_id)
        return None


class _Connection:
    """One WebSocket. Its handler runs until it is closed; a disconnect cancels the handler."""

    def __init__(self, ctx: RequestContext, parts: ServerParts) -> None:
        """Accept the handshake. Raises ApiError if it is not valid."""
        self._handshake = ctx.request
        self._settings = parts.settings
        self._budget = parts.body_budget
        self.local_id: str = f"socket_{random_hex(24)}"
        self._is_draining = False
        self._response: asyncio.Task[HttpResponse | None] | None = None  # in progress
        try:
            self._socket = WebSocket(
                ctx.request,
                response_headers(ctx),
                limit_bytes=self._settings.body_limit_bytes,
                on_buffered=self._count_buffered,
                on_close=self._stop_response,
            )
        except HandshakeError as error:
            raise invalid_request(str(error)) from None
        self._handler = self._socket.connection.handler

    def drain(self) -> None:
        """Close the connection, now or after the response in progress."""
        self._is_draining = True
        self._socket.wake()

    def release(self) -> None:
        """Count received bytes no longer."""
        self._socket.release()

    async def run(self) -> None:
        """Answer messages until the connection is closed."""
        ends_at = time.monotonic() + self._settings.socket_life_s
        code, reason = CloseCode.GOING_AWAY, "the server is shutting down"
        idle_since = time.monotonic()
        while self._socket.is_open and not self._is_draining:
            now = time.monotonic()
            idle_end = idle_since + self._settings.socket_idle_s
            if now >= ends_at:
                limit_s = self._settings.socket_life_s
                message = f"The WebSocket connection has reached its limit of {limit_s:g} seconds. Open another one."
                self._send_error(400, invalid_request(message, code=_LIFE_CODE).body())
                reason = "connection limit reached"
                break
            if now >= idle_end:
                reason = f"no request for {self._settings.socket_idle_s:g} seconds"
                break
            data = await self._socket.receive(min(_PING_S, ends_at - now, idle_end - now))
            if data is None:
                self._socket.ping()
                continue
            request = SocketRequest(self._handshake, self._socket, data, self.local_id)
            del data  # this frame must not keep the body in memory during the response
            await self._respond(request)
            idle_since = time.monotonic()
        await self._socket.close(code, reason)

    async def _respond(self, request: SocketRequest) -> None:
        self._response = asyncio.ensure_future(self._handler(request))
        try:
            reply = await self._response
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return  # the client has closed the connection
        finally:
            self._response = None
        if reply is not None:
            self._send_error(reply.status, reply.body, reply.headers, request.stream_id)
        await self._socket.connection.drain()

    def _send_error(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, stream_id: str | None = None
    ) -> None:
        event: Json = {"type": "error", "status": status, **msgspec.json.decode(body)}
        if error_headers := {name.lower(): (headers or {})[name] for name in _ERROR_HEADERS if name in (headers or {})}:
            event["headers"] = error_headers
        self._socket.send(msgspec.json.encode(event | fields.given(stream_id=stream_id)))

    def _stop_response(self) -> None:
        """Cancel the response in progress, since the client has closed the connection."""
        if self._response is not None:
            self._response.cancel()

    def _count_buffered(self, change: int) -> None:
        self._budget.client_bytes += change
        if change > 0 and self._budget.is_full:
            self._socket.fail(CloseCode.TRY_AGAIN_LATER, "the server is busy")
