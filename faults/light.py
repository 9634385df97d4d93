"""The two ends of the way, as light as can be: the server between them is what is looked at."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec

from faults.asking import LIMIT_S, Heard, parse
from tests.live.server import Running
from tests.live.upstream import gateway

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
TEXTS = 9
"""Texts of an answer: with its role and its end there are eleven chunks of it."""
SETTLE_S = 20.0
"""What is not so by then will not be: a connection of this machine is known to be closed within a second."""
_LOOK_S = 0.01
_EVENT = (
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"light",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}'
)
_MODEL = re.compile(rb'"model":"([^"]*)"')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


def event(data: str) -> bytes:
    """An event of a stream, as a chunk of HTTP."""
    text = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(text), text)


def says(text: str) -> bytes:
    """A chunk with this text."""
    return event(_EVENT % (msgspec.json.encode({"content": text}).decode(), "null"))


def refuses(status: int) -> bytes:
    """A whole reply that is an error."""
    body = b'{"error":{"message":"It does not want to.","type":"server_error","param":null,"code":null}}'
    head = f"HTTP/1.1 {status} Light\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


OPENING = HEAD + event(_EVENT % ('{"role":"assistant","content":""}', "null"))
ENDING = event(_EVENT % ("{}", '"stop"')) + event("[DONE]") + LAST
BEGUN = OPENING + says(" well")
WHOLE = OPENING + b"".join(says(f" word{number}") for number in range(TEXTS)) + ENDING


class Desk:
    """What all connections of an upstream share: what it counts, and which of them are open."""

    def __init__(self) -> None:
        self.asked = 0
        self.whole = 0
        """Answers that were said to their end."""
        self.running = 0
        """Requests that are here and are not answered whole."""
        self.sent_bytes = 0
        self.open: set[Speaker] = set()
        self.awaited: dict[str, asyncio.Event] = {}
        """Who waits for a request for a model of this name."""


class Speaker(asyncio.Protocol):
    """A connection of an upstream. The model's name says how it answers: whole, or not at all, or not to the end.

    What follows after a dash only tells one request from another.
    """

    transport: asyncio.Transport

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.answered = 0
        self._heard = b""
        self._is_running = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody comes."""
        self.transport = cast("asyncio.Transport", transport)
        self.desk.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Hear, and answer a request that is whole."""
        self._heard += data
        head, found, body = self._heard.partition(b"\r\n\r\n")
        length = _LENGTH.search(head + b"\r\n")
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self._heard = b""
        self.desk.asked += 1
        self.desk.running += 1
        self._is_running = True
        named = _MODEL.search(body)
        model = named[1].decode() if named else ""
        if model in self.desk.awaited:
            self.desk.awaited[model].set()
        self.answer(model.partition("-")[0])

    def answer(self, model: str) -> None:
        """Answer who asks for this model."""
        if model == "stalls":
            self.say(BEGUN)
        elif model == "cut":
            self.say(BEGUN)
            self.transport.close()
        elif model == "fails":
            self.say(refuses(500))
            self.done()
        elif model != "silent":
            self.say(WHOLE)
            self.done()

    def say(self, data: bytes) -> None:
        """Say these bytes."""
        self.desk.sent_bytes += len(data)
        self.transport.write(data)

    def done(self) -> None:
        """The answer is whole."""
        self.answered += 1
        self.desk.whole += 1
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self.desk.open.discard(self)
        self._end()

    def _end(self) -> None:
        self.desk.running -= self._is_running
        self._is_running = False


@asynccontextmanager
async def upstream(desk: Desk, make: Callable[[Desk], Speaker] = Speaker, port: int = 0) -> AsyncIterator[int]:
    """An upstream that listens for so long, in this loop; its port."""
    server = await asyncio.get_running_loop().create_server(lambda: make(desk), "127.0.0.1", port, backlog=4096)
    try:
        listening: int = server.sockets[0].getsockname()[1]
        yield listening
    finally:
        server.close()
        hang_up(desk)


def hang_up(desk: Desk) -> None:
    """End all connections of an upstream."""
    for speaker in tuple(desk.open):
        speaker.transport.abort()


@asynccontextmanager
async def between(
    folder: Path, *ports: int, options: Sequence[str] = (), each: Mapping[str, object] | None = None
) -> AsyncIterator[Running]:
    """A gateway before upstreams of this loop, which goes on while the gateway starts and ends."""
    urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
    stack = ExitStack()
    try:
        made = gateway(folder, *urls, options=["--quiet", *options], each=each)
        yield await asyncio.to_thread(stack.enter_context, made)
    finally:
        await asyncio.to_thread(stack.close)


class Caller(asyncio.Protocol):
    """A client whose connection may stay for more than one request."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._heard = bytearray()
        self._reply: asyncio.Future[None] | None = None
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be used."""
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    async def ask(self, said: bytes) -> Heard:
        """The whole reply to these bytes, or what came of it before the connection was lost."""
        self._heard = bytearray()
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(said)
        async with asyncio.timeout(LIMIT_S):
            await self._reply
        return parse(bytes(self._heard))

    def data_received(self, data: bytes) -> None:
        """Hear until it is whole."""
        self._heard += data
        if _is_whole(self._heard):
            self._settle()

    def connection_lost(self, error: Exception | None) -> None:
        """There is no more to come."""
        self.is_open = False
        self._settle()

    def _settle(self) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_result(None)


def _is_whole(heard: bytearray) -> bool:
    """Whether a reply has come to its end. One without a length ends with its connection."""
    at = heard.find(b"\r\n\r\n")
    if at < 0:
        return False
    length = _LENGTH.search(heard, 0, at + 2)
    if length is not None:
        return len(heard) >= at + 4 + int(length[1])
    return heard.endswith(LAST)


async def call(port: int) -> Caller:
    """A connection."""
    async with asyncio.timeout(LIMIT_S):
        _, caller = await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    return caller


async def settled(look: Callable[[], float], wanted: float = 0) -> float:
    """What is seen when it is as wanted, or when it should have been for long."""
    deadline = time.monotonic() + SETTLE_S
    while (seen := look()) != wanted and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells of another process
        await asyncio.sleep(_LOOK_S)
    return seen
