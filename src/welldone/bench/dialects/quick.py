"""A short way for most of an answer: a chunk that differs from one before in its text alone need not be parsed.

What costs the client time is time in which the next chunk waits. All that is not surely such a chunk goes through the
reader; a rule that such chunks break was noted when the first of them was read.
"""

import msgspec

from welldone.wire import sse
from welldone.wire.events import Event, Text
from welldone.wire.lane import FastPath, learn_fast_path
from welldone.wire.reader import EventReader
from welldone.wire.repair import EventRepairer

_MAX_CHUNK_LESSONS = 4
"""Chunks of which a lane may be learnt: of a server whose chunks differ in more than their text it is of no use."""
_MAX_PARTIAL_CHUNK_BYTES = 4096  # of a frame that has no end yet: a chunk of one token has some hundred bytes
_TEXT_PREFIX, _TEXT_SUFFIX = b'data: {"choices":[{"delta":{"content":"', b'"}}]}\n\n'
_CHUNK_PATTERN = _TEXT_PREFIX + b"text" + _TEXT_SUFFIX
"""What a lane makes of a chunk: its text is easily found there."""


class ChunkFastPath:
    """Knows the texts of chunks, once the reader has read one like them."""

    def __init__(self, reader: EventReader, repair: EventRepairer) -> None:
        self._reader = reader
        self._repair = repair
        self._fast_path: FastPath | None = None
        self._lessons_left = _MAX_CHUNK_LESSONS
        self._index = 0  # the choice that the lane is of
        self._is_open = False
        self._partial = b""

    def take(self, data: bytes) -> tuple[list[str], bytes]:
        """The texts of the chunks that may go this way, and what is left for the reader."""
        texts: list[str] = []
        lane = self._fast_path
        if lane is None or not self._is_open:
            return texts, data
        data = self._partial + data
        self._partial = b""
        start = 0
        while end := data.find(sse.FRAME_END, start) + 1:
            sent = lane.rewrite(data[start : end + 1])
            if sent is None:
                break
            texts.append(_chunk_text(sent))
            start = end + 1
        data = data[start:]
        if not end and len(data) <= _MAX_PARTIAL_CHUNK_BYTES and b"\n" not in data and b"\r" not in data:
            self._partial, data = data, b""  # the reader would wait for more, too
        else:
            self._sync_reader(lane)
        return texts, data

    def learn(self, frame: bytes, events: list[Event]) -> None:
        """What the reader made of the last frame that it has read: the next ones may be like it."""
        lane = self._fast_path
        if (
            self._lessons_left
            and len(events) == 1
            and isinstance(events[0], Text)
            and not (lane and lane.matches(frame))
        ):
            if lane is None or not lane.is_worthwhile:
                self._lessons_left -= 1
            self._fast_path = learn_fast_path(frame, _CHUNK_PATTERN, {})
            self._index = events[0].index
        self._is_open = (
            self._fast_path is not None and self._reader.is_idle and self._repair.can_use_fast_path(self._index)
        )

    def close(self) -> bytes:
        """What is left for the reader when the stream has ended."""
        rest, self._partial = self._partial, b""
        if self._fast_path is not None:
            self._sync_reader(self._fast_path)
        return rest

    def _sync_reader(self, fast_path: FastPath) -> None:
        """Tell reader and repair what they did not see."""
        self._is_open = False
        if fast_path.frames:
            self._reader.record_fast_path(fast_path.frames, fast_path.bytes, fast_path.last_bytes)
            self._repair.record_fast_path()
            fast_path.reset_counts()


def _chunk_text(sent: bytes) -> str:
    text = sent[len(_TEXT_PREFIX) : -len(_TEXT_SUFFIX)]
    return msgspec.json.decode(b'"' + text + b'"', type=str) if b"\\" in text else text.decode()
