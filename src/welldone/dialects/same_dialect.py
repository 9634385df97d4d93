"""Pass-through repair: upstream and client use the same dialect.

The stream is repaired event by event and is not converted to the events of `core.events`, so that features of this
dialect survive. `PassthroughRepairer` handles templates of text deltas, foreign JSON and strict mode; a subclass per
dialect handles its events. It has the interface of a `Pipeline` with one part.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeAlias

import msgspec

from welldone.core import lenient_json, sse
from welldone.core.answer_format import escape_line_breaks
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure, FailureMapper, Json, Usage
from welldone.core.fields import bad_stream_failure, broken_rule_failure, incomplete_stream_failure
from welldone.core.frame_reader import FrameReader
from welldone.core.json_budget import exceeds_blocking_budget, run_to_completion
from welldone.core.repair_log import RepairLog, RepairResult, format_json
from welldone.core.request_facts import RepairOptions
from welldone.core.state import PartState
from welldone.core.template import EventTemplate, learn_event, split_around_text

FrameOutput: TypeAlias = tuple[sse.Frame | None, bytes]
"""An upstream frame and the output for it. None for output that belongs to no frame, such as the end."""

_LEARNING_ATTEMPTS = 16  # templates per stream; each part needs one
_CONTENTLESS_EVENT_TYPES = ("response.created", "response.queued", "response.in_progress", "message_start", "ping")
"""Events that a server may send before it generates output."""
_CONTENT = re.compile(
    r'"(?:arguments|args|code|content|delta|functionCall|input|output|partial_json|parts|reasoning\w*|refusal|text'
    r'|thinking|tool_calls)\\*":(?![-\d])'
)
"""A member with content of an answer, of any dialect, also in JSON within a string. A number is a count."""


def has_content(value: object) -> bool:
    """Whether JSON that is no event of the answer may have content: a heartbeat or metrics have none."""
    return _CONTENT.search(format_json(value)) is not None


class PassthroughRepairer(FrameReader[bytes]):
    """Repairs one stream or non-streamed reply. Without `is_stream` the result is collected and returned by `body`.

    `fallback` supplies the envelope fields that the server does not send; generated ids derive from its id. `model`, if
    set, replaces the model name of the server.
    """

    _UNKNOWN_EVENT_RULE: ClassVar[str]
    """Rule violated by JSON that is not an event."""
    _HAS_NUMBERS: ClassVar[bool] = False
    """Whether events have a sequence number."""
    retains_output = True
    """Whether output is buffered: its length must be bounded."""
    headers: Mapping[str, str] = dict(sse.HEADERS)
    """Headers of a stream."""

    def __init__(
        self,
        endpoint: Endpoint,
        fallback: Envelope,
        model: str | None,
        *,
        is_stream: bool,
        repair_log: RepairLog | None = None,
    ) -> None:
        super().__init__(repair_log or RepairLog(endpoint), sse.SseDecoder())
        self.usage: Usage | None = None
        self.final_object: Json | None = None
        """The finished answer, in dialects whose clients can retrieve it later."""
        self.finish_reasons: tuple[str, ...] = ()
        """The finish reasons that were sent, in dialects that have them."""
        self.on_event: Callable[[Json, str], None] | None = None
        """Called with value and name of each upstream event, before repair."""
        self.on_text: Callable[[str], None] | None = None
        """Called with the text of each event that is not parsed, because it is like the event before. If `on_event` is
        set, events are left unparsed only if this is set too."""
        self.invalid_arguments_count: int = 0
        self.has_content: bool = False
        """Whether the last `feed` contained output, not only a start or keep-alive event."""
        self._fallback = fallback
        self._model = model
        self._is_stream = is_stream
        self._next_sequence_number = 0  # of the upstream's events
        self._send_text: Callable[[str], bytes] | None = None  # after a text delta: sends text like it
        self._template: EventTemplate | None = None
        self._text_frame: tuple[sse.Frame | None, str | None] = (
            None,
            None,
        )  # the last that was not decoded
        self._has_begun_frame = False  # the last data ended within a frame
        self._learning_attempts = _LEARNING_ATTEMPTS
        self._map_failure: FailureMapper | None = None
        self._is_closed = False
        self._is_ended = False  # the answer is complete

    # Implemented by each dialect.

    @property
    @abstractmethod
    def has_started(self) -> bool:
        """Whether output or an error was received."""

    @abstractmethod
    def _reply_object(self, failure: Failure | None) -> Json:
        """Return the non-streamed reply: the answer, or an error in the format of the dialect."""

    def text_of(self, event: object) -> object:
        """Return the text of a delta whose like need not be parsed; None for all other events."""

    @abstractmethod
    def _repair_event(self, value: Json, name: str) -> bytes:
        """Return the output for a JSON object; `name` is the `event:` name of its frame, possibly empty."""

    @abstractmethod
    def _repair_reply(self, value: Json) -> bytes:
        """Return the output for a non-streamed reply, converted to events."""

    @abstractmethod
    def _keep_alive_bytes(self) -> bytes:
        """Return a keep-alive; before the start of the answer a comment (`KEEP_ALIVE`)."""

    @abstractmethod
    def _finish_stream(self) -> bytes:
        """Return the output at the end of the upstream stream: close what is open, or fail (see `_fail`)."""

    @abstractmethod
    def _error_bytes(self, failure: Failure) -> bytes:
        """Return the output that ends a failed answer; called once."""

    def _reply_value(self, value: object) -> object:
        """Return a non-streamed reply, which may have another form than an object."""
        return value

    def body(self) -> bytes:
        """Return the non-streamed reply after the end of the stream; an error if it failed."""
        return escape_line_breaks(msgspec.json.encode(self._reply_object(self.failure)))

    # Interface of a pipeline, with one part.

    def configure(self, part: int, options: RepairOptions) -> None:
        """Set how the stream is repaired, before its first byte."""
        self.repair_log.strict_rules = options.strict
        self._map_failure = options.map_failure
        self.unfinished: Failure | None = options.unfinished

    @property
    def is_done(self) -> bool:
        """Whether the terminal event or an error was received."""
        return self._is_ended or self.failure is not None

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete except for its terminal event."""
        return False

    def part_state(self, part: int) -> PartState:
        """Return how far the answer has come. The server applies stop strings."""
        if self.failure is not None:
            return PartState.FAILED
        if self.is_done:
            return PartState.DONE
        if not self.has_started:
            return PartState.WAITING
        if self.is_complete:
            return PartState.FINISHED if self.usage is None else PartState.FINISHED_WITH_USAGE
        return PartState.ANSWERING

    @property
    def result(self) -> RepairResult:
        """What is known of the answer. Text is neither checked for JSON nor for tool calls."""
        invalid = self.invalid_arguments_count
        return RepairResult(self.usage, self.failure, self.repair_log.entries(), invalid_arguments_count=invalid)

    def keep_alive(self) -> bytes:
        """Return a keep-alive while the upstream sends nothing."""
        return self._if_streaming(b"" if self.is_done else self._keep_alive_bytes())

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """Repair upstream bytes; return the bytes to send."""
        if self._send_text is not None and self._template is not None and not self._has_begun_frame:
            text = self._template.read(data, self._next_sequence_number)
            if text is not None:
                byte = self.decoder.offset
                self.decoder.offset = byte + len(data)
                return self._pass_text(text, byte)
        self.has_content = False
        return b"".join([self.feed_frame(frame) for frame in self.decode_frames(data)])

    def feed_by_frame(self, data: bytes) -> Iterator[FrameOutput]:
        """Do the same as `feed`, frame by frame."""
        for frame in self.decode_frames(data):
            yield frame, self.feed_frame(frame)

    def decode_frames(self, data: bytes) -> Iterator[sse.Frame]:
        """Yield the frames that `data` completes. Pass each to `feed_frame` before the next, which may be like it."""
        start = 0
        while start < len(data) and self.decoder.is_idle and (end := data.find(sse.FRAME_END, start) + 2) > 1:
            raw = data[start:end]
            if (text := self._known_text(raw)) is None:
                break
            self._text_frame = frame, _ = sse.Frame(self.decoder.offset, raw, None), text
            self.decoder.offset += len(raw)
            start = end
            yield frame
        if start < len(data):
            yield from super().decode_frames(data[start:])
            self._has_begun_frame = not self.decoder.is_idle

    def feed_frame(self, frame: sse.Frame) -> bytes:
        """Repair a frame; return the bytes to send."""
        known, text = self._text_frame
        text = text if known is frame else self._known_text(frame.raw)
        if text is not None:
            return self._pass_text(text, frame.byte)
        self._send_text = None
        before = self.repair_log.counts()
        out = b"".join(self.read_frame(frame)) + self._fail_if_strict()
        if self._send_text is not None and not self._can_pass_text(frame.raw, before):
            self._send_text = None
        return self._if_streaming(out)

    def _known_text(self, data: bytes) -> str | None:
        """Return the text of an event like the one before."""
        if self._send_text is None or self._template is None:
            return None
        return self._template.read(data, self._next_sequence_number)

    def _pass_text(self, text: str, byte: int) -> bytes:
        """Send the text of an event that was not parsed."""
        assert self._send_text is not None
        self.has_content = True
        self.repair_log.frame += 1
        self.repair_log.byte = byte
        self._next_sequence_number += 1
        if self.on_text is not None:
            self.on_text(text)
        return self._send_text(text)

    def _can_pass_text(self, data: bytes, logged_before: Mapping[str, int]) -> bool:
        """Whether the next event may be like `data`: one right text delta, whose template is known or can be learnt."""
        is_observed = self.on_event is not None and self.on_text is None
        if not self._is_stream or is_observed or self.repair_log.counts() != logged_before:
            return False
        number = self._next_sequence_number - 1
        if self._template is None or self._template.read(data, number) is None:
            if not self._learning_attempts:
                return False
            self._learning_attempts -= 1
            self._template = learn_event(split_around_text(data, self.text_of), number if self._HAS_NUMBERS else None)
        return self._template is not None

    def feed_reply(self, data: bytes, part: int = 0) -> bytes:
        """Repair a non-streamed reply; return the bytes to send. Call `close` next."""
        return b"".join(self.feed_reply_in_steps(data, part))

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """Do the same as `feed_reply`, in steps between which the caller may yield."""
        self.repair_log.frame = 1
        if exceeds_blocking_budget(data):
            yield self._if_streaming(self._fail(bad_stream_failure("a reply that is too complex to parse")))
            return
        value, has_tail = run_to_completion(lenient_json.parse_first_value(data))
        self.repair_log.record_if(has_tail, "ns-no-sse-tail")
        value = self._reply_value(value)
        if isinstance(value, dict):
            out = self._repair_reply(lenient_json.scrub_object(value)) + self._fail_if_strict()
        else:
            out = self._fail(bad_stream_failure("a reply that is not a JSON object"))
        yield self._if_streaming(out)

    def close(self, part: int = 0) -> bytes:
        """Return the bytes to send after the end of the upstream stream."""
        return b"".join([output for _, output in self.close_by_frame()])

    def close_by_frame(self) -> Iterator[FrameOutput]:
        """Do the same as `close`, frame by frame."""
        if self._is_closed:
            return
        self._is_closed = True
        for frame in self.decoder.close():
            yield frame, self.feed_frame(frame)
        if self.failure is None:
            yield None, self._if_streaming(self._finish_stream())

    def fail(self, failure: Failure) -> bytes:
        """End the answer with an error of our own; return the bytes to send."""
        self._is_closed = True
        return self._if_streaming(self._fail(failure, is_ours=True))

    def encode_failure(self, failure: Failure) -> bytes:
        """Return no bytes: `fail` sends the error."""
        return b""

    # Used by the dialects.

    def _leave_out(self, value: object, out: list[bytes] | None = None) -> None:
        """Drop JSON that is no event. `feed_frame` fails if it had content."""
        is_lost = not self.is_done and has_content(value)
        (self.repair_log.drop if is_lost else self.repair_log.record)(self._UNKNOWN_EVENT_RULE, value)

    def _add_finish_reason(self, reason: str) -> None:
        self.finish_reasons += (reason,)

    def _fail(self, failure: Failure, *, is_ours: bool = False) -> bytes:
        if self.failure is not None or self.is_done:
            return b""
        self.failure: Failure | None = failure if is_ours or self._map_failure is None else self._map_failure(failure)
        return self._error_bytes(self.failure)

    def _fail_incomplete(self, message: str) -> bytes:
        return self._fail(incomplete_stream_failure(message), is_ours=True)

    def _fail_if_strict(self) -> bytes:
        failure = broken_rule_failure(self.repair_log)
        return b"" if failure is None else self._fail(failure, is_ours=self.repair_log.lost is None)

    def _if_streaming(self, out: bytes) -> bytes:
        return out if self._is_stream else b""

    def _read_object(self, value: Json, data: bytes, out: list[bytes], event: str = "") -> None:
        if self.on_event is not None:
            self.on_event(value, event)
        if value.get("type", event) not in _CONTENTLESS_EVENT_TYPES:
            self.has_content = True
        out.append(self._repair_event(value, event))

    def _read_empty(self, frame: sse.Frame, out: list[bytes]) -> None:
        self.repair_log.record_if(frame.event or frame.data is not None, "resp-keepalive", frame.event)
        self._add_keep_alive(out)

    def _add_keep_alive(self, out: list[bytes]) -> None:
        out.append(self._keep_alive_bytes())

    def _add_failure(self, failure: Failure, out: list[bytes]) -> None:
        out.append(self._fail(failure))
