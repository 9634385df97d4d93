"""From Ray's proxy to the server: an ASGI application that hands each request on, and the reply back as it comes.

The server is in the same process and listens on a socket in a private folder. So it hears HTTP as from any client, and
all of its own limits hold: this only carries.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.http.address import Address
from welldone.http.client import Exchange, HttpClientError

# What ASGI calls its parts, and how an error is said over it.


ASGIMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[ASGIMessage]]
Send = Callable[[ASGIMessage], Awaitable[None]]
ASGIApp = Callable[[ASGIMessage, Receive, Send], Awaitable[None]]


async def send_error(send: Send, error: ApiError, shape: ErrorFormat = ErrorFormat.OPENAI) -> None:
    """A whole reply that is an error."""
    body = error.body(shape)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


_BUFFER_LIMIT_BYTES = (
    2**16
)  # of a reply that Ray has not taken yet: then the server's stream is congested, as any other
_HOP_BY_HOP_HEADERS = frozenset(
    {b"connection", b"content-length", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
"""Headers that are about one connection, or that are written anew."""
_PROXY_HEADERS = frozenset({"connection", "date", "keep-alive", "server", "transfer-encoding", "x-request-id"})
"""Of the reply. Ray's proxy frames it itself, and says these itself: the request's id is the one that it has made."""


_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""What may stand in a head (RFC 9110): nothing that ends a line, however it came through Ray."""


class _Destination:
    """Where requests go."""

    path: Path | None = None
    limit_bytes = 0


def set_destination(path: Path, *, limit_bytes: int) -> None:
    """The server of this process listens here, and takes bodies up to so many bytes."""
    _Destination.path, _Destination.limit_bytes = path, limit_bytes


def build_relay_app() -> ASGIApp:
    """The application; Ray asks for it in each replica."""
    return _relay_app


async def _relay_app(scope: ASGIMessage, receive: Receive, send: Send) -> None:
    """Carry one request and its reply."""
    if scope["type"] == "lifespan":
        await _handle_lifespan(receive, send)
    elif scope["type"] == "http":
        await _relay_request(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1000})  # there is nothing to say over one here


async def _handle_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _relay_request(scope: ASGIMessage, receive: Receive, send: Send) -> None:
    body = await _read_body(receive)
    if body is None:
        return  # the client has left
    request = _encode_request(scope, body)
    if request is None:
        await send_error(send, ApiError(400, "The head of this request is not HTTP.", code="invalid_request"))
        return
    reply = _RelayedReply(has_body=scope["method"] != "HEAD")
    exchange = Exchange(request, reply, Address(socket=str(_Destination.path)))
    reply.exchange = exchange
    await asyncio.get_running_loop().create_unix_connection(lambda: exchange, str(_Destination.path))
    leaving = asyncio.ensure_future(_wait_for_disconnect(receive))
    leaving.add_done_callback(lambda _: reply.disconnect())
    try:
        await reply.forward(send)
    finally:
        leaving.cancel()
        exchange.close()


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; of one that is longer than any may be, enough for the server to say so. None: who asked left."""
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
    """As it was sent; None: something in it cannot stand in a head."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    query = scope.get("query_string", b"")
    target = path + (b"?" + query if query else b"")
    method = scope["method"].encode()
    fields = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_BY_HOP_HEADERS]
    is_sound = all(_FIELD.fullmatch(name) and _VALUE.fullmatch(value) for name, value in fields)
    if not (is_sound and _TARGET.fullmatch(target) and _FIELD.fullmatch(method)):
        return None
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % field for field in fields)]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)


class _RelayedReply:
    """What the server says, until Ray has taken it."""

    def __init__(self, *, has_body: bool) -> None:
        self._has_body = has_body
        self.exchange: Exchange | None = None
        self._head: ASGIMessage | None = None
        self._buffer = bytearray()
        self._is_ended = False
        self._is_disconnected = False
        self._is_paused = False
        self._is_stream = False
        self._error: HttpClientError | None = None
        self._wake_event = asyncio.Event()

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        kept = [(name, value) for name, value in fields if name.decode("latin-1") not in _PROXY_HEADERS]
        self._head = {"type": "http.response.start", "status": status, "headers": kept}
        self._is_ended = not self._has_body  # whatever length the head tells
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._wake_event.set()

    def data(self, data: bytes) -> None:
        """More of it."""
        self._buffer += data
        if len(self._buffer) > _BUFFER_LIMIT_BYTES and self.exchange is not None:
            self.exchange.pause()
            self._is_paused = True
        self._wake_event.set()

    def end(self, error: HttpClientError | None) -> None:
        """It has ended, if it had not yet."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
        self._wake_event.set()

    def disconnect(self) -> None:
        """The client has left: the server sees that at once."""
        if self.exchange is not None:
            self.exchange.close()
        self._is_disconnected = True
        self.end(None)

    # What the request's task does.

    async def forward(self, send: Send) -> None:
        """Send on what comes.

        Raises:
            OutboundError: the server broke off, and so must the reply: nobody shall take it for whole.
        """
        while not (self._is_ended and not self._buffer and self._head is None):
            await self._wake_event.wait()
            self._wake_event.clear()
            if self._head is not None:
                head, self._head = self._head, None
                await send(head)
            if data := self._take_sendable():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if self._is_paused and self.exchange is not None:
                self._is_paused = False
                self.exchange.resume()
            if self._is_ended:
                self._wake_event.set()
        if self._error is not None:
            raise self._error
        if not self._is_disconnected:  # who ends before the server does has not heard all
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _take_sendable(self) -> bytes:
        """What can be sent on: of a stream whole events, as the server wrote them, but for one that is very long."""
        rest = self._buffer.rpartition(b"\n\n")[2] if self._is_stream and not self._is_ended else bytearray()
        if len(rest) > _BUFFER_LIMIT_BYTES:
            rest = bytearray()
        data = bytes(self._buffer[: len(self._buffer) - len(rest)])
        self._buffer = rest
        return data
