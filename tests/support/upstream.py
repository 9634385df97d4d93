"""Scripted upstreams for the gateway, each in its own thread. The model name selects the reply or the fault."""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tests.support.faults import start_chat
from tests.support.raw import LIMIT_S, Json, parse_valid
from tests.support.server import KEY, Running, reserved_port, serving
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.variants import FAULT_REPLIES

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
"""Reply by model name."""

RUNNING = "welldone_upstream_running"
ACTIVE = "welldone_active_streams"


def reply_by_model(request: MockHttpRequest) -> MockReply:
    """The reply for the requested model; `hello` for an unknown name."""
    return REPLIES.get(json.loads(request.body)["model"], HELLO_REPLY)


class Upstream:
    """A mock server that runs in its own thread."""

    def __init__(
        self,
        choose: Callable[[MockHttpRequest], MockReply] = reply_by_model,
        script: MockScript | None = None,
        *,
        handles_all: bool = False,
    ) -> None:
        self._script, self._choose, self._handles_all = script or MockScript(), choose, handles_all
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._reservation = reserved_port()
        self.port: int = self._reservation.getsockname()[1]
        self._mock = MockServer(self._script, choose, handles_all=handles_all)

    def start(self) -> None:
        """Listen on the reserved port."""
        self._mock = MockServer(self._script, self._choose, handles_all=self._handles_all)
        self.run(self._mock.listen(port=self.port))

    def stop(self) -> None:
        """Close the listener and all connections."""
        self.run(self._mock.close())

    def end(self) -> None:
        """Stop the server and its thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()
        self._reservation.close()

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def run(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine in the thread of the upstream and return its result."""
        return asyncio.run_coroutine_threadsafe(_bounded(coroutine), self._loop).result(LIMIT_S)

    def wait_until_running(self, count: int, text: str = "") -> None:
        """Wait until `count` requests that contain the text are unfinished."""
        self.wait_until(lambda mock: sum(one.end == "running" and text in one.body for one in mock.requests) == count)

    def wait_until(self, condition: Callable[[MockServer], bool]) -> None:
        """Wait until the condition holds; it is evaluated in the thread of the upstream."""
        self.run(self._mock.wait_until(lambda: condition(self._mock)))

    def posts(self) -> list[MockHttpRequest]:
        """The POST requests so far."""

        async def read() -> list[MockHttpRequest]:
            return [request for request in self._mock.requests if request.method == "POST"]

        return self.run(read())


async def _bounded(coroutine: Coroutine[Any, Any, Value]) -> Value:
    async with asyncio.timeout(LIMIT_S):
        return await coroutine


@contextmanager
def upstream(
    choose: Callable[[MockHttpRequest], MockReply] = reply_by_model, script: MockScript | None = None
) -> Iterator[Upstream]:
    """Run a scripted upstream, and stop it when the block ends."""
    server = Upstream(choose, script)
    try:
        server.start()
        yield server
    finally:
        server.end()


class Proxy:
    """TCP proxy in front of an upstream that terminates TLS or listens on IPv6."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, host: str, tls: ssl.SSLContext | None) -> AsyncIterator[None]:
        """Listen until the block ends."""
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
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await run_until_first_ends(_copy(reader, inner_writer), _copy(inner_reader, writer))
        finally:
            inner_writer.close()
            writer.close()
            self._tasks.discard(task)


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Run coroutines concurrently until the first ends, cancel the others, and return all tasks."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return tasks


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@contextmanager
def proxy(target: Upstream, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """Run a proxy in the thread of the upstream."""
    server = Proxy(target.port)
    listening = server.listening(host, tls)
    target.run(listening.__aenter__())
    try:
        yield server
    finally:
        target.run(listening.__aexit__(None, None, None))


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
    """Run `welldone serve` in front of upstreams `a`, `b`, …, which accept any model and are probed only once."""
    settings: Json = {"models": ["*"], "probe_s": 0, **(each or {})}
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    tables = [
        "\n".join([f"[upstreams.{name}]", f"url = {json.dumps(url)}", *lines, ""])
        for name, url in zip("abcdefgh", urls, strict=False)
    ]
    (folder / "welldone.toml").write_text("\n".join([*tables, more]))
    with serving(options, model="hello", key=key, folder=folder, environment=environment, is_awaited=False) as running:
        yield running


def chat_text(server: Running, *, model: str = "hello", stream: bool) -> str:
    """The text of a complete answer. Replies of scripted upstreams have no usage."""
    with start_chat(server, model=model, stream=stream) as connection:
        reply = connection.reply()
    if stream:
        return parse_valid(reply).text
    (choice,) = reply.ok()["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["message"]["content"]
    return text


def eventually(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds. It queries a server or the system, so polling needs no pause."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
