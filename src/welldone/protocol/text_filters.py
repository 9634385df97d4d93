"""Stop strings, found here: an answer's text ends before the first of them, and nothing of it is shown.

Text that may be the beginning of a stop string waits until that is known. If none comes of it, the text is said after
all. Only what the client reads as text counts, not thoughts or arguments. It goes out in the pieces in which it came,
so that the log probabilities of a token wait with it, or go with it.
"""

from typing import Literal, TypeAlias

import msgspec

from welldone.protocol import catalog
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.protocol.fields import truncate_logprobs, usage_from_timings
from welldone.protocol.json_budget import exceeds_blocking_budget
from welldone.protocol.lenient_json import NOT_JSON, as_object, parse_by_grammar
from welldone.protocol.repair_log import RepairLog

# Texts that should be JSON, kept until they are whole and can be judged. They go out as they are all the same.


JSON_TEXT_LIMIT_BYTES = 4 * 1024 * 1024
"""Of all that one stream keeps at a time: a million tokens. A text that does not fit is not judged."""


def is_valid_json(text: str, *, is_object: bool = False) -> bool:
    """Whether a text is JSON, and an object where it should be one."""
    value = parse_by_grammar(text.encode())
    return isinstance(value, dict) if is_object else value is not NOT_JSON


class ByteBudget:
    """How much may still be kept."""

    def __init__(self, limit_bytes: int = JSON_TEXT_LIMIT_BYTES) -> None:
        self.remaining_bytes = limit_bytes


