"""Pipelines from upstream bytes to a repaired stream or reply: reader, repair and writer.

`StreamPipeline` writes a stream, `BufferedPipeline` a non-streaming reply. Both read one upstream stream, or several
that form one answer (see `fan_out`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import ClassVar

import msgspec

from welldone.core import sse
from welldone.core.answer_format import AnswerFormat, DialectWriter, escape_line_breaks
from welldone.core.collect import collect
from welldone.core.continuation import Continuation, Delivered
from welldone.core.envelope import UNKNOWN_BUILD, Endpoint, Envelope
from welldone.core.events import (
    TEXT_EVENTS,
    ChoiceStart,
    Event,
    Failure,
    Json,
    KeepAlive,
    Text,
    TextEvent,
    UnknownFields,
    Usage,
)
from welldone.core.fields import bad_stream_failure, openai_error_object
from welldone.core.repair_log import RepairLog, RepairResult, join_repair_logs
from welldone.core.request_facts import RepairOptions, RequestFacts, read_request_facts, think_mode_for
from welldone.core.state import NO_INDEXES, PartState, with_index
from welldone.core.text_filters import TextMode, ThinkMode
from welldone.core.text_tool_calls import ForcedToolCall
from welldone.dialects.chat.writer import REASONING_FIELDS, ChunkFormat
from welldone.dialects.registry import DIALECTS, SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.stream.fan_out import ChoiceMerger, FanOut, sum_usage
from welldone.stream.fast_path import FastPath
from welldone.stream.part import FrameEvents, StreamPart

BUFFERED_LIMIT_CHARS = 2 * 1024 * 1024
"""Most buffered characters of an answer: half a million tokens. /v1/responses repeats the text four times at its end,
which takes 4 ms for each million characters and repetition.
"""
_SLOW_BODY_EVENTS = 2_000  # of 15 us each: 30 ms
_CONTENTLESS_EVENTS = frozenset({KeepAlive, ChoiceStart, UnknownFields, Usage})
"""Events that a server may send while it still processes the prompt."""


class Pipeline(ABC):
    """Common part of both pipelines: an answer that is read from one or more upstream streams ("parts").

    `fallback` supplies the envelope fields that the server does not send; generated ids derive from its id, so that the
    same input gives the same bytes. `model`, if set, replaces the model name of the server. `dialect` is the dialect of
    the client; by default that of the endpoint, with reasoning in the fields named by `reasoning`. With
    `is_continuable`, a part that fails is `CUT` until the caller continues it or releases its failure.
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
        dialect: AnswerFormat | None = None,
        reasoning: tuple[str, ...] = REASONING_FIELDS,
        options: RepairOptions | None = None,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
        is_continuable: bool = False,
    ) -> None:
        facts = facts or RequestFacts()
        self.dialect: AnswerFormat = dialect or ChunkFormat(facts, endpoint, reasoning)
        """Format of the output."""
        self.has_content: bool = False
        """Whether the last input had content, and not only a role or a keep-alive."""
        self._fallback = fallback
        self._fingerprint: str | None = None
        self._model = model
        self._facts = self.dialect.restrict(facts, is_stream=self.IS_STREAM)
        self._fan_out = fan_out or FanOut()
        is_chat = endpoint.is_chat
        self._merger = None if self._fan_out.is_single else ChoiceMerger(self._fan_out, is_chat=is_chat)
        new_call_id = tool_call_id_factory(fallback.id)
        part_facts = self._facts if self._merger is None else msgspec.structs.replace(self._facts, choice_count=1)
        self.parts: list[StreamPart] = [
            StreamPart(
                endpoint,
                fallback=fallback,
                facts=part_facts,
                new_call_id=new_call_id,
                forced=forced,
                is_stream=self.IS_STREAM,
                limit_bytes=limit_bytes,
                keeps_delivered=is_continuable,
            )
            for _ in range(self._fan_out.count)
        ]
        self._ended_parts: frozenset[int] = NO_INDEXES
        self._events: list[Event] = []  # of a non-streaming reply
        is_plain = self.IS_STREAM and self._merger is None and not self._facts.stop_strings
        self.fast_path: FastPath = FastPath(self.parts[0], is_allowed=is_plain, room=BUFFERED_LIMIT_CHARS)
        """Rewrites text chunks. A caller with transfer framing offers chunks to it before `feed`."""
        if options is not None:
            for part in range(len(self.parts)):
                self.configure(part, options)

    @abstractmethod
    def write_events(self, events: list[Event]) -> bytes:
        """Return the bytes to send for `events`, which may have been read earlier."""

    def end(self) -> bytes:
        """Return the bytes that end the stream, once; none for a non-streaming reply."""
        return b""

    def configure(self, part: int, options: RepairOptions) -> None:
        """Set how a part is repaired, before its first byte."""
        self.parts[part].configure(options)
        self._fingerprint = options.fingerprint
        if options.upstream_dialect is not None:
            self.fast_path.disable()

    # State.

    def part_state(self, part: int) -> PartState:
        """Return how far a part has come."""
        return self.parts[part].state if self.failure is None else PartState.FAILED

    @property
    def is_done(self) -> bool:
        """Whether every part received `[DONE]`, or one failed: nothing relevant can follow."""
        return self.failure is not None or all(stream_part.state >= PartState.DONE for stream_part in self.parts)

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the answer, if any."""
        return self.parts[0].failure if self._merger is None else self._merger.failure

    @property
    def usage(self) -> Usage | None:
        """Usage reported by the server, even if the client did not request it."""
        return _total_usage(self.parts, self._fan_out)

    @property
    def repair_log(self) -> RepairLog:
        """Repairs of all parts."""
        return join_repair_logs([stream_part.repair_log for stream_part in self.parts])

    @property
    def result(self) -> RepairResult:
        """What is known of the answer."""
        invalid_json = sum([stream_part.repairer.invalid_json_count for stream_part in self.parts])
        invalid_arguments = sum([stream_part.repairer.invalid_arguments_count for stream_part in self.parts])
        calls = sum([stream_part.text_tool_calls for stream_part in self.parts])
        converted = sum([stream_part.converted_calls for stream_part in self.parts])
        repairs = self.repair_log.entries()
        return RepairResult(self.usage, self.failure, repairs, invalid_json, invalid_arguments, calls, converted)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """The finish reasons of all choices, after the end."""
        return tuple([reason for stream_part in self.parts for reason in stream_part.finish_reasons])

    @property
    def _is_finished(self) -> bool:
        """Whether all parts have ended, or one failed."""
        return self.failure is not None or len(self._ended_parts) == len(self.parts)

    @property
    def _envelope(self) -> Envelope:
        received = next((stream_part.envelope for stream_part in self.parts if stream_part.envelope is not None), None)
        if received is not None and self._model is not None:
            received = msgspec.structs.replace(received, model=self._model)
        if received is not None and self._fingerprint is not None and received.fingerprint == UNKNOWN_BUILD:
            received = msgspec.structs.replace(received, fingerprint=self._fingerprint)
        return self.dialect.envelope(received, self._fallback)

    # Properties of the output.

    @property
    def final_object(self) -> Json | None:
        """The complete answer as an object after its end, in dialects that have one."""
        return self.dialect.final_object

    @property
    def retains_output(self) -> bool:
        """Whether the output or the input is buffered, so that its length must be limited."""
        is_buffered = Text in self.dialect.BUFFERED_EVENTS or not self.IS_STREAM
        return is_buffered or any(stream_part.retains_input for stream_part in self.parts)

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers of a stream in this dialect."""
        return dict(self.dialect.HEADERS)

    def encode_failure(self, failure: Failure) -> bytes:
        """Encode an error that ends a stream whose state is unknown."""
        return self.dialect.final_error_bytes(failure)

    # From bytes to events.

    def read(self, data: bytes, part: int = 0) -> list[Event]:
        """Return the events that `data` of a part completes."""
        events = self.parts[part].feed(data)
        self.has_content = not _CONTENTLESS_EVENTS.issuperset(map(type, events))
        return events if self._merger is None else self._merger.merge(events, part)

    def read_by_frame(self, data: bytes, part: int = 0) -> Iterator[FrameEvents]:
        """Like `read`, frame by frame."""
        for frame, events in self.parts[part].feed_by_frame(data):
            yield frame, events if self._merger is None else self._merger.merge(events, part)

    def read_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[list[Event]]:
        """Yield the events of a part that is a non-streaming reply; each step fits the blocking budget."""
        for events in self.parts[part].feed_reply_in_steps(data):
            yield events if self._merger is None else self._merger.merge(events, part)

    def read_end_by_frame(self, part: int = 0) -> Iterator[FrameEvents]:
        """Yield the events at the end of a part, frame by frame."""
        for frame, events in self.parts[part].close_by_frame():
            yield frame, events if self._merger is None else self._merger.merge(events, part)
        if self.parts[part].state is PartState.CUT:
            return
        self._ended_parts = with_index(self._ended_parts, part)
        is_last = len(self._ended_parts) == len(self.parts) and self.failure is None
        if is_last and self._merger is not None and self._facts.include_usage and (usage := self.usage) is not None:
            yield None, [usage]

    def read_failure(self, failure: Failure) -> list[Event]:
        """Return the events of an answer that fails for a reason outside of the stream."""
        if self._is_finished:
            return []
        running = [part for part in range(len(self.parts)) if part not in self._ended_parts]
        part = next((part for part in running if self.parts[part].state is not PartState.CUT), None)
        if part is None:
            return self.read_held_failure(running[0])
        events = self.parts[part].fail(failure)
        return events if self._merger is None else self._merger.merge(events, part)

    def read_held_failure(self, part: int) -> list[Event]:
        """Return the last events of a part that was cut and is not continued."""
        events = self.parts[part].release_failure()
        return events if self._merger is None else self._merger.merge(events, part)

    # Continuation of a part by another stream.

    def delivered(self, part: int) -> Delivered | None:
        """Return what was sent of a part; None if it cannot be continued."""
        self.fast_path.leave()
        return self.parts[part].delivered if self.parts[part].can_continue else None

    def has_sent(self, part: int) -> bool:
        """Whether more than the role was sent of a part, which must be continuable."""
        delivered = self.parts[part].delivered
        assert delivered is not None
        delivered.record_pending()
        return delivered.has_content

    def continue_part(self, part: int, continuation: Continuation) -> None:
        """Read on in the next stream of a part. Then `configure` it."""
        self.fast_path.restart()
        self.parts[part].continue_with(continuation)

    def release_failure(self, part: int = 0) -> bytes:
        """Return the bytes to send if a part that was cut is not continued. Then `close` it."""
        return self.write_events(self.read_held_failure(part))

    # From bytes to output.

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """Like `feed_reply`, in steps that each fit the blocking budget."""
        return map(self.write_events, self.read_reply_in_steps(data, part))

    def feed_reply(self, data: bytes, part: int = 0) -> bytes:
        """Return the bytes to send for a part that is a complete non-streaming reply. Then `close` it."""
        return b"".join(self.feed_reply_in_steps(data, part))

    def close(self, part: int = 0) -> bytes:
        """Return the bytes to send at the end of a part."""
        self.fast_path.leave()
        return self.write_events([event for _, events in self.read_end_by_frame(part) for event in events]) + self.end()

    def fail(self, failure: Failure) -> bytes:
        """Return the bytes to send when the answer fails for a reason outside of the stream."""
        self.fast_path.leave()
        return self.write_events(self.read_failure(failure)) + self.end()

    def _limit_buffered(self, events: list[Event], kinds: tuple[type[TextEvent], ...]) -> list[Event]:
        """Replace the event of these kinds that exceeds their limit by a failure, and drop those after it."""
        for position, event in enumerate(events):
            if isinstance(event, kinds):
                self.fast_path.room -= len(event.text)
                if self.fast_path.room < 0 and not self._is_finished:
                    failure = bad_stream_failure(f"more than {BUFFERED_LIMIT_CHARS} characters")
                    return events[:position] + self.read_failure(failure)
        return events


