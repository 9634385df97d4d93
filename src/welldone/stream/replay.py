"""Replay of a stream through a second pipeline, to show for each frame what was received, repaired and sent.

A pipeline does not relate its output to frames: text takes the fast path, and the output of several frames is joined. A
replay feeds an equal pipeline frame by frame. The same input gives the same bytes.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec

from welldone.core import sse
from welldone.core.continuation import Continuation
from welldone.core.events import Event, Failure, Json, KeepAlive
from welldone.core.repair_log import RepairEntry
from welldone.dialects.same_dialect import FrameOutput, PassthroughRepairer
from welldone.stream.part import FrameEvents
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

AnyPipeline: TypeAlias = StreamPipeline | BufferedPipeline | PassthroughRepairer
"""Any kind of pipeline."""


class StreamReplayStep(msgspec.Struct, frozen=True):
    """One frame with its events, repairs and output. The last step of a part has the rest and the output at its end."""

    part: int
    byte: int
    """Offset of the first byte in the body of the part."""
    received: bytes
    """Bytes of the frame, with a byte order mark or blank lines before it."""
    events: Sequence[Event | Json] = ()
    """Events to send for the frame; events that are held back belong to a later step."""
    repairs: Sequence[RepairEntry] = ()
    """Repairs in this frame, with the counts of this frame. `observed` is set in the first entry of a rule."""
    sent: bytes = b""


class StreamReplay:
    """Repairs a stream step by step with its own pipeline."""

    def __init__(self, pipeline: AnyPipeline) -> None:
        self.pipeline = pipeline
        self._pending: dict[int, bytearray] = {}  # received bytes by part that belong to no step yet
        self._offsets: dict[int, int] = {}  # offset of the pending bytes
        self._counts: dict[str, int] = {}
        self._passthrough_events: list[Json] = []
        if isinstance(pipeline, PassthroughRepairer):
            pipeline.on_event = lambda value, _: self._passthrough_events.append(value)

    def feed(self, data: bytes, part: int = 0) -> Iterator[StreamReplayStep]:
        """Yield the steps that `data` completes. Exhaust the iterator before any other call."""
        self._pending.setdefault(part, bytearray()).extend(data)
        if isinstance(self.pipeline, PassthroughRepairer):
            yield from self._passthrough_steps(self.pipeline.feed_by_frame(data), part)
        else:
            yield from self._pipeline_steps(self.pipeline, self.pipeline.read_by_frame(data, part), part)

    def feed_reply(self, data: bytes, part: int = 0) -> list[StreamReplayStep]:
        """Return the step of a part that is a complete non-streaming reply. Then `close` it."""
        self._pending.setdefault(part, bytearray()).extend(data)
        if isinstance(self.pipeline, PassthroughRepairer):
            sent = self.pipeline.feed_reply(data)
            return [self._step(part, repairs=self._new_repairs(), sent=sent)]
        events = [event for step in self.pipeline.read_reply_in_steps(data, part) for event in step]
        return [self._step(part, events=events, repairs=self._new_repairs(), sent=self.pipeline.write_events(events))]

    def close(self, part: int = 0) -> list[StreamReplayStep]:
        """Return the last steps of a part."""
        if isinstance(self.pipeline, PassthroughRepairer):
            steps = list(self._passthrough_steps(self.pipeline.close_by_frame(), part))
        else:
            *steps, last = self._pipeline_steps(self.pipeline, self.pipeline.read_end_by_frame(part), part)
            steps.append(msgspec.structs.replace(last, sent=last.sent + self.pipeline.end()))
        return _nonempty_steps([*steps, self._step(part)])

    def fail(self, failure: Failure) -> list[StreamReplayStep]:
        """Return the steps of an answer that fails for a reason outside of the stream."""
        events: list[Event] = []
        if isinstance(self.pipeline, PassthroughRepairer):
            sent = self.pipeline.fail(failure)
        else:
            events = self.pipeline.read_failure(failure)
            sent = self.pipeline.write_events(events) + self.pipeline.end()
        rest = [self._step(part) for part in sorted(self._pending)]
        return _nonempty_steps([*rest, self._step(0, events=events, repairs=self._new_repairs(), sent=sent)])

    def continue_part(self, part: int, continuation: Continuation) -> list[StreamReplayStep]:
        """Continue a part with another stream, whose bytes are counted from 0. Returns the rest of the first one."""
        assert not isinstance(self.pipeline, PassthroughRepairer)
        rest = _nonempty_steps([self._step(part)])
        self.pipeline.continue_part(part, continuation)
        self._offsets[part] = 0
        return rest

    def release_failure(self, part: int) -> list[StreamReplayStep]:
        """Return the step of a part that was cut and is not continued."""
        assert not isinstance(self.pipeline, PassthroughRepairer)
        events = self.pipeline.read_held_failure(part)
        return [self._step(part, events=events, repairs=self._new_repairs(), sent=self.pipeline.write_events(events))]

    def keep_alive(self) -> list[StreamReplayStep]:
        """Return the step of a keep-alive, which may change the state of the output."""
        sent = self.pipeline.keep_alive()
        return [StreamReplayStep(0, self._offsets.get(0, 0), b"", [KeepAlive()], sent=sent)] if sent else []

    def body(self) -> StreamReplayStep:
        """Return the step of a non-streaming reply, after the end of all parts."""
        assert not isinstance(self.pipeline, StreamPipeline)
        return self._step(0, sent=self.pipeline.body())

    def _pipeline_steps(
        self, pipeline: StreamPipeline | BufferedPipeline, frames: Iterator[FrameEvents], part: int
    ) -> Iterator[StreamReplayStep]:
        # As in a pipeline, all frames are read before events are written: usage may be written before later frames.
        steps = [(frame, events, self._new_repairs()) for frame, events in frames]
        for frame, events, repairs in steps:
            yield self._step(part, frame, events=events, repairs=repairs, sent=pipeline.write_events(events))

    def _passthrough_steps(self, frames: Iterator[FrameOutput], part: int) -> Iterator[StreamReplayStep]:
        for frame, sent in frames:
            events, self._passthrough_events = self._passthrough_events, []
            yield self._step(part, frame, events=events, repairs=self._new_repairs(), sent=sent)

    def _step(
        self,
        part: int,
        frame: sse.Frame | None = None,
        *,
        events: Sequence[Event | Json] = (),
        repairs: Sequence[RepairEntry] = (),
        sent: bytes = b"",
    ) -> StreamReplayStep:
        """Make a step of the pending bytes up to the end of `frame`, or of all of them."""
        pending = self._pending.setdefault(part, bytearray())
        byte = self._offsets.get(part, 0)
        size = len(pending) if frame is None or frame.is_overlong else frame.byte + len(frame.raw) - byte
        received = bytes(pending[:size])
        del pending[:size]
        self._offsets[part] = byte + size
        return StreamReplayStep(part, byte, received, events, repairs, sent)

    def _new_repairs(self) -> list[RepairEntry]:
        """Repairs since the last call."""
        repairs = []
        for entry in self.pipeline.repair_log.entries():
            before = self._counts.get(entry.rule, 0)
            if entry.count > before:
                self._counts[entry.rule] = entry.count
                observed = "" if before else entry.observed
                repairs.append(msgspec.structs.replace(entry, count=entry.count - before, observed=observed))
        return repairs


def _nonempty_steps(steps: list[StreamReplayStep]) -> list[StreamReplayStep]:
    return [step for step in steps if step.received or step.events or step.repairs or step.sent]
