"""The complete server in the test process, with a mock engine that replies from a script."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.http.client import fetch
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript
from welldone.rules.judge import judge
from welldone.rules.trace import Trace, read_capture
from welldone.server.generation.answer import Answer
from welldone.server.inspector.assets import StaticSite
from welldone.server.server import Server

SITE = StaticSite("page/assets")
"""The web page, as `welldone serve` serves it."""
ROLE = MockChunk(CHUNK_TEMPLATE % ('{"role":"assistant","content":""}', "null"))
HELLO = MockChunk(CHUNK_TEMPLATE % ('{"content":"Hello"}', "null"))
STOP = MockChunk(CHUNK_TEMPLATE % ("{}", '"stop"'))
USAGE = MockChunk(
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scripted","choices":[],'
    '"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'
)
DONE = MockChunk("data: [DONE]\n\n")
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def json_error(status: int, body: object) -> MockReply:
    """An error response of an engine or upstream."""
    return MockReply((MockChunk(json.dumps(body)),), status, {"Content-Type": "application/json"})


class RecordedReply:
    """A recorded HTTP response."""

    def __init__(self, raw: bytes, request: dict[str, Any]) -> None:
        self.raw = raw
        head, _, _ = raw.partition(b"\r\n\r\n")
        self.head = head.decode()
        self.status = int(head.split()[1])
        self.capture = read_capture(raw)
        self.body = self.capture.body
        self.request = request

    @property
    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """The body of a reply that is not a stream."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object of an error response or in a stream."""
        if self.status != 200:
            error: dict[str, Any] = self.json["error"]
            return error
        lines = [line[6:] for line in self.body.decode().splitlines() if line.startswith('data: {"error"')]
        assert len(lines) == 1, self.body
        event: dict[str, Any] = json.loads(lines[0])["error"]
        return event

    def findings(self, endpoint: str = "chat") -> list[str]:
        """The rules that the response violates."""
        trace = Trace(
            body=self.body,
            endpoint=endpoint,
            request=self.request,
            status=self.status,
            headers=self.capture.headers,
            chunk_sizes=self.capture.chunk_sizes,
        )
        return [finding.rule for finding in judge(trace).findings]


class RunningServer:
    """A running server and its engine."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def post(
        self, request: dict[str, Any] | None = None, path: str = "/v1/chat/completions", headers: str = ""
    ) -> RecordedReply:
        """Send a request and read the complete response."""
        request = CHAT if request is None else request
        reader, writer = await self.send(request, path, headers)
        raw = await reader.read()
        writer.close()
        return RecordedReply(raw, request)

    async def get(self, path: str, headers: str = "", method: str = "GET") -> RecordedReply:
        """Send a request without a body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n".encode())
        raw = await reader.read()
        writer.close()
        return RecordedReply(raw, {})

    async def send(
        self, request: dict[str, Any], path: str = "/v1/chat/completions", headers: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a POST, and return the open connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        body = json.dumps(request).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write((head + headers).encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return reader, writer

    def answers(self) -> list[Answer]:
        """The responses in progress."""
        return list(self.server.routes.answers)

    async def engine_requests(self) -> list[dict[str, Any]]:
        """The requests that the engine has received."""
        address = await self.server.supervisor.models[0].ensure_ready()
        requests: list[dict[str, Any]] = json.loads((await fetch(address, "GET", "/seen", timeout_s=30)).body)
        return requests


@asynccontextmanager
async def run_server(
    folder: Path,
    *posts: MockReply,
    model: dict[str, Any] | None = None,
    is_traced: bool = False,
    **settings: Any,  # noqa: ANN401 - fields of ServeSettings
) -> AsyncIterator[RunningServer]:
    """A server with a mock engine that sends these replies to POSTs and repeats the last one."""
    script = folder / "script.json"
    script.write_bytes(msgspec.json.encode(MockScript(posts=posts) if posts else MockScript()))
    command = (sys.executable, "-m", "welldone.mock.server", "--port", "{port}", "--script", str(script))
    models = (ModelSettings(name="m", command=command, **(model or {})),)
    config = Config(server=ServeSettings(port=0, **settings), models=models, is_traced=is_traced)
    async with started(Server(config, keys=(), folder=folder, site=SITE)) as running:
        yield running


@asynccontextmanager
async def started(server: Server) -> AsyncIterator[RunningServer]:
    """The server, with its first model loaded."""
    await server.start()
    try:
        await server.supervisor.models[0].ensure_ready()
        yield RunningServer(server)
    finally:
        await server.stop()
