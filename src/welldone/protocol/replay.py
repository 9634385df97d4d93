"""A stream that is mended once more, slowly, to see what became of each of its frames.

A pipe is fast because it forgets: text takes a short way, and what several frames say goes out as one. A replay feeds a
pipe of its own, made like the first, and keeps what was heard, read, mended and said, frame by frame. Given the same
pieces it says the same bytes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from welldone.protocol import sse
from welldone.protocol.dialects.same_dialect import FrameOutput, PassthroughRepairer
from welldone.protocol.events import Event, Failure, Json, KeepAlive
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.repair_log import RepairEntry
from welldone.protocol.repairer import FrameEvents

AnyPipeline: TypeAlias = StreamPipeline | BufferedPipeline | PassthroughRepairer
"""Whatever makes an answer."""


class StreamReplayStep(msgspec.Struct, frozen=True):
    """One frame, and what became of it. The last step of a part has what was left and what is said at its end."""

    part: int
    byte: int
    """Where its first byte stands in the part's body."""
    received: bytes
    """Its bytes, with what stood before it and is no frame: a byte order mark, empty lines."""
    events: Sequence[Event | Json] = ()
    """What was read in it, as far as it is to be said: what is held back is an event of a later step."""
    repairs: Sequence[RepairEntry] = ()
    """What was found wrong in it, with the count of this frame alone. What was heard is told the first time."""
    sent: bytes = b""


class StreamReplay:
    """Mends a stream step by step, with a pipe that nobody else feeds."""

    def __init__(self, pipeline: AnyPipeline) -> None:
        self.pipeline = pipeline
        self._pending: dict[int, bytearray] = {}  # what was heard of each part, and is in no step yet
        self._offsets: dict[int, int] = {}  # where that begins
        self._counts: dict[str, int] = {}
        self._passthrough_events: list[Json] = []
        if isinstance(pipeline, PassthroughRepairer):
            pipeline.on_event = lambda value, _: self._passthrough_events.append(value)

    def feed(self, data: bytes, part: int = 0) -> Iterator[StreamReplayStep]:
        """The steps that `data` completes, each made when it is asked for: take them all before anything else."""
        self._buffer_received(data, part)
        if isinstance(self.pipeline, PassthroughRepairer):
            yield from self._passthrough_steps(self.pipeline.feed_by_frame(data), part)
        else:
            yield from self._pipeline_steps(self.pipeline, self.pipeline.merger.feed_by_frame(data, part), part)

    def feed_reply(self, data: bytes, part: int = 0) -> list[StreamReplayStep]:
        """The step of a part that was not streamed: `data` is its whole reply. Then `close` it."""
        self._buffer_received(data, part)
        if isinstance(self.pipeline, PassthroughRepairer):
            said = self.pipeline.feed_reply(data)
            return [self._step(part, repairs=self._new_repairs(), sent=said)]
        events = [event for step in self.pipeline.merger.feed_reply_in_steps(data, part) for event in step]
        return [self._step(part, events=events, repairs=self._new_repairs(), sent=self.pipeline.write_events(events))]

    def close(self, part: int = 0) -> list[StreamReplayStep]:
        """The last steps of a part, when its stream has ended, however it did."""
        if isinstance(self.pipeline, PassthroughRepairer):
            steps = list(self._passthrough_steps(self.pipeline.close_by_frame(), part))
        else:
            *steps, last = self._pipeline_steps(self.pipeline, self.pipeline.merger.close_by_frame(part), part)
            steps.append(msgspec.structs.replace(last, sent=last.sent + self.pipeline.end()))
        return _nonempty_steps([*steps, self._step(part)])

    def fail(self, failure: Failure) -> list[StreamReplayStep]:
        """The steps of an answer that breaks off for a reason that the server did not tell."""
        events: list[Event] = []
        if isinstance(self.pipeline, PassthroughRepairer):
            said = self.pipeline.fail(failure)
        else:
            events = self.pipeline.merger.fail(failure)
            said = self.pipeline.write_events(events) + self.pipeline.end()
        rest = [self._step(part) for part in sorted(self._pending)]
        return _nonempty_steps([*rest, self._step(0, events=events, repairs=self._new_repairs(), sent=said)])

    def keep_alive(self) -> list[StreamReplayStep]:
        """The step of a sign of life, which may be counted among what is said."""
        said = self.pipeline.keep_alive()
        return [StreamReplayStep(0, self._offsets.get(0, 0), b"", [KeepAlive()], sent=said)] if said else []

    def body(self) -> StreamReplayStep:
        """The step of a reply that is not streamed, when all of it was heard."""
        assert not isinstance(self.pipeline, StreamPipeline)
        return self._step(0, sent=self.pipeline.body())

    def _buffer_received(self, data: bytes, part: int) -> None:
        self._pending.setdefault(part, bytearray()).extend(data)

    def _pipeline_steps(
        self, pipeline: StreamPipeline | BufferedPipeline, frames: Iterator[FrameEvents], part: int
    ) -> Iterator[StreamReplayStep]:
        # All is read before something is said, as a pipe does: what was counted by then may be said first.
        read = [(frame, events, self._new_repairs()) for frame, events in frames]
        for frame, events, notes in read:
            yield self._step(part, frame, events=events, repairs=notes, sent=pipeline.write_events(events))

    def _passthrough_steps(self, frames: Iterator[FrameOutput], part: int) -> Iterator[StreamReplayStep]:
        for frame, said in frames:
            told, self._passthrough_events = self._passthrough_events, []
            yield self._step(part, frame, events=told, repairs=self._new_repairs(), sent=said)
        if late := self._new_repairs():  # what is wrong with frames that are not read any more
            yield self._step(part, repairs=late)

    def _step(
        self,
        part: int,
        frame: sse.Frame | None = None,
        *,
        events: Sequence[Event | Json] = (),
        repairs: Sequence[RepairEntry] = (),
        sent: bytes = b"",
    ) -> StreamReplayStep:
        """A step of all that was heard up to the end of its frame; without a frame, of all that is left."""
        left = self._pending.setdefault(part, bytearray())
        byte = self._offsets.get(part, 0)
        size = len(left) if frame is None else frame.byte + len(frame.raw) - byte
        heard = bytes(left[:size])
        del left[:size]
        self._offsets[part] = byte + size
        return StreamReplayStep(part, byte, heard, events, repairs, sent)

    def _new_repairs(self) -> list[RepairEntry]:
        """What was noted since this was last asked."""
        noted = []
        for note in self.pipeline.repair_log.entries():
            before = self._counts.get(note.rule, 0)
            if note.count > before:
                self._counts[note.rule] = note.count
                heard = "" if before else note.observed
                noted.append(msgspec.structs.replace(note, count=note.count - before, observed=heard))
        return noted


def _nonempty_steps(steps: list[StreamReplayStep]) -> list[StreamReplayStep]:
    """Those in which something happened."""
    return [step for step in steps if step.received or step.events or step.repairs or step.sent]
