"""ASGI application that relays requests from Ray's proxy to the server in the same process.

The server listens on a Unix socket in a private folder. It receives plain HTTP as from any client, so that all of its
limits apply here too.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.http.address import Address
from welldone.http.client import Exchange
from welldone.http.connect import HttpClientError, connect

ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
ASGIApp = Callable[[ASGIMessage, Receive, Send], Awaitable[None]]


async def send_error(send: Send, error: ApiError, shape: ErrorFormat = ErrorFormat.OPENAI) -> None:
    """Send an error as a complete reply."""
    body = error.body(shape)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


_BUFFER_LIMIT_BYTES = 2**16  # of bytes that Ray has not accepted yet; beyond it, the server sees backpressure
_HOP_BY_HOP_HEADERS = frozenset(
    {b"connection", b"content-length", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
"""Request headers of one connection, or that the relay sets itself."""
_PROXY_HEADERS = frozenset({"connection", "date", "keep-alive", "server", "transfer-encoding", "x-request-id"})
"""Response headers that Ray's proxy sets itself; it also generates the request id."""
_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""Characters that are allowed in a head (RFC 9110 §5): no line breaks, even if Ray lets them through."""


class _Destination:
    path: Path | None = None
    limit_bytes = 0


def set_destination(path: Path, *, limit_bytes: int) -> None:
    """Set the socket of this process's server, and its limit of request bodies."""
    _Destination.path, _Destination.limit_bytes = path, limit_bytes


def build_relay_app() -> ASGIApp:
    """Return the application; Ray calls this in each replica."""
    return _relay_app


async def _relay_app(scope: ASGIMessage, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await _relay_request(scope, receive, send)
    elif scope["type"] == "lifespan":
        message: ASGIMessage = {"type": ""}
        while message["type"] != "lifespan.shutdown":
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
    else:
        await send({"type": "websocket.close", "code": 1000})  # the server has no WebSocket endpoints


async def _relay_request(scope: ASGIMessage, receive: Receive, send: Send) -> None:
    body = await _read_body(receive)
    if body is None:
        return  # the client has disconnected
    request = _encode_request(scope, body)
    if request is None:
        await send_error(send, ApiError(400, "The request head is not valid HTTP.", code="invalid_request"))
        return
    address = Address(socket=str(_Destination.path))
    reply = _RelayedReply(request, address, has_body=scope["method"] != "HEAD")
    await connect(address, reply.exchange)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    disconnect.add_done_callback(lambda _: reply.disconnect())
    try:
        await reply.forward(send)
    finally:
        disconnect.cancel()
        reply.exchange.close()


async def _read_body(receive: Receive) -> bytes | None:
    """Read the body; of one beyond the limit, enough for the server to reject it. None: the client disconnected."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False) or len(body) > _Destination.limit_bytes:
            return bytes(body)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encode_request(scope: ASGIMessage, body: bytes) -> bytes | None:
    """Encode the request; None if its head contains invalid characters."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    query = scope.get("query_string", b"")
    target = path + (b"?" + query if query else b"")
    method = scope["method"].encode()
    fields = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_BY_HOP_HEADERS]
    is_valid = all(_FIELD.fullmatch(name) and _VALUE.fullmatch(value) for name, value in fields)
    if not (is_valid and _TARGET.fullmatch(target) and _FIELD.fullmatch(method)):
        return None
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % field for field in fields)]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)


class _RelayedReply:
    """Receives the server's response and forwards it to Ray, with backpressure."""

    def __init__(self, request: bytes, address: Address, *, has_body: bool) -> None:
        self.exchange = Exchange((request,), self, address)
        self._has_body = has_body
        self._head: ASGIMessage | None = None
        self._buffer = bytearray()
        self._is_ended = False
        self._is_disconnected = False
        self._is_paused = False
        self._is_stream = False
        self._error: HttpClientError | None = None
        self._wake_event = asyncio.Event()

    # Called by Exchange.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Store the head."""
        kept = [(name, value) for name, value in headers.items() if name not in _PROXY_HEADERS]
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
        self._head = {"type": "http.response.start", "status": status, "headers": fields}
        self._is_ended = not self._has_body  # a reply to HEAD has no body, whatever its Content-Length
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._wake_event.set()

    def data(self, data: bytes) -> None:
        """Buffer a part of the body."""
        self._buffer += data
        if len(self._buffer) > _BUFFER_LIMIT_BYTES:
            self.exchange.pause_reading()
            self._is_paused = True
        self._wake_event.set()

    def end(self, error: HttpClientError | None) -> None:
        """Store the end, unless the reply has ended already."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
        self._wake_event.set()

    def disconnect(self) -> None:
        """Close the exchange, so that the server sees the disconnect of the client at once."""
        self.exchange.close()
        self._is_disconnected = True
        self.end(None)

    async def forward(self, send: Send) -> None:
        """Forward the reply until its end.

        Raises:
            HttpClientError: the reply is incomplete. The connection to the client must break too, so that the client
                does not mistake it for a complete one.
        """
        while not (self._is_ended and not self._buffer and self._head is None):
            await self._wake_event.wait()
            self._wake_event.clear()
            if self._head is not None:
                head, self._head = self._head, None
                await send(head)
            if data := self._take_sendable():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if self._is_paused:
                self._is_paused = False
                self.exchange.resume_reading()
            if self._is_ended:
                self._wake_event.set()
        if self._error is not None:
            raise self._error
        if not self._is_disconnected:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _take_sendable(self) -> bytes:
        """Take what can be sent: complete events of a stream, except for an event beyond the buffer limit."""
        rest = self._buffer.rpartition(b"\n\n")[2] if self._is_stream and not self._is_ended else bytearray()
        if len(rest) > _BUFFER_LIMIT_BYTES:
            rest = bytearray()
        data = bytes(self._buffer[: len(self._buffer) - len(rest)])
        self._buffer = rest
        return data
