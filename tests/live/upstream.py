"""Servers for the gateway to stand in front of, each in a thread of the test and wrong in the way that is asked for."""

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.live.faults import begin
from tests.live.raw import LIMIT_S, Json, judged
from tests.live.server import KEY, Running, serving
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer

Value = TypeVar("Value")

ROLE, TEXT, STOP, DONE = HELLO_REPLY.pieces
FLOOD = MockChunk(CHUNK_TEMPLATE % (msgspec.json.encode({"content": "w" * 65536}).decode(), "null"))
REPLIES: Mapping[str, MockReply] = {
    **FAULT_REPLIES,
    "hello": HELLO_REPLY,
    "silent": MockReply(end="hang", raw=True),
    "stalls": MockReply((ROLE, TEXT), end="hang"),
    "flood": MockReply((ROLE, FLOOD), end="endless"),
}
"""What is answered to who asks for a model of this name."""

RUNNING = "welldone_upstream_running"
ACTIVE = "welldone_active_streams"


def by_model(seen: MockHttpRequest) -> MockReply:
    """The reply that the model's name asks for; hello where it asks for none."""
    return REPLIES.get(json.loads(seen.body)["model"], HELLO_REPLY)


class Upstream:
    """A scripted server. All of it happens in its own thread."""

    def __init__(
        self,
        choose: Callable[[MockHttpRequest], MockReply] = by_model,
        script: MockScript | None = None,
        *,
        for_all: bool = False,
    ) -> None:
        self._script, self._choose, self._for_all = script or MockScript(), choose, for_all
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        # It is never listened on: it keeps the port, for an upstream that goes away and comes back.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self._scripted = MockServer(self._script, choose, handles_all=for_all)

    def start(self) -> None:
        """Listen."""
        self._scripted = MockServer(self._script, self._choose, handles_all=self._for_all)
        self.do(self._scripted.listen(port=self.port))

    def stop(self) -> None:
        """Go away, and leave all connections."""
        self.do(self._scripted.close())

    def end(self) -> None:
        """Stop, for good."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()
        self._place.close()

    @property
    def url(self) -> str:
        """Where its API begins."""
        return f"http://127.0.0.1:{self.port}/v1"

    def do(self, work: Coroutine[Any, Any, Value]) -> Value:
        """What a coroutine gives that runs in its thread."""
        return asyncio.run_coroutine_threadsafe(_bounded(work), self._loop).result(LIMIT_S)

    def until_running(self, count: int, word: str = "") -> None:
        """Wait until so many requests with this word in them are here, and are not answered yet."""
        self.until(lambda one: sum(seen.end == "running" and word in seen.body for seen in one.requests) == count)

    def until(self, is_so: Callable[[MockServer], bool]) -> None:
        """Wait until something is so."""
        self.do(self._scripted.wait_until(lambda: is_so(self._scripted)))

    def posts(self) -> list[MockHttpRequest]:
        """The requests for answers, so far."""

        async def look() -> list[MockHttpRequest]:
            return [seen for seen in self._scripted.requests if seen.method == "POST"]

        return self.do(look())


async def _bounded(work: Coroutine[Any, Any, Value]) -> Value:
    async with asyncio.timeout(LIMIT_S):
        return await work


@contextmanager
def upstream(
    choose: Callable[[MockHttpRequest], MockReply] = by_model, script: MockScript | None = None
) -> Iterator[Upstream]:
    """A server that listens; ended at the end."""
    made = Upstream(choose, script)
    try:
        made.start()
        yield made
    finally:
        made.end()


class Front:
    """What stands before an upstream: it speaks TLS or IPv6."""

    def __init__(self, behind: int) -> None:
        self.port = 0
        self._behind = behind
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, host: str, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        """Listen for so long."""
        server = await asyncio.start_server(self._connected, host, 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            await until_one_ends(_pass(reader, inner_writer), _pass(inner_reader, writer))
        finally:
            inner_writer.close()
            writer.close()
            self._tasks.discard(task)


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Do them side by side until one has ended, and end the others; how each ended."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return tasks


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@contextmanager
def front(behind: Upstream, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Front]:
    """A front before an upstream, in its thread."""
    made = Front(behind.port)
    listening = made.listening(host, tls)
    behind.do(listening.__aenter__())
    try:
        yield made
    finally:
        behind.do(listening.__aexit__(None, None, None))


@contextmanager
def gateway(
    folder: Path,
    *urls: str,
    options: Sequence[str] = (),
    each: Mapping[str, object] | None = None,
    more: str = "",
    key: str | None = KEY,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """`welldone serve` in front of upstreams `a`, `b`, …, which have any model and are looked at once."""
    settings: Json = {"models": ["*"], "probe_s": 0, **(each or {})}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    tables = [
        "\n".join([f"[upstreams.{name}]", f"url = {json.dumps(url)}", *lines, ""])
        for name, url in zip("abcdefgh", urls, strict=False)
    ]
    (folder / "welldone.toml").write_text("\n".join([*tables, more]))
    with serving(options, model="hello", key=key, folder=folder, environment=environment, is_awaited=False) as running:
        yield running


def said(server: Running, *, model: str = "hello", stream: bool) -> str:
    """The text of a whole answer. Scripted upstreams do not count tokens, so there is no usage in it."""
    with begin(server, model=model, stream=stream) as line:
        reply = line.reply()
    if stream:
        return judged(reply).text
    (choice,) = reply.ok()["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"]
    return text


def eventually(is_so: Callable[[], bool]) -> None:
    """Look until something is so. Each look asks a server something, or looks at the system: nothing else need wait."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
