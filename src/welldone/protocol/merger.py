"""One answer out of several streams: a choice each, where an engine is asked part by part.

Engines differ in what they do with `n` and with lists of prompts: some refuse, some count usage per choice, some send
frames that say nothing. Asked for one choice at a time they are all alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import msgspec

from welldone.protocol import sse
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.chat import REASONING_FIELDS, ChatDialect, CompletionsDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import (
    ChoiceEvent,
    ChoiceStart,
    Event,
    Failure,
    FailureMapper,
    FieldLocation,
    Json,
    KeepAlive,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    UnknownFields,
    Usage,
)
from welldone.protocol.fast_path import FastPath
from welldone.protocol.fields import bad_stream_failure
from welldone.protocol.repair_log import RepairLog, join_repair_logs
from welldone.protocol.repairer import FrameEvents, Repairer
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_filters import TextMode, ThinkMode
from welldone.protocol.text_tool_calls import ForcedToolCall

_CONTENTLESS_EVENTS = (KeepAlive, ChoiceStart, UnknownFields, Usage)
"""Events that a server may send while it still reads its prompt."""
BUFFERED_LIMIT_CHARS = 4 * 1024 * 1024
"""Text of an answer that is kept to its end: a million tokens. /v1/responses says it four times in its last turn."""
_TEXT_EVENTS = (Text, Reasoning, Refusal, ToolArguments)


class FanOut(msgspec.Struct, frozen=True):
    """What each of the streams answers: prompt by prompt, choice by choice."""

    count: int = 1
    prompts: int = 1
    echo: tuple[str, ...] = ()
    """Where the prompts are to be repeated: the text of each."""

    def prompt_index(self, part: int) -> int:
        """The prompt that a part answers."""
        return part * self.prompts // self.count


class StreamMerger:
    """The legal events of an answer, whatever part they come from."""

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
        """The error that the answer ends with, if it does."""
        self.has_content = False
        """Whether what was fed last had something of the answer in it, and not only a role or a sign of life."""
        self._fan_out = fan_out or FanOut()
        self._is_single = self._fan_out.count == 1 and not self._fan_out.echo
        self._is_chat = endpoint is Endpoint.CHAT
        self._facts = facts
        self._model = model
        mint = tool_call_id_factory(fallback.id)
        one = facts if self._is_single else msgspec.structs.replace(facts, choice_count=1)
        self._repairers = [
            Repairer(
                endpoint,
                fallback=fallback,
                facts=one,
                new_call_id=mint,
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
        """The envelope, once a chunk came."""
        head = next((mender.envelope for mender in self._repairers if mender.envelope is not None), None)
        return head if head is None or self._model is None else msgspec.structs.replace(head, model=self._model)

    @property
    def is_finished(self) -> bool:
        """Whether all parts have ended, or one has failed."""
        return self.failure is not None or len(self._ended_parts) == len(self._repairers)

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]` on each part, or failed: nothing that matters can follow."""
        return self.failure is not None or all(mender.is_done for mender in self._repairers)

    def is_part_done(self, part: int) -> bool:
        """Whether the server said `[DONE]` on a part, or failed there."""
        return self._repairers[part].is_done

    def is_complete(self, part: int) -> bool:
        """Whether each choice of a part has finished, though the server has not said `[DONE]`."""
        return self._repairers[part].is_complete

    def has_usage_chunk(self, part: int) -> bool:
        """Whether the usage of a part came behind all else."""
        return self._repairers[part].has_usage_chunk

    def is_stopped(self, part: int) -> bool:
        """Whether a stop string has come in a part: the server would go on, and need not."""
        return self._repairers[part].is_stopped

    def has_started(self, part: int) -> bool:
        """Whether a part has said something, and not only that it is there."""
        mender = self._repairers[part]
        return mender.envelope is not None or mender.failure is not None

    def can_use_fast_path(self, index: int) -> bool:
        """Whether plain text of this choice would pass as it is, and change nothing."""
        return self._is_single and self._repairers[0].can_use_fast_path(index)

    def record_fast_path(self, fast_path: FastPath) -> None:
        """Frames of plain text took a shorter way."""
        self._repairers[0].record_fast_path(fast_path)

    @property
    def usage(self) -> Usage | None:
        """What was counted, also where the client did not ask for it."""
        usages = [mender.usage for mender in self._repairers]
        if self._is_single:
            return usages[0]
        known = [usage for usage in usages if usage is not None]
        return _sum_usage(known, self._fan_out) if len(known) == len(usages) else None

    @property
    def invalid_json_count(self) -> int:
        """How many choices should have been JSON, and are not."""
        return sum(mender.invalid_json_count for mender in self._repairers)

    @property
    def text_tool_calls(self) -> int:
        """How many choices look like a tool call that was written as text."""
        return sum(mender.text_tool_calls for mender in self._repairers)

    @property
    def invalid_arguments_count(self) -> int:
        """How many tool calls had arguments that are no JSON object."""
        return sum(mender.invalid_arguments_count for mender in self._repairers)

    @property
    def repair_log(self) -> RepairLog:
        """What was mended, in all parts."""
        return join_repair_logs([mender.repair_log for mender in self._repairers])

    def feed(self, data: bytes, part: int = 0) -> list[Event]:
        """The events that `data` of a part completes."""
        events = self._repairers[part].feed(data)
        self.has_content = any(type(event) not in _CONTENTLESS_EVENTS for event in events)
        return self._merge_events(events, part)

    def feed_by_frame(self, data: bytes, part: int = 0) -> Iterator[FrameEvents]:
        """As `feed`, frame by frame."""
        for frame, events in self._repairers[part].feed_by_frame(data):
            yield frame, self._merge_events(events, part)

    def feed_reply_in_steps(self, data: bytes, part: int = 0) -> Iterator[list[Event]]:
        """The events of a part that was not streamed: `data` is its whole reply. Each step takes a turn."""
        for events in self._repairers[part].feed_reply_in_steps(data):
            yield self._merge_events(events, part)

    def configure(
        self, part: int, *, think: ThinkMode, text: TextMode, strict: frozenset[str], map_failure: FailureMapper | None
    ) -> None:
        """How a part is mended, before its first byte."""
        self._repairers[part].configure(think=think, text=text, strict=strict, map_failure=map_failure)

    def close(self, part: int = 0) -> list[Event]:
        """The events to say when a part has ended, however it did."""
        return [event for _, events in self.close_by_frame(part) for event in events]

    def close_by_frame(self, part: int = 0) -> Iterator[FrameEvents]:
        """As `close`, frame by frame."""
        for frame, events in self._repairers[part].close_by_frame():
            yield frame, self._merge_events(events, part)
        self._ended_parts.add(part)
        is_last = len(self._ended_parts) == len(self._repairers) and self.failure is None
        if is_last and not self._is_single and self._facts.include_usage and (usage := self.usage) is not None:
            yield None, [usage]

    def fail(self, failure: Failure) -> list[Event]:
        """The events to say when the answer breaks off for a reason that the server did not tell."""
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
                    pass  # one sum is said at the end
                case KeepAlive():
                    out.append(event)
                case Failure():
                    self.failure = event
                    out.append(event)
                case UnknownFields(location=FieldLocation.CHUNK):
                    # It rides on a chunk, and those of the other choices may all have been sent.
                    self._open_choice(part, out)
                    out.append(_with_index(event, part))
                case ChoiceStart():
                    self._open_choice(part, out)
                case _:
                    out.append(_with_index(event, part))
        return out

    def _open_choice(self, part: int, out: list[Event]) -> None:
        """Open a choice; in chat all of them at once: clients keep choices in a list, and want them in order."""
        for index in range(self._fan_out.count) if self._is_chat else (part,):
            if index in self._open_choices:
                continue
            self._open_choices.add(index)
            out.append(ChoiceStart(index))
            if self._fan_out.echo and (echo := self._fan_out.echo[self._fan_out.prompt_index(index)]):
                out.append(Text(index, echo))


