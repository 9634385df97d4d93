"""One server's bytes, as the legal events of an answer: reader and repair in a row."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from welldone.wire import faults, sse
from welldone.wire.asked import Asked
from welldone.wire.events import Event, Failure, Finish, KeepAlive, Reword, Usage
from welldone.wire.failures import too_strict
from welldone.wire.forced import Forced, ForcedCalls
from welldone.wire.head import Endpoint, Head
from welldone.wire.lane import Lane
from welldone.wire.notes import Notes
from welldone.wire.printed import PrintedCalls
from welldone.wire.reader import Reader
from welldone.wire.repair import Repair
from welldone.wire.stops import Stops
from welldone.wire.texts import TextForm, Think
from welldone.wire.thoughts import ReasoningCounter

_EARLY_LIMIT = 64  # chunks without an envelope whose fields are kept; real servers send one

Taken: TypeAlias = tuple[sse.Frame | None, list[Event]]
"""A frame that was taken, and what is to be said for it. None: for all that is left, or for the end."""


class Mender:
    """Mends one stream as it comes. Before the first real chunk only signs of life, or a failure, come out."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        asked: Asked,
        mint: Callable[[], str],
        forced: Forced | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self.notes = Notes(endpoint)
        self._endpoint = endpoint
        self._asked = asked
        self._reader = Reader(endpoint, fallback=fallback, asked=asked, notes=self.notes, limit_bytes=limit_bytes)
        self._repair = Repair(endpoint, asked=asked, notes=self.notes, mint=mint, is_stream=is_stream)
        self._calls = None if forced is None else ForcedCalls(forced, mint)
        self._stops = Stops(asked.stops) if asked.stops else None
        self._thoughts = ReasoningCounter() if asked.counts_reasoning else None
        self._printed = PrintedCalls(asked.tools) if asked.tools else None
        self._early: list[Event] | None = []  # fields that came before there was an envelope
        self._is_plain = False  # nothing is held back, forced or watched: reader and repair are all there is

    @property
    def head(self) -> Head | None:
        """The envelope, once a chunk came."""
        return self._reader.head

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]`, or failed: nothing that matters can follow."""
        return self._reader.is_done or self.failure is not None

    @property
    def is_complete(self) -> bool:
        """Whether each choice has finished, though the server has not said `[DONE]`."""
        return self._repair.is_complete

    @property
    def is_counted(self) -> bool:
        """Whether usage came as it should, behind all else."""
        return self._reader.has_usage_chunk

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come: the server would go on, and need not."""
        return self._stops is not None and self._stops.is_over

    @property
    def failure(self) -> Failure | None:
        """The error that the stream ends with, if it does."""
        return self._repair.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted, also where the client did not ask for it."""
        return self._repair.usage

    @property
    def broken_json(self) -> int:
        """How many choices should have been JSON, and are not."""
        return self._repair.broken_json

    @property
    def broken_arguments(self) -> int:
        """How many tool calls had arguments that are no JSON object."""
        return self._repair.broken_arguments

    @property
    def printed_calls(self) -> int:
        """How many choices look like a tool call that was written as text."""
        return 0 if self._printed is None else self._printed.count

    def tune(self, *, think: Think, text: TextForm, strict: frozenset[str], reword: Reword | None) -> None:
        """How the stream is mended, before its first byte; see `Answered.tune`."""
        self._repair.think = think if self._endpoint is Endpoint.CHAT else "no"
        self._repair.text = text
        self.notes.strict = strict
        self._repair.reword = reword

    def is_flowing(self, index: int) -> bool:
        """Whether plain text of this choice would pass as it is, and change nothing."""
        is_kept = self._printed is not None and self._printed.is_watching
        return self._is_plain and not is_kept and self._reader.is_idle and self._repair.is_flowing(index)

    def passed(self, lane: Lane) -> None:
        """Frames of plain text took a shorter way."""
        self._reader.passed(lane.frames, lane.bytes, lane.last_bytes)
        self._repair.passed()
        self.notes.repeat(lane.faults, lane.frames)
        lane.forget()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        frames = self._reader.frames(data)
        if len(frames) == 1 and self._is_plain and self._repair.failure is None and not self._reader.is_overrun:
            return self._repair.feed(self._count(self._reader.read(frames[0])))
        return [event for _, events in self._take(frames) for event in events]

    def take(self, data: bytes) -> Iterator[Taken]:
        """As `feed`, frame by frame: all that is noted before one is given is about that one, or was before it."""
        return self._take(self._reader.frames(data))

    def whole(self, data: bytes) -> Iterator[list[Event]]:
        """The events of a reply that was not streamed; each step takes a turn."""
        for events in self._reader.whole(data):
            yield self._hold(self._repair.feed(self._force(events)))
        yield self._be_strict()

    def take_last(self) -> Iterator[Taken]:
        """The last events, frame by frame, when the server's stream has ended, however it did."""
        if self.is_stopped:
            yield None, self._hold(self._repair.close(is_done=True))
            return
        yield from self._read(self._reader.last_frames())
        last = self._repair.feed(self._force(self._reader.check() + self._reader.end()) + self._take_held())
        last += self._repair.close(is_done=self._reader.is_done or self.is_stopped)
        is_counted = self._reader.has_usage_chunk or self.is_stopped
        if self._asked.usage and not is_counted and self.failure is None:
            self.notes.note(faults.use.FINAL_CHUNK)
            if self._endpoint is Endpoint.COMPLETIONS:
                self.notes.note(faults.cmpl.USAGE_CHUNK)
        yield None, self._hold(self._unless_broken(last))

    def fail(self, failure: Failure) -> list[Event]:
        """The last events where the answer breaks off for a reason that the server did not tell."""
        return self._hold(self._repair.feed([*self._take_held(), failure]))

    def _take(self, frames: list[sse.Frame]) -> Iterator[Taken]:
        yield from self._read(frames)
        if self._reader.is_overrun:
            yield None, self._hold(self._repair.feed(self._reader.check()))

    def _read(self, frames: list[sse.Frame]) -> Iterator[Taken]:
        """What is to be said for each frame: one at a time, so that each note knows its place."""
        for frame in frames:
            if self.is_stopped or (self._repair.failure is not None and not self._reader.has_failed):
                break  # what follows would only be kept, and never sent
            events = self._hold(self._repair.feed(self._force(self._reader.read(frame))))
            yield frame, events + self._be_strict()

    def _be_strict(self) -> list[Event]:
        """The end of an answer that broke a rule which may not be broken."""
        rule = self.notes.broken
        return [] if rule is None else self._hold(self._repair.feed([too_strict(rule)]))

    def _unless_broken(self, last: list[Event]) -> list[Event]:
        """The last events; without their success, if a rule was broken that may not be."""
        rule = self.notes.broken
        if rule is None or self.failure is not None:
            return last
        self._repair.failure = too_strict(rule)
        return [*(event for event in last if not isinstance(event, Finish | Usage)), self._repair.failure]

    def _force(self, events: list[Event]) -> list[Event]:
        """The events with calls where they were forced, and up to a stop string."""
        if self._calls is not None:
            events = self._calls.feed(events)
        return self._count(events if self._stops is None else self._stops.feed(events))

    def _count(self, events: list[Event]) -> list[Event]:
        """The events with the tokens of the reasoning in their usage, where they are counted here."""
        if self._printed is not None:
            self._printed.hear(events)
        return events if self._thoughts is None else self._thoughts.feed(events)

    def _take_held(self) -> list[Event]:
        """What waits for a stop string that will not come any more."""
        return [] if self._stops is None else self._stops.close()

    def _hold(self, events: list[Event]) -> list[Event]:
        """Before the first real chunk: signs of life go out, and fields that came alone wait for its envelope."""
        if self._early is None or not events:
            return events
        if self._reader.head is not None or isinstance(events[-1], Failure):
            events = self._early + events
            self._early = None
            self._is_plain = self._calls is None and self._stops is None and not self.notes.strict
            return events
        if len(self._early) < _EARLY_LIMIT:
            self._early += [event for event in events if not isinstance(event, KeepAlive)]
        return [event for event in events if isinstance(event, KeepAlive)]
