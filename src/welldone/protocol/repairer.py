"""One server's bytes, as the legal events of an answer: reader and repair in a row."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from welldone.protocol import catalog, sse
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Event, Failure, FailureMapper, Finish, KeepAlive, Usage
from welldone.protocol.fast_path import FastPath
from welldone.protocol.fields import strict_rule_failure
from welldone.protocol.reader import EventReader
from welldone.protocol.repair import EventRepairer
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_filters import ReasoningTokenCounter, StopStringFilter, TextMode, ThinkMode
from welldone.protocol.text_tool_calls import ForcedCallConverter, ForcedToolCall, TextToolCallDetector

_EARLY_LIMIT = 64  # chunks without an envelope whose fields are kept; real servers send one

FrameEvents: TypeAlias = tuple[sse.Frame | None, list[Event]]
"""A frame that was taken, and what is to be said for it. None: for all that is left, or for the end."""


class Repairer:
    """Mends one stream as it comes. Before the first real chunk only signs of life, or a failure, come out."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts,
        new_call_id: Callable[[], str],
        forced: ForcedToolCall | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        self.repair_log = RepairLog(endpoint)
        self._endpoint = endpoint
        self._facts = facts
        self._reader = EventReader(
            endpoint, fallback=fallback, facts=facts, repair_log=self.repair_log, limit_bytes=limit_bytes
        )
        self._event_repairer = EventRepairer(
            endpoint, facts=facts, repair_log=self.repair_log, new_call_id=new_call_id, is_stream=is_stream
        )
        self._forced_calls = None if forced is None else ForcedCallConverter(forced, new_call_id)
        self._stops = StopStringFilter(facts.stop_strings) if facts.stop_strings else None
        self._reasoning_counter = ReasoningTokenCounter() if facts.count_reasoning_tokens else None
        self._text_tool_calls = TextToolCallDetector(facts.tool_names) if facts.tool_names else None
        self._early_events: list[Event] | None = []  # fields that came before there was an envelope
        self._is_direct = False  # nothing is held back, forced or watched: reader and repair are all there is

    @property
    def envelope(self) -> Envelope | None:
        """The envelope, once a chunk came."""
        return self._reader.envelope

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]`, or failed: nothing that matters can follow."""
        return self._reader.is_done or self.failure is not None

    @property
    def is_complete(self) -> bool:
        """Whether each choice has finished, though the server has not said `[DONE]`."""
        return self._event_repairer.is_complete

    @property
    def has_usage_chunk(self) -> bool:
        """Whether usage came as it should, behind all else."""
        return self._reader.has_usage_chunk

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has come: the server would go on, and need not."""
        return self._stops is not None and self._stops.has_matched

    @property
    def failure(self) -> Failure | None:
        """The error that the stream ends with, if it does."""
        return self._event_repairer.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted, also where the client did not ask for it."""
        return self._event_repairer.usage

    @property
    def invalid_json_count(self) -> int:
        """How many choices should have been JSON, and are not."""
        return self._event_repairer.invalid_json_count

    @property
    def invalid_arguments_count(self) -> int:
        """How many tool calls had arguments that are no JSON object."""
        return self._event_repairer.invalid_arguments_count

    @property
    def text_tool_calls(self) -> int:
        """How many choices look like a tool call that was written as text."""
        return 0 if self._text_tool_calls is None else self._text_tool_calls.count

    def configure(
        self, *, think: ThinkMode, text: TextMode, strict: frozenset[str], map_failure: FailureMapper | None
    ) -> None:
        """How the stream is mended, before its first byte; see `Answered.tune`."""
        self._event_repairer.think_mode = think if self._endpoint is Endpoint.CHAT else "no"
        self._event_repairer.text_mode = text
        self.repair_log.strict_rules = strict
        self._event_repairer.map_failure = map_failure

    def can_use_fast_path(self, index: int) -> bool:
        """Whether plain text of this choice would pass as it is, and change nothing."""
        is_kept = self._text_tool_calls is not None and self._text_tool_calls.is_watching
        return (
            self._is_direct and not is_kept and self._reader.is_idle and self._event_repairer.can_use_fast_path(index)
        )

    def record_fast_path(self, fast_path: FastPath) -> None:
        """Frames of plain text took a shorter way."""
        self._reader.record_fast_path(fast_path.frames, fast_path.bytes, fast_path.last_bytes)
        self._event_repairer.record_fast_path()
        self.repair_log.add_counts(fast_path.rule_counts, fast_path.frames)
        fast_path.reset_counts()

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        frames = self._reader.decode_frames(data)
        if (
            len(frames) == 1
            and self._is_direct
            and self._event_repairer.failure is None
            and not self._reader.is_overlong
        ):
            return self._event_repairer.feed(self._observe(self._reader.read_frame(frames[0])))
        return [event for _, events in self._take_frames(frames) for event in events]

    def feed_by_frame(self, data: bytes) -> Iterator[FrameEvents]:
        """As `feed`, frame by frame: all that is noted before one is given is about that one, or was before it."""
        return self._take_frames(self._reader.decode_frames(data))

    def feed_reply_in_steps(self, data: bytes) -> Iterator[list[Event]]:
        """The events of a reply that was not streamed; each step takes a turn."""
        for events in self._reader.read_reply_in_steps(data):
            yield self._hold_until_envelope(self._event_repairer.feed(self._apply_filters(events)))
        yield self._strict_failure()

    def close_by_frame(self) -> Iterator[FrameEvents]:
        """The last events, frame by frame, when the server's stream has ended, however it did."""
        if self.is_stopped:
            yield None, self._hold_until_envelope(self._event_repairer.close(is_done=True))
            return
        yield from self._read_frames(self._reader.decode_last_frames())
        last = self._event_repairer.feed(
            self._apply_filters(self._reader.check_length() + self._reader.flush()) + self._flush_stop_filter()
        )
        last += self._event_repairer.close(is_done=self._reader.is_done or self.is_stopped)
        is_counted = self._reader.has_usage_chunk or self.is_stopped
        if self._facts.include_usage and not is_counted and self.failure is None:
            self.repair_log.record(catalog.use.FINAL_CHUNK)
            if self._endpoint is Endpoint.COMPLETIONS:
                self.repair_log.record(catalog.cmpl.USAGE_CHUNK)
        yield None, self._hold_until_envelope(self._fail_if_strict(last))

    def fail(self, failure: Failure) -> list[Event]:
        """The last events where the answer breaks off for a reason that the server did not tell."""
        return self._hold_until_envelope(self._event_repairer.feed([*self._flush_stop_filter(), failure]))

    def _take_frames(self, frames: list[sse.Frame]) -> Iterator[FrameEvents]:
        yield from self._read_frames(frames)
        if self._reader.is_overlong:
            yield None, self._hold_until_envelope(self._event_repairer.feed(self._reader.check_length()))

    def _read_frames(self, frames: list[sse.Frame]) -> Iterator[FrameEvents]:
        """What is to be said for each frame: one at a time, so that each note knows its place."""
        for frame in frames:
            if self.is_stopped or (self._event_repairer.failure is not None and not self._reader.has_failed):
                break  # what follows would only be kept, and never sent
            events = self._hold_until_envelope(
                self._event_repairer.feed(self._apply_filters(self._reader.read_frame(frame)))
            )
            yield frame, events + self._strict_failure()

    def _strict_failure(self) -> list[Event]:
        """The end of an answer that broke a rule which may not be broken."""
        rule = self.repair_log.broken_rule
        return [] if rule is None else self._hold_until_envelope(self._event_repairer.feed([strict_rule_failure(rule)]))

    def _fail_if_strict(self, last: list[Event]) -> list[Event]:
        """The last events; without their success, if a rule was broken that may not be."""
        rule = self.repair_log.broken_rule
        if rule is None or self.failure is not None:
            return last
        self._event_repairer.failure = strict_rule_failure(rule)
        return [*(event for event in last if not isinstance(event, Finish | Usage)), self._event_repairer.failure]

    def _apply_filters(self, events: list[Event]) -> list[Event]:
        """The events with calls where they were forced, and up to a stop string."""
        if self._forced_calls is not None:
            events = self._forced_calls.feed(events)
        return self._observe(events if self._stops is None else self._stops.feed(events))

    def _observe(self, events: list[Event]) -> list[Event]:
        """The events with the tokens of the reasoning in their usage, where they are counted here."""
        if self._text_tool_calls is not None:
            self._text_tool_calls.observe(events)
        return events if self._reasoning_counter is None else self._reasoning_counter.feed(events)

    def _flush_stop_filter(self) -> list[Event]:
        """What waits for a stop string that will not come any more."""
        return [] if self._stops is None else self._stops.close()

    def _hold_until_envelope(self, events: list[Event]) -> list[Event]:
        """Before the first real chunk: signs of life go out, and fields that came alone wait for its envelope."""
        if self._early_events is None or not events:
            return events
        if self._reader.envelope is not None or isinstance(events[-1], Failure):
            events = self._early_events + events
            self._early_events = None
            self._is_direct = self._forced_calls is None and self._stops is None and not self.repair_log.strict_rules
            return events
        if len(self._early_events) < _EARLY_LIMIT:
            self._early_events += [event for event in events if not isinstance(event, KeepAlive)]
        return [event for event in events if isinstance(event, KeepAlive)]