class Pipeline(ABC):
    """What a pipe and a fold share: an answer that comes in parts, and what is known of it besides its words.

    `fallback` is the envelope for what the server does not say; ids that have to be made are made of its id, so that
    the same input gives the same bytes. `model` is the name that the client knows, where the server may say another.
    `dialect` is how the client is answered; without one, as the server answers us, with reasoning in the fields that
    `reasoning` names. For `think`, `text` and `strict` see `tune`.
    """

    IS_STREAM: ClassVar[bool]

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Envelope,
        facts: RequestFacts | None = None,
        fan_out: FanOut | None = None,
        forced: ForcedToolCall | None = None,
        model: str | None = None,
        dialect: Dialect | None = None,
        reasoning: tuple[str, ...] = REASONING_FIELDS,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        strict: frozenset[str] = frozenset(),
        limit_bytes: int = sse.FRAME_LIMIT_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._facts = facts or RequestFacts()
        self.dialect = dialect or _default_dialect(endpoint, self._facts, reasoning)
        """How the client is answered."""
        fan_out = fan_out or FanOut()
        self.merger = StreamMerger(
            endpoint,
            fallback=fallback,
            facts=self.dialect.restrict(self._facts, is_stream=self.IS_STREAM),
            fan_out=fan_out,
            forced=forced,
            model=model,
            is_stream=self.IS_STREAM,
            limit_bytes=limit_bytes,
        )
        """How it is read."""
        self._buffered_chars = 0
        for part in range(fan_out.count):
            self.configure(part, think=think, text=text, strict=strict)
        self._init_output()

    @abstractmethod
    def _init_output(self) -> None:
        """Make what else is kept of the answer."""

    @abstractmethod
    def write_events(self, events: list[Event]) -> bytes:
        """What goes out for events that were read: they may be said later than others are read."""

    @abstractmethod
    def end(self) -> bytes:
        """What ends the stream, once."""

    @property
    def _envelope(self) -> Envelope:
        """The envelope that goes out."""
        return self.dialect.envelope(self.merger.envelope, self._fallback)

    def configure(
        self,
        part: int,
        *,
        think: ThinkMode = "no",
        text: TextMode = "delta",
        strict: frozenset[str] = frozenset(),
        map_failure: FailureMapper | None = None,
    ) -> None:
        """How a part is mended, before its first byte: servers differ in what they need.

        `think`: whether thoughts in `<think>` tags are taken out of the text. `text`: whether each text is a piece or
        all of the text so far. `strict`: ids of rules; who breaks one of
        them has failed. `all` are those that would be mended. `reword`: how its own words for a failure go out.
        """
        self.merger.configure(part, think=think, text=text, strict=strict, map_failure=map_failure)

    @property
    def final_object(self) -> Json | None:
        """The answer as an object, when it has come to its end, where the dialect has one."""
        return self.dialect.final_object

    @property
    def retains_output(self) -> bool:
        """Whether what was said is kept: then its length must be bounded."""
        return self.dialect.BUFFERS_OUTPUT or not self.IS_STREAM

    def _limit_buffered(self, events: list[Event]) -> list[Event]:
        """The events, whose text will be kept, up to the one that is too much: in its place there is a failure."""
        for place, event in enumerate(events):
            if isinstance(event, _TEXT_EVENTS):
                self._buffered_chars += len(event.text)
                if self._buffered_chars > BUFFERED_LIMIT_CHARS and not self.merger.is_finished:
                    return events[:place] + self.merger.fail(
                        bad_stream_failure(f"more than {BUFFERED_LIMIT_CHARS} characters")
                    )
        return events

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a stream in this dialect."""
        return dict(self.dialect.HEADERS)

    def encode_failure(self, failure: Failure) -> bytes:
        """The end of a stream that can say nothing more than that it failed."""
        return self.dialect.final_error_bytes(failure)

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]` on each part, or failed: nothing that matters can follow."""
        return self.merger.is_done

    def is_part_done(self, part: int) -> bool:
        """Whether the server said `[DONE]` on a part, or failed there."""
        return self.merger.is_part_done(part)

    @property
    def has_content(self) -> bool:
        """Whether what was fed last had something of the answer in it, and not only a role or a sign of life."""
        return self.merger.has_content

    def is_part_complete(self, part: int) -> bool:
        """Whether each choice of a part has finished, though the server has not said `[DONE]`."""
        return self.merger.is_complete(part)

    def has_part_usage(self, part: int) -> bool:
        """Whether the usage of a part came behind all else."""
        return self.merger.has_usage_chunk(part)

    def is_part_stopped(self, part: int) -> bool:
        """Whether a stop string has come in a part: the server would go on, and need not."""
        return self.merger.is_stopped(part)

    def has_part_started(self, part: int) -> bool:
        """Whether a part has said something, and not only that it is there."""
        return self.merger.has_started(part)

    @property
    def repair_log(self) -> RepairLog:
        """What was mended."""
        return self.merger.repair_log

    @property
    def invalid_json_count(self) -> int:
        """How many choices should have been JSON by what was asked, and are not, though nothing had cut them."""
        return self.merger.invalid_json_count

    @property
    def text_tool_calls(self) -> int:
        """How many choices look like a tool call that was written as text."""
        return self.merger.text_tool_calls

    @property
    def invalid_arguments_count(self) -> int:
        """How many tool calls had arguments that are no JSON object, though nothing had cut them."""
        return self.merger.invalid_arguments_count

    @property
    def failure(self) -> Failure | None:
        """The error that the answer ends with, if it does."""
        return self.merger.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted, also where the client did not ask for it."""
        return self.merger.usage


def _default_dialect(endpoint: Endpoint, facts: RequestFacts, reasoning: tuple[str, ...]) -> Dialect:
    return ChatDialect(facts, reasoning) if endpoint is Endpoint.CHAT else CompletionsDialect(facts)


def tool_call_id_factory(stream_id: str) -> Callable[[], str]:
    """Makes ids of tool calls out of a stream's id, so that the same input gives the same bytes."""
    count = 0
    stem = stream_id.rpartition("-")[2]

    def mint() -> str:
        nonlocal count
        count += 1
        return f"call_{stem}{count}"

    return mint


