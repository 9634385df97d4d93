"""A stream that is mended within its own dialect: its server speaks what its client does.

It is read and written anew, event by event, and never becomes the events of an answer: so whatever only this dialect
can say is carried on. A dialect has one `Native`, which knows its events; what all of them share stands here: frames,
JSON, errors that come in the shape of another dialect, and being strict.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, TypeAlias

import msgspec

from welldone.wire import faults, sse
from welldone.wire.budget import at_once, is_costly
from welldone.wire.dialects.stream import escape
from welldone.wire.events import Failure, Json, Reword, Usage
from welldone.wire.failures import cut_off, garbage, too_strict
from welldone.wire.head import Endpoint, Head
from welldone.wire.lenient import NOT_JSON, first, is_too_hard, lenient, strict, why_odd, why_unreadable
from welldone.wire.lines import note_characters, note_lines, salvage
from welldone.wire.notes import Notes
from welldone.wire.texts import TextForm, Think
from welldone.wire.unicode import scrub_object

Said: TypeAlias = tuple[sse.Frame | None, bytes]
"""A frame that was taken, and what goes out for it. None: for all that is left, or for the end."""


_NO_CONTENT = ("response.created", "response.queued", "response.in_progress", "message_start", "ping")
"""Events that a server may send while it still reads its prompt."""


class Native(ABC):
    """Mends one stream. What is not streamed to the client is kept, and given by `body`.

    `fallback` is the envelope for what the server does not say; ids that have to be made are made of its id. `model`
    is the name that the client knows, where the server may say another.
    """

    _UNKNOWN: ClassVar[faults.Fault]
    """What is wrong with JSON that is no event."""
    _EMPTY: ClassVar[tuple[faults.Fault, ...]] = (faults.sse.NO_EMPTY_DATA,)
    """What is wrong with an event that has no data."""
    keeps = True
    """Whether it keeps what was said: then its length must be bounded."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self.notes = Notes(endpoint)
        """What was mended."""
        self.failure: Failure | None = None
        """The error that the answer ends with, if it does."""
        self.usage: Usage | None = None
        """What the server counted."""
        self.final: Json | None = None
        """The answer as an object, when it has come to its end, in a dialect in which it can be asked for again."""
        self.on_event: Callable[[Json, str], None] | None = None
        """Is told of every event, by its value and its name, before it is mended."""
        self.printed_calls = 0
        """Of a stream in its own dialect nothing is known of calls that were written as text."""
        self.broken_json = 0
        self.broken_arguments = 0
        self.has_content = False
        """Whether what was fed last had something of the answer in it, and not only its beginning or a sign of life."""
        self._fallback = fallback
        self._model = model
        self._is_stream = is_stream
        self._decoder = sse.Decoder(limit_bytes=limit_bytes)
        self._reword: Reword | None = None
        self._is_closed = False

    # What a dialect says.

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether the event that ends an answer has come, or a failure: nothing that matters can follow."""

    @property
    @abstractmethod
    def has_started(self) -> bool:
        """Whether something of an answer, or a failure, was heard."""

    @abstractmethod
    def _reply(self, failure: Failure | None) -> Json:
        """The whole reply: the answer, or an error in the dialect's shape."""

    @abstractmethod
    def _scrubbed(self, value: Json) -> Json:
        """An object of the stream with whole characters only, but in a text whose next piece may have the rest."""

    @abstractmethod
    def _event(self, value: Json, name: str) -> bytes:
        """What goes out for one JSON object of the stream; `name` is the frame's `event`, perhaps empty."""

    @abstractmethod
    def _whole(self, value: Json) -> bytes:
        """What goes out for a reply that was not streamed: the events that it would have been."""

    @abstractmethod
    def _silence(self) -> bytes:
        """What goes out for a sign of life; before the answer has begun, a comment (`KEEP_ALIVE`)."""

    @abstractmethod
    def _sentinel(self) -> bytes:
        """What goes out for `[DONE]`, which is of another dialect."""

    @abstractmethod
    def _finish(self) -> bytes:
        """What goes out when the server's stream has ended: all that is still open is closed, if it may be; else the
        answer fails (see `_fail`)."""

    @abstractmethod
    def _broken(self, failure: Failure) -> bytes:
        """What goes out when the answer breaks off; asked once, and nothing follows."""

    def _leave(self, frames: list[sse.Frame]) -> None:  # noqa: B027 - most dialects do not look
        """These came after a failure, and are not read."""

    def body(self) -> bytes:
        """The whole reply, when the stream has ended; an error, if it has failed."""
        return escape(msgspec.json.encode(self._reply(self.failure)))

    # What a pipe has: see `Answered`. A native stream has one part.

    def tune(
        self,
        part: int,
        *,
        think: Think = "no",
        text: TextForm = "delta",
        strict: frozenset[str] = frozenset(),
        reword: Reword | None = None,
    ) -> None:
        """How it is mended, before its first byte. Thoughts have events of their own here, and so have whole texts."""
        self.notes.strict = strict
        self._reword = reword

    def is_part_done(self, part: int) -> bool:
        """Whether its end has come."""
        return self.is_done

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole, though the event that ends it has not come."""
        return False

    def is_part_complete(self, part: int) -> bool:
        """Whether the answer is whole, though the event that ends it has not come."""
        return self.is_complete

    def is_part_counted(self, part: int) -> bool:
        """Whether usage came: it comes with the end, or just before it."""
        return self.usage is not None

    def is_stopped(self, part: int) -> bool:
        """Stop strings are the server's business."""
        return False

    def has_begun(self, part: int) -> bool:
        """Whether it has said something, and not only that it is there."""
        return self.has_started or self.failure is not None

    def keep_alive(self) -> bytes:
        """A sign of life, while the server is silent."""
        return self._sent(b"" if self.is_done else self._silence())

    def passed(self, events: int) -> None:  # noqa: B027 - most dialects do not count
        """So many events took a shorter way: for a dialect that counts them."""

    def feed(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send on."""
        self.has_content = False
        return b"".join([said for _, said in self.take(data)])

    def take(self, data: bytes) -> Iterator[Said]:
        """As `feed`, frame by frame."""
        frames = self._decoder.feed(data)
        if frames and self.notes.frame == 0 and self._decoder.has_bom:
            self.notes.note(faults.sse.NO_BOM)
        yield from self._read(frames)
        if self._decoder.overlong is not None and self.failure is None:
            self.notes.note(faults.enc.STRICT_JSON)
            yield None, self._sent(self._fail(garbage("a frame that is too long")))

    def whole(self, data: bytes, part: int = 0) -> bytes:
        """The bytes to send for a reply that was not streamed. Then `close`."""
        return b"".join(self.take_whole(data, part))

    def take_whole(self, data: bytes, part: int = 0) -> Iterator[bytes]:
        """As `whole`, in steps of which each takes a turn."""
        self.notes.frame = 1
        if is_costly(data):
            yield self._sent(self._fail(garbage("a reply that is too complex to be read at once")))
            return
        value, has_tail = at_once(first(data))
        if has_tail:
            self.notes.note(faults.ns.NO_SSE_TAIL)
        if isinstance(value, dict):
            out = self._whole(scrub_object(value)) + self._be_strict()
        else:
            out = self._fail(garbage("a reply that is no JSON object"))
        yield self._sent(out)

    def close(self, part: int = 0) -> bytes:
        """The bytes to send when the server's stream has ended, however it did."""
        return b"".join([said for _, said in self.take_last()])

    def take_last(self) -> Iterator[Said]:
        """As `close`, frame by frame."""
        if self._is_closed:
            return
        self._is_closed = True
        yield from self._read(self._decoder.close())
        if self.failure is None:
            yield None, self._sent(self._finish())

    def fail(self, failure: Failure) -> bytes:
        """The bytes to send when the answer breaks off for a reason that the server did not tell."""
        self._is_closed = True
        return self._sent(self._fail(failure, is_ours=True))

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a stream."""
        return dict(sse.HEADERS)

    def last_words(self, failure: Failure) -> bytes:
        """The end of a stream of which nothing more can be said."""
        return b""

    # What dialects use.

    def _fail(self, failure: Failure, *, is_ours: bool = False) -> bytes:
        """The answer fails, if it has not ended already."""
        if self.failure is not None or self.is_done:
            return b""
        self.failure = failure if is_ours or self._reword is None else self._reword(failure)
        return self._broken(self.failure)

    def _cut(self, what: str) -> bytes:
        """The server stopped before its answer was whole."""
        return self._fail(cut_off(what), is_ours=True)

    def _be_strict(self) -> bytes:
        rule = self.notes.broken
        return b"" if rule is None else self._fail(too_strict(rule), is_ours=True)

    def _sent(self, out: bytes) -> bytes:
        return out if self._is_stream else b""

    def _read(self, frames: list[sse.Frame]) -> Iterator[Said]:
        for number, frame in enumerate(frames):
            if self.failure is not None:
                self._leave(frames[number:])
                break
            self.notes.frame += 1
            self.notes.byte = frame.byte
            yield frame, self._sent(self._frame(frame) + self._be_strict())

    def _frame(self, frame: sse.Frame) -> bytes:
        data = frame.data or b""
        value = strict(data)
        if value is NOT_JSON and is_too_hard(data) and not self.is_done:
            # To make sense of it would hold up other streams.
            self.notes.note(faults.enc.STRICT_JSON, f"a frame of {len(data)} bytes")
            return self._fail(garbage(f"a frame that is {why_unreadable(data)}"))
        if frame.raw != sse.named(frame.event, data):  # what else stands in it?
            lines = sse.lines(frame.raw)
            if all(line.startswith(b":") for line in lines):
                return self._silence()
            note_lines(self.notes, frame.raw, lines)
            if value is NOT_JSON:
                data = salvage(lines, [sse.field(line) for line in lines])
                value = strict(data)
        if not data.isascii():
            note_characters(self.notes, data)
        if not frame.ended and data:
            self.notes.note(faults.end.LAST_EVENT_TERMINATED)
        if isinstance(value, dict):
            return self._meet(value, frame.event)
        return self._odd(data, value, frame)

    def _meet(self, value: Json, name: str) -> bytes:
        if self.on_event is not None:
            self.on_event(value, name)
        if value.get("type", name) not in _NO_CONTENT:
            self.has_content = True
        return self._event(value, name)

    def _odd(self, data: bytes, value: object, frame: sse.Frame) -> bytes:
        """A frame whose data is no JSON object at first sight."""
        if not data.strip():
            if frame.event or frame.data is not None:
                for fault in self._EMPTY:
                    self.notes.note(fault, frame.event)
            return self._silence()
        if data.strip() == b"[DONE]":
            return self._sentinel()
        values = [value]
        if value is NOT_JSON:
            values = lenient(data)
            self.notes.note(why_odd(data, values), data.decode("utf-8", "replace"))
        if not values:
            is_cut = not frame.ended  # inside its last frame; what came before tells whether that matters
            return b"" if is_cut or self.is_done else self._fail(garbage("a frame that is no JSON"))
        objects = [self._scrubbed(item) for item in values if isinstance(item, dict)]
        if len(objects) < len(values):
            self.notes.note(self._UNKNOWN, data.decode("utf-8", "replace"))
        return b"".join(self._meet(item, frame.event) for item in objects if self.failure is None)
