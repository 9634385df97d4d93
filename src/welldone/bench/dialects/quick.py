"""A short way for most of an answer: a chunk that differs from one before in its text alone need not be parsed.

What costs the client time is time in which the next chunk waits. All that is not surely such a chunk goes through the
reader; a rule that such chunks break was noted when the first of them was read.
"""

import msgspec

from welldone.wire import sse
from welldone.wire.events import Event, Text
from welldone.wire.lane import Lane, learn
from welldone.wire.reader import Reader
from welldone.wire.repair import Repair

_LESSONS = 4
"""Chunks of which a lane may be learnt: of a server whose chunks differ in more than their text it is of no use."""
_REST_BYTES = 4096  # of a frame that has no end yet: a chunk of one token has some hundred bytes
_BEFORE, _AFTER = b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n'
_PATTERN = _BEFORE + b"text" + _AFTER
"""What a lane makes of a chunk: its text is easily found there."""


class Quick:
    """Knows the texts of chunks, once the reader has read one like them."""

    def __init__(self, reader: Reader, repair: Repair) -> None:
        self._reader = reader
        self._repair = repair
        self._lane: Lane | None = None
        self._lessons = _LESSONS
        self._index = 0  # the choice that the lane is of
        self._is_open = False
        self._rest = b""

    def take(self, data: bytes) -> tuple[list[str], bytes]:
        """The texts of the chunks that may go this way, and what is left for the reader."""
        texts: list[str] = []
        lane = self._lane
        if lane is None or not self._is_open:
            return texts, data
        data = self._rest + data
        self._rest = b""
        start = 0
        while end := data.find(sse.END, start) + 1:
            sent = lane.take(data[start : end + 1])
            if sent is None:
                break
            texts.append(_text(sent))
            start = end + 1
        data = data[start:]
        if not end and len(data) <= _REST_BYTES and b"\n" not in data and b"\r" not in data:
            self._rest, data = data, b""  # the reader would wait for more, too
        else:
            self._leave(lane)
        return texts, data

    def learn(self, frame: bytes, events: list[Event]) -> None:
        """What the reader made of the last frame that it has read: the next ones may be like it."""
        lane = self._lane
        if self._lessons and len(events) == 1 and isinstance(events[0], Text) and not (lane and lane.is_of(frame)):
            if lane is None or not lane.is_of_use:
                self._lessons -= 1
            self._lane = learn(frame, _PATTERN, {})
            self._index = events[0].index
        self._is_open = self._lane is not None and self._reader.is_idle and self._repair.is_flowing(self._index)

    def close(self) -> bytes:
        """What is left for the reader when the stream has ended."""
        rest, self._rest = self._rest, b""
        if self._lane is not None:
            self._leave(self._lane)
        return rest

    def _leave(self, lane: Lane) -> None:
        """Tell reader and repair what they did not see."""
        self._is_open = False
        if lane.frames:
            self._reader.passed(lane.frames, lane.bytes, lane.last_bytes)
            self._repair.passed()
            lane.forget()


def _text(sent: bytes) -> str:
    text = sent[len(_BEFORE) : -len(_AFTER)]
    return msgspec.json.decode(b'"' + text + b'"', type=str) if b"\\" in text else text.decode()
