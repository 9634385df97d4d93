"""What was mended, by rule: bounded, however long the stream."""

from collections.abc import Mapping

import msgspec

from welldone.wire.faults import Fault, Mend

_HEARD_CHARACTERS = 200  # enough to see what was wrong, little enough for a log line


class Note(msgspec.Struct):
    """One fault that was met in a stream: how often, and where first."""

    rule: str
    count: int
    frame: int
    """The number of the frame that first showed it, from 1; 0 where it showed only at the end."""
    byte: int
    heard: str


class Notes:
    """All notes on one stream. The reader keeps `frame` and `byte` at the place that is being read."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint  # only rules of this endpoint are noted
        self.frame = 0
        self.byte = 0
        self._notes: dict[str, Note] = {}
        self.strict: frozenset[str] = frozenset()
        """Rules that may not be broken; `all` are those that would be mended."""
        self.broken: str | None = None
        """The first of them that was."""
        self._is_hushed = False

    def note(self, fault: Fault, heard: object = "") -> None:
        """Count `fault`; keep what was heard the first time."""
        if self._is_hushed or (self._endpoint is not None and self._endpoint not in fault.endpoints):
            return
        note = self._notes.get(fault.id)
        if note is None:
            self._notes[fault.id] = Note(fault.id, 1, self.frame, self.byte, _shorten(heard))
            if self.strict and self.broken is None and self._is_strict(fault):
                self.broken = fault.id
        else:
            note.count += 1

    def hush(self) -> None:
        """Note nothing more."""
        self._is_hushed = True

    def add(self, note: Note) -> None:
        """Count what was noted elsewhere."""
        known = self._notes.setdefault(note.rule, note)
        if known is not note:
            self._notes[note.rule] = msgspec.structs.replace(known, count=known.count + note.count)

    def _is_strict(self, fault: Fault) -> bool:
        return fault.id in self.strict or ("all" in self.strict and fault.mend is not Mend.REPORT)

    def counts(self) -> dict[str, int]:
        """How often each fault was met."""
        return {rule: note.count for rule, note in self._notes.items()}

    def repeat(self, counts: Mapping[str, int], times: int) -> None:
        """Count faults that were met before, so many times more."""
        for rule, count in counts.items():
            self._notes[rule].count += count * times

    def all(self) -> list[Note]:
        """The notes, in the order in which the faults were first met."""
        return list(self._notes.values())


def join_notes(parts: list[Notes]) -> Notes:
    """The notes on streams that make one answer."""
    if len(parts) == 1:
        return parts[0]
    joined = Notes()
    for part in parts:
        for note in part.all():
            joined.add(note)
    return joined


def _shorten(heard: object) -> str:
    text = heard if isinstance(heard, str) else show(heard)
    return text if len(text) <= _HEARD_CHARACTERS else text[: _HEARD_CHARACTERS - 1] + "…"


def show(value: object) -> str:
    """A JSON value as a person would write it; hostile nesting is only named."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeEncodeError):
        return "(something that cannot be shown)"
