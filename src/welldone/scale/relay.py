"""From Ray's proxy to the server: an ASGI application that hands each request on, and the reply back as it comes.

The server is in the same process and listens on a socket in a private folder. So it hears HTTP as from any client, and
all of its own limits hold: this only carries.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from welldone.net.outbound import Address, Exchange, OutboundError
from welldone.scale.asgi import Application, Message, Receive, Send, refuse
from welldone.serve.errors import ApiError

_AHEAD_BYTES = 2**16  # of a reply that Ray has not taken yet: then the server's stream is congested, as any other
_HOP = frozenset(
    {b"connection", b"content-length", b"expect", b"keep-alive", b"proxy-connection", b"te", b"trailer"}
    | {b"transfer-encoding", b"upgrade"}
)
"""Headers that are about one connection, or that are written anew."""
_OURS = frozenset({"connection", "date", "keep-alive", "server", "transfer-encoding", "x-request-id"})
"""Of the reply. Ray's proxy frames it itself, and says these itself: the request's id is the one that it has made."""


_TARGET = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
"""What may stand in a head (RFC 9110): nothing that ends a line, however it came through Ray."""


class _Way:
    """Where requests go."""

    path: Path | None = None
    limit_bytes = 0


def lead_to(path: Path, *, limit_bytes: int) -> None:
    """The server of this process listens here, and takes bodies up to so many bytes."""
    _Way.path, _Way.limit_bytes = path, limit_bytes


def build() -> Application:
    """The application; Ray asks for it in each replica."""
    return _app


async def _app(scope: Message, receive: Receive, send: Send) -> None:
    """Carry one request and its reply."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    elif scope["type"] == "http":
        await _carry(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1000})  # there is nothing to say over one here


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _carry(scope: Message, receive: Receive, send: Send) -> None:
    body = await _body(receive)
    if body is None:
        return  # the client has left
    request = _request(scope, body)
    if request is None:
        await refuse(send, ApiError(400, "The head of this request is not HTTP.", code="invalid_request"))
        return
    reply = _Reply(has_body=scope["method"] != "HEAD")
    exchange = Exchange(request, reply, Address(socket=str(_Way.path)))
    reply.exchange = exchange
    await asyncio.get_running_loop().create_unix_connection(lambda: exchange, str(_Way.path))
    leaving = asyncio.ensure_future(_left(receive))
    leaving.add_done_callback(lambda _: reply.leave())
    try:
        await reply.carry(send)
    finally:
        leaving.cancel()
        exchange.close()


async def _body(receive: Receive) -> bytes | None:
    """The whole body; of one that is longer than any may be, enough for the server to say so. None: who asked left."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False) or len(body) > _Way.limit_bytes:
            return bytes(body)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _request(scope: Message, body: bytes) -> bytes | None:
    """As it was sent; None: something in it cannot stand in a head."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    query = scope.get("query_string", b"")
    target = path + (b"?" + query if query else b"")
    method = scope["method"].encode()
    fields = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP]
    is_sound = all(_FIELD.fullmatch(name) and _VALUE.fullmatch(value) for name, value in fields)
    if not (is_sound and _TARGET.fullmatch(target) and _FIELD.fullmatch(method)):
        return None
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % field for field in fields)]
    lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
    return b"\r\n".join(lines)


class _Reply:
    """What the server says, until Ray has taken it."""

    def __init__(self, *, has_body: bool) -> None:
        self._has_body = has_body
        self.exchange: Exchange | None = None
        self._head: Message | None = None
        self._waiting = bytearray()
        self._is_over = False
        self._is_left = False
        self._is_paused = False
        self._is_stream = False
        self._error: OutboundError | None = None
        self._news = asyncio.Event()

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        fields = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        kept = [(name, value) for name, value in fields if name.decode("latin-1") not in _OURS]
        self._head = {"type": "http.response.start", "status": status, "headers": kept}
        self._is_over = not self._has_body  # whatever length the head tells
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._news.set()

    def data(self, data: bytes) -> None:
        """More of it."""
        self._waiting += data
        if len(self._waiting) > _AHEAD_BYTES and self.exchange is not None:
            self.exchange.pause()
            self._is_paused = True
        self._news.set()

    def end(self, error: OutboundError | None) -> None:
        """It has ended, if it had not yet."""
        if not self._is_over:
            self._is_over, self._error = True, error
        self._news.set()

    def leave(self) -> None:
        """The client has left: the server sees that at once."""
        if self.exchange is not None:
            self.exchange.close()
        self._is_left = True
        self.end(None)

    # What the request's task does.

    async def carry(self, send: Send) -> None:
        """Send on what comes.

        Raises:
            OutboundError: the server broke off, and so must the reply: nobody shall take it for whole.
        """
        while not (self._is_over and not self._waiting and self._head is None):
            await self._news.wait()
            self._news.clear()
            if self._head is not None:
                head, self._head = self._head, None
                await send(head)
            if data := self._take():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if self._is_paused and self.exchange is not None:
                self._is_paused = False
                self.exchange.resume()
            if self._is_over:
                self._news.set()
        if self._error is not None:
            raise self._error
        if not self._is_left:  # who ends before the server does has not heard all
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _take(self) -> bytes:
        """What can be sent on: of a stream whole events, as the server wrote them, but for one that is very long."""
        rest = self._waiting.rpartition(b"\n\n")[2] if self._is_stream and not self._is_over else bytearray()
        if len(rest) > _AHEAD_BYTES:
            rest = bytearray()
        data = bytes(self._waiting[: len(self._waiting) - len(rest)])
        self._waiting = rest
        return data
