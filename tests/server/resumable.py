"""A client that loses its connection, and an upstream that sends as many chunks as a test lets it send."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.http.aio import serving
from tests.server.running_gateway import Gateway, gateway
from welldone.config.upstream import UpstreamSettings
from welldone.mock.script import CHUNK_TEMPLATE
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

_open: list[asyncio.StreamWriter] = []  # connections that the gateway closes at its end
ASKS = "x-welldone-resume: 1\r\n"
ROLE = CHUNK_TEMPLATE % ('{"role":"assistant","content":""}', "null")
STOP = CHUNK_TEMPLATE % ("{}", '"stop"')
USAGE = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scripted","choices":[],'
    '"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}\n\n'
)
DONE = "data: [DONE]\n\n"


def text_chunk(text: str) -> str:
    return CHUNK_TEMPLATE % (json.dumps({"content": text}), "null")


class GatedUpstream:
    """Sends as many chunks of each reply as are allowed."""

    def __init__(self, chunks: Sequence[str], *, is_cut: bool = False) -> None:
        self.chunks = chunks
        self.is_cut = is_cut
        self._allowed = 0
        self._changed = asyncio.Condition()
        self.request_count = 0
        self.disconnected = asyncio.Event()

    async def allow(self, count: int) -> None:
        """Let each request get this number of chunks more."""
        async with self._changed:
            self._allowed += count
            self._changed.notify_all()

    async def allow_all(self) -> None:
        """Let all requests get all chunks."""
        await self.allow(len(self.chunks))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        self.request_count += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        is_lost = False

        async def watch() -> None:
            nonlocal is_lost
            with suppress(ConnectionError):
                await reader.read()
            is_lost = True
            await self.allow(0)

        watching = asyncio.create_task(watch())
        try:
            for number, chunk in enumerate(self.chunks):
                async with self._changed:
                    while not is_lost and number >= self._allowed:
                        await self._changed.wait()
                if is_lost:
                    self.disconnected.set()
                    return
                data = chunk.encode()
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
            if not self.is_cut:
                writer.write(b"0\r\n\r\n")
        except ConnectionError:
            self.disconnected.set()
            raise
        finally:
            watching.cancel()


@asynccontextmanager
async def gated_gateway(
    folder: Path,
    upstream: GatedUpstream,
    *,
    keys: Sequence[str] = (),
    config: dict[str, Any] | None = None,
    speaks: tuple[str, ...] = ("chat", "completions"),
    **settings: Any,  # noqa: ANN401 - fields of ServeSettings
) -> AsyncIterator[Gateway]:
    """A gateway in front of the upstream."""
    async with serving(upstream.answer) as port:
        url = f"http://127.0.0.1:{port}/v1"
        upstreams = (UpstreamSettings(name="a", url=url, models=("*",), probe_s=0.0, speaks=speaks),)
        more = {"upstreams": upstreams, **(config or {})}
        async with gateway(folder, config=more, keys=keys, **settings) as running:
            try:
                yield running
            finally:
                await upstream.allow_all()
                for writer in _open:
                    writer.close()
                _open.clear()


class Connection:
    """An HTTP response that is read event by event."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self.status = int(head.split()[1])
        lines = [line.partition(": ") for line in head.decode().split("\r\n")[1:] if line]
        self.headers = {name.lower(): value for name, _, value in lines}
        self.body = bytearray()
        self.is_complete = False
        _open.append(writer)

    @property
    def stream_id(self) -> str:
        return self.headers["x-welldone-stream-id"]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def events(self) -> list[bytes]:
        """The complete events so far, without keep-alives."""
        lines = [line for line in bytes(self.body).splitlines(keepends=True) if not line.startswith(b":")]
        return [one + b"\n\n" for one in b"".join(lines).split(b"\n\n")[:-1] if one.strip()]

    @property
    def text(self) -> str:
        """The text of a chat."""
        found = ""
        for event in self.events:
            data = event.partition(b"data: ")[2]
            if data.startswith(b"{"):
                for choice in json.loads(data)["choices"]:
                    found += choice["delta"].get("content") or ""
        return found

    async def read_chunk(self) -> bool:
        """Read a chunk; False at the end."""
        try:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            data = await self._reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        self.body += data[:-2]
        self.is_complete = size == 0
        return size > 0

    async def read_events(self, count: int) -> list[bytes]:
        """Read until there are `count` events."""
        while len(self.events) < count:
            assert await self.read_chunk(), self.body
        return self.events[:count]

    async def read_all(self) -> list[bytes]:
        """Read to the end."""
        if "content-length" in self.headers:
            self.body += await self._reader.read()
        else:
            while await self.read_chunk():
                pass
        self._writer.close()
        return self.events

    async def lose(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def connect(
    port: int, path: str, body: dict[str, Any] | None = None, headers: str = "", method: str | None = None
) -> Connection:
    """Send a request, and read the head of its response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    method = method or ("GET" if body is None else "POST")
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write((head + headers).encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return Connection(reader, writer, await reader.readuntil(b"\r\n\r\n"))


async def request(port: int, path: str, headers: str = "", method: str = "GET") -> Connection:
    """Send a request without a body, and read its response."""
    connection = await connect(port, path, headers=headers, method=method)
    await connection.read_all()
    return connection


async def resume_status(gate: Gateway, stream_id: str, after: int = 0) -> int:
    """Resume a stream, and read the response."""
    connection = await resume(gate, stream_id, after)
    await connection.read_all()
    return connection.status


async def resume(gate: Gateway, stream_id: str, after: int | str | None, headers: str = "") -> Connection:
    """Resume a stream, and read the head of the response."""
    last = "" if after is None else f"Last-Event-ID: {after}\r\n"
    return await connect(gate.server.port, f"/v1/streams/{stream_id}", headers=last + headers)


def findings(body: bytes, endpoint: str, sent: dict[str, Any]) -> set[str]:
    """The rules that a stream breaks."""
    return {finding.rule for finding in judge(Trace(body=body, endpoint=endpoint, request=sent)).findings}
