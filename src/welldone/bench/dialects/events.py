"""Timer for streams of named events. The repairer of the dialect is used only to detect broken rules."""

import re
from abc import abstractmethod
from typing import Any, NamedTuple, TypeAlias

import msgspec

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, StreamTimer
from welldone.bench.record import BenchRecord
from welldone.protocol import sse
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.lenient_json import decode_text, parse_strict

# Fast path for most of an answer: an event that differs from the one before only in its text and its sequence number
# is not parsed.
#
# Several such events are passed to the repairer, which detects broken rules, as one event with all their texts.


Json: TypeAlias = dict[str, Any]
FieldPath: TypeAlias = tuple[str, ...]
"""Field names that lead to a text."""

_MAX_EVENT_BYTES = 4096  # of an event on the fast path: one of a token has some hundred bytes
_SEQUENCE_FIELD = "sequence_number"
_SEQUENCE_PATTERN = re.compile(rb'"sequence_number": ?(\d{1,15})')  # streams have fewer events
_STRING_PATTERN = rb'": ?"((?:[^"\\]|\\.)*)"'
_VIOLATING_CHARACTERS = re.compile("[\x85\u2028\u2029\ufffd]")  # break a rule: the repairer must see each of them
_PROBE_TEXT = "a mark"


class EventTemplate:
    """Template of consecutive events of one form."""

    def __init__(self, parts: tuple[bytes, bytes, bytes], number: int | None, *, is_number_first: bool) -> None:
        self.matched: int = 0
        """The number of events that matched."""
        self._parts = parts  # before, between and after the number and the text
        self._number = number  # of the next event; None without sequence numbers
        self._is_number_first = is_number_first

    def take(self, data: bytes) -> tuple[list[str], bytes]:
        """Return the texts of the events at the start of `data` that certainly match, and the rest."""
        texts: list[str] = []
        start = 0
        while end := data.find(sse.FRAME_END, start) + 1:
            end += 1
            before, after = self._surroundings(self._number)
            is_alike = data.startswith(before, start) and data.endswith(after, start, end)
            if not is_alike or end - start > _MAX_EVENT_BYTES:
                break
            try:
                text = decode_text(data[start + len(before) : end - len(after)])
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
            if not text or (not text.isascii() and _VIOLATING_CHARACTERS.search(text)):
                break
            texts.append(text)
            start = end
            if self._number is not None:
                self._number += 1
        self.matched += len(texts)
        return texts, data[start:]

    def resync(self, frame: bytes, value: Json) -> bool:
        """Whether an event that was parsed matches; if so, continue with its sequence number."""
        number = value.get(_SEQUENCE_FIELD) if self._number is not None else None
        before, after = self._surroundings(number)
        if not (frame.startswith(before) and frame.endswith(after)):
            return False
        self._number = None if number is None else number + 1
        return True

    def merged_event(self, texts: list[str]) -> bytes:
        """Return one event for the last events taken: the number of the first of them, and all their texts."""
        return self.event("".join(texts), None if self._number is None else self._number - len(texts))

    def event(self, text: str, number: int | None) -> bytes:
        """Return an event of this form."""
        before, after = self._surroundings(number)
        return before + msgspec.json.encode(text)[1:-1] + after

    def _surroundings(self, number: int | None) -> tuple[bytes, bytes]:
        first, middle, last = self._parts
        if number is None:
            return first, last
        if self._is_number_first:
            return b"%b%d%b" % (first, number, middle), last
        return first, b"%b%d%b" % (middle, number, last)


def learn_event_template(frame: bytes, value: Json, path: FieldPath) -> EventTemplate | None:
    """Return the template of an event whose text is at `path` in its value; None if it is ambiguous."""
    number = value.get(_SEQUENCE_FIELD)
    is_counted = type(number) is int
    counted = _SEQUENCE_PATTERN.search(frame) if is_counted else None
    if len(frame) > _MAX_EVENT_BYTES or (is_counted and counted is None):
        return None
    for match in re.finditer(b'"' + path[-1].encode() + _STRING_PATTERN, frame):
        template = _build_template(frame, match.span(1), counted.span(1) if counted else None, number)
        same = _with_text(value, path, _PROBE_TEXT) | ({_SEQUENCE_FIELD: 1} if is_counted else {})
        frames = sse.SseDecoder().feed(template.event(_PROBE_TEXT, 1 if is_counted else None))
        if [parse_strict(probe.data or b"") for probe in frames] == [same]:
            return template
    return None


def _build_template(frame: bytes, text: tuple[int, int], counted: tuple[int, int] | None, number: Any) -> EventTemplate:  # noqa: ANN401
    if counted is None:
        return EventTemplate((frame[: text[0]], b"", frame[text[1] :]), None, is_number_first=False)
    first, second = sorted((text, counted))
    parts = frame[: first[0]], frame[first[1] : second[0]], frame[second[1] :]
    return EventTemplate(parts, number + 1, is_number_first=first is counted)


def _with_text(value: Json, path: FieldPath, text: str) -> Json:
    """Return the value with another text."""
    name, *rest = path
    return value | {name: _with_text(value[name], tuple(rest), text) if rest else text}


