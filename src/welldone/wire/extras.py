"""Unknown fields of a delta, in a form that clients which add deltas up can stand."""

from welldone.wire import faults
from welldone.wire.events import Extra
from welldone.wire.notes import Notes

_NAMES_LIMIT = 1024  # list fields of one choice that are counted
CHUNK_NAMES = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)
CHOICE_NAMES = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})
PROTOCOL_NAMES = frozenset(
    {"event", "data", "delta", "message", "role", "content", "finish_reason", "index", "logprobs", "tool_calls", "text"}
)
"""Names that mean something elsewhere in the protocol: some client may take them for that at the top of a chunk."""


class DeltaFields:
    """The unknown fields of one choice's deltas.

    The official client adds deltas up: strings are joined, numbers summed, lists merged by the index of their entries,
    without which it raises.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._counts: dict[str, int] = {}

    def fit(self, event: Extra) -> Extra:
        """The fields of a delta as they may be sent."""
        return Extra(
            event.index, event.place, {key: self._fit(key, value) for key, value in event.fields.items()}, event.alone
        )

    def _fit(self, name: str, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._notes.note(faults.ext.NUMBER_FIELDS, {name: value})
        return self._numbered(name, value)

    def _numbered(self, name: str, value: object) -> object:
        if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
            return value
        before = self._counts.get(name, 0)
        if before or len(self._counts) < _NAMES_LIMIT:
            self._counts[name] = before + len(value)
        if before == 0 or all(isinstance(item, dict) and type(item.get("index")) is int for item in value):
            return value
        self._notes.note(faults.ext.LIST_FIELDS_INDEXED, {name: value})
        return [
            {**item, "index": place} if isinstance(item, dict) and type(item.get("index")) is not int else item
            for place, item in enumerate(value, before)
        ]
