"""What Ray's proxy does when the front that answers dies: without this, the client's connection breaks off.

It stands in the proxy as ASGI middleware. A request of whose answer the client has heard nothing is given to another
front; a stream that has begun is ended with an error, as its dialect says it.
"""

import re
from http import HTTPStatus
from typing import Any

import msgspec

from welldone.cluster.asgi_relay import ASGIApp, ASGIMessage, Receive, Send, send_error
from welldone.gateway.errors import ApiError, ErrorFormat
from welldone.protocol.dialects.anthropic import emitter as messages
from welldone.protocol.dialects.chat import error_and_done
from welldone.protocol.dialects.responses import objects as responses
from welldone.protocol.dialects.responses.emitter import encode_event

_ATTEMPTS = 3
"""A node that dies may have had two fronts, and who is asked next may have been on it too."""
_REPLAY_LIMIT_BYTES = (
    32 * 2**20
)  # of a body, for another attempt; as long as the longest upload that is taken by default
_TAIL_BYTES = 4_096  # of what was said: a last line of Ollama's is shorter, and so is what names an event
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number": ?(\d{1,12})')
_EVENT_FIELD = b"event: "
_FIRST_EVENT_LIMIT_BYTES = (
    2**16
)  # of a Response's first event, which its last one repeats; one with longer tools ends without
_DATA_LINE = re.compile(rb"^data: (\{.*\})$", re.MULTILINE)
_SSE_TYPE, _NDJSON_TYPE = b"text/event-stream", b"application/x-ndjson"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_DONE_FRAMES = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_FINAL_LINE_MARKERS = (b'"done":true', b'{"error":')
_FINAL_EVENTS = (b"message_stop", b"error", b"response.completed", b"response.failed", b"response.incomplete")
"""After these nothing more is said, though the front may die before it has closed its reply."""
_ONLY_COMMENTS = re.compile(rb"(?::[^\n]*\n\n)*")  # comments, or nothing at all


