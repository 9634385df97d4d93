"""The texts of items: parts and the input of calls, found by whatever a server says of them, and closed whole."""

from types import UnionType

from welldone.wire import faults
from welldone.wire.dialects.responses.known import INDEX_MEMBER_OF_PART, ITEM_TYPE_OF_PART
from welldone.wire.dialects.responses.objects import part_object
from welldone.wire.dialects.responses.scribe import PART_TEXTS, OutputItem, ResponsesEmitter, TextAccumulator
from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object
from welldone.wire.notes import RepairLog
from welldone.wire.unicode import CharacterJoiner

LOCATOR_MEMBERS = frozenset({"type", "sequence_number", "item_id", "output_index", "content_index", "summary_index"})
"""The members that tell of whom an event is."""
_LIST_MEMBERS: dict[str, type | UnionType] = {"annotations": list, "logprobs": list | None}


class TextRepairer:
    """Says what a server says of texts, with the right names."""

    def __init__(self, emitter: ResponsesEmitter, repair_log: RepairLog) -> None:
        self._emitter = emitter
        self._repair_log = repair_log
        self._parts: dict[
            tuple[int, str, int], TextAccumulator
        ] = {}  # by item, name of the index, and the server's index
        self._added_parts: dict[TextAccumulator, Json] = {}  # as they were added: some servers say all at once there
        self._joiners: dict[TextAccumulator, CharacterJoiner] = {}  # of characters that come in halves

    def is_part_open(self, item: OutputItem, value: Json, kind: str) -> bool:
        """Whether the part that an event is about has begun, and not ended."""
        part = self._part_at(item, value, kind)
        return part is not None and part.is_part_open

    def find_part(self, item: OutputItem, value: Json, kind: str) -> TextAccumulator | None:
        """The part of this type that an event is about; None where it never began."""
        part = self._part_at(item, value, kind)
        if part is not None and part.kind == kind:
            return part
        parts = item.summary if kind == "summary_text" else item.content
        is_last = bool(parts) and parts[-1].kind == kind and parts[-1].is_part_open
        return parts[-1] if is_last else None

    def _part_at(self, item: OutputItem, value: Json, kind: str) -> TextAccumulator | None:
        name = INDEX_MEMBER_OF_PART[kind]
        return self._parts.get((item.index, name, index_or_missing(value.get(name))))

    def open_part(self, item: OutputItem, kind: str, value: Json, given: Json) -> TextAccumulator:
        """A part begins, as its server gave it in an event."""
        way = PART_TEXTS[kind]
        begun = part_object(kind) | _without_invalid_lists(given) | {"type": kind, way.member: ""}
        part = self._emitter.open_part(item, begun, extra_members(value, "part"))
        self._added_parts[part] = given
        name = INDEX_MEMBER_OF_PART[kind]
        self._parts[item.index, name, part.address[name]] = part
        if type(index := value.get(name)) is int:
            self._parts[item.index, name, index] = part
        return part

    def check_index(self, part: TextAccumulator, value: Json) -> None:
        """Note an index that is not the part's."""
        name = INDEX_MEMBER_OF_PART[part.kind]
        if value.get(name) != part.address[name]:
            self._repair_log.record(faults.resp.CONTENT_INDEX, value)

    def add_text(self, accumulator: TextAccumulator, text: str, members: Json) -> None:
        """More of a text."""
        accumulator.logprobs += self._take_logprobs(accumulator, members)
        self._emitter.add_text(
            accumulator, self._joiners.setdefault(accumulator, CharacterJoiner()).feed(text), members
        )

    def finish_text(self, accumulator: TextAccumulator, value: Json) -> None:
        """A text is whole, as an event says."""
        members = extra_members(value, accumulator.spec.member)
        self._take_logprobs(accumulator, members)
        if (
            accumulator.kind == "function_call"
            and members.get("name", accumulator.value["name"]) != accumulator.value["name"]
        ):
            self._repair_log.record(faults.resp.ARGS_DONE, value)
        self.reconcile_text(accumulator, value.get(accumulator.spec.member))
        self._emitter.close_text(accumulator, members)

    def close_parts(self, item: OutputItem, parts: list[TextAccumulator], upstream: object) -> None:
        """The parts of an item that is whole, as its server lists them."""
        is_summary = parts is item.summary
        listed = [as_object(part) for part in as_list(upstream)]
        kinds = [kind for kind, name in INDEX_MEMBER_OF_PART.items() if (name == "summary_index") == is_summary]
        fitting = [
            part for part in listed if part.get("type") in kinds and ITEM_TYPE_OF_PART[part["type"]] == item.kind
        ]
        for part in fitting[len(parts) :]:
            self._repair_log.record(part_added_rule(part["type"]), part)
            self.open_part(item, part["type"], {}, {})
        for place, strand in enumerate(parts):
            told = fitting[place] if place < len(fitting) and fitting[place]["type"] == strand.kind else {}
            if strand.is_part_open or (strand.text and told.get(strand.spec.member) != strand.text):
                self._repair_log.record(faults.resp.DONE_EVENTS, upstream)
            if strand.is_part_open:
                self.close_part(strand, told, {})

    def close_part(self, part: TextAccumulator, upstream: Json, members: Json) -> None:
        """A part is whole."""
        whole = upstream.get(part.spec.member)
        if part.is_open:
            self._repair_log.record(faults.resp.DONE_EVENTS, upstream)
            self.reconcile_text(part, whole)
        elif whole != part.text:
            self._repair_log.record(faults.resp.DONE_EVENTS, upstream)
        self._emitter.close_part(part, _without_invalid_lists(upstream), members)

    def reconcile_text(self, accumulator: TextAccumulator, whole: object, given: object = None) -> None:
        """A text is whole: what its server says only now goes out first."""
        said = accumulator.text
        half = self._joiners.pop(accumulator, CharacterJoiner()).close()
        if given is None:
            given = self._added_parts.pop(accumulator, {}).get(accumulator.spec.member)
        if not isinstance(whole, str) or not whole:
            if said:
                self._repair_log.record(faults.resp.DONE_EVENTS, whole)
            whole = said + half or given
        if not isinstance(whole, str) or whole == said:
            return
        if whole.startswith(said):
            self._repair_log.record(faults.resp.DELTAS, whole)
            self._emitter.add_text(accumulator, whole[len(said) :])
        else:
            self._repair_log.record(faults.resp.DELTA_EQUALS_DONE, whole)
            accumulator.pieces = [whole]

    def _take_logprobs(self, accumulator: TextAccumulator, members: Json) -> list[Json]:
        """The log probabilities among the members of an event of a text; what is no list of them is taken out."""
        if not accumulator.extra_members:
            return []
        logprobs = members.get("logprobs")
        if isinstance(logprobs, list):
            return logprobs
        self._repair_log.record(faults.resp.LOGPROBS_ARRAY, logprobs)
        members.pop("logprobs", None)
        return []


def extra_members(value: Json, *names: str) -> Json:
    """The members of an event that are its server's own matter."""
    return {key: item for key, item in value.items() if key not in LOCATOR_MEMBERS and key not in names}


def index_or_missing(value: object) -> int:
    """An index; one that no item and no part has where it is none."""
    return value if type(value) is int else -1


def _without_invalid_lists(part: Json) -> Json:
    """A part without lists that are none."""
    return {key: value for key, value in part.items() if isinstance(value, _LIST_MEMBERS.get(key, object))}


def part_added_rule(kind: str) -> faults.Rule:
    """The fault of a part that was not added as it should be."""
    return faults.resp.REASONING_PARTS if ITEM_TYPE_OF_PART[kind] == "reasoning" else faults.resp.PART_ADDED_FIRST
