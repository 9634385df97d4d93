"""ASGI middleware of Ray's proxy that handles the end of a front replica.

If the client has received no content yet, the request is retried with another front: the first one has died, or stops
and did not get to it in its drain time. A stream that has started is ended with an error event of its dialect. Without
the middleware, the client's connection would just break.
"""

import re
from http import HTTPStatus

from welldone.cluster.asgi_relay import ASGIApp, ASGIMessage, Receive, Send, send_error
from welldone.dialects.gemini.objects import METHOD_PATH
from welldone.gateway.errors import ErrorFormat, shutting_down
from welldone.gateway.stream_endings import error_ending, server_gone

_ATTEMPTS = 3
"""A node that dies may have run two fronts, and the second attempt may have gone to it as well."""
_REPLAY_LIMIT_BYTES = 32 * 2**20  # of a body that is kept for a retry: the default upload limit of the server
_TAIL_BYTES = 4_096  # kept of a stream: more than Ollama's last line, and more than an event name
_SEQUENCE_NUMBER = re.compile(rb'"sequence_number": ?(\d{1,12})')
_EVENT_FIELD = b"event: "
_FIRST_EVENT_LIMIT_BYTES = 2**16  # kept of `response.created`, whose response object the last event repeats
_SSE_TYPE, _NDJSON_TYPE = b"text/event-stream", b"application/x-ndjson"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
_DONE_FRAMES = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_FINAL_LINE_MARKERS = (b'"done":true', b'{"error":')
_FINAL_EVENTS = (b"message_stop", b"error", b"response.completed", b"response.failed", b"response.incomplete")
"""Last events of a stream; the front may die after them, before it ends the body."""
_FINAL_ELEMENT_MARKERS = (b'"finishReason":"', b'data: {"error":')
"""Of the last element of a Gemini stream, which has no other end. In a text, the quotes would be escaped."""
_STOPPING_MESSAGE = shutting_down().message.encode()
_ANSWER_MARKERS = (b"delta", b'"choices"', b'"done"', b'"candidates"')
"""Keys of every answer, in one dialect or another: what has one of them is not merely an error."""
_ONLY_KEEP_ALIVES = re.compile(rb"(?::[^\n]*\n\n|\n)*")  # comments and empty lines; matches the empty body too


