"""The texts of items: parts and the input of calls, found by whatever a server says of them, and closed whole."""

from types import UnionType

from welldone.wire import faults
from welldone.wire.dialects.responses.known import INDEX_OF, ITEM_OF
from welldone.wire.dialects.responses.objects import part_object
from welldone.wire.dialects.responses.scribe import PARTS, Item, Scribe, Strand
from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object
from welldone.wire.notes import Notes
from welldone.wire.unicode import Joiner

ADDRESS = frozenset({"type", "sequence_number", "item_id", "output_index", "content_index", "summary_index"})
"""The members that tell of whom an event is."""
_LISTS: dict[str, type | UnionType] = {"annotations": list, "logprobs": list | None}


class Texts:
    """Says what a server says of texts, with the right names."""

    def __init__(self, scribe: Scribe, notes: Notes) -> None:
        self._scribe = scribe
        self._notes = notes
        self._parts: dict[tuple[int, str, int], Strand] = {}  # by item, name of the index, and the server's index
        self._given: dict[Strand, Json] = {}  # as they were added: some servers say all at once there
        self._joiners: dict[Strand, Joiner] = {}  # of characters that come in halves

    def is_open(self, item: Item, value: Json, kind: str) -> bool:
        """Whether the part that an event is about has begun, and not ended."""
        part = self._at(item, value, kind)
        return part is not None and part.is_part_open

    def find(self, item: Item, value: Json, kind: str) -> Strand | None:
        """The part of this type that an event is about; None where it never began."""
        part = self._at(item, value, kind)
        if part is not None and part.kind == kind:
            return part
        parts = item.summary if kind == "summary_text" else item.content
        is_last = bool(parts) and parts[-1].kind == kind and parts[-1].is_part_open
        return parts[-1] if is_last else None

    def _at(self, item: Item, value: Json, kind: str) -> Strand | None:
        name = INDEX_OF[kind]
        return self._parts.get((item.index, name, number(value.get(name))))

    def open(self, item: Item, kind: str, value: Json, given: Json) -> Strand:
        """A part begins, as its server gave it in an event."""
        way = PARTS[kind]
        begun = part_object(kind) | _clean_part(given) | {"type": kind, way.member: ""}
        part = self._scribe.open_part(item, begun, others(value, "part"))
        self._given[part] = given
        name = INDEX_OF[kind]
        self._parts[item.index, name, part.address[name]] = part
        if type(index := value.get(name)) is int:
            self._parts[item.index, name, index] = part
        return part

    def compare(self, part: Strand, value: Json) -> None:
        """Note an index that is not the part's."""
        name = INDEX_OF[part.kind]
        if value.get(name) != part.address[name]:
            self._notes.note(faults.resp.CONTENT_INDEX, value)

    def say(self, strand: Strand, text: str, members: Json) -> None:
        """More of a text."""
        strand.logprobs += self._logprobs(strand, members)
        self._scribe.say(strand, self._joiners.setdefault(strand, Joiner()).feed(text), members)

    def finish(self, strand: Strand, value: Json) -> None:
        """A text is whole, as an event says."""
        members = others(value, strand.way.member)
        self._logprobs(strand, members)
        if strand.kind == "function_call" and members.get("name", strand.value["name"]) != strand.value["name"]:
            self._notes.note(faults.resp.ARGS_DONE, value)
        self.settle(strand, value.get(strand.way.member))
        self._scribe.close_text(strand, members)

    def close_all(self, item: Item, parts: list[Strand], theirs: object) -> None:
        """The parts of an item that is whole, as its server lists them."""
        is_summary = parts is item.summary
        listed = [as_object(part) for part in as_list(theirs)]
        kinds = [kind for kind, name in INDEX_OF.items() if (name == "summary_index") == is_summary]
        fitting = [part for part in listed if part.get("type") in kinds and ITEM_OF[part["type"]] == item.kind]
        for part in fitting[len(parts) :]:
            self._notes.note(part_fault(part["type"]), part)
            self.open(item, part["type"], {}, {})
        for place, strand in enumerate(parts):
            told = fitting[place] if place < len(fitting) and fitting[place]["type"] == strand.kind else {}
            if strand.is_part_open or (strand.whole and told.get(strand.way.member) != strand.whole):
                self._notes.note(faults.resp.DONE_EVENTS, theirs)
            if strand.is_part_open:
                self.close(strand, told, {})

    def close(self, part: Strand, theirs: Json, members: Json) -> None:
        """A part is whole."""
        whole = theirs.get(part.way.member)
        if part.is_open:
            self._notes.note(faults.resp.DONE_EVENTS, theirs)
            self.settle(part, whole)
        elif whole != part.whole:
            self._notes.note(faults.resp.DONE_EVENTS, theirs)
        self._scribe.close_part(part, _clean_part(theirs), members)

    def settle(self, strand: Strand, whole: object, given: object = None) -> None:
        """A text is whole: what its server says only now goes out first."""
        said = strand.whole
        half = self._joiners.pop(strand, Joiner()).close()
        if given is None:
            given = self._given.pop(strand, {}).get(strand.way.member)
        if not isinstance(whole, str) or not whole:
            if said:
                self._notes.note(faults.resp.DONE_EVENTS, whole)
            whole = said + half or given
        if not isinstance(whole, str) or whole == said:
            return
        if whole.startswith(said):
            self._notes.note(faults.resp.DELTAS, whole)
            self._scribe.say(strand, whole[len(said) :])
        else:
            self._notes.note(faults.resp.DELTA_EQUALS_DONE, whole)
            strand.pieces = [whole]

    def _logprobs(self, strand: Strand, members: Json) -> list[Json]:
        """The log probabilities among the members of an event of a text; what is no list of them is taken out."""
        if not strand.tail:
            return []
        logprobs = members.get("logprobs")
        if isinstance(logprobs, list):
            return logprobs
        self._notes.note(faults.resp.LOGPROBS_ARRAY, logprobs)
        members.pop("logprobs", None)
        return []


def others(value: Json, *names: str) -> Json:
    """The members of an event that are its server's own matter."""
    return {key: item for key, item in value.items() if key not in ADDRESS and key not in names}


def number(value: object) -> int:
    """An index; one that no item and no part has where it is none."""
    return value if type(value) is int else -1


def _clean_part(part: Json) -> Json:
    """A part without lists that are none."""
    return {key: value for key, value in part.items() if isinstance(value, _LISTS.get(key, object))}


def part_fault(kind: str) -> faults.Fault:
    """The fault of a part that was not added as it should be."""
    return faults.resp.REASONING_PARTS if ITEM_OF[kind] == "reasoning" else faults.resp.PART_ADDED_FIRST
