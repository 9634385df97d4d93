"""What the tests of ASGI parts share: a client that keeps what it hears, and what a server says in each dialect."""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.http.aio import run
from tests.server.gateways import gateway
from tests.server.scripts import DONE, HELLO, ROLE, STOP, USAGE
from welldone.cluster.asgi_relay import ASGIMessage
from welldone.mock.script import MockChunk, MockReply
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

WORDS = [{"role": "user", "content": "Hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": WORDS, "stream": True},
    "/v1/completions": {"model": "m", "prompt": "Hi", "stream": True},
    "/v1/responses": {"model": "m", "input": "Hi", "stream": True},
    "/v1/messages": {"model": "m", "messages": WORDS, "max_tokens": 5, "stream": True},
    "/api/chat": {"model": "m", "messages": WORDS},
}
"""A stream in each dialect."""
PATHS = tuple(REQUESTS)
CHAT = MockReply((ROLE, HELLO, HELLO, STOP, USAGE, DONE))
_TEXT = 'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,%s}]}\n\n'
_ON, _END = (
    MockChunk(_TEXT % f'"text":"{text}","finish_reason":{reason}') for text, reason in (("Hi", "null"), ("", '"stop"'))
)
TEXT = MockReply((_ON, _ON, _ON, _END, DONE))


class Client:
    """Who asks, and all that it hears."""

    def __init__(self, *bodies: bytes, stays: bool = True) -> None:
        self.heard: list[ASGIMessage] = []
        self._left, self._news = asyncio.Event(), asyncio.Event()
        bodies = bodies or (b"",)
        self._to_say: list[ASGIMessage] = [
            {"type": "http.request", "body": body, "more_body": place < len(bodies)}
            for place, body in enumerate(bodies, 1)
        ]
        if not stays:
            self.leave()

    def leave(self) -> None:
        """Hang up."""
        self._left.set()

    async def receive(self) -> ASGIMessage:
        """ASGI's."""
        if self._to_say:
            return self._to_say.pop(0)
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: ASGIMessage) -> None:
        """ASGI's."""
        self.heard.append(message)
        self._news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so: looked at whenever more is heard."""
        while not is_so():
            self._news.clear()
            await self._news.wait()

    def forget(self) -> None:
        """Say no more than the first part of the body."""
        del self._to_say[1:]

    @property
    def status(self) -> int:
        """That of the one head."""
        (head,) = [message for message in self.heard if message["type"] == "http.response.start"]
        assert head is self.heard[0]
        return int(head["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Those of the head."""
        return dict(self.heard[0]["headers"])

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(message.get("body", b"") for message in self.heard[1:])

    @property
    def is_whole(self) -> bool:
        """Whether the reply has ended as it should, once."""
        ends = [not message.get("more_body", False) for message in self.heard[1:]]
        assert True not in ends[:-1]
        return bool(ends) and ends[-1]

    def findings(self, path: str) -> list[str]:
        """What the judge has to say of a stream."""
        trace = Trace(
            body=self.body,
            endpoint=path.removeprefix("/v1/").partition("/")[0],
            request=REQUESTS[path],
            status=self.status,
            headers=tuple((name.decode(), value.decode()) for name, value in self.headers.items()),
        )
        return [finding.rule for finding in judge(trace).findings]


def scope(path: str, method: str = "POST", headers: Iterable[tuple[bytes, bytes]] = (), **more: object) -> ASGIMessage:
    """A request as ASGI tells it."""
    given = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    return {**given, "headers": [(b"host", b"localhost"), *headers], **more}


@cache
def frames(path: str) -> tuple[bytes, ...]:
    """What a real server says on a path, event by event or line by line."""

    async def work(folder: Path) -> bytes:
        async with gateway(folder, [TEXT if path == "/v1/completions" else CHAT]) as serving:
            heard = await serving.ask(REQUESTS[path], path)
            assert heard.status == 200, heard.raw
            return heard.body

    with TemporaryDirectory() as folder:
        body = run(work(Path(folder)))
    end = b"\n" if path.startswith("/api/") else b"\n\n"
    return tuple(frame + end for frame in body.split(end) if frame)


def head_of(path: str, status: int = 200, kind: bytes = b"") -> ASGIMessage:
    """The head of a stream."""
    kind = kind or (b"application/x-ndjson" if path.startswith("/api/") else b"text/event-stream; charset=utf-8")
    headers = [(b"content-type", kind), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body_of(data: bytes, *, is_last: bool = False) -> ASGIMessage:
    """Some of a body."""
    return {"type": "http.response.body", "body": data, "more_body": not is_last}
