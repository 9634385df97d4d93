"""Pipelines from upstream bytes to a repaired stream or reply: reader, repair and writer.

`StreamPipeline` writes a stream, `BufferedPipeline` a non-streaming reply. Both read one upstream stream, or several
that form one answer (see `merger`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import msgspec

from welldone.protocol import sse
from welldone.protocol.collect import collect
from welldone.protocol.dialects.base import Dialect, DialectWriter
from welldone.protocol.dialects.chat import (
    REASONING_FIELDS,
    ChatDialect,
    CompletionsDialect,
    escape_line_breaks,
    openai_error_object,
)
from welldone.protocol.dialects.registry import SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import ID_PREFIX, Endpoint, Envelope
from welldone.protocol.events import (
    Event,
    Failure,
    FailureMapper,
    FieldLocation,
    Json,
    KeepAlive,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    UnknownFields,
    Usage,
)
from welldone.protocol.fast_path import NO_FRAMING, FastPath, TransferFraming, learn_fast_path
from welldone.protocol.fields import bad_stream_failure
from welldone.protocol.merger import FanOut, StreamMerger
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts, read_request_facts, think_mode_for
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.protocol.text_tool_calls import ForcedToolCall

BUFFERED_LIMIT_CHARS = 4 * 1024 * 1024
"""Most buffered characters of an answer: a million tokens. /v1/responses repeats the text four times at its end."""
_TEXT_EVENTS = (Text, Reasoning, Refusal, ToolArguments)
_SLOW_BODY_EVENTS = 2_000  # of 15 us each: 30 ms
_LEARNING_ATTEMPTS = 4
"""Chunks from which a fast path may be learnt. If chunks differ in more than their text, it is of no use."""


class Pipeline(ABC):
    """Common part of both pipelines: an answer that is read from one or more upstream streams ("parts").

    `fallback` supplies the envelope fields that the server does not send; generated ids derive from its id, so that the
    same input gives the same bytes. `model`, if set, replaces the model name of the server. `dialect` is the dialect of
    the client; by default that of the endpoint, with reasoning in the fields named by `reasoning`. For `think`, `text`
    and `strict` see `configure`.
    """

    IS_STREAM: ClassVar[bool]

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts | None = None,
        fan_out: FanOut | None = None,
        forced: ForcedToolCall | None = None,
        model: str | None = None,
        dialect: Dialect | None = None,
        reasoning: tuple[str, ...] = REASONING_FIELDS,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        strict: frozenset[str] = frozenset(),
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._facts = facts or RequestFacts()
        self.dialect = dialect or (
            ChatDialect(self._facts, reasoning) if endpoint is Endpoint.CHAT else CompletionsDialect(self._facts)
        )
        """Dialect of the output."""
        fan_out = fan_out or FanOut()
        self.merger = StreamMerger(
            endpoint,
            fallback=fallback,
            facts=self.dialect.restrict(self._facts, is_stream=self.IS_STREAM),
            fan_out=fan_out,
            forced=forced,
            model=model,
            is_stream=self.IS_STREAM,
            limit_bytes=limit_bytes,
        )
        """Reads and repairs the parts."""
        self._buffered_chars = 0
        for part in range(fan_out.count):
            self.configure(part, think=think, text=text, strict=strict)
        self._init_output()

    @abstractmethod
    def _init_output(self) -> None:
        """Initialise the state of the output."""

    @abstractmethod
    def write_events(self, events: list[Event]) -> bytes:
        """Return the bytes to send for `events`, which the merger may have read earlier."""

    @abstractmethod
    def end(self) -> bytes:
        """Return the bytes that end the stream, once."""

    @property
    def _envelope(self) -> Envelope:
        return self.dialect.envelope(self.merger.envelope, self._fallback)

    def configure(
        self,
        part: int,
        *,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        strict: frozenset[str] = frozenset(),
        map_failure: FailureMapper | None = None,
    ) -> None:
        """Set how a part is repaired, before its first byte.

        `think`: how reasoning in `<think>` tags is separated from the text. `text`: whether texts are increments or
        cumulative. `strict`: ids of rules whose violation is a failure; `all` stands for every rule with a repair.
        `map_failure`: maps errors of the upstream to the errors that are sent.
        """
        self.merger.configure(part, think=think, text=text, strict=strict, map_failure=map_failure)

    @property
    def final_object(self) -> Json | None:
        """The complete answer as an object after its end, in dialects that have one."""
        return self.dialect.final_object

    @property
    def retains_output(self) -> bool:
        """Whether the output is buffered, so that its length must be limited."""
        return self.dialect.BUFFERS_OUTPUT or not self.IS_STREAM

    def _limit_buffered(self, events: list[Event]) -> list[Event]:
        """Replace the event that exceeds the limit of buffered text by a failure, and drop those after it."""
        for position, event in enumerate(events):
            if isinstance(event, _TEXT_EVENTS):
                self._buffered_chars += len(event.text)
                if self._buffered_chars > BUFFERED_LIMIT_CHARS and not self.merger.is_finished:
                    return events[:position] + self.merger.fail(
                        bad_stream_failure(f"more than {BUFFERED_LIMIT_CHARS} characters")
                    )
        return events

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers of a stream in this dialect."""
        return dict(self.dialect.HEADERS)

    def encode_failure(self, failure: Failure) -> bytes:
        """Encode an error that ends a stream whose state is unknown."""
        return self.dialect.final_error_bytes(failure)

    @property
    def is_done(self) -> bool:
        """Whether every part received `[DONE]`, or one failed: nothing relevant can follow."""
        return self.merger.is_done

    def is_part_done(self, part: int) -> bool:
        """Whether a part received `[DONE]` or failed."""
        return self.merger.is_part_done(part)

    @property
    def has_content(self) -> bool:
        """Whether the last input had content, and not only a role or a keep-alive."""
        return self.merger.has_content

    def is_part_complete(self, part: int) -> bool:
        """Whether every choice of a part has a finish reason, even without `[DONE]`."""
        return self.merger.is_complete(part)

    def has_part_usage(self, part: int) -> bool:
        """Whether a part received usage on a chunk of its own, after all choices."""
        return self.merger.has_usage_chunk(part)

    def is_part_stopped(self, part: int) -> bool:
        """Whether a stop string was found in a part, so that its upstream request can be aborted."""
        return self.merger.is_stopped(part)

    def has_part_started(self, part: int) -> bool:
        """Whether a part received a chunk or failed; keep-alives do not count."""
        return self.merger.has_started(part)

    @property
    def repair_log(self) -> RepairLog:
        """Repairs of all parts."""
        return self.merger.repair_log

    @property
    def invalid_json_count(self) -> int:
        """Number of choices that the request wants as JSON and are not, although they were not truncated."""
        return self.merger.invalid_json_count

    @property
    def text_tool_calls(self) -> int:
        """Number of choices whose text looks like a tool call."""
        return self.merger.text_tool_calls

    @property
    def invalid_arguments_count(self) -> int:
        """Number of tool calls whose arguments are not a JSON object, although they were not truncated."""
        return self.merger.invalid_arguments_count

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the answer, if any."""
        return self.merger.failure

    @property
    def usage(self) -> Usage | None:
        """Usage reported by the server, even if the client did not request it."""
        return self.merger.usage

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """Like `feed_reply`, in steps that each fit the blocking budget."""
        return map(self.write_events, self.merger.feed_reply_in_steps(data, part))


class BufferedPipeline(Pipeline):
    """Collects the parts into one non-streaming reply."""

    IS_STREAM: ClassVar[bool] = False

    def _init_output(self) -> None:
        self._events: list[Event] = []

    def keep_alive(self) -> bytes:
        """Return nothing: a non-streaming reply has no keep-alives."""
        return b""

    def feed(self, data: bytes, part: int = 0) -> None:
        """Read the next bytes of a part."""
        self.write_events(self.merger.feed(data, part))

    def feed_reply(self, data: bytes, part: int = 0) -> None:
        """Read a part that is a complete non-streaming reply. Then `close` it."""
        for _ in self.feed_reply_in_steps(data, part):
            pass

    def close(self, part: int = 0) -> None:
        """End a part."""
        self.write_events(self.merger.close(part))

    def fail(self, failure: Failure) -> None:
        """End the answer with a failure from outside of the stream."""
        self.write_events(self.merger.fail(failure))

    @property
    def is_body_slow(self) -> bool:
        """Whether `body` may block the event loop noticeably."""
        return len(self._events) > _SLOW_BODY_EVENTS

    def body(self) -> bytes:
        """Return the reply after the end of all parts: the answer, or the error in OpenAI's shape."""
        if self.failure is not None:
            return escape_line_breaks(msgspec.json.encode(openai_error_object(self.failure)))
        reply = collect(self._events)
        reply.usage = self.usage
        return self.dialect.encode_reply(self._envelope, reply)

    def write_events(self, events: list[Event]) -> bytes:
        """Buffer the events for `body`."""
        self._events += [event for event in self._limit_buffered(events) if type(event) is not KeepAlive]
        return b""

    def end(self) -> bytes:
        """Return nothing: there is no stream to end."""
        return b""