class FailoverMiddleware:
    """Wraps the application of the proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: ASGIMessage, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, response = _ReplayableRequest(receive), _TrackedResponse(send, scope["path"])
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            request.rewind()
            response.begin_attempt()
            error = None
            try:
                await self._app(scope, request.receive, response.send)
            except Exception as raised:  # noqa: BLE001 - whatever Ray raises: the front did not answer
                error = raised
            if response.is_complete or request.is_disconnected:
                return
            if response.has_content or not request.is_replayable:
                break
        if response.is_started:
            await response.end_with_error(error)
        else:
            await send_error(send, server_gone(), _error_format(scope["path"]))


class _ReplayableRequest:
    """A request that buffers its body for a retry."""

    def __init__(self, receive: Receive) -> None:
        self.is_disconnected = False
        """Whether the client has disconnected."""
        self.is_replayable = True
        """Whether everything received so far is buffered."""
        self._receive = receive
        self._messages: list[ASGIMessage] = []
        self._buffered_bytes = 0
        self._next = 0

    def rewind(self) -> None:
        """Start again with the first message."""
        self._next = 0

    async def receive(self) -> ASGIMessage:
        """Return the next buffered message, or else receive one."""
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
    """A response that tracks what has been sent to the client."""

    def __init__(self, send: Send, path: str) -> None:
        self.is_started = False
        """Whether the head has been sent."""
        self.has_content = False
        """Whether more than keep-alives has been sent."""
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
        self._is_discarding = False  # the rest of an attempt

    def begin_attempt(self) -> None:
        """Discard an unsent head of the previous attempt."""
        self._start_message = None
        self._is_discarding = False

    async def send(self, message: ASGIMessage) -> None:
        """Forward a message; the head of a stream is sent only once.

        Raises:
            RuntimeError: the head of a retry does not match the one that was sent.
        """
        if self._is_closed:
            raise RuntimeError("the response has ended")
        if self._is_discarding:
            return
        kinds = {"http.response.start": self._start, "http.response.body": self._send_body}
        await kinds.get(message["type"], self._send)(message)

    async def _start(self, message: ASGIMessage) -> None:
        content_type = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
        if self.is_started:
            if message["status"] != HTTPStatus.OK or content_type != self._content_type:
                self.has_content = self._is_closed = True  # no more attempts: the stream ends with an error
                raise RuntimeError("the response of the retry does not match the one that was started")
            return
        self._content_type = content_type
        if self._is_stream:
            self.is_started = True
            await self._send(message)
        else:
            self._start_message = message  # held back: a retry may have another Content-Length

    async def _send_body(self, message: ASGIMessage) -> None:
        body = message.get("body", b"")
        if not self.has_content and self._is_from_stopping_front(body):
            self._is_discarding = True
            return
        if self._start_message is not None:
            self.is_started = True
            head, self._start_message = self._start_message, None
            await self._send(head)
        self.is_complete = not message.get("more_body", False)
        self.has_content = self.has_content or not self._is_stream or not _ONLY_KEEP_ALIVES.fullmatch(body)
        if self._is_stream:
            self._track(body)
        await self._send(message)

    def _is_from_stopping_front(self, body: bytes) -> bool:
        """Whether the first content is the error of a front that stops."""
        head = self._start_message
        is_possible = self._is_stream or (head is not None and head["status"] == HTTPStatus.SERVICE_UNAVAILABLE)
        return is_possible and _STOPPING_MESSAGE in body and not any(marker in body for marker in _ANSWER_MARKERS)

    def _track(self, body: bytes) -> None:
        """Record what an error event needs: the last event, its sequence number, and the first event."""
        recent = self._tail + body
        self._tail = recent[-_TAIL_BYTES:]
        if _is_endpoint(self._path, "messages", "responses"):
            start = recent.rfind(_EVENT_FIELD)
            if start >= 0:
                self._last_event = recent[start + len(_EVENT_FIELD) :].partition(b"\n")[0].strip()
        if _is_endpoint(self._path, "responses"):
            numbers = _SEQUENCE_NUMBER.findall(recent)
            self._sequence_number = int(numbers[-1]) if numbers else self._sequence_number
            self._first_event += body[: _FIRST_EVENT_LIMIT_BYTES - len(self._first_event)]

    @property
    def _is_stream(self) -> bool:
        return self._content_type.startswith((_SSE_TYPE, _NDJSON_TYPE))

    @property
    def _is_at_boundary(self) -> bool:
        """Whether the stream is between two events or lines."""
        is_start = not self._tail.strip()  # or only empty lines, which are keep-alives
        return is_start or self._tail.endswith(_EVENT_ENDS if self._content_type.startswith(_SSE_TYPE) else b"\n")

    @property
    def _has_final_event(self) -> bool:
        """Whether the stream is complete and only the end of the body is missing."""
        if self._content_type.startswith(_NDJSON_TYPE):
            last_line = self._tail[:-1].rpartition(b"\n")[2]
            return any(marker in last_line for marker in _FINAL_LINE_MARKERS)
        if METHOD_PATH.fullmatch(self._path):
            last_element = self._tail.rstrip(b"\n").rpartition(b"\n\n")[2]
            return any(marker in last_element for marker in _FINAL_ELEMENT_MARKERS)
        return self._last_event in _FINAL_EVENTS or self._tail.endswith(_DONE_FRAMES)

    async def end_with_error(self, error: Exception | None) -> None:
        """End a stream with an error event. Other responses, and partial events, break the connection."""
        if self._is_stream and self._is_at_boundary:
            ending = b"" if self._has_final_event else self._error_ending()
            await self._send({"type": "http.response.body", "body": ending, "more_body": False})
        elif error is not None:
            raise error

    def _error_ending(self) -> bytes:
        """Return the error event in the dialect of the path."""
        if self._path.startswith("/api/"):
            return server_gone().body(ErrorFormat.OLLAMA) + b"\n"
        dialect = next((name for name in ("messages", "responses") if _is_endpoint(self._path, name)), "chat")
        endpoint = "gemini" if METHOD_PATH.fullmatch(self._path) else dialect
        return error_ending(endpoint, self._first_event, self._sequence_number + 1)


def _error_format(path: str) -> ErrorFormat:
    if _is_endpoint(path, "messages"):
        return ErrorFormat.ANTHROPIC
    if METHOD_PATH.fullmatch(path):
        return ErrorFormat.GEMINI
    return ErrorFormat.OLLAMA if path.startswith("/api/") else ErrorFormat.OPENAI


def _is_endpoint(path: str, *names: str) -> bool:
    return path.removeprefix("/v1").startswith(tuple(f"/{name}" for name in names))
