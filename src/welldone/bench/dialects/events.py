"""Hears streams of named events: what they say is written down as it comes, and the dialect's own mender notes which
rules they break. What it would say instead nobody hears."""

import re
from abc import abstractmethod
from typing import Any, NamedTuple, TypeAlias

import msgspec

from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, StreamTimer
from welldone.bench.record import BenchRecord
from welldone.protocol import sse
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.lenient_json import parse_strict

# A short way for most of an answer: an event that differs from the one before in its text alone, and in the number
# that counts it, need not be parsed.
#
# Several such events say what one with all their texts would: the mender, which notes broken rules, hears that one.


Json: TypeAlias = dict[str, Any]
FieldPath: TypeAlias = tuple[str, ...]
"""The names of the members that lead to a text."""

_MAX_EVENT_BYTES = 4096  # bytes of an event that goes this way: one of a token has some hundred
_SEQUENCE_FIELD = "sequence_number"
_SEQUENCE_PATTERN = re.compile(rb'"sequence_number": ?(\d{1,15})')  # no stream has more events
_STRING_PATTERN = rb'": ?"((?:[^"\\]|\\.)*)"'
_VIOLATING_CHARACTERS = re.compile("[\x85\u2028\u2029\ufffd]")  # characters that break a rule: the mender notes each
_PROBE_TEXT = "a mark"
_decode_string = msgspec.json.Decoder(str).decode


class EventTemplate:
    """Events of one form, one after the other."""

    def __init__(self, parts: tuple[bytes, bytes, bytes], number: int | None, *, is_number_first: bool) -> None:
        self.matched = 0
        """How many took this way."""
        self._parts = parts  # what stands before, between and after the number and the text
        self._number = number  # of the next event; None where they are not counted
        self._is_number_first = is_number_first

    def take(self, data: bytes) -> tuple[list[str], bytes]:
        """The texts of the events that `data` begins with, as far as they are surely of this form; and the rest."""
        texts: list[str] = []
        start = 0
        while end := data.find(sse.FRAME_END, start) + 1:
            end += 1
            before, after = self._surroundings(self._number)
            is_alike = data.startswith(before, start) and data.endswith(after, start, end)
            if not is_alike or end - start > _MAX_EVENT_BYTES:
                break
            try:
                text = _decode_string(b'"%b"' % data[start + len(before) : end - len(after)])
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
        """Whether an event that took the long way is of this form; those that come next are then counted from it."""
        number = value.get(_SEQUENCE_FIELD) if self._number is not None else None
        before, after = self._surroundings(number)
        if not (frame.startswith(before) and frame.endswith(after)):
            return False
        self._number = None if number is None else number + 1
        return True

    def merged_event(self, texts: list[str]) -> bytes:
        """One event for the last that were taken: the number of the first of them, and all their texts."""
        return self.event("".join(texts), None if self._number is None else self._number - len(texts))

    def event(self, text: str, number: int | None) -> bytes:
        """An event of this form."""
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
    """The form of the event that a frame has, whose text is at `path` in its value; None where that is not sure."""
    number = value.get(_SEQUENCE_FIELD)
    is_counted = type(number) is int
    counted = _SEQUENCE_PATTERN.search(frame) if is_counted else None
    if len(frame) > _MAX_EVENT_BYTES or (is_counted and counted is None):
        return None
    for found in re.finditer(b'"' + path[-1].encode() + _STRING_PATTERN, frame):
        alike = _build_template(frame, found.span(1), counted.span(1) if counted else None, number)
        same = _with_text(value, path, _PROBE_TEXT) | ({_SEQUENCE_FIELD: 1} if is_counted else {})
        if _decode_event(alike.event(_PROBE_TEXT, 1 if is_counted else None)) == same:
            return alike
    return None


def _build_template(frame: bytes, text: tuple[int, int], counted: tuple[int, int] | None, number: Any) -> EventTemplate:  # noqa: ANN401
    if counted is None:
        return EventTemplate((frame[: text[0]], b"", frame[text[1] :]), None, is_number_first=False)
    first, second = sorted((text, counted))
    parts = frame[: first[0]], frame[first[1] : second[0]], frame[second[1] :]
    return EventTemplate(parts, number + 1, is_number_first=first is counted)


