"""A short way for the common case: chunks in the middle of an answer that differ in their text alone.

Such a chunk is known by its first and its last bytes, without being parsed: what stands between them is its text, which
goes out as it came, in a chunk like the one that went out the long way before. All that is not surely so takes the long
way, through reader and repair.
"""

import re
from collections.abc import Mapping

from welldone.wire import sse
from welldone.wire.lenient import strict

_CONTENT = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*)"')
# The inside of a JSON string that means the same in any chunk: no half of a character, and no line break as such.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f\x7f-\xff]|\\["\\nt])+')
_PLAIN_BEYOND_ASCII = re.compile('(?:[^"\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]|\\\\["\\\\nt])+')
_OF_USE = 8
"""Chunks that a lane must take, to be worth its lesson: that costs as much as two."""
_MARK = "\x1atext\x1a"
_MARK_BYTES = b"\\u001atext\\u001a"


class Lane:
    """Where a chunk's text stands in what the server sends, and where it goes in what we send."""

    def __init__(self, first: bytes, last: bytes, before: bytes, after: bytes, faults: Mapping[str, int]) -> None:
        self.faults = faults
        """How often each rule is broken by such a chunk."""
        self.frames = 0
        """How many went this way since they were last asked for."""
        self.bytes = 0
        self.last_bytes = 0
        """Of the last of them."""
        self._taken = 0
        self._first = first
        self._last = last
        self._least = len(first) + len(last)
        self._start = len(first)
        self._stop = -len(last)
        self._before = before
        self._after = after

    @property
    def is_of_use(self) -> bool:
        """Whether it took more than learning it cost."""
        return self._taken + self.frames >= _OF_USE

    def is_of(self, data: bytes) -> bool:
        """Whether a frame is one of these, whatever its text."""
        return data.startswith(self._first) and data.endswith(self._last)

    def forget(self) -> None:
        """What went this way has been told."""
        self._taken += self.frames
        self.frames = self.bytes = 0

    def take(self, data: bytes) -> bytes | None:
        """The chunk to send; None where this is not surely one that goes this way."""
        size = len(data)
        if size <= self._least or not (data.startswith(self._first) and data.endswith(self._last)):
            return None
        text = data[self._start : self._stop]
        if _PLAIN.fullmatch(text) is None and not _is_plain_beyond_ascii(text):
            return None
        self.frames += 1
        self.bytes += size
        self.last_bytes = size
        return self._before + text + self._after


def learn(heard: bytes, sent: bytes, faults: Mapping[str, int]) -> Lane | None:
    """The lane of a frame that said one text, and of the frame that went out for it."""
    came, went = _around(heard), _around(sent)
    return None if came is None or went is None else Lane(*came, *went, faults)


def _around(frame: bytes) -> tuple[bytes, bytes] | None:
    """What stands before and after the text of a chunk."""
    if not sse.is_single(frame):
        return None
    for found in _CONTENT.finditer(frame):
        before, after = frame[: found.start(1)], frame[found.end(1) :]
        if _text((before + _MARK_BYTES + after)[len(sse.DATA) : -len(sse.END)]) == _MARK:
            return before, after
    return None


def _text(chunk: bytes) -> object:
    """The text of a chunk with one choice, if it has one."""
    match strict(chunk):
        case {"choices": [{"delta": {"content": text}}]}:
            return text
        case _:
            return None


def _is_plain_beyond_ascii(text: bytes) -> bool:
    if text.isascii():
        return False
    try:
        return _PLAIN_BEYOND_ASCII.fullmatch(text.decode()) is not None
    except UnicodeDecodeError:
        return False
