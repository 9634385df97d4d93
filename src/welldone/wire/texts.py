"""Text of an answer: thoughts in tags, and text that repeats all that came before. What an upstream's settings say."""

from typing import Literal, TypeAlias

from welldone.wire import faults
from welldone.wire.events import Event, Reasoning, Text
from welldone.wire.notes import RepairLog

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
        self._repair_log.record(faults.delta.CONTENT_INCREMENTAL, text)
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
            self._repair_log.record(faults.delta.CONTENT_INCREMENTAL, text)


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
