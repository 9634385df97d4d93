"""A stream that is mended once more, slowly, to see what became of each of its frames.

A pipe is fast because it forgets: text takes a short way, and what several frames say goes out as one. A replay feeds a
pipe of its own, made like the first, and keeps what was heard, read, mended and said, frame by frame. Given the same
pieces it says the same bytes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from welldone.wire import sse
from welldone.wire.events import Event, Failure, Json, KeepAlive
from welldone.wire.fold import Fold
from welldone.wire.mender import Taken
from welldone.wire.native import Native, Said
from welldone.wire.notes import Note
from welldone.wire.pipe import Pipe

Watched: TypeAlias = Pipe | Fold | Native
"""Whatever makes an answer."""


class Step(msgspec.Struct, frozen=True):
    """One frame, and what became of it. The last step of a part has what was left and what is said at its end."""

    part: int
    byte: int
    """Where its first byte stands in the part's body."""
    heard: bytes
    """Its bytes, with what stood before it and is no frame: a byte order mark, empty lines."""
    events: Sequence[Event | Json] = ()
    """What was read in it, as far as it is to be said: what is held back is an event of a later step."""
    notes: Sequence[Note] = ()
    """What was found wrong in it, with the count of this frame alone. What was heard is told the first time."""
    said: bytes = b""


class Replay:
    """Mends a stream step by step, with a pipe that nobody else feeds."""

    def __init__(self, pipe: Watched) -> None:
        self.pipe = pipe
        self._left: dict[int, bytearray] = {}  # what was heard of each part, and is in no step yet
        self._bytes: dict[int, int] = {}  # where that begins
        self._counts: dict[str, int] = {}
        self._told: list[Json] = []
        if isinstance(pipe, Native):
            pipe.on_event = lambda value, _: self._told.append(value)

    def feed(self, data: bytes, part: int = 0) -> Iterator[Step]:
        """The steps that `data` completes, each made when it is asked for: take them all before anything else."""
        self._hear(data, part)
        if isinstance(self.pipe, Native):
            yield from self._native(self.pipe.take(data), part)
        else:
            yield from self._answered(self.pipe, self.pipe.merge.take(data, part), part)

    def whole(self, data: bytes, part: int = 0) -> list[Step]:
        """The step of a part that was not streamed: `data` is its whole reply. Then `close` it."""
        self._hear(data, part)
        if isinstance(self.pipe, Native):
            said = self.pipe.whole(data)
            return [self._step(part, notes=self._noted(), said=said)]
        events = [event for step in self.pipe.merge.whole(data, part) for event in step]
        return [self._step(part, events=events, notes=self._noted(), said=self.pipe.say(events))]

    def close(self, part: int = 0) -> list[Step]:
        """The last steps of a part, when its stream has ended, however it did."""
        if isinstance(self.pipe, Native):
            steps = list(self._native(self.pipe.take_last(), part))
        else:
            *steps, last = self._answered(self.pipe, self.pipe.merge.take_last(part), part)
            steps.append(msgspec.structs.replace(last, said=last.said + self.pipe.end()))
        return _worth([*steps, self._step(part)])

    def fail(self, failure: Failure) -> list[Step]:
        """The steps of an answer that breaks off for a reason that the server did not tell."""
        events: list[Event] = []
        if isinstance(self.pipe, Native):
            said = self.pipe.fail(failure)
        else:
            events = self.pipe.merge.fail(failure)
            said = self.pipe.say(events) + self.pipe.end()
        rest = [self._step(part) for part in sorted(self._left)]
        return _worth([*rest, self._step(0, events=events, notes=self._noted(), said=said)])

    def keep_alive(self) -> list[Step]:
        """The step of a sign of life, which may be counted among what is said."""
        said = self.pipe.keep_alive()
        return [Step(0, self._bytes.get(0, 0), b"", [KeepAlive()], said=said)] if said else []

    def body(self) -> Step:
        """The step of a reply that is not streamed, when all of it was heard."""
        assert not isinstance(self.pipe, Pipe)
        return self._step(0, said=self.pipe.body())

    def _hear(self, data: bytes, part: int) -> None:
        self._left.setdefault(part, bytearray()).extend(data)

    def _answered(self, pipe: Pipe | Fold, taken: Iterator[Taken], part: int) -> Iterator[Step]:
        # All is read before something is said, as a pipe does: what was counted by then may be said first.
        read = [(frame, events, self._noted()) for frame, events in taken]
        for frame, events, notes in read:
            yield self._step(part, frame, events=events, notes=notes, said=pipe.say(events))

    def _native(self, taken: Iterator[Said], part: int) -> Iterator[Step]:
        for frame, said in taken:
            told, self._told = self._told, []
            yield self._step(part, frame, events=told, notes=self._noted(), said=said)
        if late := self._noted():  # what is wrong with frames that are not read any more
            yield self._step(part, notes=late)

    def _step(
        self,
        part: int,
        frame: sse.Frame | None = None,
        *,
        events: Sequence[Event | Json] = (),
        notes: Sequence[Note] = (),
        said: bytes = b"",
    ) -> Step:
        """A step of all that was heard up to the end of its frame; without a frame, of all that is left."""
        left = self._left.setdefault(part, bytearray())
        byte = self._bytes.get(part, 0)
        size = len(left) if frame is None else frame.byte + len(frame.raw) - byte
        heard = bytes(left[:size])
        del left[:size]
        self._bytes[part] = byte + size
        return Step(part, byte, heard, events, notes, said)

    def _noted(self) -> list[Note]:
        """What was noted since this was last asked."""
        noted = []
        for note in self.pipe.notes.all():
            before = self._counts.get(note.rule, 0)
            if note.count > before:
                self._counts[note.rule] = note.count
                heard = "" if before else note.heard
                noted.append(msgspec.structs.replace(note, count=note.count - before, heard=heard))
        return noted


def _worth(steps: list[Step]) -> list[Step]:
    """Those in which something happened."""
    return [step for step in steps if step.heard or step.events or step.notes or step.said]
