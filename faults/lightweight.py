"""Minimal upstream and client, so that the server between them dominates the measurement."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec

from faults.client import LIMIT_S, ClientReply, parse
from tests.support.server import Running
from tests.support.upstream import gateway

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
TEXTS = 9
"""Texts per answer: with the role and the finish it has eleven chunks."""
SETTLE_S = 20.0
"""Time for values to settle: a local disconnect is noticed within a second."""
_LOOK_S = 0.01
_EVENT = (
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"light",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'
)
_MODEL = re.compile(rb'"model":"([^"]*)"')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def event(data: str) -> bytes:
    """Encode an SSE event as an HTTP chunk."""
    text = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(text), text)


def text_chunk(text: str) -> bytes:
    """Encode a chunk with this text."""
    return event(_EVENT % (msgspec.json.encode({"content": text}).decode(), "null"))


def error_reply(status: int) -> bytes:
    """Encode an error response."""
    body = b'{"error":{"message":"It does not want to.","type":"server_error","param":null,"code":null}}'
    head = f"HTTP/1.1 {status} Light\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


OPENING = HEAD + event(_EVENT % ('{"role":"assistant","content":""}', "null"))
ENDING = event(_EVENT % ("{}", '"stop"')) + event("[DONE]") + LAST
BEGUN = OPENING + text_chunk(" well")
WHOLE = OPENING + b"".join(text_chunk(f" word{number}") for number in range(TEXTS)) + ENDING


class UpstreamState:
    """Counters and open connections of an upstream."""

    def __init__(self) -> None:
        self.request_count = 0
        self.whole = 0
        """Complete answers."""
        self.running = 0
        """Requests in progress."""
        self.sent_bytes = 0
        self.open: set[UpstreamConnection] = set()
        self.awaited: dict[str, asyncio.Event] = {}
        """Set when a request for this model arrives."""


class UpstreamConnection(asyncio.Protocol):
    """Connection of an upstream. The model name selects the reply: complete, none, or truncated.

    A suffix after a dash only makes the name unique.
    """

    transport: asyncio.Transport

    def __init__(self, state: UpstreamState) -> None:
        self.state = state
        self.answered = 0
        self._buffer = b""
        self._is_running = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self.transport = cast("asyncio.Transport", transport)
        self.state.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self._buffer = b""
        self.state.request_count += 1
        self.state.running += 1
        self._is_running = True
        named = _MODEL.search(body)
        model = named[1].decode() if named else ""
        if model in self.state.awaited:
            self.state.awaited[model].set()
        self.answer(model.partition("-")[0])

    def answer(self, model: str) -> None:
        """Send the reply that the model name selects."""
        if model == "stalls":
            self.send(BEGUN)
        elif model == "cut":
            self.send(BEGUN)
            self.transport.close()
        elif model == "fails":
            self.send(error_reply(500))
            self.done()
        elif model != "silent":
            self.send(WHOLE)
            self.done()

    def send(self, data: bytes) -> None:
        """Send data and count it."""
        self.state.sent_bytes += len(data)
        self.transport.write(data)

    def done(self) -> None:
        """Record a complete answer."""
        self.answered += 1
        self.state.whole += 1
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the connection."""
        self.state.open.discard(self)
        self._end()

    def _end(self) -> None:
        self.state.running -= self._is_running
        self._is_running = False


@asynccontextmanager
async def upstream(
    state: UpstreamState, make: Callable[[UpstreamState], UpstreamConnection] = UpstreamConnection, port: int = 0
) -> AsyncIterator[int]:
    """Run an upstream in this event loop; yields its port."""
    server = await asyncio.get_running_loop().create_server(lambda: make(state), "127.0.0.1", port, backlog=4096)
    try:
        listening: int = server.sockets[0].getsockname()[1]
        yield listening
    finally:
        server.close()
        close_connections(state)


def close_connections(state: UpstreamState) -> None:
    """Abort all connections of an upstream."""
    for connection in tuple(state.open):
        connection.transport.abort()


@asynccontextmanager
async def between(
    folder: Path, *ports: int, options: Sequence[str] = (), each: Mapping[str, object] | None = None
) -> AsyncIterator[Running]:
    """Run a gateway in front of upstreams of this event loop, which keeps running meanwhile."""
    urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
    stack = ExitStack()
    try:
        made = gateway(folder, *urls, options=["--quiet", *options], each=each)
        yield await asyncio.to_thread(stack.enter_context, made)
    finally:
        await asyncio.to_thread(stack.close)


class PersistentClient(asyncio.Protocol):
    """Client that reuses its connection."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._reply: asyncio.Future[None] | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Mark the connection as open."""
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    async def send(self, payload: bytes) -> ClientReply:
        """Send a request and return the reply, partial if the connection is lost."""
        self._buffer = bytearray()
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(payload)
        async with asyncio.timeout(LIMIT_S):
            await self._reply
        return parse(bytes(self._buffer))

    def data_received(self, data: bytes) -> None:
        """Collect the reply until it is complete."""
        self._buffer += data
        if _is_whole(self._buffer):
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """End the reply."""
        self.is_open = False
        self._settle()

    def _settle(self) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)


def _is_whole(received: bytearray) -> bool:
    """Whether a reply is complete; one without a length ends with the connection."""
    at = received.find(b"\r\n\r\n")
    if at < 0:
        return False
    length = _LENGTH.search(received, 0, at + 2)
    if length is not None:
        return len(received) >= at + 4 + int(length[1])
    return received.endswith(LAST)


async def call(port: int) -> PersistentClient:
    """Open a connection."""
    async with asyncio.timeout(LIMIT_S):
        _, client_connection = await asyncio.get_running_loop().create_connection(PersistentClient, "127.0.0.1", port)
    return client_connection


async def settled(look: Callable[[], float], wanted: float = 0) -> float:
    """Poll until the value is as wanted or the time is up; return the last value."""
    deadline = time.monotonic() + SETTLE_S
    while (seen := look()) != wanted and time.monotonic() < deadline:  # noqa: ASYNC110 - the state of another process has no event
        await asyncio.sleep(_LOOK_S)
    return seen
