"""Tolerant reader from the bytes of any server to events.

No input raises. Malformed input is read as far as possible, and each violation is recorded. `frame_reader` handles
frames and JSON, this reader the shapes of chunks, and `repair` the order of events.
"""

from collections.abc import Iterator
from typing import ClassVar

from welldone.core import events as ev
from welldone.core import sse
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Json, Usage
from welldone.core.fields import broken_rule_failure, incomplete_stream_failure, read_error
from welldone.core.frame_reader import FrameReader
from welldone.core.json_budget import steps_yielding
from welldone.core.lenient_json import parse_strict, scrub_object
from welldone.core.repair_log import RepairLog, is_empty
from welldone.core.request_facts import RequestFacts
from welldone.dialects.chat.chunks import ChunkReader
from welldone.dialects.chat.reply_reader import parse_reply, split_by_logprobs

_CHUNK_KEYS = frozenset({"choices", "id", "object", "created", "model", "usage"})


class EventReader(FrameReader[Event]):
    """Incremental reader from bytes to events, independent of chunk boundaries of the transport."""

    RETAINS_INPUT: ClassVar[bool] = False
    """Whether text is buffered until the end of the stream."""
    is_done: bool = False
    """Whether `[DONE]` was received."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts,
        repair_log: RepairLog,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        super().__init__(repair_log, sse.SseDecoder(eager=True, limit_bytes=limit_bytes))
        self._endpoint = endpoint
        self.chunks: ChunkReader = ChunkReader(endpoint, fallback=fallback, facts=facts, repair_log=repair_log)
        """Reader of the JSON objects. It has the envelope."""

    @property
    def is_idle(self) -> bool:
        """Whether no state is pending, so that the next frame can be read by itself."""
        is_over = self.is_done or self.failure is not None or self.chunks.has_usage_chunk
        is_pending = self._pieces or self._is_mid_frame or not self.decoder.is_idle or self.chunks.was_placeholder_usage
        return not is_over and not is_pending and self.chunks.deltas.is_plain_text_safe

    def record_fast_path(self, frames: int, byte_count: int, last_bytes: int) -> None:
        """Advance by frames that the fast path handled; `last_bytes` is the size of the last one."""
        self.repair_log.frame += frames
        self.decoder.offset += byte_count
        self.repair_log.byte = self.decoder.offset - last_bytes

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes."""
        return [event for frame in self.decode_frames(data) for event in self.read_frame(frame)]

    def close(self) -> list[Event]:
        """Return the remaining events at the end of the stream."""
        return [event for frame in self.decoder.close() for event in self.read_frame(frame)] + self.flush()

    def read_reply_in_steps(self, data: bytes) -> Iterator[list[Event]]:
        """Yield the events of a non-streaming reply, except those of `flush`; each step fits the blocking budget."""
        self.repair_log.frame = 1
        chunk: Json | Failure = yield from steps_yielding(parse_reply(data, self._endpoint, self.repair_log), [])
        self.repair_log.mute()  # the rules of streams do not apply to a reply
        self.is_done = True
        self.chunks.deltas.expect_split_characters()
        finished = 0
        for piece in [chunk] if isinstance(chunk, Failure) else split_by_logprobs(chunk):
            events: list[Event] = []
            failure = piece if isinstance(piece, Failure) else self.chunks.read(piece, events)
            finished += sum(isinstance(event, ev.Finish) for event in events)
            if failure is not None:
                self._add_failure(failure, events)
            yield events
            if failure is not None:
                return
        if isinstance(chunk, dict) and finished < sum(isinstance(choice, dict) for choice in chunk["choices"]):
            events = []
            if self.unfinished is not None:
                self._add_failure(self.unfinished, events)
            yield events

    def flush(self) -> list[Event]:
        """Return the events that were held back until the end."""
        if self.failure is None:
            return self.chunks.deltas.close()
        self.repair_log.record_if(self._has_error_event and not self.is_done, "err-then-done")
        return []

    def _has_hidden_chunk(self, fields: list[tuple[bytes, bytes]]) -> bool:
        # A line with a quote before the colon is continued JSON, not a field.
        hidden = [value for name, value in fields if name != b"data" and b'"choices"' in value and b'"' not in name]
        return any(isinstance(parsed := parse_strict(value), dict) and "choices" in parsed for value in hidden)

    def _read_text(self, text: bytes, frame: sse.Frame, out: list[Event]) -> None:
        if frame.data is None and not text.lstrip().startswith((b"{", b"[", b'"', b":")):
            text = b""  # only id, retry, event or unknown fields, which have no chunk. WHATWG SSE: they are ignored
        super()._read_text(text, frame, out)

    def _skip_frame(self, frame: sse.Frame) -> None:
        if frame.data == b"[DONE]":
            self.is_done = True
        elif self._has_error_event and frame.data is not None:
            self.repair_log.record("err-then-done")

    def _add_keep_alive(self, out: list[Event]) -> None:
        out.append(ev.KeepAlive())

    def _leave_out(self, value: list[object], out: list[Event]) -> None:
        # A heartbeat, unless it is a list or a string with a chunk.
        lost = [item for item in value if isinstance(item, list) or (isinstance(item, str) and "choices" in item)]
        self.repair_log.drop("sse-no-foreign-json", lost or None)
        if (failure := broken_rule_failure(self.repair_log)) and not self.is_done:
            self._add_failure(failure, out)

    def _scrub_event(self, value: Json) -> Json:
        self.chunks.deltas.expect_split_characters()
        return value

    def _read_done(self, text: bytes, frame: sse.Frame, out: list[Event]) -> None:
        self.repair_log.record_if(self.is_done, "end-done-last", "[DONE] again")
        if frame.raw != sse.DONE and (text != b"[DONE]" or b"data: [DONE]" not in sse.split_lines(frame.raw)):
            self.repair_log.record("end-done-exact", text.decode("utf-8", "replace"))
        self.is_done = True
        self.repair_log.is_over = self.chunks.is_finished

    def _read_object(self, value: Json, data: bytes, events: list[Event], event: str = "") -> None:
        if self.is_done:
            self.repair_log.record("end-done-last", value)
            if self.chunks.is_finished or ("choices" in value and "error" not in value):
                self._read_late_chunk(value, events)
                return
        if "error" in value or "choices" not in value:
            failure = read_error(value, data, self.repair_log)
            if failure is not None:
                if event:
                    self.repair_log.record("err-event-name", event)
                if isinstance(value.get("choices"), list):
                    self.chunks.read(value, events)  # content beside the error
                self._has_error_event = True
                self._add_failure(failure, events)
                return
            if not _CHUNK_KEYS & value.keys():
                self.repair_log.record("sse-no-foreign-json", value)
                if not is_empty(value):
                    events.append(ev.UnknownFields(0, ev.FieldLocation.CHUNK, scrub_object(value), in_own_chunk=True))
                return
            if "error" in value:
                self.repair_log.record("env-no-error-key", value)
        failure = self.chunks.read(value, events)
        if failure is not None:
            self._add_failure(failure, events)

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
            self._add_failure(failure, events)

    def _add_failure(self, failure: Failure, events: list[Event]) -> None:
        events += self.chunks.deltas.close()
        events.append(failure)
        self.failure: Failure | None = failure
