"""One part of an answer: bytes of one upstream stream in, legal events out (reader, filters and repair)."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from welldone.protocol import sse
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Event, Failure, Finish, KeepAlive, Usage
from welldone.protocol.fields import strict_rule_failure
from welldone.protocol.reader import EventReader
from welldone.protocol.repair import EventRepairer
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RepairOptions, RequestFacts
from welldone.protocol.result import PartState
from welldone.protocol.text_filters import ReasoningTokenCounter, StopStringFilter
from welldone.protocol.text_tool_calls import ForcedCallConverter, ForcedToolCall, TextToolCallDetector

_EARLY_LIMIT = 64  # events before the envelope that are stored; real servers send one

FrameEvents: TypeAlias = tuple[sse.Frame | None, list[Event]]
"""A frame and its events. None stands for the rest of the stream, or for its end."""


class StreamPart:
    """Repairs one stream incrementally. Before the first real chunk it emits only keep-alives or a failure."""

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
        self.repair_log: RepairLog = RepairLog(endpoint)
        self.endpoint: Endpoint = endpoint
        self._facts = facts
        self._reader = EventReader(
            endpoint, fallback=fallback, facts=facts, repair_log=self.repair_log, limit_bytes=limit_bytes
        )
        self.repairer: EventRepairer = EventRepairer(
            endpoint, facts=facts, repair_log=self.repair_log, new_call_id=new_call_id, is_stream=is_stream
        )
        self._forced_calls = None if forced is None else ForcedCallConverter(forced, new_call_id)
        self._stops = StopStringFilter(facts.stop_strings) if facts.stop_strings else None
        self._reasoning_counter = ReasoningTokenCounter() if facts.count_reasoning_tokens else None
        self._text_tool_calls = TextToolCallDetector(facts.tool_names) if facts.tool_names else None
        self._early_events: list[Event] | None = []  # fields received before the envelope
        self._is_observed = self._reasoning_counter is not None or self._text_tool_calls is not None
        self._is_direct = False  # no filter is active: only reader and repair

    @property
    def envelope(self) -> Envelope | None:
        """The envelope, once a chunk was read."""
        return self._reader.chunks.envelope

    @property
    def state(self) -> PartState:
        """How far the part has come, if it did not fail."""
        reader = self._reader
        if self._is_stopped:
            return PartState.STOPPED
        if reader.is_done:
            return PartState.DONE
        if reader.chunks.envelope is None:
            return PartState.WAITING
        if self.repairer.is_complete:
            return PartState.FINISHED_WITH_USAGE if reader.chunks.has_usage_chunk else PartState.FINISHED
        return PartState.ANSWERING

    @property
    def _is_stopped(self) -> bool:
        return self._stops is not None and self._stops.has_matched

    @property
    def text_tool_calls(self) -> int:
        """Number of choices whose text looks like a tool call."""
        return 0 if self._text_tool_calls is None else self._text_tool_calls.count

    def configure(self, options: RepairOptions) -> None:
        """Set how the stream is repaired, before its first byte."""
        self.repairer.options = options
        self.repair_log.strict_rules = options.strict

    def can_use_fast_path(self, index: int) -> bool:
        """Whether plain text of this choice passes unchanged and changes no state."""
        is_watched = self._text_tool_calls is not None and self._text_tool_calls.is_watching
        return self._is_direct and not is_watched and self._reader.is_idle and self.repairer.can_use_fast_path(index)

    def record_fast_path(self, frames: int, byte_count: int, last_bytes: int, rule_counts: Mapping[str, int]) -> None:
        """Update reader, repair and log after frames that the fast path handled."""
        self._reader.record_fast_path(frames, byte_count, last_bytes)
        self.repairer.record_fast_path()
        self.repair_log.add_counts(rule_counts, frames)

    def record_fast_text(self, index: int, characters: int) -> None:
        """Count the text of a choice that the fast path handled."""
        self._reader.chunks.add_text_length(index, characters)

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that `data` completes."""
        out: list[Event] = []
        for _, events in self._read_frames(self._reader.decode_frames(data)):
            out += events
        return out

    def feed_by_frame(self, data: bytes) -> Iterator[FrameEvents]:
        """Like `feed`, frame by frame: the log has no entries of later frames when a frame is yielded."""
        return self._read_frames(self._reader.decode_frames(data))

    def feed_reply_in_steps(self, data: bytes) -> Iterator[list[Event]]:
        """Yield the events of a non-streaming reply; each step fits the blocking budget."""
        for events in self._reader.read_reply_in_steps(data):
            yield self._repair(events)
        yield self._strict_failure()

    def close_by_frame(self) -> Iterator[FrameEvents]:
        """Yield the last events, frame by frame, after the end of the upstream stream."""
        if self._is_stopped:
            yield None, self._hold_until_envelope(self.repairer.close(is_done=True))
            return
        yield from self._read_frames(self._reader.decode_last_frames())
        last = self.repairer.feed(self._apply_filters(self._reader.flush()) + self._flush_stop_filter())
        last += self.repairer.close(is_done=self._reader.is_done or self._is_stopped)
        has_usage = self._reader.chunks.has_usage_chunk or self._is_stopped
        if self._facts.include_usage and not has_usage and self.repairer.failure is None:
            self.repair_log.record("use-final-chunk")
            self.repair_log.record_if(self.endpoint is Endpoint.COMPLETIONS, "cmpl-usage-chunk")
        rule = self.repair_log.broken_rule
        if rule is not None and self.repairer.failure is None:
            self.repairer.failure = strict_rule_failure(rule)
            last = [*(event for event in last if not isinstance(event, Finish | Usage)), self.repairer.failure]
        yield None, self._hold_until_envelope(last)

    def fail(self, failure: Failure) -> list[Event]:
        """Return the last events of an answer that fails for a reason outside of the stream."""
        return self._hold_until_envelope(self.repairer.feed([*self._flush_stop_filter(), failure]))

    def _read_frames(self, frames: list[sse.Frame]) -> Iterator[FrameEvents]:
        reader, repairer = self._reader, self.repairer
        for frame in frames:
            # After an error of the server, the rest is checked. A direct part has no stop strings.
            if (repairer.failure is not None and not reader.has_failed) or (not self._is_direct and self._is_stopped):
                break
            events = reader.read_frame(frame)
            if self._is_direct:
                yield frame, repairer.feed(self._observe(events) if self._is_observed else events)
            else:
                yield frame, self._repair(events) + self._strict_failure()
        if reader.decoder.overlong_at is not None:
            yield None, self._repair(reader.check_length())

    def _repair(self, events: list[Event]) -> list[Event]:
        return self._hold_until_envelope(self.repairer.feed(self._apply_filters(events)))

    def _strict_failure(self) -> list[Event]:
        """A failure if a strict rule was violated."""
        rule = self.repair_log.broken_rule
        return [] if rule is None else self._hold_until_envelope(self.repairer.feed([strict_rule_failure(rule)]))

    def _apply_filters(self, events: list[Event]) -> list[Event]:
        """Convert forced calls and apply stop strings."""
        if self._forced_calls is not None:
            events = self._forced_calls.feed(events)
        return self._observe(events if self._stops is None else self._stops.feed(events))

    def _observe(self, events: list[Event]) -> list[Event]:
        """Detect tool calls in text and count reasoning tokens."""
        if self._text_tool_calls is not None:
            self._text_tool_calls.observe(events)
        return events if self._reasoning_counter is None else self._reasoning_counter.feed(events)

    def _flush_stop_filter(self) -> list[Event]:
        return [] if self._stops is None else self._stops.close()

    def _hold_until_envelope(self, events: list[Event]) -> list[Event]:
        """Before the first real chunk, pass keep-alives and store everything else until there is an envelope."""
        if self._early_events is None or not events:
            return events
        if self._reader.chunks.envelope is not None or isinstance(events[-1], Failure):
            events = self._early_events + events
            self._early_events = None
            self._is_direct = self._forced_calls is None and self._stops is None and not self.repair_log.strict_rules
            return events
        if len(self._early_events) < _EARLY_LIMIT:
            self._early_events += [event for event in events if not isinstance(event, KeepAlive)]
        return [event for event in events if isinstance(event, KeepAlive)]
