"""Reader of frames and JSON, the same for all dialects.

No input raises. Malformed frames and JSON are read as far as possible, and each violation is recorded: the log ignores
rules of other dialects. `EventReader` makes events of the objects, a `PassthroughRepairer` bytes.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from welldone.core import lenient_json, sse
from welldone.core.events import Failure, Json
from welldone.core.fields import UNFINISHED, bad_stream_failure, find_error, read_error
from welldone.core.lenient_json import NOT_JSON, exceeds_lenient_limit, parse_strict, scrub_object
from welldone.core.repair_log import RepairLog

Output = TypeVar("Output")

_COMMENT = re.compile(rb":[^\r\n]*\n")


class FrameReader(ABC, Generic[Output]):
    """Incremental reader from bytes to frames, and from each frame to what a subclass makes of its content."""

    def __init__(self, repair_log: RepairLog, decoder: sse.SseDecoder) -> None:
        self.decoder: sse.SseDecoder = decoder
        self.repair_log: RepairLog = repair_log
        self.failure: Failure | None = None
        """The error that ends the answer: the server sent it, or a stream that cannot be read."""
        self.unfinished: Failure | None = UNFINISHED
        """See `RepairOptions`."""
        self.is_cut: bool = False
        """Whether the stream ended within a frame."""
        self._pieces: list[bytes] = []  # lines of one frame that are JSON only when joined
        self._pieces_bytes = 0
        self._has_error_event = False  # the failure was sent by the server
        self._irregular_end = 0  # end offset of the last irregular frame
        self._is_mid_frame = False  # within a frame whose first lines have been read

    # Implemented by each kind of output, which is added to `out`.

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the end of the answer was received."""

    @abstractmethod
    def _read_object(self, value: Json, data: bytes, out: list[Output], event: str = "") -> None:
        """Read the JSON object of a frame, whose data is `data`."""

    @abstractmethod
    def _read_done(self, text: bytes, frame: sse.Frame, out: list[Output]) -> None:
        """Read `[DONE]`."""

    @abstractmethod
    def _add_keep_alive(self, out: list[Output]) -> None:
        """Add a keep-alive."""

    @abstractmethod
    def _leave_out(self, value: list[object], out: list[Output]) -> None:
        """Drop JSON that is no object."""

    @abstractmethod
    def _add_failure(self, failure: Failure, out: list[Output]) -> None:
        """End the answer with an error."""

    def _scrub_event(self, value: Json) -> Json:
        """Remove lone surrogates of lenient JSON, except in text whose next delta may have the other half."""
        return scrub_object(value)

    def _has_hidden_chunk(self, fields: list[tuple[bytes, bytes]]) -> bool:
        """Whether a comment or an unknown field contains a chunk, which shows that the bytes before it are corrupt."""
        return False

    def _skip_frame(self, frame: sse.Frame) -> None:
        """Note a frame that is skipped after a failure."""

    def _read_empty(self, frame: sse.Frame, out: list[Output]) -> None:
        """Read an event without data."""

    def decode_frames(self, data: bytes) -> Iterable[sse.Frame]:
        """Return the frames that `data` completes. Read each before you take the next one."""
        frames = self.decoder.feed(data)
        if frames and self.repair_log.frame == 0 and self.decoder.has_bom:
            self.repair_log.record("sse-no-bom")
        return frames

    def read_frame(self, frame: sse.Frame) -> list[Output]:
        """Return the output of one frame."""
        out: list[Output] = []
        if self.failure is not None:
            self._skip_frame(frame)
            return out
        if frame.is_overlong:
            self.repair_log.byte = frame.byte
            self._fail_overlong(out)
            return out
        if self._is_mid_frame and frame.byte > self._irregular_end:
            self._is_mid_frame = False  # a blank line lies between: the frame before had only comments
        if not self._is_mid_frame:
            self.repair_log.frame += 1
            self.repair_log.byte = frame.byte
        raw, data = frame.raw, frame.data
        if data is not None and not self._is_mid_frame and data[:1] != b" ":
            is_plain = len(raw) == len(data) + 8 and raw.startswith(sse.DATA_PREFIX) and raw.endswith(sse.FRAME_END)
            if len(data) == 6 and raw == sse.DONE and not self._pieces:
                self._read_done(data, frame, out)
                return out
            # Common case: one correctly framed data line with strict JSON.
            value = parse_strict(data) if is_plain or _is_regular(frame, data) else None
            if type(value) is dict:
                if not is_plain:
                    rule = "sse-no-event-name" if frame.event else "sse-lf-only"
                    self.repair_log.record(rule, frame.event and f"event: {frame.event}")
                if not data.isascii():
                    check_characters(self.repair_log, data)
                self._read_object(value, data, out, frame.event)
                return out
            if value is NOT_JSON and self._is_too_costly(data, out):
                return out
        self._is_mid_frame = not frame.ended
        self._irregular_end = frame.byte + len(raw)
        if _COMMENT.fullmatch(raw) and b'"choices"' not in raw and not self._pieces:
            self._add_keep_alive(out)  # the short way: upstreams may send thousands
        else:
            self._read_irregular_frame(frame, out, is_whole=frame.ended or frame is self.decoder.cut_frame)
        if frame is self.decoder.cut_frame:
            self.repair_log.record("end-last-event-terminated")
            self.is_cut = not (raw.startswith(b":") or type(parse_strict(data or b"")) is dict)
        return out

    def _fail_unreadable(self, content: str, out: list[Output]) -> None:
        self._add_failure(bad_stream_failure(f"{content} (frame {self.repair_log.frame})"), out)

    def _is_too_costly(self, text: bytes, out: list[Output]) -> bool:
        """Fail if lenient parsing of a frame would block other streams; return whether it did."""
        if self.is_done or not exceeds_lenient_limit(text):
            return False
        self.repair_log.record("enc-strict-json", f"a frame of {len(text)} bytes")
        self._fail_unreadable(f"a frame that is {lenient_json.describe_unreadable(text)}", out)
        return True

    def _fail_overlong(self, out: list[Output]) -> None:
        observed = f"a frame of more than {self.decoder.limit_bytes} bytes or {sse.FRAME_LINES_LIMIT} lines"
        self.repair_log.record("enc-strict-json", observed)
        self._add_failure(bad_stream_failure(observed), out)

    def _read_irregular_frame(self, frame: sse.Frame, out: list[Output], *, is_whole: bool) -> None:
        """Read a frame that is not one plain line of JSON: record its violations and recover its data."""
        lines = sse.split_lines(frame.raw)
        check_lines(self.repair_log, frame.raw, lines, data_lines=len(self._pieces))
        fields = [sse.parse_field(line) for line in lines]
        error = next((value for name, value in fields if name == b"error"), None)
        if error is not None:
            self._read_error_field(error, out)
            return
        if not self.is_done and self._has_hidden_chunk(fields):
            self._fail_unreadable("a chunk that is not in a data field", out)
            return
        if all(name == b"" for name, _ in fields):
            self._add_keep_alive(out)
            return
        recovered = recover_data(lines, fields)
        data = frame.data or b""
        text = data if data != recovered and data.strip() and _is_complete_data(data) else recovered
        if self._pieces or not (is_whole or _is_complete_data(text)):
            self._pieces.append(text)
            self._pieces_bytes += len(text)
            if self._pieces_bytes > self.decoder.limit_bytes:
                self._fail_overlong(out)
            if not is_whole or self.failure is not None:
                return
            self.repair_log.record("sse-json-on-one-line")
            text = b"\n".join(self._pieces)
            self._pieces.clear()
            self._pieces_bytes = 0
        elif not is_whole:
            self.repair_log.record("sse-event-blank-line", text.decode("utf-8", "replace"))
            self.repair_log.record("sse-one-object-per-event")
        self._read_text(text, frame, out)
        rest = recovered.removeprefix(text).strip()
        if rest and _is_done_marker(rest):
            self._read_done(rest, frame, out)

    def _read_error_field(self, error: bytes, out: list[Output]) -> None:
        """Read `error: {...}`, which older servers send."""
        text = error.decode("utf-8", "replace")
        self.repair_log.record("err-not-error-field", text)
        parsed = parse_strict(error)
        value = parsed if isinstance(parsed, dict) else {"message": text}
        failure = read_error(value if "error" in value else {"error": value}, error, RepairLog())
        self._has_error_event = True
        self._add_failure(failure or bad_stream_failure("an error field"), out)

    def _read_text(self, text: bytes, frame: sse.Frame, out: list[Output]) -> None:
        """Read the data of an irregular frame."""
        stripped = text.strip()
        if not stripped:
            self.repair_log.record_if(frame.event or frame.data is not None, "sse-no-empty-data")
            self._read_empty(frame, out)
        elif _is_done_marker(stripped):
            self._read_done(text, frame, out)
        elif stripped.startswith(b":"):
            self.repair_log.record("sse-keepalive-form", stripped.decode("utf-8", "replace"))
            self._add_keep_alive(out)
        else:
            rest, _, last = stripped.rpartition(b"\n")
            if rest and _is_done_marker(last):
                stripped = rest
            self._read_values(stripped, frame, out)
            if rest and _is_done_marker(last):
                self._read_done(last, frame, out)

    def _read_values(self, text: bytes, frame: sse.Frame, out: list[Output]) -> None:
        value = parse_strict(text)
        values = [value]
        if value is NOT_JSON and frame.ended and self._is_too_costly(text, out):
            return
        if not text.isascii():
            check_characters(self.repair_log, text)
        if value is NOT_JSON:
            readable = lenient_json.parse_lenient(text)
            values = readable or find_error(text)
            if not values and self.is_done:
                self.repair_log.record("end-done-last", text.decode("utf-8", "replace"))
                return  # clients stop reading at [DONE]
            if not values and not frame.ended:
                return  # truncated within the last frame; the frames before decide whether the answer is complete
            self.repair_log.record(lenient_json.malformed_json_rule(text, readable), text.decode("utf-8", "replace"))
        if not values:
            self._fail_unreadable("a frame that is not JSON", out)
        for item in values:
            items = item if isinstance(item, list) else [item]
            objects = [entry for entry in items if isinstance(entry, dict)]
            if self.failure is None and (not objects or len(objects) < len(items)):
                self._leave_out([entry for entry in items if not isinstance(entry, dict)], out)
            if self.failure is None and objects and isinstance(item, list):
                self.repair_log.record("sse-one-object-per-event")  # a list of replies to a list of prompts
            for entry in objects:
                if self.failure is None:
                    self._read_object(self._scrub_event(entry) if value is NOT_JSON else entry, text, out, frame.event)