class BufferedText:
    """One text as it comes."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._text: bytearray | None = bytearray()  # None where it did not fit, or has been judged

    def add(self, text: str) -> None:
        """More of it."""
        if self._text is None:
            return
        data = text.encode()
        if len(data) > self._budget.remaining_bytes:
            self._drop(self._text)
            return
        self._budget.remaining_bytes -= len(data)
        self._text += data

    def take(self) -> str | None:
        """The text, which is not kept any more; None where it did not fit, or was taken."""
        if self._text is None:
            return None
        text = self._text.decode()
        self._drop(self._text)
        return text

    def take_is_invalid(self, *, is_object: bool) -> bool:
        """Whether it is no JSON, or no object where it should be one. Asked once: then it is not kept any more."""
        text = self.take()
        # To judge a costly text would hold up other streams.
        return (
            text is not None
            and not exceeds_blocking_budget(text.encode())
            and not is_valid_json(text, is_object=is_object)
        )

    def _drop(self, text: bytearray) -> None:
        self._budget.remaining_bytes += len(text)
        self._text = None


class JsonOutputChecker:
    """Choices whose text should be JSON. `is_object`: no other JSON than an object will do."""

    def __init__(self, *, is_object: bool) -> None:
        self.invalid_count = 0
        """How many were no such thing, though the model had said all it wanted."""
        self._is_object = is_object
        self._budget = ByteBudget()
        self._texts: dict[int, BufferedText] = {}
        self._skipped_choices: set[int] = set()  # choices that are a refusal, or calls

    def observe(self, events: list[Event]) -> None:
        """What is said."""
        for event in events:
            match event:
                case Text(index=index, text=text):
                    self._text(index).add(text)
                case Refusal(index=index) | ToolCall(index=index):
                    self._skipped_choices.add(index)
                case Finish(index=index, reason="stop") if index not in self._skipped_choices:
                    self.invalid_count += self._text(index).take_is_invalid(is_object=self._is_object)
                case _:
                    pass

    def _text(self, index: int) -> BufferedText:
        return self._texts.setdefault(index, BufferedText(self._budget))


_RIDERS_LIMIT = 64
"""Events that wait for their text. A character has up to four tokens, with at most three riders each; more is a flood,
and is let through."""


class _HeldText(msgspec.Struct, frozen=True):
    """A text, and what rides on its chunk."""

    riders: list[Event]
    text: Text

    def truncated(self, count: int) -> list[Event]:
        """The events of its first characters."""
        if count >= len(self.text.text):
            return [*self.riders, self.text]
        riders = [
            Logprobs(event.index, truncate_logprobs(event.value, count)) if isinstance(event, Logprobs) else event
            for event in self.riders
        ]
        return [*riders, Text(self.text.index, self.text.text[:count])]


class StopStringFilter:
    """The events of a stream with one choice, up to the first stop string in its text.

    The server was asked without them, and to count as it goes: when `is_over`, it is left, and says no usage any more.
    """

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        self.has_matched = False
        """Whether a stop string has come: nothing more is heard."""
        self._stop_strings = stop_strings
        self._longest = max(map(len, stop_strings))
        self._held: list[_HeldText] = []
        self._text = ""  # of the pieces that are held
        self._riders: list[Event] = []  # of a text that has not come yet
        self._timings: Json | None = None

    def feed(self, events: list[Event]) -> list[Event]:
        """What may be said after `events`."""
        out: list[Event] = []
        for event in events:
            if self.has_matched:
                break
            self._filter_event(event, out)
        return out

    def close(self) -> list[Event]:
        """What was held back, when nothing can follow it."""
        out: list[Event] = []
        place = self._find_stop()
        if place < len(self._text):
            self._emit_and_stop(place, out)
        else:
            self._emit_safe(place, out)
            out += self._riders
            self._riders = []
        return out

    def _filter_event(self, event: Event, out: list[Event]) -> None:
        match event:
            case Text():
                self._hold_text(event, out)
            case UnknownFields(location=FieldLocation.CHUNK, fields={"timings": dict(timings)}):
                self._timings = timings  # not for the client, who has not asked for them: only the last are
                fields = {name: value for name, value in event.fields.items() if name != "timings"}
                if fields:
                    self._hold_rider(msgspec.structs.replace(event, fields=fields), out)
            case UnknownFields() | Logprobs():
                self._hold_rider(event, out)
            case KeepAlive() | ChoiceStart():
                out.append(event)
            case Usage():
                self._emit_timings(0, out)
                out.append(event)
            case _:
                # A stop string is not looked for across thoughts or calls; and nothing that is held outlives the end.
                out += self.close()
                if not self.has_matched or isinstance(event, Failure):
                    out.append(event)

    def _hold_text(self, text: Text, out: list[Event]) -> None:
        self._held.append(_HeldText(self._riders, text))
        self._riders = []
        self._text += text.text
        found, begun = self._find_stop(), self._find_partial_stop()
        if found <= begun and found < len(self._text):
            self._emit_and_stop(found, out)
        else:
            self._emit_safe(min(found, begun), out)

    def _hold_rider(self, event: Event, out: list[Event]) -> None:
        self._riders.append(event)
        if len(self._riders) > _RIDERS_LIMIT:
            out += self._riders
            self._riders = []

    def _find_stop(self) -> int:
        """Where the first stop string begins; the end of the text, if there is none."""
        places = [place for stop in self._stop_strings if (place := self._text.find(stop)) >= 0]
        return min(places, default=len(self._text))

    def _find_partial_stop(self) -> int:
        """Where a stop string may have begun that is not whole yet; the end of the text, if nowhere."""
        length = len(self._text)
        for place in range(max(0, length - self._longest + 1), length):
            rest = self._text[place:]
            if any(stop.startswith(rest) for stop in self._stop_strings):
                return place
        return length

    def _emit_safe(self, safe: int, out: list[Event]) -> None:
        """Say the pieces that end within the first so many characters."""
        said = count = 0
        for piece in self._held:
            length = len(piece.text.text)
            if said + length > safe:
                break
            out += [*piece.riders, piece.text]
            said += length
            count += 1
        del self._held[:count]
        self._text = self._text[said:]

    def _emit_and_stop(self, place: int, out: list[Event]) -> None:
        """Say what stands before a stop string, and that this was all."""
        stop = next(one for one in self._stop_strings if self._text.startswith(one, place))
        index = self._held[0].text.index
        for piece in self._held:
            if place > 0:
                out += piece.truncated(place)
            place -= len(piece.text.text)
        self.has_matched = True
        self._held, self._text, self._riders = [], "", []
        self._emit_timings(index, out)
        out.append(Finish(index, "stop", stop))
        usage = None if self._timings is None else usage_from_timings(self._timings)
        if usage is not None:
            out.append(usage)

    def _emit_timings(self, index: int, out: list[Event]) -> None:
        if self._timings is not None:
            out.append(UnknownFields(index, FieldLocation.CHUNK, {"timings": self._timings}))


# Text of an answer: thoughts in tags, and text that repeats all that came before. What an upstream's settings say.


_LEAD_LIMIT = 256  # characters of white space before a tag that are waited for
_OPEN, _CLOSE = "<think>", "</think>"
_GROWING_TEXTS = 4  # texts in a row that each begin with the one before: fewer are common where a model repeats itself
_REPETITION_WINDOW = 64  # characters of a text in which a repetition is looked for

ThinkMode: TypeAlias = Literal["no", "tags", "open"]
"""Whether thoughts are taken out of the text: those in tags at its beginning; `open`: the text begins with thoughts,
since the model's template wrote the opening tag, and only the closing one comes."""
TextMode: TypeAlias = Literal["delta", "cumulative"]
"""What each text of the upstream is: the next piece, or all of the text so far."""


class CumulativeTextFilter:
    """The new part of each text, from an upstream that is set to send all of the text so far each time."""

    def __init__(self, repair_log: RepairLog) -> None:
        self._repair_log = repair_log
        self._so_far = ""

    def feed(self, text: str) -> str:
        """What is new in the text; all of it where it does not begin with the one before."""
        so_far, self._so_far = self._so_far, text
        if not so_far or not text.startswith(so_far):
            return text
        self._repair_log.record(catalog.delta.CONTENT_INCREMENTAL, text)
        return text[len(so_far) :]


