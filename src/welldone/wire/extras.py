"""Unknown fields of a delta, in a form that clients which add deltas up can stand."""

from welldone.wire import faults
from welldone.wire.events import UnknownFields
from welldone.wire.notes import RepairLog

_LIST_FIELDS_LIMIT = 1024  # list fields of one choice that are counted
CHUNK_FIELDS = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "error"}
)
CHOICE_FIELDS = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})
RESERVED_FIELDS = frozenset(
    {"event", "data", "delta", "message", "role", "content", "finish_reason", "index", "logprobs", "tool_calls", "text"}
)
"""Names that mean something elsewhere in the protocol: some client may take them for that at the top of a chunk."""


class UnknownDeltaFields:
    """The unknown fields of one choice's deltas.

    The official client adds deltas up: strings are joined, numbers summed, lists merged by the index of their entries,
    without which it raises.
    """

    def __init__(self, repair_log: RepairLog) -> None:
        self._repair_log = repair_log
        self._entry_counts: dict[str, int] = {}

    def normalise(self, event: UnknownFields) -> UnknownFields:
        """The fields of a delta as they may be sent."""
        return UnknownFields(
            event.index,
            event.location,
            {key: self._normalise_value(key, value) for key, value in event.fields.items()},
            event.in_own_chunk,
        )

    def _normalise_value(self, name: str, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._repair_log.record(faults.ext.NUMBER_FIELDS, {name: value})
        return self._index_entries(name, value)

    def _index_entries(self, name: str, value: object) -> object:
        if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
            return value
        before = self._entry_counts.get(name, 0)
        if before or len(self._entry_counts) < _LIST_FIELDS_LIMIT:
            self._entry_counts[name] = before + len(value)
        if before == 0 or all(isinstance(item, dict) and type(item.get("index")) is int for item in value):
            return value
        self._repair_log.record(faults.ext.LIST_FIELDS_INDEXED, {name: value})
        return [
            {**item, "index": place} if isinstance(item, dict) and type(item.get("index")) is not int else item
            for place, item in enumerate(value, before)
        ]
