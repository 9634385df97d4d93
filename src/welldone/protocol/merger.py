"""Merger of several upstream streams ("parts") into one answer, with one choice per part.

Engines differ in their support of `n` and of lists of prompts: some reject them, some count usage per choice, some send
empty frames. With one request per choice they all behave alike.
"""

from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from welldone.protocol import sse
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import (
    ChoiceEvent,
    ChoiceStart,
    Event,
    Failure,
    FailureMapper,
    FieldLocation,
    KeepAlive,
    Text,
    UnknownFields,
    Usage,
)
from welldone.protocol.fast_path import FastPath
from welldone.protocol.repair_log import RepairLog, join_repair_logs
from welldone.protocol.repairer import FrameEvents, Repairer
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.protocol.text_tool_calls import ForcedToolCall

_CONTENTLESS_EVENTS = (KeepAlive, ChoiceStart, UnknownFields, Usage)
"""Events that a server may send while it still processes the prompt."""


class FanOut(msgspec.Struct, frozen=True):
    """Distribution of choices over parts: prompt by prompt, choice by choice."""

    count: int = 1
    prompts: int = 1
    echo: tuple[str, ...] = ()
    """Text of each prompt, if the answer repeats the prompts."""

    def prompt_index(self, part: int) -> int:
        """Return the prompt of a part."""
        return part * self.prompts // self.count