class StreamPipeline(Pipeline):
    """Writes a repaired stream incrementally from the parts."""

    IS_STREAM: ClassVar[bool] = True

    def _init_output(self) -> None:
        self._writer: DialectWriter | None = None
        self._is_ended = False
        self._fast_path: FastPath | None = None
        self.try_fast_path: Callable[[bytes], bytes | None] | None = None
        """Returns the bytes to send for a frame, or None if it needs `feed`. None while there is no fast path."""
        self._framing = NO_FRAMING
        self._fast_path_choice = 0  # the choice of the fast path
        is_plain = self.dialect.IS_CHAT and not self._facts.stop_strings
        self._learning_attempts = _LEARNING_ATTEMPTS if is_plain else 0

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """Return the bytes to send for `data`."""
        if self.try_fast_path is not None and self._framing is NO_FRAMING:
            sent = self.try_fast_path(data)
            if sent is not None:
                self.merger.has_content = True
                return sent
        return self._feed_slow_path(data, part)

    @property
    def supports_fast_path(self) -> bool:
        """Whether the dialect can have a fast path."""
        return self.dialect.IS_CHAT

    def enable_fast_path(self, framing: TransferFraming) -> None:
        """Use the fast path with transfer framing: the caller calls `try_fast_path` before `feed`."""
        self._leave_fast_path()
        self._fast_path = None
        self._framing = framing

    def _feed_slow_path(self, data: bytes, part: int) -> bytes:
        """Run reader, repair and writer, and learn the fast path from the result."""
        self._leave_fast_path()
        can_learn = self._learning_attempts > 0 and (self._fast_path is None or not self._fast_path.matches(data))
        before = self.merger.repair_log.counts() if can_learn else {}
        events = self.merger.feed(data, part)
        sent = self.write_events(events)
        if can_learn:
            self._learn(data, sent, events, before)
        if self._fast_path is not None and self._can_use_fast_path(self._fast_path_choice):
            self.try_fast_path = self._fast_path.rewrite
        return sent

    def _learn(self, data: bytes, sent: bytes, events: list[Event], before: Mapping[str, int]) -> None:
        """Learn from a chunk with one text and possibly unknown fields, which each such chunk repeats."""
        *fields, text = events or (None,)
        if not (isinstance(text, Text) and self._can_use_fast_path(text.index) and all(map(_has_no_state, fields))):
            return
        if self._fast_path is None or not self._fast_path.is_worthwhile:
            self._learning_attempts -= 1
        after = self.merger.repair_log.counts()
        new = {rule: count - before.get(rule, 0) for rule, count in after.items() if count > before.get(rule, 0)}
        self._fast_path = learn_fast_path(data, sent, new, self._framing)
        self._fast_path_choice = text.index

    def _can_use_fast_path(self, index: int) -> bool:
        """Whether plain text of this choice passes unchanged and changes no state."""
        return self._writer is not None and self._writer.accepts_text(index) and self.merger.can_use_fast_path(index)

    def _leave_fast_path(self) -> None:
        """Report the frames of the fast path to reader and repair."""
        self.try_fast_path = None
        if self._fast_path is not None and self._fast_path.frames:
            self.merger.record_fast_path(self._fast_path)

    def keep_alive(self) -> bytes:
        """Return a keep-alive, to send while the server is silent."""
        if self._writer is None or self.merger.is_finished:
            return self.dialect.INITIAL_KEEP_ALIVE
        return self._writer.send(KeepAlive())

    def feed_reply(self, data: bytes, part: int = 0) -> bytes:
        """Return the bytes to send for a part that is a complete non-streaming reply. Then `close` it."""
        return b"".join(self.feed_reply_in_steps(data, part))

    def close(self, part: int = 0) -> bytes:
        """Return the bytes to send at the end of a part."""
        self._leave_fast_path()
        return self.write_events(self.merger.close(part)) + self.end()

    def fail(self, failure: Failure) -> bytes:
        """Return the bytes to send when the answer fails for a reason outside of the stream."""
        self._leave_fast_path()
        return self.write_events(self.merger.fail(failure)) + self.end()

    def end(self) -> bytes:
        """Return the bytes that end the stream, once."""
        if self._is_ended or not self.merger.is_finished:
            return b""
        self._is_ended = True
        return (self._writer or self._make_writer()).end()

    def write_events(self, events: list[Event]) -> bytes:
        """Return the bytes to send for `events`."""
        if self.dialect.BUFFERS_OUTPUT:
            events = self._limit_buffered(events)
        writer = self._writer
        if len(events) == 1 and writer is not None:
            return writer.send(events[0])
        written = []
        for event in events:
            if writer is None:
                if type(event) is KeepAlive:
                    written.append(self.dialect.INITIAL_KEEP_ALIVE)
                    continue
                writer = self._make_writer()
            written.append(writer.send(event))
        return b"".join(written)

    def _make_writer(self) -> DialectWriter:
        merger = self.merger  # the writer must not refer to self: garbage collection of cycles pauses all streams
        self._writer = self.dialect.make_writer(self._envelope, lambda: merger.usage)
        return self._writer


def _has_no_state(event: Event | None) -> bool:
    """Whether the event consists of fields that are sent with the next chunk and leave no state."""
    return isinstance(event, UnknownFields) and event.location is not FieldLocation.DELTA and not event.in_own_chunk


def make_pipeline(
    endpoint: Endpoint,
    request: Json | None,
    *,
    id_stem: str,
    created: int,
    is_stream: bool,
    think: ThinkMode = "no",
    text: TextMode = "delta",
) -> StreamPipeline | BufferedPipeline | PassthroughRepairer:
    """Make the pipeline for a reply of this endpoint.

    `id_stem` and `created` are used if the server sends no id or time. For `think` and `text` see `Pipeline.configure`.
    """
    facts = RequestFacts() if request is None else read_request_facts(request)
    fallback = Envelope(ID_PREFIX[endpoint] + id_stem, created, facts.model or "unknown")
    if endpoint in SAME_DIALECT_ENDPOINTS:
        return passthrough_repairer_for(endpoint, fallback=fallback, request=request, is_stream=is_stream)
    pipeline = StreamPipeline if is_stream else BufferedPipeline
    return pipeline(endpoint, fallback=fallback, facts=facts, think=think_mode_for(think, request or {}), text=text)