class FailoverMiddleware:
    """The proxy's application, and what is done when it ends too early."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked, said = _ReplayableRequest(receive), _TrackedResponse(send, scope["path"])
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            asked.rewind()
            said.begin_attempt()
            error = None
            try:
                await self._app(scope, asked.receive, said.send)
            except Exception as raised:  # noqa: BLE001 - whatever Ray says of it: the front did not answer
                error = raised
            if said.is_complete or asked.is_disconnected:
                return
            if said.has_content or not asked.is_replayable:
                break
        if said.is_started:
            await said.end_with_error(error)
        else:
            await said.send_unavailable()


class _ReplayableRequest:
    """The request, so that it can be asked again."""

    def __init__(self, receive: Receive) -> None:
        self.is_disconnected = False
        """Whether the client is gone."""
        self.is_replayable = True
        """Whether all of it that came so far is here."""
        self._receive = receive
        self._messages: list[ASGIMessage] = []
        self._buffered_bytes = 0
        self._next = 0

    def rewind(self) -> None:
        """From the start."""
        self._next = 0

    async def receive(self) -> ASGIMessage:
        """What came before, then what comes."""
        if self._next < len(self._messages):
            self._next += 1
            return self._messages[self._next - 1]
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_disconnected = True
        elif self.is_replayable:
            self._buffered_bytes += len(message.get("body", b""))
            self.is_replayable = self._buffered_bytes <= _REPLAY_LIMIT_BYTES
            self._messages.append(message)
            if not self.is_replayable:
                self._messages.clear()
            self._next = len(self._messages)
        return message


class _TrackedResponse:
    """The answer, and how far it came."""

    def __init__(self, send: Send, path: str) -> None:
        self.is_started = False
        """Whether the client has heard that an answer begins."""
        self.has_content = False
        """Whether the client has heard more than that somebody is there."""
        self.is_complete = False
        self._send = send
        self._path = path
        self._start_message: ASGIMessage | None = None
        self._content_type = b""
        self._tail = b""
        self._last_event = b""
        self._sequence_number = -1
        self._first_event = b""
        self._is_closed = False

    def begin_attempt(self) -> None:
        """Another front answers now. What the one before had announced is forgotten."""
        self._start_message = None

    async def send(self, message: ASGIMessage) -> None:
        """Send on what the front says. Of a second one's stream the head has been said already.

        Raises:
            RuntimeError: what it says does not fit what the client was told.
        """
        if self._is_closed:
            raise RuntimeError("this answer is over")
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body":
            await self._send_body(message)
        else:
            await self._send(message)

    async def _start(self, message: ASGIMessage) -> None:
        kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
        if self.is_started:
            self._check_same_response(message, kind)
            return
        self._content_type = kind
        if self._is_stream:
            self.is_started = True
            await self._send(message)
        else:
            self._start_message = message  # it may say how long the body is: another front's has another length

    async def _send_body(self, message: ASGIMessage) -> None:
        if self._start_message is not None:
            self.is_started = True
            head, self._start_message = self._start_message, None
            await self._send(head)
        body = message.get("body", b"")
        self.is_complete = not message.get("more_body", False)
        self.has_content = self.has_content or not self._is_stream or not _ONLY_COMMENTS.fullmatch(body)
        if self._is_stream:
            self._track(body)
        await self._send(message)

    def _track(self, body: bytes) -> None:
        """What the last words are to follow."""
        heard = self._tail + body
        self._tail = heard[-_TAIL_BYTES:]
        if _is_endpoint(self._path, "messages", "responses"):
            at = heard.rfind(_EVENT_FIELD)
            self._last_event = (
                self._last_event if at < 0 else heard[at + len(_EVENT_FIELD) :].partition(b"\n")[0].strip()
            )
        if _is_endpoint(self._path, "responses"):
            numbers = _SEQUENCE_NUMBER.findall(heard)
            self._sequence_number = int(numbers[-1]) if numbers else self._sequence_number
            self._first_event += body[: _FIRST_EVENT_LIMIT_BYTES - len(self._first_event)]

    @property
    def _is_stream(self) -> bool:
        return self._content_type.startswith((_SSE_TYPE, _NDJSON_TYPE))

    @property
    def _is_at_boundary(self) -> bool:
        """Whether no event and no line has been said in part."""
        return not self._tail or self._tail.endswith(_EVENT_ENDS if self._content_type.startswith(_SSE_TYPE) else b"\n")

    @property
    def _has_final_event(self) -> bool:
        """Whether all was said, and only the end of the reply is missing."""
        if self._content_type.startswith(_NDJSON_TYPE):
            last = self._tail[:-1].rpartition(b"\n")[2]
            return any(sign in last for sign in _FINAL_LINE_MARKERS)
        return self._last_event in _FINAL_EVENTS or self._tail.endswith(_DONE_FRAMES)

    def _check_same_response(self, message: ASGIMessage, content_type: bytes) -> None:
        if message["status"] != HTTPStatus.OK or content_type != self._content_type:
            self.has_content = self._is_closed = True  # the stream ends here
            raise RuntimeError("another front refuses what the first had taken")

    async def end_with_error(self, error: Exception | None) -> None:
        """End what has begun with an error. What cannot be ended so breaks off, as the connection does."""
        if self._is_stream and self._is_at_boundary:
            words = b"" if self._has_final_event else self._error_ending()
            await self._send({"type": "http.response.body", "body": words, "more_body": False})
        elif error is not None:
            raise error

    def _error_ending(self) -> bytes:
        """The error as the dialect of the path has it."""
        error = _server_gone_error()
        if _is_endpoint(self._path, "messages"):
            return messages.encode_error_event(error.to_failure())
        if _is_endpoint(self._path, "responses"):
            return _response_failed_frame(self._first_event, self._sequence_number + 1)
        return (
            error.body(ErrorFormat.OLLAMA) + b"\n"
            if self._path.startswith("/api/")
            else error_and_done(error.to_failure())
        )

    async def send_unavailable(self) -> None:
        """Say that nobody answered."""
        await send_error(self._send, _server_gone_error(), _error_shape(self._path))


def _server_gone_error() -> ApiError:
    return ApiError(503, "The server that answered is gone. Try again.", code="server_gone", retry_after_s=1.0)


def _error_shape(path: str) -> ErrorFormat:
    if _is_endpoint(path, "messages"):
        return ErrorFormat.ANTHROPIC
    return ErrorFormat.OLLAMA if path.startswith("/api/") else ErrorFormat.OPENAI


def _response_failed_frame(first_event: bytes, sequence_number: int) -> bytes:
    """How a Response ends that failed: with all that its first event has told of it, if that is known."""
    said = responses.response_error_object(_server_gone_error().to_failure())
    try:
        found = _DATA_LINE.search(first_event)
        response = None if found is None else msgspec.json.decode(found[1], type=dict[str, Any]).get("response")
    except msgspec.MsgspecError:
        response = None
    if not isinstance(response, dict):
        return encode_event({"type": "error", "sequence_number": sequence_number, "param": None, **said})
    ended = {**response, "status": "failed", "error": said}
    return encode_event({"type": "response.failed", "sequence_number": sequence_number, "response": ended})


def _is_endpoint(path: str, *names: str) -> bool:
    return path.removeprefix("/v1").startswith(tuple(f"/{name}" for name in names))