def _with_index(event: ChoiceEvent, part: int) -> ChoiceEvent:
    """The same event, of the choice that the part is."""
    if type(event) is Text:
        return Text(part, event.text)
    return msgspec.structs.replace(event, index=part)


def _sum_usage(usages: list[Usage], fan_out: FanOut) -> Usage:
    """The tokens of the whole request: a prompt counts once, however many choices it has."""
    firsts = {fan_out.prompt_index(part): usage for part, usage in reversed(list(enumerate(usages)))}
    prompt = sum(usage.prompt_tokens for usage in firsts.values())
    completion = sum(usage.completion_tokens for usage in usages)
    beside = sum(usage.total_tokens - usage.prompt_tokens - usage.completion_tokens for usage in usages)
    more = dict(usages[0].extra_fields)
    for name in more:
        if name == "cost" or name.endswith("_details"):
            counted = list(firsts.values()) if name == "prompt_tokens_details" else usages
            more[name] = _sum_values([usage.extra_fields.get(name) for usage in counted])
    return Usage(prompt, completion, max(0, prompt + completion + beside), more)


def _sum_values(values: list[object]) -> object:
    """The sum of numbers, member by member in objects; of anything else the first that is not null."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if known and len(numbers) == len(known):
        return sum(numbers)
    objects = [value for value in known if isinstance(value, dict)]
    if not objects:
        return known[0] if known else None
    names = dict.fromkeys(name for one in objects for name in one)
    return {name: _sum_values([one.get(name) for one in objects]) for name in names}
