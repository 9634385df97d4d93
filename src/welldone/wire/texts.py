"""Text of an answer: thoughts in tags, and text that repeats all that came before. What an upstream's settings say."""

from typing import Literal, TypeAlias

from welldone.wire import faults
from welldone.wire.events import Event, Reasoning, Text
from welldone.wire.notes import Notes

_LEAD_LIMIT = 256  # characters of white space before a tag that are waited for
_OPEN, _CLOSE = "<think>", "</think>"
_GROWN = 4  # texts in a row that each begin with the one before: fewer are common where a model repeats itself
_HEAD = 64  # characters of a text in which a repetition is looked for

Think: TypeAlias = Literal["no", "tags", "open"]
"""Whether thoughts are taken out of the text: those in tags at its beginning; `open`: the text begins with thoughts,
since the model's template wrote the opening tag, and only the closing one comes."""
TextForm: TypeAlias = Literal["delta", "cumulative"]
"""What each text of the upstream is: the next piece, or all of the text so far."""


class Cumulative:
    """The new part of each text, from an upstream that is set to send all of the text so far each time."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._so_far = ""

    def feed(self, text: str) -> str:
        """What is new in the text; all of it where it does not begin with the one before."""
        so_far, self._so_far = self._so_far, text
        if not so_far or not text.startswith(so_far):
            return text
        self._notes.note(faults.delta.CONTENT_INCREMENTAL, text)
        return text[len(so_far) :]


class GrowthWatch:
    """Reports texts that look like the text so far. They pass unchanged: a model may well repeat itself."""

    def __init__(self, notes: Notes) -> None:
        self.is_over = False
        """Whether there is nothing more to watch."""
        self._notes = notes
        self._last = ""
        self._count = 0

    def feed(self, text: str) -> None:
        """More text."""
        if self.is_over:
            return
        self.is_over = len(text) <= len(self._last) or not text.startswith(self._last)
        self._last = text
        self._count += 1
        if self._count >= _GROWN and not self.is_over and not _repeats(text):
            self.is_over = True
            self._notes.note(faults.delta.CONTENT_INCREMENTAL, text)


def _repeats(text: str) -> bool:
    """Whether a text begins with a unit that comes again at once, and goes on like that."""
    head = text[:_HEAD]
    return any(head[size:] == head[:-size] for size in range(1, len(head) // 2 + 1))


class Thoughts:
    """Moves leading `<think>…</think>` to where reasoning belongs. `is_open`: the text need not say the first tag."""

    def __init__(self, index: int, *, is_open: bool = False) -> None:
        self.is_plain = False
        """Whether words came: from there on nothing is moved."""
        self._index = index
        self._is_open = is_open
        self._is_inside = False
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        """The text, as words and thoughts."""
        events: list[Event] = []
        self._held += text
        while not self.is_plain and (self._inside(events) if self._is_inside else self._outside()):
            pass
        if self.is_plain and self._held:
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
        self.is_plain = True
        if not held:
            return []
        return [Reasoning(self._index, held) if self._is_inside else Text(self._index, held)]

    def _outside(self) -> bool:
        """Look for the opening tag; True if there is more to look at."""
        text = self._held.lstrip()
        if text.startswith(_OPEN):
            self._held = text[len(_OPEN) :]
            self._begin()
            return True
        if _OPEN.startswith(text) and len(self._held) <= _LEAD_LIMIT:
            return False
        if self._is_open:
            self._begin()
            return True
        self.is_plain = True
        return False

    def _begin(self) -> None:
        """Thoughts follow. After them the text is open no more."""
        self._is_inside = True
        self._is_open = False

    def _inside(self, events: list[Event]) -> bool:
        """Look for the closing tag, and hand on the thoughts before it."""
        thought, tag, rest = self._held.partition(_CLOSE)
        keep = 0 if tag else _overlap(thought)
        if len(thought) > keep:
            events.append(Reasoning(self._index, thought[: len(thought) - keep]))
        self._held = rest if tag else thought[len(thought) - keep :]
        self._is_inside = not tag
        return bool(tag)


def _overlap(text: str) -> int:
    """How many characters at the end may be the beginning of the closing tag."""
    return next((count for count in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:count])), 0)
