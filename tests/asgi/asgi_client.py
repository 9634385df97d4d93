"""Helpers for ASGI tests: a recording client, and the frames of a real server in each dialect."""

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE
from welldone.cluster.asgi_relay import ASGIMessage
from welldone.mock.script import MockChunk, MockReply
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

MESSAGES = [{"role": "user", "content": "Hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": MESSAGES, "stream": True},
    "/v1/completions": {"model": "m", "prompt": "Hi", "stream": True},
    "/v1/responses": {"model": "m", "input": "Hi", "stream": True},
    "/v1/messages": {"model": "m", "messages": MESSAGES, "max_tokens": 5, "stream": True},
    "/api/chat": {"model": "m", "messages": MESSAGES},
}
"""A streaming request in each dialect."""
PATHS = tuple(REQUESTS)
GEMINI_PATH = "/v1beta/models/m:streamGenerateContent"
"""Its stream depends on the query, which is no part of an ASGI path."""
_GEMINI_REQUEST: dict[str, Any] = {"contents": [{"parts": [{"text": "Hi"}]}]}
CHAT = MockReply((ROLE, HELLO, HELLO, STOP, USAGE, DONE))
_TEXT = 'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,%s}]}\n\n'
_CONTINUE, _END = (
    MockChunk(_TEXT % f'"text":"{text}","finish_reason":{reason}') for text, reason in (("Hi", "null"), ("", '"stop"'))
)
TEXT = MockReply((_CONTINUE, _CONTINUE, _CONTINUE, _END, DONE))


class Client:
    """An ASGI client that records all messages. With `stays=False` it disconnects after its request."""

    def __init__(self, *bodies: bytes, stays_connected: bool = True) -> None:
        self.messages: list[ASGIMessage] = []
        self._disconnected, self._changed = asyncio.Event(), asyncio.Event()
        bodies = bodies or (b"",)
        self._pending: list[ASGIMessage] = [
            {"type": "http.request", "body": body, "more_body": number < len(bodies)}
            for number, body in enumerate(bodies, 1)
        ]
        if not stays_connected:
            self.disconnect()

    def disconnect(self) -> None:
        """Disconnect."""
        self._disconnected.set()

    async def receive(self) -> ASGIMessage:
        """Implement ASGI."""
        if self._pending:
            return self._pending.pop(0)
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: ASGIMessage) -> None:
        """Implement ASGI."""
        self.messages.append(message)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, which is checked after each message."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def truncate_body(self) -> None:
        """Send only the first part of the body."""
        del self._pending[1:]

    @property
    def status(self) -> int:
        """The status of the only head."""
        (head,) = [message for message in self.messages if message["type"] == "http.response.start"]
        assert head is self.messages[0]
        return int(head["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the head."""
        return dict(self.messages[0]["headers"])

    @property
    def body(self) -> bytes:
        """The complete body."""
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def is_complete(self) -> bool:
        """Whether the reply has ended, exactly once."""
        ends = [not message.get("more_body", False) for message in self.messages[1:]]
        assert True not in ends[:-1]
        return bool(ends) and ends[-1]

    def findings(self, path: str) -> list[str]:
        """Return the rules that the stream violates."""
        trace = Trace(
            body=self.body,
            endpoint="gemini" if path == GEMINI_PATH else path.removeprefix("/v1/").partition("/")[0],
            request=REQUESTS.get(path, _GEMINI_REQUEST),
            status=self.status,
            headers=tuple((name.decode(), value.decode()) for name, value in self.headers.items()),
        )
        return [finding.rule for finding in judge(trace).findings]


def scope(
    path: str, method: str = "POST", headers: Iterable[tuple[bytes, bytes]] = (), **fields: object
) -> ASGIMessage:
    """Return the ASGI scope of a request."""
    defaults = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    return {**defaults, "headers": [(b"host", b"localhost"), *headers], **fields}


@cache
def frames(path: str) -> tuple[bytes, ...]:
    """Return the stream of a real server on a path, split into events or lines."""

    async def work(folder: Path) -> bytes:
        async with gateway(folder, [TEXT if path == "/v1/completions" else CHAT]) as serving:
            is_gemini = path == GEMINI_PATH
            request = _GEMINI_REQUEST if is_gemini else REQUESTS[path]
            reply = await serving.post(request, f"{path}?alt=sse" if is_gemini else path)
            assert reply.status == 200, reply.raw
            return reply.body

    with TemporaryDirectory() as folder:
        body = run(work(Path(folder)))
    end = b"\n" if path.startswith("/api/") else b"\n\n"
    return tuple(frame + end for frame in body.split(end) if frame)


def head_of(path: str, status: int = 200, content_type: bytes = b"") -> ASGIMessage:
    """Return the head of a stream."""
    content_type = content_type or (
        b"application/x-ndjson" if path.startswith("/api/") else b"text/event-stream; charset=utf-8"
    )
    headers = [(b"content-type", content_type), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body_of(data: bytes, *, is_last: bool = False) -> ASGIMessage:
    """Return a part of a body."""
    return {"type": "http.response.body", "body": data, "more_body": not is_last}
