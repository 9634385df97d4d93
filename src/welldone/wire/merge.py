"""One answer out of several streams: a choice each, where an engine is asked part by part.

Engines differ in what they do with `n` and with lists of prompts: some refuse, some count usage per choice, some send
frames that say nothing. Asked for one choice at a time they are all alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import msgspec

from welldone.wire import sse
from welldone.wire.asked import Asked
from welldone.wire.dialects.chat import REASONING, Chat
from welldone.wire.dialects.completions import Completions
from welldone.wire.dialects.dialect import Dialect
from welldone.wire.events import (
    ChoiceEvent,
    Event,
    Extra,
    Failure,
    Json,
    KeepAlive,
    Opening,
    Place,
    Reasoning,
    Refusal,
    Reword,
    Text,
    ToolArguments,
    Usage,
)
from welldone.wire.failures import garbage
from welldone.wire.forced import Forced
from welldone.wire.head import Endpoint, Head
from welldone.wire.lane import Lane
from welldone.wire.mender import Mender, Taken
from welldone.wire.notes import Notes, join_notes
from welldone.wire.texts import TextForm, Think

_NO_CONTENT = (KeepAlive, Opening, Extra, Usage)
"""Events that a server may send while it still reads its prompt."""
KEPT_LIMIT_CHARS = 4 * 1024 * 1024
"""Text of an answer that is kept to its end: a million tokens. /v1/responses says it four times in its last turn."""
_WITH_TEXT = (Text, Reasoning, Refusal, ToolArguments)


class Parts(msgspec.Struct, frozen=True):
    """What each of the streams answers: prompt by prompt, choice by choice."""

    count: int = 1
    prompts: int = 1
    echo: tuple[str, ...] = ()
    """Where the prompts are to be repeated: the text of each."""

    def prompt(self, part: int) -> int:
        """The prompt that a part answers."""
        return part * self.prompts // self.count


class Merge:
    """The legal events of an answer, whatever part they come from."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        asked: Asked,
        parts: Parts | None = None,
        forced: Forced | None = None,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self.failure: Failure | None = None
        """The error that the answer ends with, if it does."""
        self.has_content = False
        """Whether what was fed last had something of the answer in it, and not only a role or a sign of life."""
        self._parts = parts or Parts()
        self._is_single = self._parts.count == 1 and not self._parts.echo
        self._is_chat = endpoint is Endpoint.CHAT
        self._asked = asked
        self._model = model
        mint = minter(fallback.id)
        one = asked if self._is_single else msgspec.structs.replace(asked, choices=1)
        self._menders = [
            Mender(
                endpoint,
                fallback=fallback,
                asked=one,
                mint=mint,
                forced=forced,
                is_stream=is_stream,
                limit_bytes=limit_bytes,
            )
            for _ in range(self._parts.count)
        ]
        self._open: set[int] = set()
        self._ended: set[int] = set()

    @property
    def head(self) -> Head | None:
        """The envelope, once a chunk came."""
        head = next((mender.head for mender in self._menders if mender.head is not None), None)
        return head if head is None or self._model is None else msgspec.structs.replace(head, model=self._model)

    @property
    def is_over(self) -> bool:
        """Whether all parts have ended, or one has failed."""
        return self.failure is not None or len(self._ended) == len(self._menders)

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]` on each part, or failed: nothing that matters can follow."""
        return self.failure is not None or all(mender.is_done for mender in self._menders)

    def is_part_done(self, part: int) -> bool:
        """Whether the server said `[DONE]` on a part, or failed there."""
        return self._menders[part].is_done

    def is_complete(self, part: int) -> bool:
        """Whether each choice of a part has finished, though the server has not said `[DONE]`."""
        return self._menders[part].is_complete

    def is_counted(self, part: int) -> bool:
        """Whether the usage of a part came behind all else."""
        return self._menders[part].is_counted

    def is_stopped(self, part: int) -> bool:
        """Whether a stop string has come in a part: the server would go on, and need not."""
        return self._menders[part].is_stopped

    def has_begun(self, part: int) -> bool:
        """Whether a part has said something, and not only that it is there."""
        mender = self._menders[part]
        return mender.head is not None or mender.failure is not None

    def is_flowing(self, index: int) -> bool:
        """Whether plain text of this choice would pass as it is, and change nothing."""
        return self._is_single and self._menders[0].is_flowing(index)

    def passed(self, lane: Lane) -> None:
        """Frames of plain text took a shorter way."""
        self._menders[0].passed(lane)

    @property
    def usage(self) -> Usage | None:
        """What was counted, also where the client did not ask for it."""
        usages = [mender.usage for mender in self._menders]
        if self._is_single:
            return usages[0]
        known = [usage for usage in usages if usage is not None]
        return _sum(known, self._parts) if len(known) == len(usages) else None

    @property
    def broken_json(self) -> int:
        """How many choices should have been JSON, and are not."""
        return sum(mender.broken_json for mender in self._menders)

    @property
    def printed_calls(self) -> int:
        """How many choices look like a tool call that was written as text."""
        return sum(mender.printed_calls for mender in self._menders)

    @property
    def broken_arguments(self) -> int:
        """How many tool calls had arguments that are no JSON object."""
        return sum(mender.broken_arguments for mender in self._menders)

    @property
    def notes(self) -> Notes:
        """What was mended, in all parts."""
        return join_notes([mender.notes for mender in self._menders])

    def feed(self, data: bytes, part: int = 0) -> list[Event]:
        """The events that `data` of a part completes."""
        events = self._menders[part].feed(data)
        self.has_content = any(type(event) not in _NO_CONTENT for event in events)
        return self._joined(events, part)

    def take(self, data: bytes, part: int = 0) -> Iterator[Taken]:
        """As `feed`, frame by frame."""
        for frame, events in self._menders[part].take(data):
            yield frame, self._joined(events, part)

    def whole(self, data: bytes, part: int = 0) -> Iterator[list[Event]]:
        """The events of a part that was not streamed: `data` is its whole reply. Each step takes a turn."""
        for events in self._menders[part].whole(data):
            yield self._joined(events, part)

    def tune(self, part: int, *, think: Think, text: TextForm, strict: frozenset[str], reword: Reword | None) -> None:
        """How a part is mended, before its first byte."""
        self._menders[part].tune(think=think, text=text, strict=strict, reword=reword)

    def close(self, part: int = 0) -> list[Event]:
        """The events to say when a part has ended, however it did."""
        return [event for _, events in self.take_last(part) for event in events]

    def take_last(self, part: int = 0) -> Iterator[Taken]:
        """As `close`, frame by frame."""
        for frame, events in self._menders[part].take_last():
            yield frame, self._joined(events, part)
        self._ended.add(part)
        is_last = len(self._ended) == len(self._menders) and self.failure is None
        if is_last and not self._is_single and self._asked.usage and (usage := self.usage) is not None:
            yield None, [usage]

    def fail(self, failure: Failure) -> list[Event]:
        """The events to say when the answer breaks off for a reason that the server did not tell."""
        if self.is_over:
            return []
        part = next(part for part in range(len(self._menders)) if part not in self._ended)
        return self._joined(self._menders[part].fail(failure), part)

    def _joined(self, events: list[Event], part: int) -> list[Event]:
        if self._is_single:
            self.failure = self._menders[0].failure
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
                case Extra(place=Place.CHUNK):
                    # It rides on a chunk, and those of the other choices may all have been sent.
                    self._begin(part, out)
                    out.append(_of(event, part))
                case Opening():
                    self._begin(part, out)
                case _:
                    out.append(_of(event, part))
        return out

    def _begin(self, part: int, out: list[Event]) -> None:
        """Open a choice; in chat all of them at once: clients keep choices in a list, and want them in order."""
        for index in range(self._parts.count) if self._is_chat else (part,):
            if index in self._open:
                continue
            self._open.add(index)
            out.append(Opening(index))
            if self._parts.echo and (echo := self._parts.echo[self._parts.prompt(index)]):
                out.append(Text(index, echo))


class Answered(ABC):
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
        fallback: Head,
        asked: Asked | None = None,
        parts: Parts | None = None,
        forced: Forced | None = None,
        model: str | None = None,
        dialect: Dialect | None = None,
        reasoning: tuple[str, ...] = REASONING,
        think: Think = "no",
        text: TextForm = "delta",
        strict: frozenset[str] = frozenset(),
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._asked = asked or Asked()
        self.dialect = dialect or _own_dialect(endpoint, self._asked, reasoning)
        """How the client is answered."""
        parts = parts or Parts()
        self.merge = Merge(
            endpoint,
            fallback=fallback,
            asked=self.dialect.limited(self._asked, is_stream=self.IS_STREAM),
            parts=parts,
            forced=forced,
            model=model,
            is_stream=self.IS_STREAM,
            limit_bytes=limit_bytes,
        )
        """How it is read."""
        self._kept_chars = 0
        for part in range(parts.count):
            self.tune(part, think=think, text=text, strict=strict)
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Make what else is kept of the answer."""

    @abstractmethod
    def say(self, events: list[Event]) -> bytes:
        """What goes out for events that were read: they may be said later than others are read."""

    @abstractmethod
    def end(self) -> bytes:
        """What ends the stream, once."""

    @property
    def _head(self) -> Head:
        """The envelope that goes out."""
        return self.dialect.head(self.merge.head, self._fallback)

    def tune(
        self,
        part: int,
        *,
        think: Think = "no",
        text: TextForm = "delta",
        strict: frozenset[str] = frozenset(),
        reword: Reword | None = None,
    ) -> None:
        """How a part is mended, before its first byte: servers differ in what they need.

        `think`: whether thoughts in `<think>` tags are taken out of the text. `text`: whether each text is a piece or
        all of the text so far. `strict`: ids of rules; who breaks one of
        them has failed. `all` are those that would be mended. `reword`: how its own words for a failure go out.
        """
        self.merge.tune(part, think=think, text=text, strict=strict, reword=reword)

    @property
    def final(self) -> Json | None:
        """The answer as an object, when it has come to its end, where the dialect has one."""
        return self.dialect.final

    @property
    def keeps(self) -> bool:
        """Whether what was said is kept: then its length must be bounded."""
        return self.dialect.KEEPS or not self.IS_STREAM

    def _bounded(self, events: list[Event]) -> list[Event]:
        """The events, whose text will be kept, up to the one that is too much: in its place there is a failure."""
        for place, event in enumerate(events):
            if isinstance(event, _WITH_TEXT):
                self._kept_chars += len(event.text)
                if self._kept_chars > KEPT_LIMIT_CHARS and not self.merge.is_over:
                    return events[:place] + self.merge.fail(garbage(f"more than {KEPT_LIMIT_CHARS} characters"))
        return events

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a stream in this dialect."""
        return dict(self.dialect.HEADERS)

    def last_words(self, failure: Failure) -> bytes:
        """The end of a stream that can say nothing more than that it failed."""
        return self.dialect.last_words(failure)

    @property
    def is_done(self) -> bool:
        """Whether the server said `[DONE]` on each part, or failed: nothing that matters can follow."""
        return self.merge.is_done

    def is_part_done(self, part: int) -> bool:
        """Whether the server said `[DONE]` on a part, or failed there."""
        return self.merge.is_part_done(part)

    @property
    def has_content(self) -> bool:
        """Whether what was fed last had something of the answer in it, and not only a role or a sign of life."""
        return self.merge.has_content

    def is_part_complete(self, part: int) -> bool:
        """Whether each choice of a part has finished, though the server has not said `[DONE]`."""
        return self.merge.is_complete(part)

    def is_part_counted(self, part: int) -> bool:
        """Whether the usage of a part came behind all else."""
        return self.merge.is_counted(part)

    def is_stopped(self, part: int) -> bool:
        """Whether a stop string has come in a part: the server would go on, and need not."""
        return self.merge.is_stopped(part)

    def has_begun(self, part: int) -> bool:
        """Whether a part has said something, and not only that it is there."""
        return self.merge.has_begun(part)

    @property
    def notes(self) -> Notes:
        """What was mended."""
        return self.merge.notes

    @property
    def broken_json(self) -> int:
        """How many choices should have been JSON by what was asked, and are not, though nothing had cut them."""
        return self.merge.broken_json

    @property
    def printed_calls(self) -> int:
        """How many choices look like a tool call that was written as text."""
        return self.merge.printed_calls

    @property
    def broken_arguments(self) -> int:
        """How many tool calls had arguments that are no JSON object, though nothing had cut them."""
        return self.merge.broken_arguments

    @property
    def failure(self) -> Failure | None:
        """The error that the answer ends with, if it does."""
        return self.merge.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted, also where the client did not ask for it."""
        return self.merge.usage


def _own_dialect(endpoint: Endpoint, asked: Asked, reasoning: tuple[str, ...]) -> Dialect:
    return Chat(asked, reasoning) if endpoint is Endpoint.CHAT else Completions(asked)


def minter(stream_id: str) -> Callable[[], str]:
    """Makes ids of tool calls out of a stream's id, so that the same input gives the same bytes."""
    count = 0
    stem = stream_id.rpartition("-")[2]

    def mint() -> str:
        nonlocal count
        count += 1
        return f"call_{stem}{count}"

    return mint


def _of(event: ChoiceEvent, part: int) -> ChoiceEvent:
    """The same event, of the choice that the part is."""
    if type(event) is Text:
        return Text(part, event.text)
    return msgspec.structs.replace(event, index=part)


def _sum(usages: list[Usage], parts: Parts) -> Usage:
    """The tokens of the whole request: a prompt counts once, however many choices it has."""
    firsts = {parts.prompt(part): usage for part, usage in reversed(list(enumerate(usages)))}
    prompt = sum(usage.prompt_tokens for usage in firsts.values())
    completion = sum(usage.completion_tokens for usage in usages)
    beside = sum(usage.total_tokens - usage.prompt_tokens - usage.completion_tokens for usage in usages)
    more = dict(usages[0].more)
    for name in more:
        if name == "cost" or name.endswith("_details"):
            counted = list(firsts.values()) if name == "prompt_tokens_details" else usages
            more[name] = _added([usage.more.get(name) for usage in counted])
    return Usage(prompt, completion, max(0, prompt + completion + beside), more)


def _added(values: list[object]) -> object:
    """The sum of numbers, member by member in objects; of anything else the first that is not null."""
    known = [value for value in values if value is not None]
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    if known and len(numbers) == len(known):
        return sum(numbers)
    objects = [value for value in known if isinstance(value, dict)]
    if not objects:
        return known[0] if known else None
    names = dict.fromkeys(name for one in objects for name in one)
    return {name: _added([one.get(name) for one in objects]) for name in names}
