"""Log of the repairs of one stream: one entry per rule, so its size does not depend on the length of the stream."""

from collections.abc import Mapping, Sequence
from itertools import islice

import msgspec

from welldone.core.catalog import RULES, Repairability
from welldone.core.events import Failure, Json, Usage

_OBSERVED_CHARACTERS = 200  # enough to identify the problem, short enough for a log line
_NAMES = frozenset({"type", "event", "id", "status", "role", "index", "sequence_number"})
_DEPTH_LIMIT = 64  # a value that is nested deeper is not checked: it counts as content


class RepairEntry(msgspec.Struct):
    """Violations of one rule in a stream: their number, and the position of the first."""

    rule: str
    count: int
    frame: int
    """Number of the first frame with a violation, from 1; 0 if it was found only at the end."""
    byte: int
    observed: str


class RepairResult(msgspec.Struct, frozen=True):
    """What is known of an answer, at its end or so far."""

    usage: Usage | None
    """Usage reported by the server, even if the client did not request it."""
    failure: Failure | None
    """The failure that ended the answer, if any."""
    repairs: Sequence[RepairEntry]
    """Repairs of all parts, one entry per rule."""
    invalid_json_count: int = 0
    """Choices that the request wants as JSON and are not, although they were not truncated."""
    invalid_arguments_count: int = 0
    """Tool calls whose arguments are not a JSON object, although they were not truncated."""
    text_tool_calls: int = 0
    """Choices whose text looks like a tool call."""
    converted_calls: int = 0
    """Choices whose text became a tool call (`RepairOptions.json_calls`)."""


class RepairLog:
    """Repairs of one stream. The reader keeps `frame` and `byte` at its current position."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = endpoint
        """Only rules of this endpoint are recorded."""
        self.frame = 0
        self.byte = 0
        self._entries: dict[str, RepairEntry] = {}
        self.strict_rules: frozenset[str] = frozenset()
        """Ids of rules whose violation is a failure; `all` stands for every rule with a repair."""
        self.broken_rule: str | None = None
        """The first violated rule of `strict_rules`, or the one whose repair would delete `lost`."""
        self.lost: str | None = None
        """Content that cannot be read: the answer ends with an error."""
        self.is_over: bool = False
        """Whether the answer is complete: nothing after it is content."""
        self._is_muted = False

    def record(self, rule: str, observed: object = "") -> None:
        """Count a violation of the rule with this id; the value observed first is stored."""
        if self._is_muted:
            return
        entry = self._entries.get(rule)
        if entry is not None:
            entry.count += 1
        elif self.endpoint is None or self.endpoint in RULES[rule].endpoints:
            text = observed if isinstance(observed, str) else format_json(_abridge(observed))
            self._entries[rule] = RepairEntry(rule, 1, self.frame, self.byte, shorten(text, _OBSERVED_CHARACTERS))
            if self.broken_rule is None and (
                rule in self.strict_rules
                or ("all" in self.strict_rules and RULES[rule].repairability is not Repairability.REPORT_ONLY)
            ):
                self.broken_rule = rule

    def record_if(self, is_violated: object, rule: str, observed: object = "") -> None:
        """Record a violation if the first argument is true."""
        if is_violated:
            self.record(rule, observed)

    def drop(self, rule: str, value: object) -> None:
        """Record a violation whose repair deletes `value`. Unless that is empty, the answer ends with an error."""
        self.record(rule, value)
        if self.lost is None and not self.is_over and not is_empty(value):
            self.broken_rule, self.lost = rule, shorten(format_json(_abridge(value)), _OBSERVED_CHARACTERS)

    def read_object(self, value: object, rule: str) -> Json:
        """Return an object, or the only one of a list. Any other value is dropped: the result is empty."""
        if isinstance(value, dict):
            return value
        only = value[0] if isinstance(value, list) and len(value) == 1 else None
        self.drop(rule, value if not isinstance(only, dict) else None)
        return only if isinstance(only, dict) else {}

    def read_objects(self, value: object, rule: str) -> list[Json]:
        """Return the objects of a list, or one object as a list. All other values are dropped."""
        self.record_if(isinstance(value, dict), rule, value)
        items = value if isinstance(value, list) else [value]
        return [read for item in items if (read := self.read_object(item, rule)) or isinstance(item, dict)]

    def mute(self) -> None:
        """Ignore all further violations."""
        self._is_muted = True

    def counts(self) -> dict[str, int]:
        """Return the number of violations by rule id."""
        return {rule: entry.count for rule, entry in self._entries.items()} if self._entries else {}

    def add_counts(self, counts: Mapping[str, int], times: int) -> None:
        """Count `counts` of rules that have an entry, `times` times."""
        for rule, count in counts.items():
            self._entries[rule].count += count * times

    def entries(self) -> list[RepairEntry]:
        """Return the entries in the order of their first violation."""
        return list(self._entries.values())


def join_repair_logs(parts: list[RepairLog]) -> RepairLog:
    """Merge the logs of streams that form one answer."""
    if len(parts) == 1:
        return parts[0]
    joined = RepairLog()
    for entry in [entry for log in parts for entry in log.entries()]:
        known = joined._entries.get(entry.rule)
        count = entry.count + (0 if known is None else known.count)
        joined._entries[entry.rule] = msgspec.structs.replace(known or entry, count=count)
    return joined


def is_empty(value: object, depth: int = 0) -> bool:
    """Whether a JSON value has no content: null, false, 0, white space or names, in lists and objects of any shape."""
    if isinstance(value, dict | list) and depth < _DEPTH_LIMIT:
        items = value if isinstance(value, list) else [item for name, item in value.items() if name not in _NAMES]
        return all(is_empty(item, depth + 1) for item in items)
    if isinstance(value, str):
        return value.strip() in ("", "null")
    return not value or value != value  # JSON has no NaN: encoders write null


def shorten(text: str, limit: int) -> str:
    """Return the text with at most `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def format_json(value: object) -> str:
    """Encode a value as JSON text, or return a placeholder if it cannot be encoded."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, UnicodeEncodeError):
        return "(value that cannot be encoded)"


def _abridge(value: object) -> object:
    """Return a JSON value with no more than an excerpt shows of it: to encode all of a long frame takes 10 ms."""
    room = _OBSERVED_CHARACTERS

    def start_of(item: object) -> object:
        nonlocal room
        room -= 1
        if isinstance(item, str):
            return item[: _OBSERVED_CHARACTERS + 1]
        if isinstance(item, list):
            return [start_of(element) for element in islice(item, max(room, 0))]
        if isinstance(item, dict):
            return {start_of(name): start_of(member) for name, member in islice(item.items(), max(room, 0))}
        return item

    return start_of(value)