def _with_text(value: Json, path: FieldPath, text: str) -> Json:
    """The same value with another text."""
    name, *rest = path
    return value | {name: _with_text(value[name], tuple(rest), text) if rest else text}


def _decode_event(frame: bytes) -> object:
    frames = sse.SseDecoder().feed(frame)
    return parse_strict(frames[0].data) if len(frames) == 1 and frames[0].data is not None else None


_MAX_EVENT_LESSONS = 4
"""Events whose form may be learnt: of a server whose events differ in more than their text it is of no use."""
_MIN_TEMPLATE_MATCHES = 8
"""Events that a form must take, to be worth its lesson: that costs as much as a few."""
_MAX_PARTIAL_EVENT_BYTES = 4096  # of an event that has no end yet: one of a token has some hundred
_MAX_PENDING_TEXTS = 1024
"""Texts that the mender hears of at once: few enough for one frame, and so many that each costs next to nothing."""


class DeltaTarget(NamedTuple):
    """What an event was that only says more of a text."""

    path: FieldPath
    """Where in its value the text is."""
    sink: list[str]
    """Where it was written down."""


class EventStreamTimer(StreamTimer):
    """Hears one stream of a dialect that has a mender of its own."""

    def __init__(self, record: BenchRecord) -> None:
        super().__init__(record)
        self._repairer = self._make_repairer()
        self._repairer.on_event = self._on_repairer_event
        self._now = 0.0
        self._is_replaying = False  # what the mender hears now is written down already
        self._is_cut = False
        self._last_delta: tuple[Json, DeltaTarget] | None = None  # the last event, where it only says more of a text
        self._partial = b""  # the beginning of an event
        self._has_carriage_returns = False  # lines may end in other ways
        self._template: EventTemplate | None = None
        self._may_match = False  # whether the next event may be like the last
        self._pending_texts: list[str] = []  # that took the short way, and the mender has not heard yet
        self._sink = self.texts  # where they belong
        self._lessons_left = _MAX_EVENT_LESSONS

    # What a dialect says.

    @abstractmethod
    def _make_repairer(self) -> PassthroughRepairer:
        """Its mender."""

    @abstractmethod
    def _record_event(self, value: Json, kind: str, now: float) -> DeltaTarget | None:
        """Write down what an event says, and whether others may be like it."""

    # What the listener asks.

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
        """The events that have come whole: the mender would wait for more, too. It gets long ones as they come, and
        those that may end otherwise."""
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
        """See whether the answer has come to its end."""
        native = self._repairer
        if native.failure is not None:
            if not self._is_cut:
                self._on_failure(native.failure.message)
        elif native.is_done and native.usage is not None:  # counts that come sooner are not those of the whole answer
            self._on_usage(native.usage)

    def _on_repairer_event(self, value: Json, name: str) -> None:
        if not (self._is_replaying or self._repairer.is_done):
            kind = value.get("type")
            more = self._record_event(value, kind if isinstance(kind, str) else name, self._now)
            self._last_delta = None if more is None else (value, more)

    # The short way.

    def _take_fast_path(self, template: EventTemplate, data: bytes, now: float) -> bytes:
        """Write down the texts of events like the last one; what is left for the mender."""
        texts, data = template.take(data)
        self._sink += texts
        self._pending_texts += texts
        self._record.times.extend([now] * len(texts))
        if data or len(self._pending_texts) >= _MAX_PENDING_TEXTS:
            self._sync_repairer()
            self._may_match = not data
        return data

    def _sync_repairer(self) -> None:
        """Tell the mender what it did not hear."""
        self._may_match = False
        if self._template is not None and self._pending_texts:
            self._is_replaying = True
            self._repairer.feed(self._template.merged_event(self._pending_texts))
            self._is_replaying = False
            self._repairer.record_fast_path(len(self._pending_texts) - 1)
            self._pending_texts = []

    def _learn(self, data: bytes) -> None:
        """The next event may be like the last one."""
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