class BufferedPipeline(Pipeline):
    """Collects the parts into one non-streaming reply: its output is empty until `body`."""

    IS_STREAM: ClassVar[bool] = False

    def keep_alive(self) -> bytes:
        """Return nothing: a non-streaming reply has no keep-alives."""
        return b""

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """Read the next bytes of a part."""
        return self.write_events(self.read(data, part))

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
        self._events += [event for event in self._limit_buffered(events, TEXT_EVENTS) if type(event) is not KeepAlive]
        return b""


class StreamPipeline(Pipeline):
    """Writes a repaired stream incrementally from the parts. Plain text chunks take the fast path where it applies."""

    IS_STREAM: ClassVar[bool] = True
    _writer: DialectWriter | None = None
    _is_ended = False

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """Return the bytes to send for `data`."""
        path = self.fast_path
        if path.rewrite is not None:
            rewritten = None if path.has_framing else path.rewrite(data)
            if rewritten is not None:
                self.has_content = True
                return rewritten
            path.leave()
        before = path.rules_before(data, self._writer)
        events = self.read(data, part)
        sent = self.write_events(events)
        path.enter(data, sent, events, before, self._writer)
        return sent

    def keep_alive(self) -> bytes:
        """Return a keep-alive, to send while the server is silent."""
        if self._writer is None or self._is_finished:
            return self.dialect.INITIAL_KEEP_ALIVE
        return self._writer.send(KeepAlive())

    def end(self) -> bytes:
        """Return the bytes that end the stream, once."""
        if self._is_ended or not self._is_finished:
            return b""
        self._is_ended = True
        return (self._writer or self._make_writer()).end()

    def write_events(self, events: list[Event]) -> bytes:
        """Return the bytes to send for `events`."""
        if self.dialect.BUFFERED_EVENTS:
            events = self._limit_buffered(events, self.dialect.BUFFERED_EVENTS)
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
        # The writer must not refer to self: garbage collection of cycles pauses all streams.
        parts, fan_out = self.parts, self._fan_out
        self._writer = self.dialect.make_writer(self._envelope, lambda: _total_usage(parts, fan_out))
        return self._writer