class CumulativeTextDetector:
    """Reports texts that look like the text so far. They pass unchanged: a model may well repeat itself."""

    def __init__(self, repair_log: RepairLog) -> None:
        self.is_finished = False
        """Whether there is nothing more to watch."""
        self._repair_log = repair_log
        self._last = ""
        self._count = 0

    def feed(self, text: str) -> None:
        """More text."""
        if self.is_finished:
            return
        self.is_finished = len(text) <= len(self._last) or not text.startswith(self._last)
        self._last = text
        self._count += 1
        if self._count >= _GROWING_TEXTS and not self.is_finished and not _is_periodic(text):
            self.is_finished = True
            self._repair_log.record(catalog.delta.CONTENT_INCREMENTAL, text)


def _is_periodic(text: str) -> bool:
    """Whether a text begins with a unit that comes again at once, and goes on like that."""
    head = text[:_REPETITION_WINDOW]
    return any(head[size:] == head[:-size] for size in range(1, len(head) // 2 + 1))


class ThinkTagFilter:
    """Moves leading `<think>…</think>` to where reasoning belongs. `is_open`: the text need not say the first tag."""

    def __init__(self, index: int, *, is_open: bool = False) -> None:
        self.is_past_thinking = False
        """Whether words came: from there on nothing is moved."""
        self._index = index
        self._is_open = is_open
        self._is_inside = False
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        """The text, as words and thoughts."""
        events: list[Event] = []
        self._held += text
        while not self.is_past_thinking and (
            self._find_closing_tag(events) if self._is_inside else self._find_opening_tag()
        ):
            pass
        if self.is_past_thinking and self._held:
            events.append(Text(self._index, self._held))
            self._held = ""
        return events

    def pause(self) -> list[Event]:
        """Something else than text comes: white space that waits for a tag, or for words, comes before it."""
        if self._is_inside or not self._held.isspace():
            return []
        held, self._held = self._held, ""
        return [Text(self._index, held)]

    def close(self) -> list[Event]:
        """What was held back."""
        held, self._held = self._held, ""
        self.is_past_thinking = True
        if not held:
            return []
        return [Reasoning(self._index, held) if self._is_inside else Text(self._index, held)]

    def _find_opening_tag(self) -> bool:
        """Look for the opening tag; True if there is more to look at."""
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._held = text[len(_OPEN) :]
            self._enter_thinking()
            return True
        if _OPEN.startswith(text) and len(self._held) <= _LEAD_LIMIT:
            return False
        if self._is_open:
            self._enter_thinking()
            return True
        self.is_past_thinking = True
        return False

    def _enter_thinking(self) -> None:
        """Thoughts follow. After them the text is open no more."""
        self._is_inside = True
        self._is_open = False

    def _find_closing_tag(self, events: list[Event]) -> bool:
        """Look for the closing tag, and hand on the thoughts before it."""
        thought, tag, rest = self._held.partition(_CLOSE)
        keep = 0 if tag else _partial_tag_length(thought)
        if len(thought) > keep:
            events.append(Reasoning(self._index, thought[: len(thought) - keep]))
        self._held = rest if tag else thought[len(thought) - keep :]
        self._is_inside = not tag
        return bool(tag)


def _partial_tag_length(text: str) -> int:
    """How many characters at the end may be the beginning of the closing tag."""
    return next((count for count in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:count])), 0)


# Counts reasoning tokens for an engine that does not.
#
# llama.cpp sends one delta per token and counts all tokens of an answer together. A token that completes no character, or
# is part of a tag, has no delta of its own; so the count may be some tokens too low, and never exceeds the answer's.


_DETAILS_FIELD, _REASONING_TOKENS_FIELD = "completion_tokens_details", "reasoning_tokens"


class ReasoningTokenCounter:
    """Adds `reasoning_tokens` to the usage of one choice. Each chunk with reasoning is one token."""

    def __init__(self) -> None:
        self._tokens = 0
        self._has_answer = False

    def feed(self, events: list[Event]) -> list[Event]:
        """The same events; usage with the count, where it has none."""
        for place, event in enumerate(events):
            if isinstance(event, Reasoning):
                self._tokens += 1
            elif isinstance(event, Text | Refusal | ToolCall):
                self._has_answer = True
            elif isinstance(event, Usage):
                events = [*events[:place], self._with_reasoning_tokens(event), *events[place + 1 :]]
        return events

    def _with_reasoning_tokens(self, usage: Usage) -> Usage:
        details = as_object(usage.extra_fields.get(_DETAILS_FIELD))
        if _REASONING_TOKENS_FIELD in details:
            return usage
        # An answer that was cut while the model reasoned is all reasoning.
        count = min(self._tokens, usage.completion_tokens) if self._has_answer else usage.completion_tokens
        more = usage.extra_fields | {_DETAILS_FIELD: details | {_REASONING_TOKENS_FIELD: count if self._tokens else 0}}
        return msgspec.structs.replace(usage, extra_fields=more)
