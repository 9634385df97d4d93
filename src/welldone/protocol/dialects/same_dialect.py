"""A stream that is mended within its own dialect: its server speaks what its client does.

It is read and written anew, event by event, and never becomes the events of an answer: so whatever only this dialect
can say is carried on. A dialect has one `Native`, which knows its events; what all of them share stands here: frames,
JSON, errors that come in the shape of another dialect, and being strict.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeAlias

import msgspec

from welldone.protocol import catalog, sse
from welldone.protocol.dialects.chat import escape_line_breaks
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Failure, FailureMapper, Json, Usage
from welldone.protocol.fields import bad_stream_failure, incomplete_stream_failure, strict_rule_failure
from welldone.protocol.frame_checks import check_characters, check_lines, recover_data
from welldone.protocol.json_budget import exceeds_blocking_budget, run_to_completion
from welldone.protocol.lenient_json import (
    NOT_JSON,
    describe_unreadable,
    exceeds_lenient_limit,
    malformed_json_rule,
    parse_first_value,
    parse_lenient,
    parse_strict,
    scrub_object,
)
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.text_filters import TextMode, ThinkMode

FrameOutput: TypeAlias = tuple[sse.Frame | None, bytes]
"""A frame that was taken, and what goes out for it. None: for all that is left, or for the end."""


_CONTENTLESS_EVENT_TYPES = ("response.created", "response.queued", "response.in_progress", "message_start", "ping")
"""Events that a server may send while it still reads its prompt."""


class PassthroughRepairer(ABC):
    """Mends one stream. What is not streamed to the client is kept, and given by `body`.

    `fallback` is the envelope for what the server does not say; ids that have to be made are made of its id. `model`
    is the name that the client knows, where the server may say another.
    """

    _UNKNOWN_EVENT_RULE: ClassVar[catalog.Rule]
    """What is wrong with JSON that is no event."""
    _EMPTY_DATA_RULES: ClassVar[tuple[catalog.Rule, ...]] = (catalog.sse.NO_EMPTY_DATA,)
    """What is wrong with an event that has no data."""
    retains_output = True
    """Whether it keeps what was said: then its length must be bounded."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        self.repair_log = RepairLog(endpoint)
        """What was mended."""
        self.failure: Failure | None = None
        """The error that the answer ends with, if it does."""
        self.usage: Usage | None = None
        """What the server counted."""
        self.final_object: Json | None = None
        """The answer as an object, when it has come to its end, in a dialect in which it can be asked for again."""
        self.on_event: Callable[[Json, str], None] | None = None
        """Is told of every event, by its value and its name, before it is mended."""
        self.text_tool_calls = 0
        """Of a stream in its own dialect nothing is known of calls that were written as text."""
        self.invalid_json_count = 0
        self.invalid_arguments_count = 0
        self.has_content = False
        """Whether what was fed last had something of the answer in it, and not only its beginning or a sign of life."""
        self._fallback = fallback
        self._model = model
        self._is_stream = is_stream
        self._decoder = sse.SseDecoder(limit_bytes=limit_bytes)
        self._map_failure: FailureMapper | None = None
        self._is_closed = False

    # What a dialect says.

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the event that ends an answer has come, or a failure: nothing that matters can follow."""

    @property
    @abstractmethod
    def has_started(self) -> bool:
        """Whether something of an answer, or a failure, was heard."""

    @abstractmethod
    def _reply_object(self, failure: Failure | None) -> Json:
        """The whole reply: the answer, or an error in the dialect's shape."""

    @abstractmethod
    def _scrub_event(self, value: Json) -> Json:
        """An object of the stream with whole characters only, but in a text whose next piece may have the rest."""

    @abstractmethod
    def _repair_event(self, value: Json, name: str) -> bytes:
        """What goes out for one JSON object of the stream; `name` is the frame's `event`, perhaps empty."""

    @abstractmethod
    def _repair_reply(self, value: Json) -> bytes:
        """What goes out for a reply that was not streamed: the events that it would have been."""

    @abstractmethod
    def _keep_alive_bytes(self) -> bytes:
        """What goes out for a sign of life; before the answer has begun, a comment (`KEEP_ALIVE`)."""

    @abstractmethod
    def _handle_done(self) -> bytes:
        """What goes out for `[DONE]`, which is of another dialect."""

    @abstractmethod
    def _finish_stream(self) -> bytes:
        """What goes out when the server's stream has ended: all that is still open is closed, if it may be; else the
        answer fails (see `_fail`)."""

    @abstractmethod
    def _error_bytes(self, failure: Failure) -> bytes:
        """What goes out when the answer breaks off; asked once, and nothing follows."""

    def _skip_frames(self, frames: list[sse.Frame]) -> None:  # noqa: B027 - most dialects do not look
        """These came after a failure, and are not read."""

    def body(self) -> bytes:
        """The whole reply, when the stream has ended; an error, if it has failed."""
        return escape_line_breaks(msgspec.json.encode(self._reply_object(self.failure)))

    # What a pipe has: see `Answered`. A native stream has one part.

    def configure(
        self,
        part: int,
        *,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        strict: frozenset[str] = frozenset(),
        map_failure: FailureMapper | None = None,
    ) -> None:
        """How it is mended, before its first byte. Thoughts have events of their own here, and so have whole texts."""
        self.repair_log.strict_rules = strict
        self._map_failure = map_failure

    def is_part_done(self, part: int) -> bool:
        """Whether its end has come."""
        return self.is_done

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole, though the event that ends it has not come."""
        return False

    def is_part_complete(self, part: int) -> bool:
        """Whether the answer is whole, though the event that ends it has not come."""
        return self.is_complete

    def has_part_usage(self, part: int) -> bool:
        """Whether usage came: it comes with the end, or just before it."""
        return self.usage is not None

    def is_part_stopped(self, part: int) -> bool:
        """Stop strings are the server's business."""
        return False

    def has_part_started(self, part: int) -> bool:
        """Whether it has said something, and not only that it is there."""
        return self.has_started or self.failure is not None

    def keep_alive(self) -> bytes:
        """A sign of life, while the server is silent."""
        return self._if_streaming(b"" if self.is_done else self._keep_alive_bytes())

    def record_fast_path(self, events: int) -> None:  # noqa: B027 - most dialects do not count
        """So many events took a shorter way: for a dialect that counts them."""

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send on."""
        self.has_content = False
        return b"".join([said for _, said in self.feed_by_frame(data)])

    def feed_by_frame(self, data: bytes) -> Iterator[FrameOutput]:
        """As `feed`, frame by frame."""
        frames = self._decoder.feed(data)
        if frames and self.repair_log.frame == 0 and self._decoder.has_bom:
            self.repair_log.record(catalog.sse.NO_BOM)
        yield from self._read_frames(frames)
        if self._decoder.overlong_at is not None and self.failure is None:
            self.repair_log.record(catalog.enc.STRICT_JSON)
            yield None, self._if_streaming(self._fail(bad_stream_failure("a frame that is too long")))

    def feed_reply(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send for a reply that was not streamed. Then `close`."""
        return b"".join(self.feed_reply_in_steps(data, part))

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        self.repair_log.frame = 1
        if exceeds_blocking_budget(data):
            yield self._if_streaming(self._fail(bad_stream_failure("a reply that is too complex to be read at once")))
            return
        value, has_tail = run_to_completion(parse_first_value(data))
        if has_tail:
            self.repair_log.record(catalog.ns.NO_SSE_TAIL)
        if isinstance(value, dict):
            out = self._repair_reply(scrub_object(value)) + self._fail_if_strict()
        else:
            out = self._fail(bad_stream_failure("a reply that is no JSON object"))
        yield self._if_streaming(out)

    def close(self, part: int = 0) -> bytes:
        """The bytes to send when the server's stream has ended, however it did."""
        return b"".join([said for _, said in self.close_by_frame()])

    def close_by_frame(self) -> Iterator[FrameOutput]:
        """As `close`, frame by frame."""
        if self._is_closed:
            return
        self._is_closed = True
        yield from self._read_frames(self._decoder.close())
        if self.failure is None:
            yield None, self._if_streaming(self._finish_stream())

    def fail(self, failure: Failure) -> bytes:
        """The bytes to send when the answer breaks off for a reason that the server did not tell."""
        self._is_closed = True
        return self._if_streaming(self._fail(failure, is_ours=True))

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a stream."""
        return dict(sse.HEADERS)

    def encode_failure(self, failure: Failure) -> bytes:
        """The end of a stream of which nothing more can be said."""
        return b""

    # What dialects use.

    def _fail(self, failure: Failure, *, is_ours: bool = False) -> bytes:
        """The answer fails, if it has not ended already."""
        if self.failure is not None or self.is_done:
            return b""
        self.failure = failure if is_ours or self._map_failure is None else self._map_failure(failure)
        return self._error_bytes(self.failure)

    def _fail_incomplete(self, message: str) -> bytes:
        """The server stopped before its answer was whole."""
        return self._fail(incomplete_stream_failure(message), is_ours=True)

    def _fail_if_strict(self) -> bytes:
        rule = self.repair_log.broken_rule
        return b"" if rule is None else self._fail(strict_rule_failure(rule), is_ours=True)

    def _if_streaming(self, out: bytes) -> bytes:
        return out if self._is_stream else b""

    def _read_frames(self, frames: list[sse.Frame]) -> Iterator[FrameOutput]:
        for number, frame in enumerate(frames):
            if self.failure is not None:
                self._skip_frames(frames[number:])
                break
            self.repair_log.frame += 1
            self.repair_log.byte = frame.byte
            yield frame, self._if_streaming(self._repair_frame(frame) + self._fail_if_strict())

    def _repair_frame(self, frame: sse.Frame) -> bytes:
        data = frame.data or b""
        value = parse_strict(data)
        if value is NOT_JSON and exceeds_lenient_limit(data) and not self.is_done:
            # To make sense of it would hold up other streams.
            self.repair_log.record(catalog.enc.STRICT_JSON, f"a frame of {len(data)} bytes")
            return self._fail(bad_stream_failure(f"a frame that is {describe_unreadable(data)}"))
        if frame.raw != sse.named_frame(frame.event, data):  # what else stands in it?
            lines = sse.split_lines(frame.raw)
            if all(line.startswith(b":") for line in lines):
                return self._keep_alive_bytes()
            check_lines(self.repair_log, frame.raw, lines)
            if value is NOT_JSON:
                data = recover_data(lines, [sse.parse_field(line) for line in lines])
                value = parse_strict(data)
        if not data.isascii():
            check_characters(self.repair_log, data)
        if not frame.ended and data:
            self.repair_log.record(catalog.end.LAST_EVENT_TERMINATED)
        if isinstance(value, dict):
            return self._process_event(value, frame.event)
        return self._repair_irregular_data(data, value, frame)

    def _process_event(self, value: Json, name: str) -> bytes:
        if self.on_event is not None:
            self.on_event(value, name)
        if value.get("type", name) not in _CONTENTLESS_EVENT_TYPES:
            self.has_content = True
        return self._repair_event(value, name)

    def _repair_irregular_data(self, data: bytes, value: object, frame: sse.Frame) -> bytes:
        """A frame whose data is no JSON object at first sight."""
        if not data.strip():
            if frame.event or frame.data is not None:
                for fault in self._EMPTY_DATA_RULES:
                    self.repair_log.record(fault, frame.event)
            return self._keep_alive_bytes()
        if data.strip() == b"[DONE]":
            return self._handle_done()
        values = [value]
        if value is NOT_JSON:
            values = parse_lenient(data)
            self.repair_log.record(malformed_json_rule(data, values), data.decode("utf-8", "replace"))
        if not values:
            is_cut = not frame.ended  # inside its last frame; what came before tells whether that matters
            return b"" if is_cut or self.is_done else self._fail(bad_stream_failure("a frame that is no JSON"))
        objects = [self._scrub_event(item) for item in values if isinstance(item, dict)]
        if len(objects) < len(values):
            self.repair_log.record(self._UNKNOWN_EVENT_RULE, data.decode("utf-8", "replace"))
        return b"".join(self._process_event(item, frame.event) for item in objects if self.failure is None)
