"""Any server's bytes in, the bytes of a right stream out: reader, repair and writer in a row."""

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import msgspec

from welldone.protocol.collect import collect
from welldone.protocol.dialects.base import DialectWriter
from welldone.protocol.dialects.chat import escape_line_breaks, openai_error_object
from welldone.protocol.dialects.registry import SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import ID_PREFIX, Endpoint, Envelope
from welldone.protocol.events import Event, Failure, FieldLocation, Json, KeepAlive, Text, UnknownFields
from welldone.protocol.fast_path import NO_FRAMING, FastPath, TransferFraming, learn_fast_path
from welldone.protocol.merger import Pipeline
from welldone.protocol.request_facts import RequestFacts, read_request_facts, think_mode_for
from welldone.protocol.text_filters import TextMode, ThinkMode

# Any server's streams in, one whole reply out: what a client gets that did not ask for a stream.


_MANY_EVENTS = 2_000


class BufferedPipeline(Pipeline):
    """Collects one stream, or several that make one answer."""

    IS_STREAM: ClassVar[bool] = False

    def _init_output(self) -> None:
        self._events: list[Event] = []

    def keep_alive(self) -> bytes:
        """Nobody waits for one who did not ask for a stream."""
        return b""

    def feed(self, data: bytes, part: int = 0) -> None:
        """More of a part's stream."""
        self.write_events(self.merger.feed(data, part))

    def feed_reply(self, data: bytes, part: int = 0) -> None:
        """A part that was not streamed: `data` is its whole reply. Then `close` it."""
        for _ in self.feed_reply_in_steps(data, part):
            pass

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        return map(self.write_events, self.merger.feed_reply_in_steps(data, part))

    def close(self, part: int = 0) -> None:
        """A part's stream has ended, however it did."""
        self.write_events(self.merger.close(part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off for a reason that the server did not tell."""
        self.write_events(self.merger.fail(failure))

    @property
    def is_body_slow(self) -> bool:
        """Whether `body` may take longer than one turn of the event loop: each event costs 15 us."""
        return len(self._events) > _MANY_EVENTS

    def body(self) -> bytes:
        """The reply, when all parts have ended: the answer, or the error that it failed with, in OpenAI's shape."""
        if self.failure is not None:
            return escape_line_breaks(msgspec.json.encode(openai_error_object(self.failure)))
        reply = collect(self._events)
        reply.usage = self.usage
        return self.dialect.encode_reply(self._envelope, reply)

    def write_events(self, events: list[Event]) -> bytes:
        """They are kept: what is said is the body."""
        self._events += [event for event in self._limit_buffered(events) if type(event) is not KeepAlive]
        return b""

    def end(self) -> bytes:
        """There is no stream to end."""
        return b""


_LEARNING_ATTEMPTS = 4
"""Chunks of which a lane may be learnt: of a server whose chunks differ in more than their text it is of no use."""


class StreamPipeline(Pipeline):
    """Repairs one stream as it comes, or several that make one answer."""

    IS_STREAM: ClassVar[bool] = True

    def _init_output(self) -> None:
        self._writer: DialectWriter | None = None
        self._is_ended = False
        self._fast_path: FastPath | None = None
        self.try_fast_path: Callable[[bytes], bytes | None] | None = None
        """Takes a frame and gives what goes out for it, if it may go a short way; None while there is none."""
        self._framing = NO_FRAMING
        self._fast_path_choice = 0  # the choice that the lane is of
        is_plain = self.dialect.IS_CHAT and not self._facts.stop_strings
        self._learning_attempts = _LEARNING_ATTEMPTS if is_plain else 0

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send on."""
        if self.try_fast_path is not None and self._framing is NO_FRAMING:
            sent = self.try_fast_path(data)
            if sent is not None:
                self.merger.has_content = True
                return sent
        return self._feed_slow_path(data, part)

    @property
    def supports_fast_path(self) -> bool:
        """Whether plain text may ever go a short way."""
        return self.dialect.IS_CHAT

    def enable_fast_path(self, framing: TransferFraming) -> None:
        """From now on the caller asks `short` before `feed`, for frames in their framing."""
        self._leave_fast_path()
        self._fast_path = None
        self._framing = framing

    def _feed_slow_path(self, data: bytes, part: int) -> bytes:
        """Through reader, repair and writer; and learn from it how the next text can go a shorter way."""
        self._leave_fast_path()
        is_lesson = self._learning_attempts > 0 and (self._fast_path is None or not self._fast_path.matches(data))
        before = self.merger.repair_log.counts() if is_lesson else {}
        events = self.merger.feed(data, part)
        sent = self.write_events(events)
        if is_lesson:
            self._learn(data, sent, events, before)
        if self._fast_path is not None and self._can_use_fast_path(self._fast_path_choice):
            self.try_fast_path = self._fast_path.rewrite
        return sent

    def _learn(self, data: bytes, sent: bytes, events: list[Event], before: Mapping[str, int]) -> None:
        """Learn from a chunk that said one text, perhaps with unknown fields, of which each such chunk has the same."""
        *riders, text = events or (None,)
        if not (isinstance(text, Text) and self._can_use_fast_path(text.index) and all(map(_is_rider, riders))):
            return
        if self._fast_path is None or not self._fast_path.is_worthwhile:
            self._learning_attempts -= 1
        after = self.merger.repair_log.counts()
        faults = {rule: count - before.get(rule, 0) for rule, count in after.items() if count > before.get(rule, 0)}
        self._fast_path = learn_fast_path(data, sent, faults, self._framing)
        self._fast_path_choice = text.index

    def _can_use_fast_path(self, index: int) -> bool:
        """Whether a plain text of this choice would go out as it is, and nothing else would happen."""
        return self._writer is not None and self._writer.accepts_text(index) and self.merger.can_use_fast_path(index)

    def _leave_fast_path(self) -> None:
        """Tell reader and repair what they did not see."""
        self.try_fast_path = None
        if self._fast_path is not None and self._fast_path.frames:
            self.merger.record_fast_path(self._fast_path)

    def keep_alive(self) -> bytes:
        """A sign of life, while the server is silent."""
        if self._writer is None or self.merger.is_finished:
            return self.dialect.INITIAL_KEEP_ALIVE
        return self._writer.send(KeepAlive())

    def feed_reply(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send for a part that was not streamed: `data` is its whole reply. Then `close` it."""
        return b"".join(self.feed_reply_in_steps(data, part))

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        return map(self.write_events, self.merger.feed_reply_in_steps(data, part))

    def close(self, part: int = 0) -> bytes:
        """The bytes to send when the server's stream has ended, however it did."""
        self._leave_fast_path()
        return self.write_events(self.merger.close(part)) + self.end()

    def fail(self, failure: Failure) -> bytes:
        """The bytes to send when the answer breaks off for a reason that the server did not tell."""
        self._leave_fast_path()
        return self.write_events(self.merger.fail(failure)) + self.end()

    def end(self) -> bytes:
        """What ends the stream, once."""
        if self._is_ended or not self.merger.is_finished:
            return b""
        self._is_ended = True
        return (self._writer or self._make_writer()).end()

    def write_events(self, events: list[Event]) -> bytes:
        """The bytes that say events."""
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
        merge = self.merger  # the writer does not hold us: rings are left to the collector, which stops all for a while
        self._writer = self.dialect.make_writer(self._envelope, lambda: merge.usage)
        return self._writer


def _is_rider(event: Event | None) -> bool:
    """Whether this goes out with the next chunk, and leaves nothing behind."""
    return isinstance(event, UnknownFields) and event.location is not FieldLocation.DELTA and not event.in_own_chunk


# How a captured reply is mended: who does it, by what is known of it.


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
    """Who mends a reply of this endpoint. `stem` and `created` are for an id and a time that the server did not say.

    `think` and `text` tell what the reply alone does not show: see `Answered.tune`.
    """
    asked = RequestFacts() if request is None else read_request_facts(request)
    fallback = Envelope(ID_PREFIX[endpoint] + id_stem, created, asked.model or "unknown")
    if endpoint in SAME_DIALECT_ENDPOINTS:
        return passthrough_repairer_for(endpoint, fallback=fallback, request=request, is_stream=is_stream)
    kind = StreamPipeline if is_stream else BufferedPipeline
    return kind(endpoint, fallback=fallback, facts=asked, think=think_mode_for(think, request or {}), text=text)
