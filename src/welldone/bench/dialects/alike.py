"""A short way for most of an answer: an event that differs from the one before in its text alone, and in the number
that counts it, need not be parsed.

Several such events say what one with all their texts would: the mender, which notes broken rules, hears that one.
"""

import re
from typing import Any, TypeAlias

import msgspec

from welldone.wire import sse
from welldone.wire.lenient import parse_strict

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
