"""Server-sent events: incremental frame decoder and frame encoder.

Chunk boundaries of the transport never matter: however the bytes are split over calls of `feed`, the frames are the
same, and no byte is searched twice. Format: https://html.spec.whatwg.org/multipage/server-sent-events.html.
"""

import re
from collections.abc import Iterator

import msgspec

FRAME_LIMIT_BYTES = 6 * 1024 * 1024
"""Longest accepted frame. Real chunks stay under 1 MB; 6 MB leaves room for audio and images in one delta. Text costs
6 ns per byte, so longer frames would block other streams (see `json_budget`). An eager decoder accepts half of that for
a frame that is more than one plain data line, since it reads each line several times."""

FRAME_LINES_LIMIT = 10_000
"""Most lines of one frame; each takes 3 us."""
_WINDOW_BYTES = 64 * 1024

UNBUFFERED_HEADERS = (
    # Caches do not store the stream; proxies do not transform or buffer it (nginx reads X-Accel-Buffering).
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
"""Response headers of a stream in any format."""

HEADERS = (("Content-Type", "text/event-stream; charset=utf-8"), *UNBUFFERED_HEADERS)
"""Response headers of an event stream."""

BOM = b"\xef\xbb\xbf"
DATA_PREFIX = b"data: "
FRAME_END = b"\n\n"

# "Lines must be separated by either a U+000D CARRIAGE RETURN U+000A LINE FEED (CRLF) character pair, a single
# U+000A LINE FEED (LF) character, or a single U+000D CARRIAGE RETURN (CR) character."
_BLANK_LINE = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)")
_LINE_BREAK = re.compile(rb"\r\n|\r|\n")
_NO_BREAK = re.compile(rb"[^\r\n]")
_NEW_DATA = re.compile(rb"(?>\r\n|\r|\n)(?=data:|\{)")
_HAS_DATA = re.compile(rb"(?<![^\r\n])(?:data:|\{)")
_LOOK_AHEAD = 8  # bytes after a frame that may be needed to detect its end
_COLON = ord(":")
_CR = ord("\r")


class Frame(msgspec.Struct, frozen=True):
    """One SSE message: the lines up to a blank line."""

    byte: int
    """Offset of the first byte in the stream."""
    raw: bytes
    """The bytes as received, with the line breaks that end the frame."""
    data: bytes | None
    """The `data` lines, joined by LF; None if there are none."""
    event: str = ""
    ended: bool = True
    """Whether the blank line was received: False at the end of a truncated stream, and for a piece of a frame."""
    is_overlong: bool = False
    """Whether the frame exceeds the limit: it has no bytes, and is the last one."""


