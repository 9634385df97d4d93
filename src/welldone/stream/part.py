"""One part of an answer: bytes of one upstream stream in, legal events out (reader, filters and repair)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from welldone.core import sse
from welldone.core.continuation import (
    PENDING_LIMIT,
    Continuation,
    ContinuationWay,
    Delivered,
    Seam,
    continued_usage,
)
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Finish, KeepAlive, Text, TextEvent, Usage
from welldone.core.fields import broken_rule_failure
from welldone.core.json_tool_calls import JsonCallConverter
from welldone.core.repair import EventRepairer
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts, has_plain_text
from welldone.core.state import PartState
from welldone.core.text_filters import ReasoningTokenCounter, StopStringFilter
from welldone.core.text_tool_calls import ForcedCallConverter, ForcedToolCall, TextToolCallDetector
from welldone.dialects.chat.reader import EventReader
from welldone.stream.dialect_reader import dialect_reader_for

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
        keeps_delivered: bool = False,
    ) -> None:
        self.repair_log: RepairLog = RepairLog(endpoint)
        self.endpoint: Endpoint = endpoint
        self.delivered: Delivered | None = Delivered() if keeps_delivered else None
        """What was sent, if the part may be continued by another stream."""
        self._facts = facts
        self._fallback = fallback
        self._forced = forced
        self._new_call_id = new_call_id
        self._is_stream = is_stream
        self._limit_bytes = limit_bytes
        self._upstream_dialect: Endpoint | None = None
        self._first_envelope: Envelope | None = None  # of the stream that is continued
        self._continuation: Continuation | None = None
        self._seam: Seam | None = None  # until the next stream has passed what was delivered
        self.converted_calls: int = 0
        """Number of choices whose text became a tool call."""
        self.finish_reasons: tuple[str, ...] = ()
        """The finish reasons that were sent, after the end."""
        self._begin()

    def _begin(self) -> None:
        """Start to read a stream."""
        facts = self._facts
        self._reader: EventReader = self._make_reader()
        self.repairer: EventRepairer = EventRepairer(
            self.endpoint,
            facts=facts,
            repair_log=self.repair_log,
            new_call_id=self._new_call_id,
            is_stream=self._is_stream,
        )
        self._forced_calls = None if self._forced is None else ForcedCallConverter(self._forced, self._new_call_id)
        self._stops = StopStringFilter(facts.stop_strings) if facts.stop_strings else None
        self._reasoning_counter = ReasoningTokenCounter() if facts.count_reasoning_tokens else None
        self._text_tool_calls = TextToolCallDetector(facts.tool_names) if facts.tool_names else None
        self._json_calls: JsonCallConverter | None = None  # until no text can become a call
        self._early_events: list[Event] | None = []  # fields received before the envelope
        self._held_failure: list[Event] = []  # the last events of a stream that may be continued
        filters = (self._reasoning_counter, self._text_tool_calls, self._continuation)
        self._is_observed = any(event_filter is not None for event_filter in filters)
        self._is_direct = False  # no filter is active: only reader and repair

    def continue_with(self, continuation: Continuation) -> None:
        """Read on in the next stream, whose events are sent as far as they are new."""
        assert self.delivered is not None
        self.delivered.record_pending()
        self._first_envelope = self.envelope
        known = self.repairer.usage or self._continuation
        if known is not None and known.prompt_tokens is not None:
            continuation = msgspec.structs.replace(continuation, prompt_tokens=known.prompt_tokens)
        self._continuation = continuation
        self._seam = Seam(self.delivered, continuation)
        self._begin()

    def release_failure(self) -> list[Event]:
        """Return the last events of a stream that is not continued."""
        events, self._held_failure = self._held_failure, []
        return events

    @property
    def envelope(self) -> Envelope | None:
        """The envelope, once a chunk was read."""
        return self._first_envelope or self._reader.chunks.envelope

    @property
    def failure(self) -> Failure | None:
        """The failure that ended the part, unless it may be continued."""
        return None if self._held_failure else self.repairer.failure

    @property
    def can_continue(self) -> bool:
        """Whether what was sent is known, and no strict rule was violated."""
        if self.delivered is None:
            return False
        self.delivered.record_pending()
        self.delivered.is_finished = self.repairer.is_finished
        return self.delivered.is_recorded and self.repair_log.broken_rule is None

    @property
    def has_differed(self) -> bool:
        """Whether the next stream differs from what was sent of the first one."""
        return self._seam is not None and self._seam.has_differed

    @property
    def state(self) -> PartState:
        """How far the part has come, if it did not fail."""
        reader = self._reader
        if self._held_failure:
            return PartState.CUT
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
    def retains_input(self) -> bool:
        """Whether the reader buffers text, so that its length must be limited."""
        return self._reader.RETAINS_INPUT

    @property
    def has_plain_text(self) -> bool:
        """Whether all text passes unchanged."""
        return self._forced is None and has_plain_text(self._facts, self.repairer.options)

    @property
    def text_tool_calls(self) -> int:
        """Number of choices whose text looks like a tool call."""
        # Of a text that became a call, the reasoning before it may be unlike a call.
        return 0 if self._text_tool_calls is None else max(0, self._text_tool_calls.count - self.converted_calls)

    def configure(self, options: RepairOptions) -> None:
        """Set how the stream is repaired, before its first byte."""
        self.repairer.options = options
        self.repair_log.strict_rules = options.strict
        self.repair_log.endpoint = options.upstream_dialect or self.endpoint
        if options.upstream_dialect is not self._upstream_dialect:
            self._upstream_dialect = options.upstream_dialect
            self._reader = self._make_reader()
        self._reader.chunks.deltas.on_reasoning = options.on_reasoning
        self._reader.unfinished = options.unfinished
        self._reader.chunks.finish_reasons = options.finish_reasons
        # A prefill continues a text that was sent.
        is_prefilled = self._continuation is not None and self._continuation.way is ContinuationWay.PREFILL
        tools = None if is_prefilled else options.json_calls
        self._json_calls = None if tools is None else JsonCallConverter(tools, self._new_call_id, self.repair_log)

    def _make_reader(self) -> EventReader:
        dialect, endpoint, fallback, log = self._upstream_dialect, self.endpoint, self._fallback, self.repair_log
        if dialect is not None:
            return dialect_reader_for(dialect, endpoint, fallback=fallback, facts=self._facts, repair_log=log)
        return EventReader(
            endpoint, fallback=fallback, facts=self._facts, repair_log=log, limit_bytes=self._limit_bytes
        )

    def can_use_fast_path(self, index: int, text_type: type[TextEvent]) -> bool:
        """Whether plain text or reasoning of this choice passes unchanged and changes no state."""
        if text_type is Text:
            is_watched = self._text_tool_calls is not None and self._text_tool_calls.is_watching
        else:
            is_watched = self._reasoning_counter is not None
        is_direct = self._is_direct and self._seam is None and not is_watched
        return is_direct and self._reader.is_idle and self.repairer.can_use_fast_path(index, text_type)

    def record_fast_path(self, frames: int, byte_count: int, last_bytes: int, rule_counts: Mapping[str, int]) -> None:
        """Update reader, repair and log after frames that the fast path handled."""
        self._reader.record_fast_path(frames, byte_count, last_bytes)
        self.repairer.record_fast_path()
        self.repair_log.add_counts(rule_counts, frames)

    def record_fast_usage(self, usage: Usage) -> None:
        """Store the usage of the last chunk that the fast path handled."""
        self.repairer.feed(self._observe([usage]))

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
            yield self._deliver(self._repair(events), holds_failure=False)
        yield self._deliver(self._strict_failure(), holds_failure=False)

    def close_by_frame(self) -> Iterator[FrameEvents]:
        """Yield the last events, frame by frame, after the end of the upstream stream."""
        if self._is_stopped:
            yield None, self._end(self.repairer.close(is_done=True))
            return
        yield from self._read_frames(self._reader.decoder.close())
        last = self.repairer.feed(self._apply_filters(self._reader.flush()) + self._flush_stop_filter())
        last += self.repairer.close(is_done=self._reader.is_done or self._is_stopped, is_cut=self._reader.is_cut)
        has_usage = self._reader.chunks.has_usage_chunk or self._is_stopped
        if self._facts.include_usage and not has_usage and self.repairer.failure is None:
            self.repair_log.record("use-final-chunk")
            self.repair_log.record_if(not self.endpoint.is_chat, "cmpl-usage-chunk")
        failure = broken_rule_failure(self.repair_log)
        if failure is not None and self.repairer.failure is None:
            self.repairer.failure = failure
            last = [*(event for event in last if not isinstance(event, Finish | Usage)), self.repairer.failure]
        yield None, self._end(last)

    def _end(self, events: list[Event]) -> list[Event]:
        """Return the last events that are sent."""
        last = self._deliver(self._convert(events))
        self.finish_reasons = tuple([event.reason for event in last if type(event) is Finish])
        return last

    def fail(self, failure: Failure) -> list[Event]:
        """Return the last events of an answer that fails for a reason outside of the stream."""
        events = self._convert(self.repairer.feed([*self._flush_stop_filter(), failure]))
        return self._deliver(events, holds_failure=False)

    def _read_frames(self, frames: Iterable[sse.Frame]) -> Iterator[FrameEvents]:
        reader, repairer = self._reader, self.repairer
        delivered = self.delivered if self._seam is None else None
        for frame in frames:
            # After an error of the server, the rest is checked. A direct part has no stop strings.
            if (repairer.failure is not None and reader.failure is None) or (not self._is_direct and self._is_stopped):
                break
            events = reader.read_frame(frame)
            if self._is_direct:
                events = repairer.feed(self._observe(events) if self._is_observed else events)
            else:
                events = self._repair(events) + self._strict_failure()
            if delivered is not None and repairer.failure is None:
                pending = delivered.pending
                pending.append(events)
                if len(pending) >= PENDING_LIMIT:
                    delivered.record_pending()
            elif self.delivered is not None:
                events = self._deliver(events)
            yield frame, events

    def _deliver(self, events: list[Event], *, holds_failure: bool = True) -> list[Event]:
        """Return the events that are sent: those that are new to the client, and no failure before it is final."""
        if self.delivered is None:
            return events
        if self._seam is not None:
            events = self._seam.feed(events)
            if self._seam.has_differed:
                self.repairer.failure = self._seam.failure
                if self._continuation is not None and self._continuation.can_fall_back:
                    self._held_failure = [events.pop()]
                return events
            if self._seam.is_passed:
                self._seam = None
        if holds_failure and events and type(events[-1]) is Failure:
            self._held_failure = events
            return []
        self.delivered.record(events)
        return events

    def _repair(self, events: list[Event]) -> list[Event]:
        return self._convert(self.repairer.feed(self._apply_filters(events)))

    def _strict_failure(self) -> list[Event]:
        """A failure if a strict rule was violated."""
        failure = broken_rule_failure(self.repair_log)
        return [] if failure is None else self._convert(self.repairer.feed([failure]))

    def _apply_filters(self, events: list[Event]) -> list[Event]:
        """Convert forced calls and apply stop strings."""
        if self._forced_calls is not None:
            events = self._forced_calls.feed(events)
        return self._observe(events if self._stops is None else self._stops.feed(events))

    def _observe(self, events: list[Event]) -> list[Event]:
        """Detect tool calls in text, and complete the usage."""
        if self._text_tool_calls is not None:
            self._text_tool_calls.observe(events)
        continuation = self._continuation
        if continuation is not None:
            events = [continued_usage(event, continuation) if isinstance(event, Usage) else event for event in events]
        return events if self._reasoning_counter is None else self._reasoning_counter.feed(events)

    def _flush_stop_filter(self) -> list[Event]:
        return [] if self._stops is None else self._stops.close()

    def _convert(self, events: list[Event]) -> list[Event]:
        """Convert text that is a call, and hold events until there is an envelope."""
        converter = self._json_calls
        if converter is not None:
            before = converter.count
            events = converter.feed(events)
            self.converted_calls += converter.count - before
            if converter.is_settled(self._facts.choice_count or 1):
                self._json_calls = None
                self._update_direct()
        return self._hold_until_envelope(events)

    def _update_direct(self) -> None:
        has_filters = self._forced_calls is not None or self._stops is not None or self._json_calls is not None
        self._is_direct = self._early_events is None and not has_filters and not self.repair_log.strict_rules

    def _hold_until_envelope(self, events: list[Event]) -> list[Event]:
        """Before the first real chunk, pass keep-alives and store everything else until there is an envelope."""
        if self._early_events is None or not events:
            return events
        if self._reader.chunks.envelope is not None or isinstance(events[-1], Failure):
            events = self._early_events + events
            self._early_events = None
            self._update_direct()
            return events
        if len(self._early_events) < _EARLY_LIMIT:
            self._early_events += [event for event in events if not isinstance(event, KeepAlive)]
        return [event for event in events if isinstance(event, KeepAlive)]