def _is_regular(frame: sse.Frame, data: bytes) -> bool:
    """Whether a frame has one data line after the name of its event, or in Gemini's streams one with CR LF."""
    raw = frame.raw
    return raw == sse.named_frame(frame.event, data) or raw == b"".join((sse.DATA_PREFIX, data, b"\r\n\r\n"))


def _is_complete_data(text: bytes) -> bool:
    """Whether a piece of a frame is empty, `[DONE]` or a JSON object by itself."""
    return not text.strip() or _is_done_marker(text.strip()) or type(parse_strict(text)) is dict


def _is_done_marker(text: bytes) -> bool:
    return len(text) < 20 and text.strip(b"\"' ").upper() == b"[DONE]"


# Checks of the lines of a frame, and recovery of data from malformed lines.

_LINE_BREAKS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")
_NAME_BYTES = 16  # more than the longest known field name
_EXCERPT_BYTES = 1024
_REPLACEMENT = "\ufffd".encode()
_FIELDS = frozenset({b"data", b"event", b"id", b"retry", b"error", b""})
_FIELD_RULES = {
    b"data": "sse-data-space",
    b"event": "sse-no-event-name",
    b"id": "sse-no-id-field",
    b"retry": "sse-no-retry-frame",
}
_REPEATED_PREFIX = re.compile(rb"\A(?:data: ?)+(?=[\[{])")  # of a server that frames what is framed already


