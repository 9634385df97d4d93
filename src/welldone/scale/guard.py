"""What Ray's proxy does when the front that answers dies: without this, the client's connection breaks off.

It stands in the proxy as ASGI middleware. A request of whose answer the client has heard nothing is given to another
front; a stream that has begun is ended with an error, as its dialect says it.
"""

import re
from http import HTTPStatus
from typing import Any

import msgspec

from welldone.scale.asgi import Application, Message, Receive, Send, refuse
from welldone.serve.errors import ApiError, Shape
from welldone.wire.dialects.messages import scribe as messages
from welldone.wire.dialects.responses import objects as responses
from welldone.wire.dialects.responses.scribe import frame
from welldone.wire.dialects.stream import error_end

_ATTEMPTS = 3
"""A node that dies may have had two fronts, and who is asked next may have been on it too."""
_KEPT_BYTES = 32 * 2**20  # of a body, for another attempt; as long as the longest upload that is taken by default
_TAIL_BYTES = 4_096  # of what was said: a last line of Ollama's is shorter, and so is what names an event
_NUMBER = re.compile(rb'"sequence_number": ?(\d{1,12})')
_NAME = b"event: "
_OPENING_BYTES = 2**16  # of a Response's first event, which its last one repeats; one with longer tools ends without
_DATA = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)
_EVENTS, _LINES = b"text/event-stream", b"application/x-ndjson"
_ENDS = (b"\n\n", b"\r\n\r\n")
_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_LAST_LINES = (b'"done":true', b'{"error":')
_LAST_EVENTS = (b"message_stop", b"error", b"response.completed", b"response.failed", b"response.incomplete")
"""After these nothing more is said, though the front may die before it has closed its reply."""
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
        asked, said = _Asked(receive), _Said(send, scope["path"])
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            asked.begin()
            said.begin()
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
            await said.break_off(error)
        else:
            await said.refuse()


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

    def __init__(self, send: Send, path: str) -> None:
        self.has_head = False
        """Whether the client has heard that an answer begins."""
        self.has_content = False
        """Whether the client has heard more than that somebody is there."""
        self.is_whole = False
        self._send = send
        self._path = path
        self._head: Message | None = None
        self._kind = b""
        self._tail = b""
        self._event = b""
        self._number = -1
        self._opening = b""
        self._is_shut = False

    def begin(self) -> None:
        """Another front answers now. What the one before had announced is forgotten."""
        self._head = None

    async def send(self, message: Message) -> None:
        """Send on what the front says. Of a second one's stream the head has been said already.

        Raises:
            RuntimeError: what it says does not fit what the client was told.
        """
        if self._is_shut:
            raise RuntimeError("this answer is over")
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif message["type"] == "http.response.body":
            await self._go_on(message)
        else:
            await self._send(message)

    async def _begin(self, message: Message) -> None:
        kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
        if self.has_head:
            self._check(message, kind)
            return
        self._kind = kind
        if self._is_stream:
            self.has_head = True
            await self._send(message)
        else:
            self._head = message  # it may say how long the body is: another front's has another length

    async def _go_on(self, message: Message) -> None:
        if self._head is not None:
            self.has_head = True
            head, self._head = self._head, None
            await self._send(head)
        body = message.get("body", b"")
        self.is_whole = not message.get("more_body", False)
        self.has_content = self.has_content or not self._is_stream or not _SILENCE.fullmatch(body)
        if self._is_stream:
            self._note(body)
        await self._send(message)

    def _note(self, body: bytes) -> None:
        """What the last words are to follow."""
        heard = self._tail + body
        self._tail = heard[-_TAIL_BYTES:]
        if _is_of(self._path, "messages", "responses"):
            at = heard.rfind(_NAME)
            self._event = self._event if at < 0 else heard[at + len(_NAME) :].partition(b"\n")[0].strip()
        if _is_of(self._path, "responses"):
            numbers = _NUMBER.findall(heard)
            self._number = int(numbers[-1]) if numbers else self._number
            self._opening += body[: _OPENING_BYTES - len(self._opening)]

    @property
    def _is_stream(self) -> bool:
        return self._kind.startswith((_EVENTS, _LINES))

    @property
    def _is_between(self) -> bool:
        """Whether no event and no line has been said in part."""
        return not self._tail or self._tail.endswith(_ENDS if self._kind.startswith(_EVENTS) else b"\n")

    @property
    def _is_done(self) -> bool:
        """Whether all was said, and only the end of the reply is missing."""
        if self._kind.startswith(_LINES):
            last = self._tail[:-1].rpartition(b"\n")[2]
            return any(sign in last for sign in _LAST_LINES)
        return self._event in _LAST_EVENTS or self._tail.endswith(_DONE)

    def _check(self, message: Message, kind: bytes) -> None:
        if message["status"] != HTTPStatus.OK or kind != self._kind:
            self.has_content = self._is_shut = True  # the stream ends here
            raise RuntimeError("another front refuses what the first had taken")

    async def break_off(self, error: Exception | None) -> None:
        """End what has begun with an error. What cannot be ended so breaks off, as the connection does."""
        if self._is_stream and self._is_between:
            words = b"" if self._is_done else self._last_words()
            await self._send({"type": "http.response.body", "body": words, "more_body": False})
        elif error is not None:
            raise error

    def _last_words(self) -> bytes:
        """The error as the dialect of the path has it."""
        error = _gone()
        if _is_of(self._path, "messages"):
            return messages.last_words(error.failure())
        if _is_of(self._path, "responses"):
            return _failed(self._opening, self._number + 1)
        return error.body(Shape.OLLAMA) + b"\n" if self._path.startswith("/api/") else error_end(error.failure())

    async def refuse(self) -> None:
        """Say that nobody answered."""
        await refuse(self._send, _gone(), _shape(self._path))


def _gone() -> ApiError:
    return ApiError(503, "The server that answered is gone. Try again.", code="server_gone", retry_after_s=1.0)


def _shape(path: str) -> Shape:
    if _is_of(path, "messages"):
        return Shape.ANTHROPIC
    return Shape.OLLAMA if path.startswith("/api/") else Shape.OPENAI


def _failed(opening: bytes, number: int) -> bytes:
    """How a Response ends that failed: with all that its first event has told of it, if that is known."""
    said = responses.error_object(_gone().failure())
    try:
        found = _DATA.search(opening)
        response = None if found is None else msgspec.json.decode(found[1], type=dict[str, Any]).get("response")
    except msgspec.MsgspecError:
        response = None
    if not isinstance(response, dict):
        return frame({"type": "error", "sequence_number": number, "param": None, **said})
    ended = {**response, "status": "failed", "error": said}
    return frame({"type": "response.failed", "sequence_number": number, "response": ended})


def _is_of(path: str, *names: str) -> bool:
    return path.removeprefix("/v1").startswith(tuple(f"/{name}" for name in names))
