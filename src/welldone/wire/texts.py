"""Text that is not what it should be: all of it again in each delta, or thoughts among the words."""

from typing import Literal, TypeAlias

from welldone.wire import faults
from welldone.wire.events import Event, Reasoning, Text
from welldone.wire.notes import Notes

_CLEARLY_REPEATED = 4  # characters: a second and last delta that begins with so many of the first repeats it
_LONG_ENOUGH = 8  # characters of the third text: a shorter one may well be laughter or indentation
_LEAD_LIMIT = 256  # characters of white space before a tag that are waited for
_OPEN, _CLOSE = "<think>", "</think>"

Think: TypeAlias = Literal["no", "tags", "open"]
"""Whether thoughts are taken out of the text: those in tags at its beginning; `open`: the text begins with thoughts,
since the model's template wrote the opening tag, and only the closing one comes."""


class Increments:
    """Only the new text, also from a server that sends the text so far in each delta.

    A stream is taken as cumulative when each text extends the one before, from the first up to a third or later one of
    eight characters, or up to the end (of only two, if the first has four characters). To know that, texts are held
    back as long as they extend the first, and only then. What goes out is cut so that no client, and no judge, can take
    it for cumulative.
    """

    def __init__(self, notes: Notes) -> None:
        self.is_plain = False
        """Whether there is nothing more to watch."""
        self._notes = notes
        self._first = ""
        self._held: list[str] = []
        self._so_far = ""  # the last text of a server that is known to repeat itself

    def feed(self, text: str) -> list[str]:
        """The new texts."""
        if self.is_plain:
            return [text]
        if self._so_far:
            return self._next_of_cumulative(text)
        if not self._first:
            self._first = text
            return [text]
        if not _extends(text, self._held[-1] if self._held else self._first):
            self.is_plain = True
            return [*self._take_held(), text]
        self._held.append(text)
        if len(self._held) < 2 or len(text) < _LONG_ENOUGH:
            return []
        self._so_far = text
        return self._new()

    def close(self) -> list[str]:
        """What was held back."""
        if not self._held:
            return []
        self.is_plain = True
        is_repeated = len(self._held) > 1 or len(self._first) >= _CLEARLY_REPEATED
        return self._new() if is_repeated else self._take_held()

    def _new(self) -> list[str]:
        """What the last text that was held back adds to the first."""
        text = self._held[-1]
        self._held.clear()
        self._notes.note(faults.delta.CONTENT_INCREMENTAL, text)
        return _broken(text[len(self._first) :])

    def _take_held(self) -> list[str]:
        """What was held back, as the texts of their own that they are."""
        texts = [*_broken(self._held[0]), *self._held[1:]] if self._held else []
        self._held.clear()
        return texts

    def _next_of_cumulative(self, text: str) -> list[str]:
        if text == self._so_far:
            return []
        if _extends(text, self._so_far):
            new = text[len(self._so_far) :]
            self._so_far = text
            return [new]
        self.is_plain = True
        return [text]


class Thoughts:
    """Moves leading `<think>…</think>` to where reasoning belongs. `is_open`: the text need not say the first tag."""

    def __init__(self, index: int, notes: Notes, *, is_open: bool = False) -> None:
        self.is_plain = False
        """Whether words came: from there on nothing is moved."""
        self._index = index
        self._notes = notes
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
            self._notes.note(faults.ext.NO_THINK_TAGS, text)
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


def _extends(text: str, before: str) -> bool:
    return len(text) > len(before) and text.startswith(before)


def _broken(text: str) -> list[str]:
    """The text in two pieces, of which the first is too short to extend anything."""
    return [text[:1], text[1:]] if len(text) > 1 else [text]


def _overlap(text: str) -> int:
    """How many characters at the end may be the beginning of the closing tag."""
    return next((count for count in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:count])), 0)