def check_lines(repair_log: RepairLog, raw: bytes, lines: list[bytes], *, data_lines: int = 0) -> None:
    """Record the violations in the lines of a frame, of which `data_lines` data lines were read before."""
    repair_log.record_if(b"\r" in raw, "sse-lf-only")
    for line in lines:
        name, _, _ = line[:_NAME_BYTES].partition(b":")
        rule = _FIELD_RULES.get(name)
        if name not in _FIELDS:  # `data:` is missing, or the line continues the JSON of the line before
            rule = "sse-data-space" if line.startswith((b"{", b"[")) else "sse-json-on-one-line"
        elif name == b"data":
            data_lines += 1
            # Continued JSON may start with white space.
            is_spaced = line.startswith(sse.DATA_PREFIX) and (data_lines > 1 or not line.startswith(b"data:  "))
            is_right = is_spaced and not _REPEATED_PREFIX.match(line[len(sse.DATA_PREFIX) :])
            rule = None if is_right or line == b"data:" else rule
        if rule is not None:
            repair_log.record(rule, line[:_EXCERPT_BYTES].decode("utf-8", "replace"))
    repair_log.record_if(data_lines > 1, "sse-json-on-one-line")


def check_characters(repair_log: RepairLog, data: bytes) -> None:
    """Record line separators and replacement characters in `data`."""
    if any(character in data for character in _LINE_BREAKS):
        repair_log.record("enc-escape-line-breaks", data.decode("utf-8", "replace"))
    if _REPLACEMENT in data:
        repair_log.record("enc-no-replacement-char", data.decode("utf-8", "replace"))


def recover_data(lines: list[bytes], fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return the data of a frame, including lines that lack `data:`, without the lines of other fields."""
    recovered = []
    for line, (name, value) in zip(lines, fields, strict=True):
        if name == b"data":
            recovered.append(_REPEATED_PREFIX.sub(b"", value))
        elif name not in _FIELDS:
            recovered.append(line)
    return b"\n".join(recovered)
