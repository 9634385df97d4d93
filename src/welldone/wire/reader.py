"""Any server's bytes, as events. Nothing that a peer sends raises; what is odd is read as well as it can be and noted.

The reader knows frames, JSON and the shapes of chunks. What may follow what is not its business: see `repair`.
"""

from collections.abc import Iterator

from welldone.wire import faults, sse
from welldone.wire.asked import Asked
from welldone.wire.budget import paced
from welldone.wire.chunks import ChunkReader
from welldone.wire.events import Event, Failure, Finish, Json, KeepAlive
from welldone.wire.failures import cut_off, garbage, read_error
from welldone.wire.head import Endpoint, Head
from welldone.wire.lenient import NOT_JSON, is_too_hard, lenient, strict, why_odd, why_unreadable
from welldone.wire.lines import hides_chunk, note_characters, note_lines, salvage
from welldone.wire.notes import Notes, show
from welldone.wire.replies import read_reply, split

_CHUNK_KEYS = frozenset({"choices", "id", "object", "created", "model", "usage"})


class Reader:
    """Events out of a stream's bytes, however they are cut."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        asked: Asked,
        notes: Notes,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self.is_done = False
        """Whether the server said `[DONE]`."""
        self.has_failed = False
        """Whether it said, or showed, that its answer is broken."""
        self._endpoint = endpoint
        self._notes = notes
        self._chunks = ChunkReader(endpoint, fallback=fallback, asked=asked, notes=notes)
        self._decoder = sse.Decoder(eager=True, limit_bytes=limit_bytes)
        self._limit = limit_bytes
        self._pieces: list[bytes] = []  # lines of one frame that are no JSON each by itself
        self._pieces_bytes = 0
        self._was_told = False  # the failure is the server's own word
        self._last: sse.Frame | None = None  # the last frame of the stream, which need not be ended
        self._end = 0  # where the last odd frame ended
        self._is_inside = False  # in a frame whose earlier lines have been read

    @property
    def head(self) -> Head | None:
        """The envelope of the stream, once a chunk came."""
        return self._chunks.head

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left over from what was read, so that the next frame stands for itself."""
        is_over = self.is_done or self.has_failed or self.has_usage_chunk
        return not (is_over or self._pieces or self._is_inside) and self._decoder.is_idle and self._chunks.is_plain

    def passed(self, frames: int, count: int, last: int) -> None:
        """So many frames took a shorter way: so many bytes, and so many of the last one."""
        self._notes.frame += frames
        self._notes.byte = self._decoder.passed(count) - last

    @property
    def has_usage_chunk(self) -> bool:
        """Whether usage came as it should: on a chunk without choices."""
        return self._chunks.has_usage_chunk

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        return [event for frame in self.frames(data) for event in self.read(frame)] + self.check()

    def close(self) -> list[Event]:
        """The events of what was left when the stream ended."""
        return [event for frame in self.last_frames() for event in self.read(frame)] + self.check() + self.end()

    def whole(self, data: bytes) -> Iterator[list[Event]]:
        """The events of a reply that was not streamed, all but what `end` gives; each step takes a turn."""
        self._notes.frame = 1
        chunk: Json | Failure = yield from paced(read_reply(data, self._endpoint, self._notes), [])
        self._notes.hush()  # what is odd in a stream is right in a reply that is none
        self.is_done = True
        self._chunks.be_careful()
        finished = 0
        for one in [chunk] if isinstance(chunk, Failure) else split(chunk):
            events: list[Event] = []
            failure = one if isinstance(one, Failure) else self._chunks.read(one, events)
            finished += sum(isinstance(event, Finish) for event in events)
            if failure is not None:
                self._fail(failure, events)
            yield events
            if failure is not None:
                return
        if isinstance(chunk, dict) and finished < sum(isinstance(choice, dict) for choice in chunk["choices"]):
            events = []
            self._fail(cut_off("the server's reply has a choice without a finish_reason"), events)
            yield events

    # What `feed` and `close` do, step by step, for a caller who wants to act between two frames.

    def frames(self, data: bytes) -> list[sse.Frame]:
        """The frames that `data` completes."""
        frames = self._decoder.feed(data)
        if frames and self._notes.frame == 0 and self._decoder.has_bom:
            self._notes.note(faults.sse.NO_BOM)
        return frames

    def last_frames(self) -> list[sse.Frame]:
        """The frames that were left when the stream ended."""
        frames = self._decoder.close()
        self._last = frames[-1] if frames else None
        return frames

    def read(self, frame: sse.Frame) -> list[Event]:
        """The events of one frame."""
        events: list[Event] = []
        if self.has_failed:
            self._after_failure(frame)
            return events
        if self._is_inside and frame.byte > self._end:
            self._is_inside = False  # an empty line stood between: what came before was a frame of comments
        if not self._is_inside:
            self._notes.frame += 1
            self._notes.byte = frame.byte
        raw, data = frame.raw, frame.data
        if (
            data is not None
            and not self._is_inside
            and len(raw) == len(data) + 8
            and raw.endswith(b"\n\n")
            and raw.startswith(sse.DATA)
            and data[:1] != b" "
        ):
            # The common case: one data line, rightly framed, with strict JSON in it.
            value = strict(data)
            if type(value) is dict:
                if not data.isascii():
                    note_characters(self._notes, data)
                self._object(value, data, events)
                return events
            if is_too_hard(data) and not self.is_done:
                self._refuse_long(data, events)
                return events
        self._is_inside = not frame.ended
        self._end = frame.byte + len(raw)
        self._odd_frame(frame, events, is_whole=frame.ended or frame is self._last)
        if frame is self._last and not frame.ended:
            self._notes.note(faults.end.LAST_EVENT_TERMINATED)
        return events

    @property
    def is_overrun(self) -> bool:
        """Whether a frame has grown too long to be read."""
        return self._decoder.overlong is not None

    def check(self) -> list[Event]:
        """A failure, if a frame has grown too long to be read."""
        events: list[Event] = []
        if self._decoder.overlong is not None and not self.has_failed:
            self._notes.byte = self._decoder.overlong
            self._overrun(events)
        return events

    def _refuse_long(self, data: bytes, events: list[Event]) -> None:
        """To make sense of a long frame that is no JSON would hold up other streams."""
        self._notes.note(faults.enc.STRICT_JSON, f"a frame of {len(data)} bytes")
        self._fail(garbage(f"a frame that is {why_unreadable(data)} (frame {self._notes.frame})"), events)

    def _overrun(self, events: list[Event]) -> None:
        what = f"a frame of more than {self._limit} bytes or {sse.LINES_LIMIT} lines"
        self._notes.note(faults.enc.STRICT_JSON, what)
        self._fail(garbage(what), events)

    def end(self) -> list[Event]:
        """The events that were held back until the end."""
        if not self.has_failed:
            return self._chunks.close()
        if self._was_told and not self.is_done:
            self._notes.note(faults.err.THEN_DONE)
        return []

    def _after_failure(self, frame: sse.Frame) -> None:
        if frame.data == b"[DONE]":
            self.is_done = True
        elif self._was_told and frame.data is not None:
            self._notes.note(faults.err.THEN_DONE)

    def _odd_frame(self, frame: sse.Frame, events: list[Event], *, is_whole: bool) -> None:
        """A frame that is more than one plain line of JSON: note its form, and find what it says."""
        lines = sse.lines(frame.raw)
        note_lines(self._notes, frame.raw, lines, data_lines=len(self._pieces))
        fields = [sse.field(line) for line in lines]
        if self._is_failure(fields, events):
            return
        if all(name == b"" for name, _ in fields):
            events.append(KeepAlive())
            return
        said = salvage(lines, fields)
        data = frame.data or b""
        text = data if data != said and data.strip() and _is_whole(data) else said
        if self._pieces or not (is_whole or _is_whole(text)):
            self._keep_piece(text, events)
            if not is_whole or self.has_failed:
                return
            text = self._take_pieces()
        elif not is_whole:
            self._notes.note(faults.sse.EVENT_BLANK_LINE, text.decode("utf-8", "replace"))
            self._notes.note(faults.sse.ONE_OBJECT_PER_EVENT)
        if frame.data is None and not _may_be_json(text):
            # An id, a time to wait, a field that nobody knows ("The field is ignored."), or only a name.
            if frame.event:
                self._notes.note(faults.sse.NO_EMPTY_DATA)
            return
        self._text(text, frame, events)
        rest = said.removeprefix(text).strip()
        if rest and _is_done(rest):
            self._done(rest, frame)

    def _is_failure(self, fields: list[tuple[bytes, bytes]], events: list[Event]) -> bool:
        """Whether a field is an error, or hides what should be data; then that is said."""
        error = next((value for name, value in fields if name == b"error"), None)
        if error is not None:
            self._error_field(error, events)
            return True
        is_hidden = not self.is_done and hides_chunk(fields)
        if is_hidden:
            self._fail(garbage(f"a chunk that is not in a data field (frame {self._notes.frame})"), events)
        return is_hidden

    def _keep_piece(self, text: bytes, events: list[Event]) -> None:
        self._pieces.append(text)
        self._pieces_bytes += len(text)
        if self._pieces_bytes > self._limit:
            self._overrun(events)

    def _take_pieces(self) -> bytes:
        self._notes.note(faults.sse.JSON_ON_ONE_LINE)
        text = b"\n".join(self._pieces)
        self._pieces.clear()
        self._pieces_bytes = 0
        return text

    def _error_field(self, value: bytes, events: list[Event]) -> None:
        """Older servers say `error: {...}` where a field name belongs."""
        self._notes.note(faults.err.NOT_ERROR_FIELD, value.decode("utf-8", "replace"))
        found = strict(value)
        error = found if isinstance(found, dict) else {"message": value.decode("utf-8", "replace")}
        failure = read_error(error if "error" in error else {"error": error}, value, Notes())
        self._was_told = True
        self._fail(failure or garbage("an error field"), events)

    def _text(self, text: bytes, frame: sse.Frame, events: list[Event]) -> None:
        """What a frame says, which may be anything."""
        stripped = text.strip()
        if not stripped:
            self._notes.note(faults.sse.NO_EMPTY_DATA)
        elif _is_done(stripped):
            self._done(text, frame)
        elif stripped.startswith(b":"):
            self._notes.note(faults.sse.KEEPALIVE_FORM, stripped.decode("utf-8", "replace"))
            events.append(KeepAlive())
        else:
            rest, _, last = stripped.rpartition(b"\n")
            if rest and _is_done(last):
                stripped = rest
            self._values(stripped, frame, events)
            if rest and _is_done(last):
                self._done(last, frame)

    def _done(self, text: bytes, frame: sse.Frame) -> None:
        if self.is_done:
            self._notes.note(faults.end.DONE_LAST, "[DONE] again")
        if text != b"[DONE]" or b"data: [DONE]" not in frame.raw:
            self._notes.note(faults.end.DONE_EXACT, text.decode("utf-8", "replace"))
        self.is_done = True

    def _values(self, text: bytes, frame: sse.Frame, events: list[Event]) -> None:
        value = strict(text)
        values = [value]
        if value is NOT_JSON and is_too_hard(text) and frame.ended and not self.is_done:
            self._refuse_long(text, events)
            return
        if not text.isascii():
            note_characters(self._notes, text)
        if value is NOT_JSON:
            values = lenient(text)
            if not values and self.is_done:
                self._notes.note(faults.end.DONE_LAST, text.decode("utf-8", "replace"))
                return  # who reads the stream has stopped by now
            if not values and not frame.ended:
                return  # the stream was cut inside its last frame; what came before it tells whether that matters
            self._chunks.be_careful()
            self._notes.note(why_odd(text, values), text.decode("utf-8", "replace"))
        if not values:
            self._fail(garbage(f"a frame that is no JSON (frame {self._notes.frame})"), events)
        for value in values:
            if self.has_failed:
                return
            self._value(value, text, events, frame.event)

    def _value(self, value: object, text: bytes, events: list[Event], event: str) -> None:
        if isinstance(value, dict):
            self._object(value, text, events, event)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            # Some servers answer a list of prompts with a list of replies.
            self._notes.note(faults.sse.ONE_OBJECT_PER_EVENT)
            for item in value:
                if not self.has_failed:
                    self._object(item, text, events, event)
        else:
            self._notes.note(faults.sse.NO_FOREIGN_JSON, show(value))

    def _object(self, value: Json, data: bytes, events: list[Event], event: str = "") -> None:
        if self.is_done:
            self._notes.note(faults.end.DONE_LAST, value)
        if "error" in value or "choices" not in value:
            failure = read_error(value, data, self._notes)
            if failure is not None:
                if event:
                    self._notes.note(faults.err.EVENT_NAME, event)
                if isinstance(value.get("choices"), list):
                    self._chunks.read(value, events)  # its last words
                self._was_told = True
                self._fail(failure, events)
                return
            if not _CHUNK_KEYS & value.keys():
                self._notes.note(faults.sse.NO_FOREIGN_JSON, value)
                return
            if "error" in value:
                self._notes.note(faults.env.NO_ERROR_KEY, value)
        failure = self._chunks.read(value, events)
        if failure is not None:
            self._fail(failure, events)

    def _fail(self, failure: Failure, events: list[Event]) -> None:
        events += self._chunks.close()
        events.append(failure)
        self.has_failed = True


def _may_be_json(text: bytes) -> bool:
    return text.lstrip().startswith((b"{", b"[", b'"', b":"))


def _is_whole(text: bytes) -> bool:
    """Whether a piece of a frame says something by itself."""
    return not text.strip() or _is_done(text.strip()) or type(strict(text)) is dict


def _is_done(text: bytes) -> bool:
    return len(text) < 20 and text.strip(b"\"' ").upper() == b"[DONE]"
