"""Many clients at once, in bytes: what they ask, what they hear, and how each answer ended."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from faults.case import Stage
from tests.live.server import KEY, Running

LIMIT_S = 120.0
"""No answer takes that long, also on a busy machine: a hang is a failure."""
CHAT = "/v1/chat/completions"

Ending: TypeAlias = Literal["whole", "error event", "refused", "aborted", "truncated"]
"""`whole`: finish and `[DONE]`, or a whole JSON reply; `error event`: told within the stream; `refused`: a status;
`aborted`: HTTP itself says that something is missing; `truncated`: it looks like an end, and is none."""

Work = TypeVar("Work")
Result = TypeVar("Result")


class Heard(msgspec.Struct):
    """All that came back on a connection."""

    status: int = 0
    """0: not even that."""
    head: bytes = b""
    body: bytes = b""
    """Without the marks of its chunks."""
    is_whole: bool = False
    """Whether HTTP says that nothing is missing."""

    @property
    def ending(self) -> Ending:
        """How the answer ended, as a client hears it."""
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
        """Whether it is a stream of events."""
        return b"text/event-stream" in self.head.lower()

    @property
    def texts(self) -> list[str]:
        """What each chunk of a stream says."""
        chunks = [msgspec.json.decode(line[6:]) for line in self.body.split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
        return [text for choice in choices if (text := choice.get("delta", {}).get("content"))]

    @property
    def told(self) -> str:
        """The status, with the code of an error."""
        if self.status in (0, 200):
            return str(self.status)
        return f"{self.status} {msgspec.json.decode(self.body)['error']['code']}"


class Talk:
    """One connection with one request on it, whose reply is read as it comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def first(self, pattern: bytes = b"\r\n\r\n") -> bytes:
        """Read until the pattern was heard. What was read so is not heard again."""
        async with asyncio.timeout(LIMIT_S):
            return await self.reader.readuntil(pattern)

    async def heard(self, before: bytes = b"") -> Heard:
        """All of it, until the server hangs up. `before` is what was read already."""
        parts = [before]
        async with asyncio.timeout(LIMIT_S):
            try:
                while data := await self.reader.read(65536):
                    parts.append(data)
            except ConnectionError:
                pass  # what came until then is what was heard
        return parse(b"".join(parts))

    def leave(self, *, is_rude: bool = False) -> None:
        """Hang up: with a farewell, or with a reset, as a process does that is killed."""
        if is_rude:
            reset(self.writer.transport)
        else:
            self.writer.close()


def reset(transport: asyncio.WriteTransport) -> None:
    """Hang up without a farewell."""
    if not transport.is_closing():
        # Else also an abort is a farewell, unless there are bytes that nobody has read.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def chat(model: str = "hello", content: str = "Hello", *, stream: bool = True, **fields: object) -> bytes:
    """The body of a chat request."""
    messages = [{"role": "user", "content": content}]
    return msgspec.json.encode({"model": model, "stream": stream, "messages": messages, **fields})


def post(
    body: bytes, port: int, *, path: str = CHAT, key: str | None = KEY, headers: Mapping[str, str] | None = None
) -> bytes:
    """A POST as bytes, after which the connection ends."""
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


async def say(port: int, said: bytes) -> Talk:
    """A connection on which these bytes were said."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(said)
        return Talk(reader, writer)


async def ask(server: Running, body: bytes, *, path: str = CHAT, headers: Mapping[str, str] | None = None) -> Heard:
    """The whole reply to a request."""
    return await hear(server.port, post(body, server.port, path=path, key=server.key, headers=headers))


async def health(server: Running) -> int:
    """The status of /health on a new connection; 0 where there is none."""
    said = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    try:
        return (await hear(server.port, said.encode())).status
    except ConnectionError:
        return 0


async def hear(port: int, said: bytes) -> Heard:
    """All that comes back for these bytes, until the server hangs up."""
    talk = await say(port, said)
    try:
        return await talk.heard()
    finally:
        talk.leave()


async def side_by_side(
    stage: Stage, work: Sequence[Work], at_once: int, do: Callable[[Work], Awaitable[Result]]
) -> list[Result]:
    """Do all of it, so many at once. The results are in the order in which they came."""
    waiting, done = iter(work), list[Result]()

    async def go_on() -> None:
        for one in waiting:  # all draw from it
            done.append(await do(one))
            stage.note(f"{len(done):,} of {len(work):,}")

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(go_on())
    return done


def parse(data: bytes) -> Heard:
    """A reply out of its bytes."""
    head, found, rest = data.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if not found or len(words) < 2 or not words[1].isdigit():
        return Heard(0, head)
    headers = head.lower()
    if b"\r\ntransfer-encoding: chunked" in headers:
        body, is_whole = _dechunk(rest)
    else:
        _, _, after = headers.partition(b"\r\ncontent-length:")
        length = after.split(b"\r\n", 1)[0].strip()
        body, is_whole = rest, not length or len(rest) == int(length)
    return Heard(int(words[1]), head, body, is_whole)


def _dechunk(data: bytes) -> tuple[bytes, bool]:
    """The body out of its chunks, and whether the last one came."""
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
    """The value that so many of a hundred do not pass."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
