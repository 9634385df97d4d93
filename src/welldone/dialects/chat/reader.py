"""Tolerant reader from the bytes of any server to events.

No input raises. Malformed input is read as far as possible, and each violation is recorded. The reader handles frames,
JSON and the shapes of chunks; `repair` handles the order of events.
"""

import re
from collections.abc import Iterator
from typing import ClassVar

from welldone.core import events as ev
from welldone.core import lenient_json, sse
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Json, Usage
from welldone.core.fields import (
    UNFINISHED,
    bad_stream_failure,
    broken_rule_failure,
    find_error,
    incomplete_stream_failure,
    read_error,
)
from welldone.core.json_budget import steps_yielding
from welldone.core.lenient_json import NOT_JSON, exceeds_lenient_limit, parse_strict, scrub_object
from welldone.core.repair_log import RepairLog, is_empty
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.chunks import ChunkReader
from welldone.dialects.chat.reply_reader import parse_reply, split_by_logprobs

_COMMENT = re.compile(rb":[^\r\n]*\n")
_CHUNK_KEYS = frozenset({"choices", "id", "object", "created", "model", "usage"})


class EventReader:
    """Incremental reader from bytes to events, independent of chunk boundaries of the transport."""

    RETAINS_INPUT: ClassVar[bool] = False
    """Whether text is buffered until the end of the stream."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts,
        repair_log: RepairLog,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        self.is_done: bool = False
        """Whether `[DONE]` was received."""
        self.has_failed: bool = False
        """Whether the server sent an error, or a stream that cannot be read."""
        self.is_cut: bool = False
        """Whether the stream ended within a frame."""
        self.unfinished: Failure | None = UNFINISHED
        """See `RepairOptions`."""
        self._endpoint = endpoint
        self._repair_log = repair_log
        self.chunks: ChunkReader = ChunkReader(endpoint, fallback=fallback, facts=facts, repair_log=repair_log)
        """Reader of the JSON objects. It has the envelope."""
        self.decoder: sse.SseDecoder = sse.SseDecoder(eager=True, limit_bytes=limit_bytes)
        self._limit = limit_bytes
        self._pieces: list[bytes] = []  # lines of one frame that are JSON only when joined
        self._pieces_bytes = 0
        self._has_error_event = False  # the failure was sent by the server
        self._last: sse.Frame | None = None  # last frame of the stream, which may lack its blank line
        self._irregular_end = 0  # end offset of the last irregular frame
        self._is_mid_frame = False  # within a frame whose first lines have been read

    @property
    def is_idle(self) -> bool:
        """Whether no state is pending, so that the next frame can be read by itself."""
        is_over = self.is_done or self.has_failed or self.chunks.has_usage_chunk
        is_pending = self._pieces or self._is_mid_frame or not self.decoder.is_idle or self.chunks.was_placeholder_usage
        return not is_over and not is_pending and self.chunks.deltas.is_plain_text_safe

    def record_fast_path(self, frames: int, byte_count: int, last_bytes: int) -> None:
        """Advance by frames that the fast path handled; `last_bytes` is the size of the last one."""
        self._repair_log.frame += frames
        self.decoder.offset += byte_count
        self._repair_log.byte = self.decoder.offset - last_bytes

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes."""
        return [event for frame in self.decode_frames(data) for event in self.read_frame(frame)] + self.check_length()

    def close(self) -> list[Event]:
        """Return the remaining events at the end of the stream."""
        events = [event for frame in self.decode_last_frames() for event in self.read_frame(frame)]
        return events + self.check_length() + self.flush()

    def read_reply_in_steps(self, data: bytes) -> Iterator[list[Event]]:
        """Yield the events of a non-streaming reply, except those of `flush`; each step fits the blocking budget."""
        self._repair_log.frame = 1
        chunk: Json | Failure = yield from steps_yielding(parse_reply(data, self._endpoint, self._repair_log), [])
        self._repair_log.mute()  # the rules of streams do not apply to a reply
        self.is_done = True
        self.chunks.deltas.expect_split_characters()
        finished = 0
        for piece in [chunk] if isinstance(chunk, Failure) else split_by_logprobs(chunk):
            events: list[Event] = []
            failure = piece if isinstance(piece, Failure) else self.chunks.read(piece, events)
            finished += sum(isinstance(event, ev.Finish) for event in events)
            if failure is not None:
                self._fail(failure, events)
            yield events
            if failure is not None:
                return
        if isinstance(chunk, dict) and finished < sum(isinstance(choice, dict) for choice in chunk["choices"]):
            events = []
            if self.unfinished is not None:
                self._fail(self.unfinished, events)
            yield events

    # The steps of `feed` and `close`, for callers that act between two frames.

    def decode_frames(self, data: bytes) -> list[sse.Frame]:
        """Return the frames that `data` completes."""
        frames = self.decoder.feed(data)
        if frames and self._repair_log.frame == 0 and self.decoder.has_bom:
            self._repair_log.record("sse-no-bom")
        return frames

    def decode_last_frames(self) -> list[sse.Frame]:
        """Return the remaining frames at the end of the stream."""
        frames = self.decoder.close()
        self._last = frames[-1] if frames else None
        return frames

    def read_frame(self, frame: sse.Frame) -> list[Event]:
        """Return the events of one frame."""
        events: list[Event] = []
        if self.has_failed:
            if frame.data == b"[DONE]":
                self.is_done = True
            elif self._has_error_event and frame.data is not None:
                self._repair_log.record("err-then-done")
            return events
        if self._is_mid_frame and frame.byte > self._irregular_end:
            self._is_mid_frame = False  # a blank line lies between: the frame before had only comments
        if not self._is_mid_frame:
            self._repair_log.frame += 1
            self._repair_log.byte = frame.byte
        raw, data = frame.raw, frame.data
        if raw == sse.DONE and not (self.is_done or self._is_mid_frame or self._pieces):
            self.is_done = True
            self._repair_log.is_over = self.chunks.is_finished
            return events
        if (
            data is not None
            and not self._is_mid_frame
            and len(raw) == len(data) + 8
            and raw.endswith(b"\n\n")
            and raw.startswith(sse.DATA_PREFIX)
            and data[:1] != b" "
        ):
            # Common case: one correctly framed data line with strict JSON.
            value = parse_strict(data)
            if type(value) is dict:
                if not data.isascii():
                    check_characters(self._repair_log, data)
                self._read_object(value, data, events)
                return events
            if exceeds_lenient_limit(data) and not self.is_done:
                self._fail_too_costly(data, events)
                return events
        self._is_mid_frame = not frame.ended
        self._irregular_end = frame.byte + len(raw)
        if _COMMENT.fullmatch(raw) and b'"choices"' not in raw and not self._pieces:
            events.append(ev.KeepAlive())  # upstreams may send thousands
        else:
            self._read_irregular_frame(frame, events, is_whole=frame.ended or frame is self._last)
        if frame is self._last and not frame.ended:
            self._repair_log.record("end-last-event-terminated")
            self.is_cut = not (raw.startswith(b":") or type(parse_strict(data or b"")) is dict)
        return events

    def check_length(self) -> list[Event]:
        """Return a failure if a frame exceeds the size limit."""
        events: list[Event] = []
        if self.decoder.overlong_at is not None and not self.has_failed:
            self._repair_log.byte = self.decoder.overlong_at
            self._fail_overlong(events)
        return events

    def _fail_too_costly(self, data: bytes, events: list[Event]) -> None:
        # Lenient parsing of a long frame would block other streams.
        self._repair_log.record("enc-strict-json", f"a frame of {len(data)} bytes")
        reason = lenient_json.describe_unreadable(data)
        self._fail(bad_stream_failure(f"a frame that is {reason} (frame {self._repair_log.frame})"), events)

    def _fail_overlong(self, events: list[Event]) -> None:
        observed = f"a frame of more than {self._limit} bytes or {sse.FRAME_LINES_LIMIT} lines"
        self._repair_log.record("enc-strict-json", observed)
        self._fail(bad_stream_failure(observed), events)

    def flush(self) -> list[Event]:
        """Return the events that were held back until the end."""
        if not self.has_failed:
            return self.chunks.deltas.close()
        self._repair_log.record_if(self._has_error_event and not self.is_done, "err-then-done")
        return []

    def _read_irregular_frame(self, frame: sse.Frame, events: list[Event], *, is_whole: bool) -> None:
        """Read a frame that is not one plain line of JSON: record its violations and recover its data."""
        lines = sse.split_lines(frame.raw)
        check_lines(self._repair_log, frame.raw, lines, data_lines=len(self._pieces))
        fields = [sse.parse_field(line) for line in lines]
        if self._read_failure_fields(fields, events):
            return
        if all(name == b"" for name, _ in fields):
            events.append(ev.KeepAlive())
            return
        recovered = recover_data(lines, fields)
        data = frame.data or b""
        text = data if data != recovered and data.strip() and _is_complete_data(data) else recovered
        if self._pieces or not (is_whole or _is_complete_data(text)):
            self._pieces.append(text)
            self._pieces_bytes += len(text)
            if self._pieces_bytes > self._limit:
                self._fail_overlong(events)
            if not is_whole or self.has_failed:
                return
            self._repair_log.record("sse-json-on-one-line")
            text = b"\n".join(self._pieces)
            self._pieces.clear()
            self._pieces_bytes = 0
        elif not is_whole:
            self._repair_log.record("sse-event-blank-line", text.decode("utf-8", "replace"))
            self._repair_log.record("sse-one-object-per-event")
        if frame.data is None and not text.lstrip().startswith((b"{", b"[", b'"', b":")):
            # Only id, retry, event or unknown fields. WHATWG SSE: unknown fields are ignored.
            self._repair_log.record_if(frame.event, "sse-no-empty-data")
            return
        self._read_text(text, frame, events)
        rest = recovered.removeprefix(text).strip()
        if rest and _is_done_marker(rest):
            self._read_done(rest, frame)

    def _read_failure_fields(self, fields: list[tuple[bytes, bytes]], events: list[Event]) -> bool:
        """Fail if a field is `error`, or contains a chunk outside of `data`; return whether it did."""
        error = next((value for name, value in fields if name == b"error"), None)
        if error is not None:  # `error: {...}`, which older servers send
            text = error.decode("utf-8", "replace")
            self._repair_log.record("err-not-error-field", text)
            found = parse_strict(error)
            value = found if isinstance(found, dict) else {"message": text}
            failure = read_error(value if "error" in value else {"error": value}, error, RepairLog())
            self._has_error_event = True
            self._fail(failure or bad_stream_failure("an error field"), events)
            return True
        is_hidden = not self.is_done and has_hidden_chunk(fields)
        if is_hidden:
            message = f"a chunk that is not in a data field (frame {self._repair_log.frame})"
            self._fail(bad_stream_failure(message), events)
        return is_hidden

    def _read_text(self, text: bytes, frame: sse.Frame, events: list[Event]) -> None:
        """Read the data of an irregular frame."""
        stripped = text.strip()
        if not stripped:
            self._repair_log.record("sse-no-empty-data")
        elif _is_done_marker(stripped):
            self._read_done(text, frame)
        elif stripped.startswith(b":"):
            self._repair_log.record("sse-keepalive-form", stripped.decode("utf-8", "replace"))
            events.append(ev.KeepAlive())
        else:
            rest, _, last = stripped.rpartition(b"\n")
            if rest and _is_done_marker(last):
                stripped = rest
            self._read_values(stripped, frame, events)
            if rest and _is_done_marker(last):
                self._read_done(last, frame)

    def _read_done(self, text: bytes, frame: sse.Frame) -> None:
        self._repair_log.record_if(self.is_done, "end-done-last", "[DONE] again")
        if text != b"[DONE]" or b"data: [DONE]" not in sse.split_lines(frame.raw):
            self._repair_log.record("end-done-exact", text.decode("utf-8", "replace"))
        self.is_done = True
        self._repair_log.is_over = self.chunks.is_finished

    def _read_values(self, text: bytes, frame: sse.Frame, events: list[Event]) -> None:
        value = parse_strict(text)
        values = [value]
        if value is NOT_JSON and exceeds_lenient_limit(text) and frame.ended and not self.is_done:
            self._fail_too_costly(text, events)
            return
        if not text.isascii():
            check_characters(self._repair_log, text)
        if value is NOT_JSON:
            readable = lenient_json.parse_lenient(text)
            values = readable or find_error(text)
            if not values and self.is_done:
                self._repair_log.record("end-done-last", text.decode("utf-8", "replace"))
                return  # clients stop reading at [DONE]
            if not values and not frame.ended:
                return  # truncated within the last frame; the frames before decide whether the answer is complete
            self.chunks.deltas.expect_split_characters()
            self._repair_log.record(lenient_json.malformed_json_rule(text, readable), text.decode("utf-8", "replace"))
        if not values:
            self._fail(bad_stream_failure(f"a frame that is not JSON (frame {self._repair_log.frame})"), events)
        for value in values:
            if self.has_failed:
                return
            items = value if isinstance(value, list) else [value]
            objects = [item for item in items if isinstance(item, dict)]
            if not objects or len(objects) < len(items):
                # A heartbeat, unless it is a list or a string with a chunk.
                others = [one for one in items if isinstance(one, list) or (isinstance(one, str) and "choices" in one)]
                self._repair_log.drop("sse-no-foreign-json", others or None)
                if (failure := broken_rule_failure(self._repair_log)) and not self.is_done:
                    self._fail(failure, events)
                    return
            if objects and isinstance(value, list):  # some servers reply to a list of prompts with a list of replies
                self._repair_log.record("sse-one-object-per-event")
            for item in objects:
                if not self.has_failed:
                    self._read_object(item, text, events, frame.event)

    def _read_object(self, value: Json, data: bytes, events: list[Event], event: str = "") -> None:
        if self.is_done:
            self._repair_log.record("end-done-last", value)
            if self.chunks.is_finished or ("choices" in value and "error" not in value):
                self._read_late_chunk(value, events)
                return
        if "error" in value or "choices" not in value:
            failure = read_error(value, data, self._repair_log)
            if failure is not None:
                if event:
                    self._repair_log.record("err-event-name", event)
                if isinstance(value.get("choices"), list):
                    self.chunks.read(value, events)  # content beside the error
                self._has_error_event = True
                self._fail(failure, events)
                return
            if not _CHUNK_KEYS & value.keys():
                self._repair_log.record("sse-no-foreign-json", value)
                if not is_empty(value):
                    events.append(ev.UnknownFields(0, ev.FieldLocation.CHUNK, scrub_object(value), in_own_chunk=True))
                return
            if "error" in value:
                self._repair_log.record("env-no-error-key", value)
        failure = self.chunks.read(value, events)
        if failure is not None:
            self._fail(failure, events)

    def _read_late_chunk(self, chunk: Json, events: list[Event]) -> None:
        """Read metadata and missing finish reasons of a chunk after `[DONE]`, where clients have stopped."""
        was_finished, finished = self.chunks.is_finished, self.chunks.finished
        kept = Usage if chunk.get("choices") else Usage | ev.UnknownFields
        late: list[Event] = []
        failure = self.chunks.read(chunk, late) if _CHUNK_KEYS & chunk.keys() else None
        events += [
            event
            for event in late
            if isinstance(event, kept) or (isinstance(event, ev.Finish) and event.index not in finished)
        ]
        if any(isinstance(event, ev.TextEvent | ev.ToolCall) for event in late):
            failure = incomplete_stream_failure("the server sent [DONE] before the answer was complete")
        if failure is not None and not was_finished:
            self._fail(failure, events)

    def _fail(self, failure: Failure, events: list[Event]) -> None:
        events += self.chunks.deltas.close()
        events.append(failure)
        self.has_failed = True


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


def has_hidden_chunk(fields: list[tuple[bytes, bytes]]) -> bool:
    """Whether a comment or an unknown field contains a chunk, which shows that the bytes before it are corrupt.

    A line with a quote before the colon is continued JSON, not a field.
    """
    hidden = [value for name, value in fields if name != b"data" and b'"choices"' in value and b'"' not in name]
    return any(isinstance(found := parse_strict(value), dict) and "choices" in found for value in hidden)