class StreamMerger:
    """Reads and repairs the parts of an answer, and merges their events."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts,
        fan_out: FanOut | None = None,
        forced: ForcedToolCall | None = None,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        self.failure: Failure | None = None
        """The failure that ended the answer, if any."""
        self.has_content = False
        """Whether the last input had content, and not only a role or a keep-alive."""
        self._fan_out = fan_out or FanOut()
        self._is_single = self._fan_out.count == 1 and not self._fan_out.echo
        self._is_chat = endpoint is Endpoint.CHAT
        self._facts = facts
        self._model = model
        new_call_id = tool_call_id_factory(fallback.id)
        part_facts = facts if self._is_single else msgspec.structs.replace(facts, choice_count=1)
        self._repairers = [
            Repairer(
                endpoint,
                fallback=fallback,
                facts=part_facts,
                new_call_id=new_call_id,
                forced=forced,
                is_stream=is_stream,
                limit_bytes=limit_bytes,
            )
            for _ in range(self._fan_out.count)
        ]
        self._open_choices: set[int] = set()
        self._ended_parts: set[int] = set()

    @property
    def envelope(self) -> Envelope | None:
        """The envelope, once a chunk was read."""
        envelope = next((part.envelope for part in self._repairers if part.envelope is not None), None)
        if envelope is None or self._model is None:
            return envelope
        return msgspec.structs.replace(envelope, model=self._model)

    @property
    def is_finished(self) -> bool:
        """Whether all parts have ended, or one failed."""
        return self.failure is not None or len(self._ended_parts) == len(self._repairers)

    @property
    def is_done(self) -> bool:
        """Whether every part received `[DONE]`, or one failed: nothing relevant can follow."""
        return self.failure is not None or all(part.is_done for part in self._repairers)

    def is_part_done(self, part: int) -> bool:
        """Whether a part received `[DONE]` or failed."""
        return self._repairers[part].is_done

    def is_complete(self, part: int) -> bool:
        """Whether every choice of a part has a finish reason, even without `[DONE]`."""
        return self._repairers[part].is_complete

    def has_usage_chunk(self, part: int) -> bool:
        """Whether a part received usage on a chunk of its own, after all choices."""
        return self._repairers[part].has_usage_chunk

    def is_stopped(self, part: int) -> bool:
        """Whether a stop string was found in a part, so that its upstream request can be aborted."""
        return self._repairers[part].is_stopped

    def has_started(self, part: int) -> bool:
        """Whether a part received a chunk or failed; keep-alives do not count."""
        repairer = self._repairers[part]
        return repairer.envelope is not None or repairer.failure is not None

    def can_use_fast_path(self, index: int) -> bool:
        """Whether plain text of this choice passes unchanged and changes no state."""
        return self._is_single and self._repairers[0].can_use_fast_path(index)

    def record_fast_path(self, fast_path: FastPath) -> None:
        """Update the state after frames that the fast path handled."""
        self._repairers[0].record_fast_path(fast_path)

    @property
    def usage(self) -> Usage | None:
        """Usage of the whole request, even if the client did not request it."""
        usages = [part.usage for part in self._repairers]
        if self._is_single:
            return usages[0]
        known = [usage for usage in usages if usage is not None]
        return _sum_usage(known, self._fan_out) if len(known) == len(usages) else None

    @property
    def invalid_json_count(self) -> int:
        """Number of choices whose text should be JSON and is not."""
        return sum(part.invalid_json_count for part in self._repairers)

    @property
    def text_tool_calls(self) -> int:
        """Number of choices whose text looks like a tool call."""
        return sum(part.text_tool_calls for part in self._repairers)

    @property
    def invalid_arguments_count(self) -> int:
        """Number of tool calls whose arguments are not a JSON object."""
        return sum(part.invalid_arguments_count for part in self._repairers)

    @property
    def repair_log(self) -> RepairLog:
        """Repairs of all parts."""
        return join_repair_logs([part.repair_log for part in self._repairers])

    def feed(self, data: bytes, part: int = 0) -> list[Event]:
        """Return the events that `data` of a part completes."""
        events = self._repairers[part].feed(data)
        self.has_content = any(type(event) not in _CONTENTLESS_EVENTS for event in events)
        return self._merge_events(events, part)

    def feed_by_frame(self, data: bytes, part: int = 0) -> Iterator[FrameEvents]:
        """Like `feed`, frame by frame."""
        for frame, events in self._repairers[part].feed_by_frame(data):
            yield frame, self._merge_events(events, part)

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[list[Event]]:
        """Yield the events of a part that is a non-streaming reply; each step fits the blocking budget."""
        for events in self._repairers[part].feed_reply_in_steps(data):
            yield self._merge_events(events, part)

    def configure(
        self, part: int, *, think: ThinkMode, text: TextMode, strict: frozenset[str], map_failure: FailureMapper | None
    ) -> None:
        """Set how a part is repaired, before its first byte; see `Pipeline.configure`."""
        self._repairers[part].configure(think=think, text=text, strict=strict, map_failure=map_failure)

    def close(self, part: int = 0) -> list[Event]:
        """Return the events at the end of a part."""
        return [event for _, events in self.close_by_frame(part) for event in events]

    def close_by_frame(self, part: int = 0) -> Iterator[FrameEvents]:
        """Like `close`, frame by frame."""
        for frame, events in self._repairers[part].close_by_frame():
            yield frame, self._merge_events(events, part)
        self._ended_parts.add(part)
        is_last = len(self._ended_parts) == len(self._repairers) and self.failure is None
        if is_last and not self._is_single and self._facts.include_usage and (usage := self.usage) is not None:
            yield None, [usage]

    def fail(self, failure: Failure) -> list[Event]:
        """Return the events of an answer that fails for a reason outside of the stream."""
        if self.is_finished:
            return []
        part = next(part for part in range(len(self._repairers)) if part not in self._ended_parts)
        return self._merge_events(self._repairers[part].fail(failure), part)

    def _merge_events(self, events: list[Event], part: int) -> list[Event]:
        if self._is_single:
            self.failure = self._repairers[0].failure
            return events
        out: list[Event] = []
        for event in events:
            if self.failure is not None:
                break
            match event:
                case Usage():
                    pass  # the sum is sent at the end
                case KeepAlive():
                    out.append(event)
                case Failure():
                    self.failure = event
                    out.append(event)
                case UnknownFields(location=FieldLocation.CHUNK):
                    # It needs a later chunk, and the other choices may have sent all of theirs.
                    self._open_choice(part, out)
                    out.append(_with_index(event, part))
                case ChoiceStart():
                    self._open_choice(part, out)
                case _:
                    out.append(_with_index(event, part))
        return out

    def _open_choice(self, part: int, out: list[Event]) -> None:
        """Start a choice; in chat all of them, in order, since clients store choices in a list."""
        for index in range(self._fan_out.count) if self._is_chat else (part,):
            if index in self._open_choices:
                continue
            self._open_choices.add(index)
            out.append(ChoiceStart(index))
            if self._fan_out.echo and (echo := self._fan_out.echo[self._fan_out.prompt_index(index)]):
                out.append(Text(index, echo))


def tool_call_id_factory(stream_id: str) -> Callable[[], str]:
    """Return a function that makes tool call ids from the id of a stream: the same input gives the same bytes."""
    stem = stream_id.rpartition("-")[2]
    numbers = count(1)
    return lambda: f"call_{stem}{next(numbers)}"


def _with_index(event: ChoiceEvent, part: int) -> ChoiceEvent:
    if type(event) is Text:
        return Text(part, event.text)
    return msgspec.structs.replace(event, index=part)


def _sum_usage(usages: list[Usage], fan_out: FanOut) -> Usage:
    """Usage of the whole request: a prompt counts once, however many choices it has."""
    firsts = {fan_out.prompt_index(part): usage for part, usage in reversed(list(enumerate(usages)))}
    prompt = sum(usage.prompt_tokens for usage in firsts.values())
    completion = sum(usage.completion_tokens for usage in usages)
    uncounted = sum(usage.total_tokens - usage.prompt_tokens - usage.completion_tokens for usage in usages)
    extra_fields = dict(usages[0].extra_fields)
    for name in extra_fields:
        if name == "cost" or name.endswith("_details"):
            counted = list(firsts.values()) if name == "prompt_tokens_details" else usages
            extra_fields[name] = _sum_values([usage.extra_fields.get(name) for usage in counted])
    return Usage(prompt, completion, max(0, prompt + completion + uncounted), extra_fields)


def _sum_values(values: list[object]) -> object:
    """Sum numbers, also as members of objects; of other values, return the first that is not null."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if known and len(numbers) == len(known):
        return sum(numbers)
    objects = [value for value in known if isinstance(value, dict)]
    if not objects:
        return known[0] if known else None
    names = dict.fromkeys(name for item in objects for name in item)
    return {name: _sum_values([item.get(name) for item in objects]) for name in names}
