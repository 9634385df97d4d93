"""Filters of an answer's text: stop strings, `<think>` tags, cumulative text, JSON output, reasoning tokens."""

from typing import Literal, TypeAlias

import msgspec

from welldone.core import events as ev
from welldone.core.events import Event, Failure, Json, Usage
from welldone.core.fields import truncate_logprobs, usage_from_timings
from welldone.core.json_budget import exceeds_blocking_budget
from welldone.core.lenient_json import NOT_JSON, as_object, parse_by_grammar
from welldone.core.repair_log import RepairLog

JSON_TEXT_LIMIT_BYTES = 4 * 1024 * 1024
"""Most bytes of JSON text that one stream buffers for checks: a million tokens. Longer texts are not checked."""


def is_valid_json(text: str, *, is_object: bool = False) -> bool:
    """Whether a text is JSON and, with `is_object`, an object."""
    value = parse_by_grammar(text.encode())
    return isinstance(value, dict) if is_object else value is not NOT_JSON


class ByteBudget:
    """Bytes that may still be buffered, shared by several texts."""

    def __init__(self, limit_bytes: int = JSON_TEXT_LIMIT_BYTES) -> None:
        self.remaining_bytes = limit_bytes


class BufferedText:
    """Text that is buffered, within a budget, until it is complete."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._text: bytearray | None = bytearray()  # None if it exceeded the budget, or was taken

    def add(self, text: str) -> None:
        """Append a piece."""
        if self._text is None:
            return
        data = text.encode()
        if len(data) > self._budget.remaining_bytes:
            self._drop(self._text)
            return
        self._budget.remaining_bytes -= len(data)
        self._text += data

    def take(self) -> str | None:
        """Return the text and drop it; None if it exceeded the budget, or was taken before."""
        if self._text is None:
            return None
        text = self._text.decode()
        self._drop(self._text)
        return text

    def take_is_invalid(self, *, is_object: bool) -> bool:
        """Drop the text; return whether it is not JSON or, with `is_object`, not an object."""
        text = self.take()
        if text is None or exceeds_blocking_budget(text.encode()):  # parsing it would block other streams
            return False
        return not is_valid_json(text, is_object=is_object)

    def _drop(self, text: bytearray) -> None:
        self._budget.remaining_bytes += len(text)
        self._text = None


class JsonOutputChecker:
    """Checks choices whose text should be JSON, and with `is_object` a JSON object. Events pass unchanged."""

    def __init__(self, *, is_object: bool) -> None:
        self.invalid_count: int = 0
        """Number of invalid texts, not counting truncated ones."""
        self._is_object = is_object
        self._budget = ByteBudget()
        self._texts: dict[int, BufferedText] = {}
        self._skipped_choices: set[int] = set()  # choices with a refusal or tool calls

    def observe(self, events: list[Event]) -> None:
        """Check the texts of `events`."""
        for event in events:
            match event:
                case ev.Text(index=index, text=text):
                    self._text(index).add(text)
                case ev.Refusal(index=index) | ev.ToolCall(index=index):
                    self._skipped_choices.add(index)
                case ev.Finish(index=index, reason="stop"):
                    self.invalid_count += self.is_invalid(index)
                case _:
                    pass

    def is_invalid(self, index: int) -> bool:
        """Drop the text of a choice; return whether it is not what it should be."""
        is_checked = index not in self._skipped_choices
        return is_checked and self._text(index).take_is_invalid(is_object=self._is_object)

    def _text(self, index: int) -> BufferedText:
        return self._texts.setdefault(index, BufferedText(self._budget))


_PENDING_LIMIT = 64
"""Most events that are held for their text. A character has up to four tokens with at most three such events each; more
are passed on."""


class _HeldText(msgspec.Struct, frozen=True):
    """A text, and the events of the same chunk that precede it."""

    preceding: list[Event]
    text: ev.Text

    def truncated(self, count: int) -> list[Event]:
        """The events of the first `count` characters."""
        if count >= len(self.text.text):
            return [*self.preceding, self.text]
        preceding = [
            ev.Logprobs(event.index, truncate_logprobs(event.value, count)) if isinstance(event, ev.Logprobs) else event
            for event in self.preceding
        ]
        return [*preceding, ev.Text(self.text.index, self.text.text[:count])]


class StopStringFilter:
    """Ends a stream with one choice before the first stop string in its text.

    The upstream request has no stop strings and asks for counts on each chunk: after a match the upstream request is
    aborted, so no usage follows. Text that may be the start of a stop string is held until that is decided. Only
    visible text is searched, not reasoning or arguments. Texts keep their boundaries, so that log probabilities stay
    with their tokens.
    """

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        self.has_matched: bool = False
        """Whether a stop string was found; all later events are dropped."""
        self._stop_strings = stop_strings
        self._longest = max(map(len, stop_strings))
        self._held: list[_HeldText] = []
        self._text = ""  # text of the held pieces
        self._pending: list[Event] = []  # events that precede the next text
        self._timings: Json | None = None

    def feed(self, events: list[Event]) -> list[Event]:
        """Return the events that can be sent after `events`."""
        out: list[Event] = []
        for event in events:
            if self.has_matched:
                break
            match event:
                case ev.Text():
                    self._held.append(_HeldText(self._pending, event))
                    self._pending = []
                    self._text += event.text
                    position, partial = self._find_stop(), self._find_partial_stop()
                    if position <= partial and position < len(self._text):
                        self._emit_and_stop(position, out)
                    else:
                        self._emit_safe(min(position, partial), out)
                case ev.UnknownFields(location=ev.FieldLocation.CHUNK, fields={"timings": dict(timings)}):
                    self._timings = timings  # requested for the counts, not by the client: only the last are sent
                    fields = {name: value for name, value in event.fields.items() if name != "timings"}
                    if fields:
                        self._hold_event(msgspec.structs.replace(event, fields=fields), out)
                case ev.UnknownFields() | ev.Logprobs():
                    self._hold_event(event, out)
                case ev.KeepAlive() | ev.ChoiceStart():
                    out.append(event)
                case Usage():
                    self._emit_timings(0, out)
                    out.append(event)
                case _:
                    # A stop string does not span reasoning or tool calls, and nothing is held beyond the end.
                    out += self.close()
                    if not self.has_matched or isinstance(event, Failure):
                        out.append(event)
        return out

    def close(self) -> list[Event]:
        """Return the events that were held back, at the end of the text."""
        out: list[Event] = []
        position = self._find_stop()
        if position < len(self._text):
            self._emit_and_stop(position, out)
        else:
            self._emit_safe(position, out)
            out += self._pending
            self._pending = []
        return out

    def _hold_event(self, event: Event, out: list[Event]) -> None:
        self._pending.append(event)
        if len(self._pending) > _PENDING_LIMIT:
            out += self._pending
            self._pending = []

    def _find_stop(self) -> int:
        """Position of the first stop string; the length of the text if there is none."""
        positions = [position for stop in self._stop_strings if (position := self._text.find(stop)) >= 0]
        return min(positions, default=len(self._text))

    def _find_partial_stop(self) -> int:
        """Position of an incomplete stop string at the end; the length of the text if there is none."""
        length = len(self._text)
        for position in range(max(0, length - self._longest + 1), length):
            rest = self._text[position:]
            if any(stop.startswith(rest) for stop in self._stop_strings):
                return position
        return length

    def _emit_safe(self, safe: int, out: list[Event]) -> None:
        """Emit the pieces that end within the first `safe` characters."""
        emitted = count = 0
        for piece in self._held:
            length = len(piece.text.text)
            if emitted + length > safe:
                break
            out += [*piece.preceding, piece.text]
            emitted += length
            count += 1
        del self._held[:count]
        self._text = self._text[emitted:]

    def _emit_and_stop(self, position: int, out: list[Event]) -> None:
        """Emit the text before the stop string at `position`, then the finish."""
        match = next(stop for stop in self._stop_strings if self._text.startswith(stop, position))
        index = self._held[0].text.index
        for piece in self._held:
            if position > 0:
                out += piece.truncated(position)
            position -= len(piece.text.text)
        self.has_matched = True
        self._held, self._text, self._pending = [], "", []
        self._emit_timings(index, out)
        out.append(ev.Finish(index, "stop", match))
        usage = None if self._timings is None else usage_from_timings(self._timings)
        if usage is not None:
            out.append(usage)

    def _emit_timings(self, index: int, out: list[Event]) -> None:
        if self._timings is not None:
            out.append(ev.UnknownFields(index, ev.FieldLocation.CHUNK, {"timings": self._timings}))


_LEAD_LIMIT = 256  # characters of white space before a tag that are held
_OPEN, _CLOSE = "<think>", "</think>"
_GROWING_TEXTS = 4  # consecutive texts that each extend the one before; a repetitive model produces fewer
_REPETITION_WINDOW = 64  # characters that are searched for a repetition

ThinkMode: TypeAlias = Literal["no", "tags", "open"]
"""How reasoning is separated from the text. `tags`: leading `<think>…</think>` is reasoning. `open`: the text starts
with reasoning, since the chat template contains the opening tag and the model writes only the closing one."""
TextMode: TypeAlias = Literal["delta", "cumulative"]
"""Whether each text of the upstream is the next increment, or all of the text so far."""


class CumulativeTextFilter:
    """Returns the new part of each text of an upstream that is configured as cumulative."""

    def __init__(self, repair_log: RepairLog) -> None:
        self._repair_log = repair_log
        self._so_far = ""

    def feed(self, text: str) -> str:
        """Return the new part; all of the text if it does not extend the one before."""
        so_far, self._so_far = self._so_far, text
        if not so_far or not text.startswith(so_far):
            return text
        self._repair_log.record("delta-content-incremental", text)
        return text[len(so_far) :]


class CumulativeTextDetector:
    """Records texts that look cumulative. They pass unchanged, since a model may repeat itself."""

    def __init__(self, repair_log: RepairLog) -> None:
        self.is_finished: bool = False
        """Whether the result is decided."""
        self._repair_log = repair_log
        self._last = ""
        self._count = 0

    def feed(self, text: str) -> None:
        """Check the next text."""
        if self.is_finished:
            return
        self.is_finished = len(text) <= len(self._last) or not text.startswith(self._last)
        self._last = text
        self._count += 1
        if self._count >= _GROWING_TEXTS and not self.is_finished:
            head = text[:_REPETITION_WINDOW]
            if not any(head[size:] == head[:-size] for size in range(1, len(head) // 2 + 1)):  # no repeated unit
                self.is_finished = True
                self._repair_log.record("delta-content-incremental", text)


class ThinkTagFilter:
    """Converts leading `<think>…</think>` text to reasoning. `is_open`: the opening tag may be missing."""

    def __init__(self, index: int, *, is_open: bool = False) -> None:
        self.is_past_thinking: bool = False
        """Whether visible text has started; from there on nothing is converted."""
        self._index = index
        self._is_open = is_open
        self._is_inside = False
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        """Return the text and reasoning events for `text`."""
        events: list[Event] = []
        self._held += text
        while not self.is_past_thinking and (
            self._find_closing_tag(events) if self._is_inside else self._find_opening_tag()
        ):
            pass
        if self.is_past_thinking and self._held:
            events.append(ev.Text(self._index, self._held))
            self._held = ""
        return events

    def pause(self) -> list[Event]:
        """Return white space that was held back, before an event that is not text."""
        if self._is_inside or not self._held.isspace():
            return []
        held, self._held = self._held, ""
        return [ev.Text(self._index, held)]

    def close(self) -> list[Event]:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        self.is_past_thinking = True
        if not held:
            return []
        return [ev.Reasoning(self._index, held) if self._is_inside else ev.Text(self._index, held)]

    def _find_opening_tag(self) -> bool:
        """Search the opening tag; return whether the rest must be searched further."""
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._held = text[len(_OPEN) :]
            self._is_inside, self._is_open = True, False
            return True
        if _OPEN.startswith(text) and len(self._held) <= _LEAD_LIMIT:
            return False
        if self._is_open:
            self._is_inside, self._is_open = True, False
            return True
        self.is_past_thinking = True
        return False

    def _find_closing_tag(self, events: list[Event]) -> bool:
        """Search the closing tag and emit the reasoning before it; return whether it was found."""
        reasoning, tag, rest = self._held.partition(_CLOSE)
        # The end may be the start of the closing tag.
        starts = () if tag else range(len(_CLOSE) - 1, 0, -1)
        keep = next((count for count in starts if reasoning.endswith(_CLOSE[:count])), 0)
        if len(reasoning) > keep:
            events.append(ev.Reasoning(self._index, reasoning[: len(reasoning) - keep]))
        self._held = rest if tag else reasoning[len(reasoning) - keep :]
        self._is_inside = not tag
        return bool(tag)


class RepeatedThoughtFilter:
    """Drops the thought that an upstream sends both in tags and in a field (MiniMax-M3).

    The one that is behind is dropped as long as it repeats exactly what was sent. If it differs, both are sent.
    """

    def __init__(self, repair_log: RepairLog) -> None:
        self._repair_log = repair_log
        self._sent = bytearray()
        self._ends = [0, 0]  # up to which the thought in the field, and that in tags, are in `_sent`
        self._repeating: bool | None = None  # whether the last one that was dropped is that in tags
        self._has_differed = False

    def feed(self, text: str, *, in_tags: bool) -> str:
        """Return what to send for a piece of a thought."""
        start, data = self._ends[in_tags], text.encode()
        repeated = data[: len(self._sent) - start]
        if self._has_differed or not self._sent.startswith(repeated, start):
            dropped = self._sent[:start] if self._repeating is in_tags and not self._has_differed else b""
            self._has_differed = True
            return dropped.decode() + text
        if repeated:
            self._repair_log.record("ext-no-think-tags", text)
            self._repeating = in_tags
        self._sent += data[len(repeated) :]
        self._ends[in_tags] = start + len(data)
        return data[len(repeated) :].decode()


_DETAILS_FIELD, _REASONING_TOKENS_FIELD = "completion_tokens_details", "reasoning_tokens"


class ReasoningTokenCounter:
    """Adds `reasoning_tokens` to the usage of one choice, for an engine that does not report them.

    Each chunk with reasoning counts as one token: llama.cpp sends one delta per token. A token that completes no
    character, or is part of a tag, has no delta, so the count may be slightly low. It never exceeds
    `completion_tokens`.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._has_answer = False

    def feed(self, events: list[Event]) -> list[Event]:
        """Return the events, with the count added to a usage without one."""
        for position, event in enumerate(events):
            if isinstance(event, ev.Reasoning):
                self._tokens += 1
            elif isinstance(event, ev.Text | ev.Refusal | ev.ToolCall):
                self._has_answer = True
            elif isinstance(event, Usage):
                events = [*events[:position], self._with_reasoning_tokens(event), *events[position + 1 :]]
        return events

    def _with_reasoning_tokens(self, usage: Usage) -> Usage:
        details = as_object(usage.extra_fields.get(_DETAILS_FIELD))
        if _REASONING_TOKENS_FIELD in details:
            return usage
        # An answer that was truncated within the reasoning is all reasoning.
        count = min(self._tokens, usage.completion_tokens) if self._has_answer else usage.completion_tokens
        details = details | {_REASONING_TOKENS_FIELD: count if self._tokens else 0}
        return msgspec.structs.replace(usage, extra_fields=usage.extra_fields | {_DETAILS_FIELD: details})