class SseDecoder:
    """Incremental decoder from bytes to frames.

    An `eager` decoder also ends a frame where the next line starts a new `data:` field or a bare `{`, and returns a
    leading comment as a frame of its own. Servers that omit the blank line are then read without delay. Each piece of
    such a frame except the last has `ended` False.
    """

    def __init__(self, *, eager: bool = False, limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self._overlong_at: int | None = None  # offset of the frame that exceeds the limit
        self.cut_frame: Frame | None = None
        """The last frame, if the stream ended without its blank line."""
        self.has_bom: bool = False
        self.offset: int = 0
        """Offset of the next byte to decode. The fast path adds the bytes that it handled."""
        self.limit_bytes: int = limit_bytes
        """Longest accepted frame."""
        self._eager = eager
        self._buffer = bytearray()
        self._searched = 0  # no blank line starts before this position in the buffer
        self._split_searched = 0  # eager decoder: no new data line starts before this position
        self._has_cr = False
        self._started = False

    @property
    def is_idle(self) -> bool:
        """Whether no bytes are buffered."""
        return self._started and not (self._buffer or self._has_cr or self._overlong_at is not None)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes."""
        if self._overlong_at is not None:
            return []
        frames: list[Frame] = []
        if not self._buffer and not self._has_cr and b"\r" not in data:
            # Common case: frames of one data line and its blank line.
            start = 0
            while data.startswith(DATA_PREFIX, start):
                end = data.find(b"\n", start) + 2
                if not data.startswith(b"\n", end - 1) or end - start > self.limit_bytes:
                    break
                frames.append(Frame(self.offset, data[start:end], data[start + 6 : end - 2]))
                self.offset += end - start
                start = end
            if frames:
                self._started = True
                if start == len(data):
                    return frames
                data = data[start:]
        self._buffer += data
        if not self._has_cr and b"\r" in data:
            self._has_cr = True
        if not self._started and not self._start():
            return []
        return frames + self._take_frames(closing=False)

    def close(self) -> list[Frame]:
        """Return the remaining frames at the end of the stream; the last one may not be `ended`."""
        return self._take_frames(closing=True) if self._buffer and self._overlong_at is None else []

    def _start(self) -> bool:
        """Skip a byte order mark; False while the first bytes may still become one."""
        if len(self._buffer) < len(BOM) and BOM.startswith(self._buffer):
            return False
        self._started = True
        # "One leading U+FEFF BYTE ORDER MARK character must be ignored if any are present."
        if self._buffer.startswith(BOM):
            self.has_bom = True
            self._consume(len(BOM))
        return True

    def _take_frames(self, *, closing: bool) -> list[Frame]:
        buffer = self._buffer
        frames: list[Frame] = []
        start = 0
        while True:
            start = self._skip_line_breaks(start)
            if self._eager and start < len(buffer) and buffer[start] == _COLON:
                end, is_ended = self._comment_end(start, closing=closing), False
                if start < end <= start + self.limit_bytes // 2 and self._overlong_at is None:
                    frames.append(Frame(self.offset + start, bytes(buffer[start:end]), None, "", ended=False))
                    start = end
                    continue
            else:
                end, is_ended = self._blank_line_end(start, closing=closing), True
            if end < 0:
                break
            frames += self._make_frames(start, end, ended=is_ended)
            start = end
        if self._eager:
            start = self._split_pending(start, frames)
        if closing and start < len(buffer):
            frames += self._make_frames(start, len(buffer), ended=False)
            start = len(buffer)
        if closing and frames and not frames[-1].ended:
            self.cut_frame = frames[-1]
        if self._overlong_at is None and len(buffer) - start > self.limit_bytes + _LOOK_AHEAD:
            self._overlong_at = self.offset + start
        if self._overlong_at is not None:
            frames.append(Frame(self._overlong_at, b"", None, ended=False, is_overlong=True))
            start = len(buffer)
        self._consume(start)
        return frames

    def _skip_line_breaks(self, start: int) -> int:
        """Position of the next byte that is not a line break."""
        buffer = self._buffer
        if start < len(buffer) and buffer[start] in b"\r\n":
            match = _NO_BREAK.search(buffer, start)
            start = match.start() if match else len(buffer)
        self._searched = max(self._searched, start)
        self._split_searched = max(self._split_searched, start)
        return start

    def _blank_line_end(self, start: int, *, closing: bool) -> int:
        """End of the frame at `start`, or -1 while its blank line is missing."""
        buffer = self._buffer
        if not self._has_cr:
            position = buffer.find(FRAME_END, self._searched)
            if position >= 0:
                self._searched = position + 2
                return position + 2
            self._searched = max(start, len(buffer) - 1)
            return -1
        match = _BLANK_LINE.search(buffer, self._searched)
        # A CR at the end of the buffer may be the first half of a CRLF, whose LF belongs to this frame.
        if match and (closing or match.end() < len(buffer) or buffer[-1] != _CR):
            self._searched = match.end()
            return match.end()
        self._searched = max(start, match.start() if match else len(buffer) - 3)
        return -1

    def _comment_end(self, start: int, *, closing: bool) -> int:
        """End of the comment line at `start`, or -1 while it is incomplete."""
        buffer = self._buffer
        match = _LINE_BREAK.search(buffer, max(start, self._split_searched - 1))
        if match and (closing or match.end() < len(buffer) or buffer[-1] != _CR):
            self._searched = self._split_searched = match.end()
            return match.end()
        self._split_searched = max(start, match.start() if match else len(buffer))
        return -1

    def _split_pending(self, start: int, frames: list[Frame]) -> int:
        """Add the complete data fields of an unfinished frame to `frames`; return the start of the rest."""
        buffer = self._buffer
        while match := _NEW_DATA.search(buffer, max(start, self._split_searched)):
            end = match.end()
            self._split_searched = end
            if _HAS_DATA.search(buffer, start, end):
                frames += self._make_frames(start, end, ended=False)
                start = end
                self._searched = max(self._searched, start)
        # A line break and "data:" are at most 7 bytes: one may have started in the last 6.
        self._split_searched = max(start, len(buffer) - 6)
        return start

    def _make_frames(self, start: int, end: int, *, ended: bool) -> list[Frame]:
        """Frames between two positions, up to the first one that is too long."""
        if self._overlong_at is not None:
            return []
        with memoryview(self._buffer) as buffer:
            raw = bytes(buffer[start:end])
        byte = self.offset + start
        has_cr = self._has_cr and b"\r" in raw
        if ended and not has_cr and raw.startswith(DATA_PREFIX) and raw.find(b"\n") == len(raw) - 2:
            if len(raw) > self.limit_bytes:
                self._overlong_at = byte
                return []
            return [Frame(byte, raw, raw[6:-2])]
        most_bytes = self.limit_bytes // 2 if self._eager else self.limit_bytes
        frames: list[Frame] = []
        lines: list[bytes] = []
        size = 0
        has_data = False
        for line in _iter_lines(raw):
            is_data = self._eager and line.startswith((b"data:", b"{"))
            if is_data and has_data:
                frames.append(_parse_frame(byte, lines, ended=False))
                byte += len(frames[-1].raw)
                lines.clear()
                size = 0
            has_data = has_data or is_data
            lines.append(line)
            size += len(line)
            if len(lines) > FRAME_LINES_LIMIT or size > most_bytes:
                self._overlong_at = byte
                return frames
        frames.append(_parse_frame(byte, lines, ended=ended))
        return frames

    def _consume(self, count: int) -> None:
        del self._buffer[:count]
        self.offset += count
        self._searched = max(0, self._searched - count)
        self._split_searched = max(0, self._split_searched - count)


def _iter_lines(raw: bytes) -> Iterator[bytes]:
    """Lines of a frame with their breaks, split window by window: the caller may stop early."""
    start = 0
    while start < len(raw):
        breaks = [raw.find(line_break, start + _WINDOW_BYTES) for line_break in (b"\n", b"\r")]
        end = min((position + 1 for position in breaks if position >= 0), default=len(raw))
        end += raw.startswith(b"\r\n", end - 1)
        window = raw if end - start == len(raw) else raw[start:end]
        yield from window.splitlines(keepends=True)  # bytes.splitlines splits at CRLF, LF and CR only
        start = end


def split_lines(raw: bytes) -> list[bytes]:
    """Return the non-empty lines of a frame without their breaks."""
    return [line for line in raw.splitlines() if line]  # bytes.splitlines splits at CRLF, LF and CR only


def parse_field(line: bytes) -> tuple[bytes, bytes]:
    """Split a line into field name and value; the name of a comment is b""."""
    colon = line.find(b":")
    if colon < 0:
        return line, b""
    # "If value starts with a U+0020 SPACE character, remove it from value."
    return line[:colon], line[colon + (2 if line.startswith(b" ", colon + 1) else 1) :]


def is_single_frame(data: bytes) -> bool:
    """Whether `data` is exactly one frame with one data line."""
    return (
        data.find(b"\n") == len(data) - 2
        and data.startswith(DATA_PREFIX)
        and data.endswith(FRAME_END)
        and b"\r" not in data
    )


def data_frame(payload: bytes) -> bytes:
    """Encode a frame; `payload` must be a single line."""
    return b"".join((DATA_PREFIX, payload, FRAME_END))


def named_frame(event: str, payload: bytes) -> bytes:
    """Encode a frame with an `event` field."""
    return b"".join((b"event: ", event.encode(), b"\n", DATA_PREFIX, payload, FRAME_END))


def comment(text: bytes) -> bytes:
    """Encode a comment, which clients ignore."""
    return b": " + text + FRAME_END


DONE = data_frame(b"[DONE]")


def _parse_frame(byte: int, lines: list[bytes], *, ended: bool) -> Frame:
    raw = b"".join(lines)
    data: list[bytes] = []
    event = b""
    for line in lines:
        name, value = parse_field(line.rstrip(b"\r\n"))
        if name == b"data":
            data.append(value)
        elif name == b"event":
            event = value
    joined = b"\n".join(data) if data else None
    return Frame(byte, raw, joined, event.decode("utf-8", "replace"), ended)
