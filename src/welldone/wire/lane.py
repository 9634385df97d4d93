"""A short way for the common case: chunks in the middle of an answer that differ in their text alone.

Such a chunk is known by its first and its last bytes, without being parsed: what stands between them is its text, which
goes out as it came, in a chunk like the one that went out the long way before. All that is not surely so takes the long
way, through reader and repair.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from welldone.wire import sse
from welldone.wire.lenient import strict

_CONTENT = re.compile(rb'"content": ?"((?:[^"\\]|\\.)*)"')
# The inside of a JSON string that means the same in any chunk: no half of a character, and no line break as such.
_PLAIN = re.compile(rb'(?:[^"\\\x00-\x1f\x7f-\xff]|\\["\\nt])+')
_PLAIN_BEYOND_ASCII = re.compile('(?:[^"\\\\\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]|\\\\["\\\\nt])+')
_LETTERS = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')  # what stands for itself in a JSON string
_KEPT_LENGTH = 32  # letters: a token has fewer; longer texts are rare, and each length that is kept costs memory
_OF_USE = 8
"""Chunks that a lane must take, to be worth its lesson: that costs as much as two."""
_LONGEST = 4096
"""Bytes of a chunk that a lane is learnt of, since each text in it is tried: a chunk of one token has some hundred."""
_MARK = "\x1atext\x1a"
_MARK_BYTES = b"\\u001atext\\u001a"


Around: TypeAlias = tuple[bytes, bytes]
"""What stands before something, and after it."""


class Framing(NamedTuple):
    """What stands around frames on their way to us, and from us: they may travel in chunks of a protocol below."""

    came: Callable[[bytes], Around | None]
    """Around the frame in what came; None where there is not just one frame."""
    goes: Callable[[int], Around]
    """Around a frame of so many bytes that goes out."""


BARE = Framing(lambda data: (b"", b""), lambda size: (b"", b""))


class _Place(NamedTuple):
    """All that is to know of what came with one length."""

    first: bytes
    last: bytes
    start: int
    stop: int
    before: bytes
    after: bytes
    frame_bytes: int


class Lane:
    """Where a chunk's text stands in what the server sends, and where it goes in what we send."""

    def __init__(self, came: Around, goes: Around, faults: Mapping[str, int], framing: Framing) -> None:
        self.faults = faults
        """How often each rule is broken by such a chunk."""
        self.frames = 0
        """How many went this way since they were last asked for."""
        self.bytes = 0
        self.last_bytes = 0
        """Of the last of them."""
        self._taken = 0
        self._first, self._last = came
        self._before, self._after = goes
        self._framing = framing
        self._places: dict[int, _Place] = {}  # by the length of what came

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
        """The bytes to send; None where this is not surely a chunk that goes this way."""
        place = self._places.get(len(data)) or self._find_place(data)
        if place is None:
            return None
        first, last, start, stop, before, after, size = place
        if not (data.startswith(first) and data.endswith(last)):
            return None
        text = data[start:stop]
        if text.translate(None, _LETTERS) and not _is_plain(text):
            return None
        self.frames += 1
        self.bytes += size
        self.last_bytes = size
        return before + text + after

    def _find_place(self, data: bytes) -> _Place | None:
        around = self._framing.came(data)
        if around is None:
            return None
        first, last = around[0] + self._first, self._last + around[1]
        length = len(data) - len(first) - len(last)
        if length <= 0:
            return None
        before, after = self._framing.goes(len(self._before) + length + len(self._after))
        size = len(data) - len(around[0]) - len(around[1])
        place = _Place(first, last, len(first), -len(last), before + self._before, self._after + after, size)
        if length <= _KEPT_LENGTH:
            self._places[len(data)] = place
        return place


def learn(heard: bytes, sent: bytes, faults: Mapping[str, int], framing: Framing = BARE) -> Lane | None:
    """The lane of a frame that said one text, and of the frame that went out for it."""
    came, goes = _around(heard), _around(sent)
    return None if came is None or goes is None else Lane(came, goes, faults, framing)


def _around(frame: bytes) -> Around | None:
    """What stands before and after the text of a chunk, if nothing is odd about the text itself."""
    if len(frame) > _LONGEST or not sse.is_single(frame):
        return None
    for found in _CONTENT.finditer(frame):
        before, after = frame[: found.start(1)], frame[found.end(1) :]
        if _is_plain(found[1]) and _text((before + _MARK_BYTES + after)[len(sse.DATA) : -len(sse.END)]) == _MARK:
            return before, after
    return None


def _text(chunk: bytes) -> object:
    """The text of a chunk with one choice, if it has one."""
    match strict(chunk):
        case {"choices": [{"delta": {"content": text}}]}:
            return text
        case _:
            return None


def _is_plain(text: bytes) -> bool:
    """Whether the text means the same in any chunk, though it has escapes or is not ASCII."""
    if text.isascii():
        return _PLAIN.fullmatch(text) is not None
    try:
        return _PLAIN_BEYOND_ASCII.fullmatch(text.decode()) is not None
    except UnicodeDecodeError:
        return False
