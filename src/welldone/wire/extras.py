"""Unknown fields of a delta, in a form that clients which add deltas up can stand."""

from welldone.wire import faults
from welldone.wire.events import Event, Extra, Json, Place
from welldone.wire.notes import Notes

_NAMES_LIMIT = 1024  # list fields of one choice that are counted
CHUNK_NAMES = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)
CHOICE_NAMES = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})
PROTOCOL_NAMES = frozenset(
    {"event", "data", "delta", "message", "role", "content", "finish_reason", "index", "logprobs", "tool_calls", "text"}
)
"""Names that mean something elsewhere in the protocol: at the top of a chunk clients take them for that."""


class DeltaFields:
    """The unknown fields of one choice's deltas.

    The official client adds deltas up: strings are joined, numbers summed, lists merged by the index of their entries.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._counts: dict[str, int] = {}

    def fit(self, event: Extra) -> list[Event]:
        """The fields of a delta as they may be sent."""
        fields: Json = {}
        numbers: Json = {}
        for name, value in event.fields.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._notes.note(faults.ext.NUMBER_FIELDS, {name: value})
                numbers[f"delta_{name}" if name in CHUNK_NAMES | PROTOCOL_NAMES else name] = value
            else:
                fields[name] = self._numbered(name, value)
        events: list[Event] = []
        if numbers:
            events.append(Extra(event.index, Place.CHUNK, numbers, alone=event.alone and not fields))
        if fields:
            events.append(Extra(event.index, Place.DELTA, fields, event.alone))
        return events

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