def _total_usage(parts: list[StreamPart], fan_out: FanOut) -> Usage | None:
    """Usage of the whole request; None if a part has none."""
    usages = [stream_part.repairer.usage for stream_part in parts]
    if fan_out.is_single:
        return usages[0]
    known = [usage for usage in usages if usage is not None]
    return sum_usage(known, fan_out) if len(known) == len(usages) else None


def tool_call_id_factory(stream_id: str) -> Callable[[], str]:
    """Return a function that makes tool call ids from the id of a stream: the same input gives the same bytes."""
    stem = stream_id.rpartition("-")[2]
    numbers = count(1)
    return lambda: f"call_{stem}{next(numbers)}"


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

    `id_stem` and `created` are used if the server sends no id or time. For `think` and `text` see `RepairOptions`.
    """
    facts = RequestFacts() if request is None else read_request_facts(request)
    fallback = Envelope(DIALECTS[endpoint].id_prefix + id_stem, created, facts.model or "unknown")
    if endpoint in SAME_DIALECT_ENDPOINTS:
        return passthrough_repairer_for(endpoint, fallback=fallback, request=request, is_stream=is_stream)
    pipeline = StreamPipeline if is_stream else BufferedPipeline
    options = RepairOptions(think=think_mode_for(think, request or {}), text=text)
    return pipeline(endpoint, fallback=fallback, facts=facts, options=options)
