"""Repair of streams and replies: iterators, an object without I/O, and a function for whole replies.

All of them run the pipelines of `welldone.stream`. Bad bytes never raise: what cannot be repaired ends the stream
with an error event.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterable, Collection, Generator, Iterable
from functools import partial
from typing import Literal, TypeAlias

import msgspec

from welldone.core import sse
from welldone.core.error_types import error_type_for_status
from welldone.core.events import EventOrderError, Failure, FailureMapper
from welldone.core.fields import UNFINISHED
from welldone.core.lenient_json import as_list, as_object, parse_strict
from welldone.core.repair_log import RepairResult
from welldone.core.request_facts import RepairOptions, think_mode_for
from welldone.core.state import PartState
from welldone.core.text_filters import TextMode, ThinkMode
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.library.arguments import (
    EndpointName,
    RequestBody,
    current_time,
    new_id_stem,
    parse_endpoint,
    parse_request,
    parse_rules,
    require_bytes,
)
from welldone.library.iteration import require_async_iterable, require_iterable, run_to_end, run_to_end_async
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline, make_pipeline

EndMode: TypeAlias = Literal["finish", "close"]
"""What ends an answer: only its finish reason (or `[DONE]`), or also the normal end of its source."""
_MODES = {"think": ("no", "tags", "open"), "text": ("delta", "cumulative"), "ends": ("finish", "close")}


# The start of a body: some servers send one JSON reply, or lines of JSON, instead of an SSE stream.

_SPACE = b" \t\r\n"
_SPACE_LIMIT_BYTES = 65_536  # more white space than before any JSON reply
_EVENT_TYPES = ("response.", "message_", "content_block_")


class BodyStart:
    """Holds the first bytes of a body until it is known to be a stream. One JSON reply is held to its end."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._is_json = False  # starts with a JSON value, which may be a reply or a line of a stream
        self._is_reply = False

    def add(self, data: bytes) -> bytes | None:
        """Return all bytes so far if they begin a stream; None while that is unknown."""
        self._held += data
        return self._release() if self._is_stream(data) else None

    def close(self) -> tuple[bytes, bool]:
        """Return the bytes that were held back, and whether they are one JSON reply."""
        held = self._release()
        return held, starts_json(held)

    def _is_stream(self, data: bytes) -> bool:
        if len(self._held) > sse.FRAME_LIMIT_BYTES:
            return True  # the reader of the stream reports that it is too long
        if self._is_reply or (self._is_json and b"\n" not in data):
            return False
        start = _strip(bytes(self._held))
        if not start or sse.BOM.startswith(start):
            return len(self._held) > _SPACE_LIMIT_BYTES
        self._is_json = start.startswith((b"{", b"["))
        line, line_end, _ = start.partition(b"\n")
        self._is_reply = self._is_json and bool(line_end) and not _is_chunk(line)
        return not self._is_json or (bool(line_end) and not self._is_reply)

    def _release(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held


def starts_json(body: bytes) -> bool:
    """Whether a body starts with a JSON object or list, as no SSE stream does."""
    return _strip(body).startswith((b"{", b"["))


def _strip(body: bytes) -> bytes:
    return body.lstrip(_SPACE).removeprefix(sse.BOM).lstrip(_SPACE)


def _is_chunk(line: bytes) -> bool:
    """Whether a line without `data:` is a chunk or an event of a stream."""
    value = as_object(parse_strict(line))
    has_delta = any("delta" in as_object(choice) for choice in as_list(value.get("choices")))
    is_event = str(value.get("type")).startswith(_EVENT_TYPES)
    return has_delta or is_event or str(value.get("object")).endswith(".chunk")


class StreamRepairer:
    """Repairs one stream without I/O: bytes in, bytes out.

    Call `feed` with the received bytes and `close` at their end, and send what they return. `request` is the body of
    the request: with it, rules that depend on the request are repaired too (usage, number of choices).

    `think` moves reasoning out of the text: `tags` for a leading `<think>` block, `open` for one without its opening
    tag. `text="cumulative"` is for servers whose chunks repeat the whole text. `ends="close"` is for sources that end
    an answer without a finish reason and whose failures the caller notices: then call `fail`, not `close`. A violation
    of a rule in `strict` ends the stream with an error; `all` stands for every rule with a repair.
    """

    def __init__(
        self,
        endpoint: EndpointName = "chat",
        *,
        request: RequestBody = None,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        ends: EndMode = "finish",
        strict: Collection[str] = (),
    ) -> None:
        pipeline = make_checked_pipeline(
            endpoint, request, think=think, text=text, ends=ends, strict=strict, is_stream=True
        )
        assert not isinstance(pipeline, BufferedPipeline)
        self._pipeline: StreamPipeline | PassthroughRepairer = pipeline
        self._start = BodyStart()
        self._is_plain = False  # the body is known to be a stream, and is not closed
        self._is_closed = False

    @property
    def result(self) -> RepairResult:
        """Usage, failure and repairs (one entry per rule), so far or at the end."""
        return self._pipeline.result

    @property
    def is_done(self) -> bool:
        """Whether the end of the answer was received: nothing relevant follows, and `close` can be called."""
        return self._is_closed or self._pipeline.is_done

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to send for received bytes; they may be empty.

        Raises:
            EventOrderError: the stream was closed.
            TypeError: the argument is not bytes.
        """
        if self._is_plain and type(data) is bytes:
            return self._pipeline.feed(data)
        data = require_bytes(data, "feed")
        if self._is_closed:
            raise EventOrderError("feed()", "the stream is closed", "a new StreamRepairer")
        if self._is_plain:
            return self._pipeline.feed(data)
        stream = self._start.add(data)
        if stream is None:
            return b""
        self._is_plain = True
        return self._pipeline.feed(stream)

    def close(self) -> bytes:
        """Return the bytes that complete the stream, at the end of the received bytes. Later calls return nothing."""
        if self._is_closed:
            return b""
        is_plain = self._is_plain
        self._is_closed, self._is_plain = True, False
        if is_plain:
            return self._pipeline.close()
        held, is_reply = self._start.close()
        return (self._pipeline.feed_reply(held) if is_reply else self._pipeline.feed(held)) + self._pipeline.close()

    def fail(self, message: str, *, type: str = "server_error", code: str | None = None) -> bytes:
        """Return the bytes that end the stream with an error, for a failure outside of the stream.

        An answer that is complete is completed instead. After `close` there is nothing to send. The client gets the
        message: it must not contain secrets.
        """
        if self._is_closed or self._pipeline.part_state(0) >= PartState.FINISHED:
            return self.close()
        self._is_closed, self._is_plain = True, False
        return self._pipeline.fail(Failure(message, type=type, code=code))

    def keep_alive(self) -> bytes:
        """Return a keep-alive to send while nothing is received, if one is allowed now."""
        return b"" if self._is_closed else self._pipeline.keep_alive()


def repair(
    chunks: Iterable[bytes],
    endpoint: EndpointName = "chat",
    *,
    request: RequestBody = None,
    think: ThinkMode = "no",
    text: TextMode = "delta",
    ends: EndMode = "finish",
) -> Generator[bytes, None, None]:
    """Repair a stream: yield the bytes to send for the bytes of `chunks`. For the parameters see `StreamRepairer`.

    An exception of `chunks` before the first bytes were yielded is raised. After them, it is logged, and the stream
    ends with an error event: the client gets a complete stream. A source that is a generator is closed at the end.
    """
    require_iterable(chunks, "repair")
    repairer = StreamRepairer(endpoint, request=request, think=think, text=text, ends=ends)
    return run_to_end(chunks, feed=repairer.feed, close=repairer.close, fail=repairer.fail)


def arepair(
    chunks: AsyncIterable[bytes],
    endpoint: EndpointName = "chat",
    *,
    request: RequestBody = None,
    think: ThinkMode = "no",
    text: TextMode = "delta",
    ends: EndMode = "finish",
) -> AsyncGenerator[bytes, None]:
    """Do the same as `repair` with an asynchronous iterable."""
    require_async_iterable(chunks, "arepair")
    repairer = StreamRepairer(endpoint, request=request, think=think, text=text, ends=ends)
    return run_to_end_async(chunks, feed=repairer.feed, close=repairer.close, fail=repairer.fail)


class RepairedResponse(msgspec.Struct, frozen=True):
    """A repaired whole reply."""

    body: bytes
    """The reply as JSON: the answer, or an error object in the format of the endpoint."""
    status: int
    """HTTP status to send: that of the reply, unless it means success and the body is an error."""
    result: RepairResult


_STATUS_BY_ERROR_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "overloaded_error": 529,
    "upstream_error": 502,
}
_ERROR_TYPE_BY_STATUS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_STATUS_CODE = re.compile("[45][0-9][0-9]")
_UNREADABLE_CODES = ("bad_upstream_stream", "incomplete_stream")
_ERROR_TEXT_LIMIT = 400  # characters of a body that is plain text


def repair_response(
    body: bytes,
    endpoint: EndpointName = "chat",
    *,
    request: RequestBody = None,
    think: ThinkMode = "no",
    text: TextMode = "delta",
    ends: EndMode = "finish",
    strict: Collection[str] = (),
    status: int = 200,
) -> RepairedResponse:
    """Repair a whole reply, which was not streamed. For the parameters see `StreamRepairer`.

    The bytes of a stream, sent to a client that asked for JSON, are collected into one reply. With a `status` of 400 or
    more, the body becomes an error object.
    """
    data = require_bytes(body, "repair_response")
    mapper = None if status < 400 else partial(_map_error, data, status, is_messages=endpoint == "messages")
    pipeline = make_checked_pipeline(
        endpoint, request, think=think, text=text, ends=ends, strict=strict, is_stream=False, map_failure=mapper
    )
    assert not isinstance(pipeline, StreamPipeline)
    if starts_json(data) or status >= 400:
        pipeline.feed_reply(data)
    else:
        pipeline.feed(data)
    pipeline.close()
    failure = pipeline.failure
    if failure is not None and status < 400:
        status = status_for_failure(failure)
    return RepairedResponse(pipeline.body(), status, pipeline.result)


def status_for_failure(failure: Failure) -> int:
    """Return the HTTP status of an error: its code, where a server repeats the status there, or the one of its type."""
    if failure.code is not None and _STATUS_CODE.fullmatch(failure.code):
        return int(failure.code)
    return _STATUS_BY_ERROR_TYPE.get(failure.type, 500)


def _map_error(body: bytes, status: int, failure: Failure, *, is_messages: bool) -> Failure:
    """Complete the error of a reply by its status: plain text as the message, and the type if it has none."""
    if failure.code in _UNREADABLE_CODES:
        text = body.decode("utf-8", "replace").strip()
        is_plain = text and not text.startswith(("<", "{", "["))
        message = text[:_ERROR_TEXT_LIMIT] if is_plain else f"The server replied with status {status}."
        failure = Failure(message)
    if failure.type != "server_error":
        return failure
    error_type = "invalid_request_error" if status < 500 else "server_error"
    error_type = error_type_for_status(status) if is_messages else _ERROR_TYPE_BY_STATUS.get(status, error_type)
    return msgspec.structs.replace(failure, type=error_type)


def make_checked_pipeline(
    endpoint: EndpointName,
    request: RequestBody,
    *,
    think: ThinkMode,
    text: TextMode,
    ends: EndMode = "finish",
    strict: Collection[str] = (),
    is_stream: bool,
    map_failure: FailureMapper | None = None,
) -> StreamPipeline | BufferedPipeline | PassthroughRepairer:
    """Make a pipeline from the arguments of a public function.

    Raises:
        TypeError, ValueError: an argument is wrong.
    """
    for name, value in (("think", think), ("text", text), ("ends", ends)):
        if value not in _MODES[name]:
            raise ValueError(f"{name} must be one of {', '.join(_MODES[name])}; got {value!r}")
    rules = parse_rules(strict, "strict", others=("all",))
    body = parse_request(request)
    pipeline = make_pipeline(
        parse_endpoint(endpoint), body, id_stem=new_id_stem(), created=current_time(), is_stream=is_stream
    )
    pipeline.configure(
        0,
        RepairOptions(
            think=think_mode_for(think, body or {}),
            text=text,
            strict=rules,
            map_failure=map_failure,
            accept_fewer_choices=True,
            unfinished=UNFINISHED if ends == "finish" else None,
        ),
    )
    return pipeline
