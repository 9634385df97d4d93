"""What Ray's proxy does when the front that answers dies: without this, the client's connection breaks off.

It stands in the proxy as ASGI middleware. A request of whose answer the client has heard nothing is given to another
front; a stream that has begun is ended with an error, as its dialect says it.
"""

import re
from http import HTTPStatus

from welldone.scale.asgi import Application, Message, Receive, Send
from welldone.serve.errors import ApiError, Shape
from welldone.wire.dialects.messages import scribe as messages
from welldone.wire.dialects.responses import objects as responses
from welldone.wire.dialects.responses.scribe import frame
from welldone.wire.dialects.stream import error_end

_ATTEMPTS = 3
"""A node that dies may have had two fronts, and who is asked next may have been on it too."""
_KEPT_BYTES = 32 * 2**20  # of a body, for another attempt; as long as the longest upload that is taken by default
_TAIL_BYTES = 4_096  # of what was said: the number of the last event stands near its end
_NUMBER = re.compile(rb'"sequence_number":(\d{1,12})')
_EVENTS, _LINES = b"text/event-stream", b"application/x-ndjson"
_ENDS = (b"\n\n", b"\r\n\r\n")
_SILENCE = re.compile(rb"(?::[^\n]*\n\n)*")  # comments, or nothing at all


class Guard:
    """The proxy's application, and what is done when it ends too early."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked, said = _Asked(receive), _Said(send)
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            asked.begin()
            error = None
            try:
                await self._app(scope, asked.receive, said.send)
            except Exception as raised:  # noqa: BLE001 - whatever Ray says of it: the front did not answer
                error = raised
            if said.is_whole or asked.is_left:
                return
            if said.has_content or not asked.is_kept:
                break
        if said.has_head:
            await said.break_off(scope["path"], error)
        else:
            await said.refuse(scope["path"])


class _Asked:
    """The request, so that it can be asked again."""

    def __init__(self, receive: Receive) -> None:
        self.is_left = False
        """Whether the client is gone."""
        self.is_kept = True
        """Whether all of it that came so far is here."""
        self._receive = receive
        self._messages: list[Message] = []
        self._kept_bytes = 0
        self._next = 0

    def begin(self) -> None:
        """From the start."""
        self._next = 0

    async def receive(self) -> Message:
        """What came before, then what comes."""
        if self._next < len(self._messages):
            self._next += 1
            return self._messages[self._next - 1]
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_left = True
        elif self.is_kept:
            self._kept_bytes += len(message.get("body", b""))
            self.is_kept = self._kept_bytes <= _KEPT_BYTES
            self._messages.append(message)
            if not self.is_kept:
                self._messages.clear()
            self._next = len(self._messages)
        return message


class _Said:
    """The answer, and how far it came."""

    def __init__(self, send: Send) -> None:
        self.has_head = False
        self.has_content = False
        """Whether the client has heard more than that somebody is there."""
        self.is_whole = False
        self._send = send
        self._kind = b""
        self._tail = b""

    async def send(self, message: Message) -> None:
        """Send on what the front says. Of a second one's stream the head has been said already."""
        if message["type"] == "http.response.start":
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            if self.has_head:
                self._check(message, kind)
                return
            self.has_head, self._kind = True, kind
        elif message["type"] == "http.response.body":
            body = message.get("body", b"")
            self.is_whole = not message.get("more_body", False)
            self.has_content = self.has_content or not _SILENCE.fullmatch(body)
            self._tail = (self._tail + body)[-_TAIL_BYTES:]
        await self._send(message)

    def _check(self, message: Message, kind: bytes) -> None:
        if message["status"] != HTTPStatus.OK or kind != self._kind:
            self.has_content = True  # what it says does not fit what the client was told: the stream ends here
            raise RuntimeError("another front refuses what the first had taken")

    async def break_off(self, path: str, error: Exception | None) -> None:
        """End what has begun with an error. What cannot be ended so breaks off, as the connection does."""
        words = _last_words(path, self._tail)
        is_between = not self._tail or self._tail.endswith(_ENDS if self._kind.startswith(_EVENTS) else b"\n")
        if self._kind.startswith((_EVENTS, _LINES)) and is_between:
            await self._send({"type": "http.response.body", "body": words, "more_body": False})
        elif error is not None:
            raise error

    async def refuse(self, path: str) -> None:
        """Say that nobody answered."""
        body = _gone().body(_shape(path))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"retry-after", b"1"),
        ]
        await self._send({"type": "http.response.start", "status": 503, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _gone() -> ApiError:
    return ApiError(503, "The server that answered is gone. Try again.", code="server_gone")


def _shape(path: str) -> Shape:
    if _is_of(path, "messages"):
        return Shape.ANTHROPIC
    return Shape.OLLAMA if path.startswith("/api/") else Shape.OPENAI


def _last_words(path: str, tail: bytes) -> bytes:
    """The error as the dialect of a path has it."""
    error = _gone()
    if _is_of(path, "messages"):
        return messages.last_words(error.failure())
    if _is_of(path, "responses"):
        numbers = _NUMBER.findall(tail)
        number = int(numbers[-1]) + 1 if numbers else 0
        said = responses.error_object(error.failure())
        return frame({"type": "error", "sequence_number": number, "param": None, **said})
    return error.body(Shape.OLLAMA) + b"\n" if path.startswith("/api/") else error_end(error.failure())


def _is_of(path: str, name: str) -> bool:
    return path.removeprefix("/v1").startswith(f"/{name}")
