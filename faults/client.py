"""HTTP client for many concurrent requests, on raw sockets: it sees exactly how each response ended."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from faults.case import CaseContext
from tests.support.server import KEY, Running

LIMIT_S = 120.0
"""Timeout of every response, enough on a busy machine: a hang is a failure."""
CHAT = "/v1/chat/completions"

Ending: TypeAlias = Literal["whole", "error event", "refused", "aborted", "truncated"]
"""`whole`: finish and `[DONE]`, or a complete JSON reply; `error event`: an error in the stream; `refused`: an error
status; `aborted`: the HTTP framing is incomplete; `truncated`: complete HTTP framing, incomplete stream."""

Work = TypeVar("Work")
Result = TypeVar("Result")


class ClientReply(msgspec.Struct):
    """Everything received on a connection."""

    status: int = 0
    """0: none received."""
    head: bytes = b""
    body: bytes = b""
    """Without chunked framing."""
    is_whole: bool = False
    """Whether the HTTP framing is complete."""

    @property
    def ending(self) -> Ending:
        """How the response ended."""
        if not self.status or not self.is_whole:
            return "aborted"
        if self.status != 200:
            return "refused"
        if not self.is_stream:
            return "whole"
        if b'\ndata: {"error":' in b"\n" + self.body:
            return "error event"
        is_finished = b'"finish_reason":"' in self.body and self.body.endswith(b"data: [DONE]\n\n")
        return "whole" if is_finished else "truncated"

    @property
    def is_stream(self) -> bool:
        """Whether it is an event stream."""
        return b"text/event-stream" in self.head.lower()

    @property
    def texts(self) -> list[str]:
        """The content of each chunk."""
        chunks = [msgspec.json.decode(line[6:]) for line in self.body.split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
        return [text for choice in choices if (text := choice.get("delta", {}).get("content"))]

    @property
    def status_text(self) -> str:
        """The status, with the code of an error."""
        if self.status in (0, 200):
            return str(self.status)
        return f"{self.status} {msgspec.json.decode(self.body)['error']['code']}"


class ClientConnection:
    """One connection with one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read_until(self, pattern: bytes = b"\r\n\r\n") -> bytes:
        """Read up to and including a pattern."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readuntil(pattern)

    async def read_reply(self, before: bytes = b"") -> ClientReply:
        """Read until the server closes the connection. `before` was read already."""
        parts = [before]
        async with asyncio.timeout(LIMIT_S):
            try:
                while data := await self.reader.read(65536):
                    parts.append(data)
            except ConnectionError:
                pass  # keep what was received until then
        return parse(b"".join(parts))

    def disconnect(self, *, is_reset: bool = False) -> None:
        """Close the connection: with FIN, or with RST, as for a killed process."""
        if is_reset:
            reset(self.writer.transport)
        else:
            self.writer.close()


def reset(transport: asyncio.WriteTransport) -> None:
    """Close a connection with RST."""
    if not transport.is_closing():
        # Without this, abort() sends FIN unless there are unread bytes.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def chat(model: str = "hello", content: str = "Hello", *, stream: bool = True, **fields: object) -> bytes:
    """Encode a chat request."""
    messages = [{"role": "user", "content": content}]
    return msgspec.json.encode({"model": model, "stream": stream, "messages": messages, **fields})


def post(
    body: bytes, port: int, *, path: str = CHAT, key: str | None = KEY, headers: Mapping[str, str] | None = None
) -> bytes:
    """Encode a POST with `Connection: close`."""
    head = {
        "Host": f"127.0.0.1:{port}",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **({} if key is None else {"Authorization": f"Bearer {key}"}),
        **(headers or {}),
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def connect(port: int, data: bytes) -> ClientConnection:
    """Open a connection and send data."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(data)
        return ClientConnection(reader, writer)


async def send_request(
    server: Running, body: bytes, *, path: str = CHAT, headers: Mapping[str, str] | None = None
) -> ClientReply:
    """Send a request and read the reply."""
    return await exchange(server.port, post(body, server.port, path=path, key=server.key, headers=headers))


async def health(server: Running) -> int:
    """The status of /health on a new connection; 0 if the connection fails."""
    request = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    try:
        return (await exchange(server.port, request.encode())).status
    except ConnectionError:
        return 0


async def exchange(port: int, data: bytes) -> ClientReply:
    """Send data on a new connection and read until the server closes it."""
    connection = await connect(port, data)
    try:
        return await connection.read_reply()
    finally:
        connection.disconnect()


async def run_concurrently(
    context: CaseContext, work: Sequence[Work], at_once: int, do: Callable[[Work], Awaitable[Result]]
) -> list[Result]:
    """Run `do` on all items, `at_once` concurrently. Results are in order of completion."""
    waiting, done = iter(work), list[Result]()

    async def worker() -> None:
        for one in waiting:  # shared iterator
            done.append(await do(one))
            context.note(f"{len(done):,} of {len(work):,}")

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return done


def parse(data: bytes) -> ClientReply:
    """Parse a response."""
    head, found, rest = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not found or len(words) < 2 or not words[1].isdigit():
        return ClientReply(0, head)
    headers = head.lower()
    if b"\r\ntransfer-encoding: chunked" in headers:
        body, is_whole = _dechunk(rest)
    else:
        _, _, after = headers.partition(b"\r\ncontent-length:")
        length = after.split(b"\r\n", 1)[0].strip()
        body, is_whole = rest, not length or len(rest) == int(length)
    return ClientReply(int(words[1]), head, body, is_whole)


def _dechunk(data: bytes) -> tuple[bytes, bool]:
    """Decode a chunked body; also return whether it is complete."""
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].partition(b";")[0], 16)
        if size == 0:
            return b"".join(parts), data[end:] == b"\r\n\r\n"
        if len(data) < end + 2 + size + 2:
            break
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(parts), False


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of the values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
