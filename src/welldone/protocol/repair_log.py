"""What was mended, by rule: bounded, however long the stream."""

from collections.abc import Mapping

import msgspec

from welldone.protocol.catalog.rule import Repairability, Rule

_OBSERVED_CHARACTERS = 200  # enough to see what was wrong, little enough for a log line


class RepairEntry(msgspec.Struct):
    """One fault that was met in a stream: how often, and where first."""

    rule: str
    count: int
    frame: int
    """The number of the frame that first showed it, from 1; 0 where it showed only at the end."""
    byte: int
    observed: str


class RepairLog:
    """All notes on one stream. The reader keeps `frame` and `byte` at the place that is being read."""

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint  # only rules of this endpoint are noted
        self.frame = 0
        self.byte = 0
        self._entries: dict[str, RepairEntry] = {}
        self.strict_rules: frozenset[str] = frozenset()
        """Rules that may not be broken; `all` are those that would be mended."""
        self.broken_rule: str | None = None
        """The first of them that was."""
        self._is_muted = False

    def record(self, rule: Rule, observed: object = "") -> None:
        """Count `fault`; keep what was heard the first time."""
        if self._is_muted or (self._endpoint is not None and self._endpoint not in rule.endpoints):
            return
        note = self._entries.get(rule.id)
        if note is None:
            self._entries[rule.id] = RepairEntry(rule.id, 1, self.frame, self.byte, _shorten(observed))
            if self.strict_rules and self.broken_rule is None and self._is_strict(rule):
                self.broken_rule = rule.id
        else:
            note.count += 1

    def mute(self) -> None:
        """Note nothing more."""
        self._is_muted = True

    def merge_entry(self, entry: RepairEntry) -> None:
        """Count what was noted elsewhere."""
        known = self._entries.setdefault(entry.rule, entry)
        if known is not entry:
            self._entries[entry.rule] = msgspec.structs.replace(known, count=known.count + entry.count)

    def _is_strict(self, rule: Rule) -> bool:
        return rule.id in self.strict_rules or (
            "all" in self.strict_rules and rule.repairability is not Repairability.REPORT_ONLY
        )

    def counts(self) -> dict[str, int]:
        """How often each fault was met."""
        return {rule: note.count for rule, note in self._entries.items()}

    def add_counts(self, counts: Mapping[str, int], times: int) -> None:
        """Count faults that were met before, so many times more."""
        for rule, count in counts.items():
            self._entries[rule].count += count * times

    def entries(self) -> list[RepairEntry]:
        """The notes, in the order in which the faults were first met."""
        return list(self._entries.values())


def join_repair_logs(parts: list[RepairLog]) -> RepairLog:
    """The notes on streams that make one answer."""
    if len(parts) == 1:
        return parts[0]
    joined = RepairLog()
    for part in parts:
        for note in part.entries():
            joined.merge_entry(note)
    return joined


def _shorten(observed: object) -> str:
    text = observed if isinstance(observed, str) else format_json(observed)
    return text if len(text) <= _OBSERVED_CHARACTERS else text[: _OBSERVED_CHARACTERS - 1] + "…"


def format_json(value: object) -> str:
    """A JSON value as a person would write it; hostile nesting is only named."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeEncodeError):
        return "(something that cannot be shown)"
