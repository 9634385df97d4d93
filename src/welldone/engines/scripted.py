"""An engine that says what a script says: `python -m welldone.engines.scripted --port N --script FILE`.

For tests, and for trying a client without a model. POSTs are answered with given bytes and given pauses, in the order
of the script; the last reply is used again. `GET /seen` tells what was asked and whether the asker stayed to the end.
"""

import argparse
import asyncio
import contextlib
from collections import deque
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

HEAD_LIMIT_BYTES = 65536
BODY_LIMIT_BYTES = 16 * 2**20
SEEN_LIMIT = 1000
"""Far more than a test looks at."""

Item = TypeVar("Item")

CHUNK = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"scripted",'
    '"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}\n\n'
)


class Piece(msgspec.Struct, frozen=True):
    """Some bytes, after a pause. `base64` is for those that are no text."""

    text: str = ""
    after_s: float = 0.0
    base64: bytes = b""

    @property
    def data(self) -> bytes:
        """The bytes."""
        return self.base64 or self.text.encode()


class Reply(msgspec.Struct, frozen=True):
    """A reply. It ends whole, is cut without its end, or hangs until the asker leaves."""

    pieces: tuple[Piece, ...] = ()
    status: int = 200
    headers: dict[str, str] = msgspec.field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    end: Literal["whole", "cut", "hang"] = "whole"


HELLO = Reply(
    (
        Piece(CHUNK % ('{"role":"assistant","content":""}', "null")),
        Piece(CHUNK % ('{"content":"Hello"}', "null")),
        Piece(CHUNK % ("{}", '"stop"')),
        Piece("data: [DONE]\n\n"),
    )
)


class Script(msgspec.Struct, frozen=True):
    """All that the engine says. The last `health` is the one that stays."""

    posts: tuple[Reply, ...] = (HELLO,)
    health: tuple[int, ...] = (200,)
    props: dict[str, Any] | None = None
    """None: /props is not found, as with engines that are not llama.cpp."""
    models: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"object": "list", "data": [{"id": "scripted", "object": "model"}]}
    )


class Seen(msgspec.Struct):
    """A request that came. `end` is how its reply ended."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    end: Literal["running", "whole", "cut", "left"] = "running"


class Scripted:
    """The engine's HTTP: one request per connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._posts = deque(script.posts)
        self._health = deque(script.health)
        self.seen: deque[Seen] = deque(maxlen=SEEN_LIMIT)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one connection."""
        try:
            seen = await _read(reader)
            reply = self._reply(seen)
            if seen.method == "POST":
                self.seen.append(seen)
            seen.end = await _play(reply, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # not a request, or nobody is there any more
        finally:
            writer.close()

    def _reply(self, seen: Seen) -> Reply:
        if seen.method == "POST":
            return _next(self._posts)
        if seen.path == "/health":
            return _json({"status": "scripted"}, _next(self._health))
        if seen.path == "/v1/models":
            return _json(self._script.models)
        if seen.path == "/props" and self._script.props is not None:
            return _json(self._script.props)
        if seen.path == "/seen":
            return _json(list(self.seen))
        return _json({"error": {"message": "not found"}}, 404)


def _next(queue: deque[Item]) -> Item:
    return queue.popleft() if len(queue) > 1 else queue[0]


def _json(value: object, status: int = 200) -> Reply:
    return Reply((Piece(msgspec.json.encode(value).decode()),), status, {"Content-Type": "application/json"})


async def _read(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = int(headers.get("content-length", "0"))
    if not 0 <= length <= BODY_LIMIT_BYTES:
        raise ValueError("a body beyond the limit")
    body = await reader.readexactly(length)
    method, path, _ = first.split(" ", 2)
    return Seen(method, path, headers, body.decode(errors="replace"))


async def _play(
    reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Literal["whole", "cut", "left"]:
    """Sends the reply, until its end or until the asker leaves."""
    leaving = asyncio.create_task(_leaves(reader))
    sending = asyncio.create_task(_send(reply, writer))
    try:
        await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() or sending.exception() is not None:
            return "left"
        return "cut" if reply.end == "cut" else "whole"
    finally:
        for task in (leaving, sending):
            task.cancel()
        await asyncio.wait({leaving, sending})


async def _leaves(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass


async def _send(reply: Reply, writer: asyncio.StreamWriter) -> None:
    lines = [f"{name}: {value}\r\n" for name, value in reply.headers.items()]
    lines += ["Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "\r\n"]
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{''.join(lines)}".encode("latin-1"))
    for piece in reply.pieces:
        if piece.after_s:
            await writer.drain()
            await asyncio.sleep(piece.after_s)
        if piece.data:
            writer.write(b"%x\r\n%s\r\n" % (len(piece.data), piece.data))
    await writer.drain()
    if reply.end == "hang":
        await asyncio.Event().wait()
    if reply.end == "whole":
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def listen(script: Script, *, socket: str | None = None, port: int = 0) -> asyncio.Server:
    """A listening engine. Port 0: the system chooses one."""
    answer = Scripted(script).answer
    if socket is not None:
        return await asyncio.start_unix_server(answer, socket, limit=HEAD_LIMIT_BYTES)
    return await asyncio.start_server(answer, "127.0.0.1", port, limit=HEAD_LIMIT_BYTES)


async def _serve(script: Script, socket: str | None, port: int) -> None:
    async with await listen(script, socket=socket, port=port) as server:
        await server.serve_forever()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m welldone.engines.scripted", description="An engine with a script.")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--socket", help="the path of a unix socket to listen on")
    place.add_argument("--port", type=int, default=0, help="a port of the loopback interface to listen on")
    parser.add_argument("--script", type=Path, help="a JSON file; without it the engine says hello")
    given = parser.parse_args()
    script = Script() if given.script is None else msgspec.json.decode(given.script.read_bytes(), type=Script)
    asyncio.run(_serve(script, given.socket, given.port))


if __name__ == "__main__":
    main()