_MAX_EVENT_LESSONS = 4
"""Attempts to learn a template; for servers whose events differ in more than their text the fast path is useless."""
_MIN_TEMPLATE_MATCHES = 8
"""Events that a template must match to be worth its cost, which is that of parsing a few events."""
_MAX_PARTIAL_EVENT_BYTES = 4096  # of an incomplete event: one of a token has some hundred bytes
_MAX_PENDING_TEXTS = 1024
"""Texts passed to the repairer at once: few enough for one frame, and enough to make the cost per text negligible."""


class DeltaTarget(NamedTuple):
    """Position of the text of a delta event, and where it is recorded."""

    path: FieldPath
    """Path of the text in the event."""
    sink: list[str]
    """List that the text was added to."""


class EventStreamTimer(StreamTimer):
    """Times a stream of a dialect with a pass-through repairer."""

    def __init__(self, record: BenchRecord, repairer: PassthroughRepairer) -> None:
        super().__init__(record)
        self._repairer = repairer
        self._repairer.on_event = self._on_repairer_event
        self._now = 0.0
        self._is_replaying = False  # the repairer receives events that are recorded already
        self._is_cut = False
        self._last_delta: tuple[Json, DeltaTarget] | None = None  # the last event, if it is a delta
        self._partial = b""  # an incomplete event
        self._has_carriage_returns = False  # then the events are not split here
        self._template: EventTemplate | None = None
        self._may_match = False  # whether the next event may match the template
        self._pending_texts: list[str] = []  # from the fast path, not yet passed to the repairer
        self._sink = self.texts  # the list for these texts
        self._lessons_left = _MAX_EVENT_LESSONS

    # For the dialects.

    @abstractmethod
    def _record_event(self, value: Json, kind: str, now: float) -> DeltaTarget | None:
        """Record an event; return its target if it is a delta that may match a template."""

    @property
    def is_done(self) -> bool:
        return self._repairer.is_done and self._repairer.failure is None

    @property
    def truncation(self) -> str:
        failure = self._repairer.failure
        return failure.message[:MAX_MESSAGE_CHARS] if self._is_cut and failure is not None else ""

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(self._repairer.repair_log.counts())

    def feed(self, data: bytes, now: float) -> None:
        data = self._complete_events(data)
        if self._template is not None and self._may_match:
            data = self._take_fast_path(self._template, data, now)
        if data:
            self._now, self._last_delta = now, None
            self._repairer.feed(data)
            self._check_end()
            self._learn(data)

    def _complete_events(self, data: bytes) -> bytes:
        """Return the complete events: the repairer would wait for more as well. Long events, and those with carriage
        returns, are passed on as they arrive."""
        data = self._partial + data
        end = data.rfind(sse.FRAME_END) + len(sse.FRAME_END)
        self._has_carriage_returns = self._has_carriage_returns or b"\r" in data
        if self._has_carriage_returns or len(data) - end > _MAX_PARTIAL_EVENT_BYTES:
            end = len(data)
        elif end < len(sse.FRAME_END):
            end = 0
        self._partial = data[end:]
        return data[:end]

    def close(self, now: float) -> None:
        self._now = now
        self._sync_repairer()
        self._repairer.feed(self._partial)
        had_failed = self._repairer.failure is not None
        self._repairer.close()
        self._is_cut = not had_failed and self._repairer.failure is not None
        self._check_end()

    def _check_end(self) -> None:
        """Check whether the answer is complete."""
        native = self._repairer
        if native.failure is not None:
            if not self._is_cut:
                self._on_failure(native.failure.message)
        elif native.is_done and native.usage is not None:  # earlier counts do not cover the whole answer
            self._on_usage(native.usage)

    def _on_repairer_event(self, value: Json, name: str) -> None:
        if not (self._is_replaying or self._repairer.is_done):
            kind = value.get("type")
            more = self._record_event(value, kind if isinstance(kind, str) else name, self._now)
            self._last_delta = None if more is None else (value, more)

    def _take_fast_path(self, template: EventTemplate, data: bytes, now: float) -> bytes:
        """Record the texts of events that match the template; return the bytes that are left for the repairer."""
        texts, data = template.take(data)
        self._sink += texts
        self._pending_texts += texts
        self._record.times.extend([now] * len(texts))
        if data or len(self._pending_texts) >= _MAX_PENDING_TEXTS:
            self._sync_repairer()
            self._may_match = not data
        return data

    def _sync_repairer(self) -> None:
        """Pass the texts of the fast path to the repairer."""
        self._may_match = False
        if self._template is not None and self._pending_texts:
            self._is_replaying = True
            self._repairer.feed(self._template.merged_event(self._pending_texts))
            self._is_replaying = False
            self._repairer.record_fast_path(len(self._pending_texts) - 1)
            self._pending_texts = []

    def _learn(self, data: bytes) -> None:
        """Learn a template from the last event."""
        if self._last_delta is None or not data.endswith(sse.FRAME_END):
            return
        value, more = self._last_delta
        before = data.rfind(sse.FRAME_END, 0, -len(sse.FRAME_END))
        frame = data if before < 0 else data[before + len(sse.FRAME_END) :]
        if self._template is None or not self._template.resync(frame, value):
            if not self._lessons_left:
                return
            if self._template is None or self._template.matched < _MIN_TEMPLATE_MATCHES:
                self._lessons_left -= 1
            self._template, self._sink = learn_event_template(frame, value, more.path), more.sink
        self._may_match = self._template is not None
