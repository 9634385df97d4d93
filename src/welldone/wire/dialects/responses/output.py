"""The items of a stream that is mended: found by whatever its server says of them, opened late, closed whole.

Servers leave out ids and indices, change them, or give all items the same; they say a text only at its end, or never
close it. What they mean is told by the id first, then by the index, then by what is open.
"""

from collections import deque
from types import UnionType

from welldone.wire import faults
from welldone.wire.dialects.responses.known import (
    ANNOTATION,
    DELTAS,
    DONES,
    INDEX_OF,
    ITEM_ADDED,
    ITEM_DONE,
    ITEM_OF,
    PART_ADDED,
    PART_DONE,
    STEPS,
)
from welldone.wire.dialects.responses.objects import part_object
from welldone.wire.dialects.responses.scribe import CALLS, NAMED, PARTS, WITH_STATUS, Item, Scribe, Strand
from welldone.wire.events import Json
from welldone.wire.lenient import strict
from welldone.wire.notes import Notes
from welldone.wire.unicode import Joiner

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_ADDRESS = frozenset({"type", "sequence_number", "item_id", "output_index", "content_index", "summary_index"})
_PLACES = ("content", "summary")
_CALLED = ("call_id", "name")
_SAME = ("id", "type", "call_id", "name", "arguments", "input")
"""What an item says the same when it is closed and at the end."""
_NAMELESS = "shell_call"
"""The events of these items have no `item_id`."""
_LISTS: dict[str, type | UnionType] = {"annotations": list, "logprobs": list | None}


class Output:
    """Says what a server says of its items, in the right order and with the right names."""

    def __init__(self, scribe: Scribe, notes: Notes, stem: str) -> None:
        self.broken_arguments = 0
        """How many calls had arguments that are no JSON object, though nothing had cut them."""
        self._scribe = scribe
        self._notes = notes
        self._stem = stem  # of ids that have to be made
        self._by_id: dict[str, Item] = {}
        self._by_index: dict[int, Item] = {}
        self._last: dict[str | None, Item] = {}  # by type; of all types by None
        self._ids: set[str] = set()
        self._parts: dict[tuple[int, str, int], Strand] = {}  # by item, name of the index, and the server's index
        self._joiners: dict[Strand, Joiner] = {}  # of characters that come in halves
        self._given: dict[Item | Strand, Json] = {}  # as they were added: some servers say all at once there

    def hear(self, value: Json, kind: str) -> None:
        """Say one of the events that tell of the output."""
        if kind in DELTAS:
            self._say(value, DELTAS[kind])
        elif kind in DONES:
            self._finish_text(value, DONES[kind])
        elif kind == ITEM_ADDED:
            self._add(value)
        elif kind == ITEM_DONE:
            self._finish(value)
        elif kind in PART_ADDED:
            self._add_part(value)
        elif kind in PART_DONE:
            self._finish_part(value)
        elif kind in STEPS:
            self._step(value, STEPS[kind])
        elif kind == ANNOTATION:
            self._annotate(value)
        else:
            self._scribe.event(kind, {}, value)

    def conclude(self, output: object, status: str) -> None:
        """All items, as the server lists them at its end: what is still open is closed, as `status`."""
        listed = [_object(theirs) for theirs in _list(output)]
        known = _match(self._scribe.items, listed)
        pairs = list(zip(self._scribe.items, listed, strict=False))
        is_same = all(item.is_open or _said(item.value) == _said(theirs) for item, theirs in pairs)
        if not is_same or len(self._scribe.items) != len(listed):
            self._notes.note(faults.resp.FINAL_OUTPUT, output)
        for theirs, found in zip(listed, known, strict=True):
            item = found or self._open_item(theirs, {})
            if item is None:
                continue
            if item.is_open:
                self._notes.note(faults.resp.DONE_EVENTS, theirs)
                self._close(item, theirs, status)
            # It may tell more here than when it was closed.
            fixed = item.said | ({"status": item.value["status"]} if item.kind in WITH_STATUS else {})
            item.value = item.value | theirs | fixed
        self.close_all(status)

    def review(self, output: object) -> None:
        """Note what is wrong with the items of a reply that was not streamed."""
        for item in map(_object, _list(output)):
            is_call = item.get("type") == "function_call"
            if is_call and not all(map(_is_name, [item.get("id"), *map(item.get, _CALLED), item.get("arguments")])):
                self._notes.note(faults.resp.FUNCTION_IDS, item)
            if (is_call or item.get("type") == "message") and item.get("status") not in ("completed", "incomplete"):
                self._notes.note(faults.resp.ITEM_STATUS, item)

    def close_all(self, status: str) -> None:
        """All that is still open is closed."""
        for item in self._scribe.items:
            if item.is_open:
                self._notes.note(faults.resp.DONE_EVENTS, item.value)
                self._close(item, {}, status)

    # What is heard.

    def _add(self, value: Json) -> None:
        """An item begins."""
        given = _object(value.get("item"))
        if self._is_repeated(given, value.get("output_index")):
            self._notes.note(faults.resp.ITEM_ADDED_FIRST, value)
            return
        item = self._open_item(given, value)
        if item is None:
            return
        if value.get("output_index") != item.index:
            self._notes.note(faults.resp.OUTPUT_INDEX, value)
        if item.kind in WITH_STATUS and given.get("status") != "in_progress":
            self._notes.note(faults.resp.ITEM_STATUS, value)
        if item.kind == "function_call" and given.get("arguments") != "":
            self._notes.note(faults.resp.FUNCTION_IDS, value)

    def _finish(self, value: Json) -> None:
        """An item is whole."""
        theirs = _object(value.get("item"))
        kind = theirs.get("type")
        about = {"item_id": theirs.get("id"), "output_index": value.get("output_index")}
        item = self._find(about, kind if isinstance(kind, str) else None)
        if item is None:
            self._notes.note(faults.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item(theirs, {"output_index": value.get("output_index")})
        if item is None:
            return
        if item.is_open:
            self._close(item, theirs, "completed", _without(value, "item"))
        else:
            self._notes.note(faults.resp.DONE_EVENTS, value)

    def _add_part(self, value: Json) -> None:
        """A part of an item begins."""
        given = _object(value.get("part"))
        kind = self._part_kind(value, given)
        item = self._speaker(value, kind)
        index = value.get(INDEX_OF[kind])
        known = None if item is None else self._parts.get((item.index, INDEX_OF[kind], _number(index)))
        if item is None or (known is not None and known.is_part_open):
            self._notes.note(_part_fault(kind), value)
        else:
            part = self._open_part(item, kind, value, given)
            self._compare(part, value)

    def _finish_part(self, value: Json) -> None:
        """A part is whole."""
        theirs = _object(value.get("part"))
        part = self._strand(value, self._part_kind(value, theirs))
        if part is None or not part.is_part_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
        else:
            self._close_part(part, theirs, _without(value, "part"))

    def _say(self, value: Json, kind: str) -> None:
        """More of a text."""
        strand = self._strand(value, kind)
        text = value.get("delta")
        if not isinstance(text, str):
            self._notes.note(faults.resp.DELTAS, value)
        elif strand is None or not strand.is_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
        else:
            members = _without(value, "delta")
            strand.logprobs += self._logprobs(strand, members)
            piece = self._joiners.setdefault(strand, Joiner()).feed(text)
            self._scribe.say(strand, piece, members)

    def _finish_text(self, value: Json, kind: str) -> None:
        """A text is whole."""
        strand = self._strand(value, kind)
        if strand is None or not strand.is_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
            return
        members = _without(value, strand.way.member)
        self._logprobs(strand, members)
        if kind == "function_call" and members.get("name", strand.value["name"]) != strand.value["name"]:
            self._notes.note(faults.resp.ARGS_DONE, value)
        self._settle(strand, value.get(strand.way.member))
        self._scribe.close_text(strand, members)

    def _annotate(self, value: Json) -> None:
        """A text gets an annotation."""
        part = self._strand(value, "output_text")
        if part is None or not part.is_part_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
            return
        part.value["annotations"].append(value.get("annotation"))
        self._scribe.event(value["type"], part.address, _without(value))

    def _step(self, value: Json, kind: str) -> None:
        """A tool of the server does something."""
        item = self._find(value, kind)
        if item is None or not item.is_open:
            self._notes.note(faults.resp.ITEM_ADDED_FIRST if item is None else faults.resp.DONE_EVENTS, value)
        else:
            address = {"output_index": item.index} if kind == _NAMELESS else item.address
            self._scribe.event(value["type"], address, _without(value))

    # Items.

    def _find(self, value: Json, kind: str | None) -> Item | None:
        """The item of this type that an event is about; None where it never began."""
        id, index = value.get("item_id"), value.get("output_index")
        found = [self._by_id.get(id) if isinstance(id, str) else None, self._by_index.get(_number(index))]
        last = self._last.get(kind)
        if not isinstance(id, str) and type(index) is not int and last is not None and last.is_open:
            found.append(last)
        item = next((item for item in found if item is not None and kind in (None, item.kind)), None)
        if item is not None and index != item.index:
            self._notes.note(faults.resp.OUTPUT_INDEX, value)
        if item is not None and id != item.id and kind != _NAMELESS:
            self._notes.note(faults.resp.ITEM_ID_STABLE, value)
        return item

    def _is_repeated(self, given: Json, index: object) -> bool:
        """Whether an item was added before; some servers give many items the same id."""
        id = given.get("id")
        item = self._by_id.get(id) if isinstance(id, str) else None
        if item is None or item.kind != given.get("type") or item.value.get("call_id") != given.get("call_id"):
            return False
        return type(index) is not int or self._by_index.get(index) is item

    def _open_item(self, given: Json, value: Json) -> Item | None:
        """A new item out of one that a server gave in an event; None where nobody could use it."""
        kind = given.get("type")
        if not isinstance(kind, str) or not kind:
            self._notes.note(faults.resp.ITEM_ADDED_FIRST, given)
            return None
        if kind in NAMED and not _is_name(given.get("name")):
            self._notes.note(faults.resp.FUNCTION_IDS, given)
            return None  # it may have a name when it is whole
        id = given.get("id")
        if not _is_name(id) or id in self._ids:
            self._notes.note(faults.resp.FUNCTION_IDS if kind in NAMED else faults.resp.ITEM_ID_STABLE, given)
            id = f"{_PREFIXES.get(kind, 'item')}_{self._stem}_{len(self._scribe.items)}"
        item = self._scribe.open_item(self._begun(given | {"id": id}), _without(value, "item"))
        self._ids.add(item.id)
        self._last[kind] = self._last[None] = item
        for name in (item.id, given.get("id")):
            if isinstance(name, str):
                self._by_id[name] = item
        if type(index := value.get("output_index")) is int:
            self._by_index[index] = item
        self._given[item] = given
        return item

    def _begun(self, value: Json) -> Json:
        """An item as it begins: nothing of what it will say is said yet."""
        kind = value["type"]
        if kind in NAMED and not _is_name(value.get("call_id")):
            self._notes.note(faults.resp.FUNCTION_IDS, value)
            value = value | {"call_id": f"call_{self._stem}_{len(self._scribe.items)}"}
        if kind in WITH_STATUS:
            value = value | {"status": "in_progress"}
        if kind == "message":
            return value | {"role": "assistant", "content": []}
        if kind == "reasoning":
            return value | {"summary": []} | ({"content": []} if "content" in value else {})
        return value | {CALLS[kind].member: ""} if kind in CALLS else value

    def _close(self, item: Item, theirs: Json, status: str, members: Json | None = None) -> None:
        """An item is whole: as its server says, and else as it was said. Its own word for its `status` comes first."""
        given = self._given.pop(item, {})
        if item.kind in NAMED and any(theirs.get(name, item.value[name]) != item.value[name] for name in _CALLED):
            self._notes.note(faults.resp.FUNCTION_IDS, theirs)
        for place, parts in zip(_PLACES, (item.content, item.summary), strict=True):
            listed = theirs.get(place)
            self._close_parts(item, parts, listed if parts or listed else given.get(place))
        if item.call is not None and item.call.is_open:
            self._notes.note(faults.resp.ARGS_DONE, theirs)
            self._settle(item.call, theirs.get(item.call.way.member), given.get(item.call.way.member))
        status = self._final_status(item, theirs, status)
        if item.kind == "function_call" and item.call is not None and status == "completed":
            self.broken_arguments += not isinstance(strict(item.call.whole.encode()), dict)
        self._scribe.close_item(item, status, theirs, members)

    def _final_status(self, item: Item, theirs: Json, status: str) -> str:
        told = theirs.get("status")
        is_known = told in ("completed", "incomplete") if item.kind in WITH_STATUS else told != "in_progress"
        if isinstance(told, str) and is_known:
            return told
        if theirs and (item.kind in WITH_STATUS or "status" in item.value):
            self._notes.note(faults.resp.ITEM_STATUS, theirs)
        return status

    # Parts, and other texts.

    def _part_kind(self, value: Json, part: Json) -> str:
        """The type of the part that an event is about."""
        if value["type"].startswith("response.reasoning_summary"):
            return "summary_text"
        kind = part.get("type")
        if kind in PARTS and kind != "summary_text":
            return str(kind)
        item = self._find(value, None)
        return "reasoning_text" if item is not None and item.kind == "reasoning" else "output_text"

    def _speaker(self, value: Json, kind: str) -> Item | None:
        """The item that a part is of: a new one where it was not added; None where it is closed."""
        item = self._find(value, ITEM_OF[kind])
        if item is None:
            self._notes.note(faults.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item({"type": ITEM_OF[kind], "id": value.get("item_id")}, _only_index(value))
        return item if item is not None and item.is_open else None

    def _strand(self, value: Json, kind: str) -> Strand | None:
        """The text that an event is about; a part that was not added begins now."""
        if kind in CALLS:
            item = self._find(value, kind)
            if item is None:
                self._notes.note(faults.resp.ITEM_ADDED_FIRST, value)
            return None if item is None or not item.is_open else item.call
        speaker = self._speaker(value, kind)
        if speaker is None:
            return None
        part = self._part_of(speaker, value, kind)
        if part is None:
            self._notes.note(_part_fault(kind), value)
            part = self._open_part(speaker, kind, _only_index(value), {})
        self._compare(part, value)
        return part

    def _part_of(self, item: Item, value: Json, kind: str) -> Strand | None:
        name = INDEX_OF[kind]
        index = value.get(name)
        part = self._parts.get((item.index, name, _number(index)))
        if part is not None and part.kind == kind:
            return part
        parts = item.summary if name == "summary_index" else item.content
        is_last = bool(parts) and parts[-1].kind == kind and parts[-1].is_part_open
        return parts[-1] if is_last else None

    def _open_part(self, item: Item, kind: str, value: Json, given: Json) -> Strand:
        way = PARTS[kind]
        begun = part_object(kind) | _clean_part(given) | {"type": kind, way.member: ""}
        part = self._scribe.open_part(item, begun, _without(value, "part"))
        self._given[part] = given
        name = INDEX_OF[kind]
        self._parts[item.index, name, part.address[name]] = part
        if type(index := value.get(name)) is int:
            self._parts[item.index, name, index] = part
        return part

    def _compare(self, part: Strand, value: Json) -> None:
        name = INDEX_OF[part.kind]
        if value.get(name) != part.address[name]:
            self._notes.note(faults.resp.CONTENT_INDEX, value)

    def _close_parts(self, item: Item, parts: list[Strand], theirs: object) -> None:
        """The parts of an item that is whole, as its server lists them."""
        is_summary = parts is item.summary
        listed = [_object(part) for part in _list(theirs)]
        kinds = [kind for kind, name in INDEX_OF.items() if (name == "summary_index") == is_summary]
        fitting = [part for part in listed if part.get("type") in kinds and ITEM_OF[part["type"]] == item.kind]
        for part in fitting[len(parts) :]:
            self._notes.note(_part_fault(part["type"]), part)
            self._open_part(item, part["type"], {}, {})
        for number, strand in enumerate(parts):
            told = fitting[number] if number < len(fitting) and fitting[number]["type"] == strand.kind else {}
            if strand.is_part_open or (strand.whole and told.get(strand.way.member) != strand.whole):
                self._notes.note(faults.resp.DONE_EVENTS, theirs)
            if strand.is_part_open:
                self._close_part(strand, told, {})

    def _close_part(self, part: Strand, theirs: Json, members: Json) -> None:
        whole = theirs.get(part.way.member)
        if part.is_open:
            self._notes.note(faults.resp.DONE_EVENTS, theirs)
            self._settle(part, whole)
        elif whole != part.whole:
            self._notes.note(faults.resp.DONE_EVENTS, theirs)
        self._scribe.close_part(part, _clean_part(theirs), members)

    def _settle(self, strand: Strand, whole: object, given: object = None) -> None:
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


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _without(value: Json, *names: str) -> Json:
    """The members of an event that are its server's own matter."""
    return {key: item for key, item in value.items() if key not in _ADDRESS and key not in names}


def _only_index(value: Json) -> Json:
    """What tells of whom an event is, and nothing else of it."""
    return {key: item for key, item in value.items() if key in _ADDRESS}


def _number(value: object) -> int:
    return value if type(value) is int else -1


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _clean_part(part: Json) -> Json:
    """A part without lists that are none."""
    return {key: value for key, value in part.items() if isinstance(value, _LISTS.get(key, object))}


def _part_fault(kind: str) -> faults.Fault:
    return faults.resp.REASONING_PARTS if ITEM_OF[kind] == "reasoning" else faults.resp.PART_ADDED_FIRST


def _match(items: list[Item], listed: list[Json]) -> list[Item | None]:
    """The item that each one of a server's list is: by its names, and else by its type; None for a new one."""
    left = {item.index: item for item in items}
    named = {name: item for item in items for name in _names(item.value)}
    found = [next((named[name] for name in _names(theirs) if name in named), None) for theirs in listed]
    matched = [None if item is None else left.pop(item.index, None) for item in found]
    by_kind: dict[str, deque[Item]] = {}
    for item in left.values():
        by_kind.setdefault(item.kind, deque()).append(item)
    for number, theirs in enumerate(listed):
        others = by_kind.get(str(theirs.get("type")))
        if matched[number] is None and others:
            matched[number] = others.popleft()
    return matched


def _said(value: Json) -> list[object]:
    """What an item says, with all its texts."""
    parts = [_object(part) for place in _PLACES for part in _list(value.get(place))]
    return [*map(value.get, _SAME), *(part.get("text", part.get("refusal")) for part in parts)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _names(value: Json) -> list[tuple[str, str]]:
    """What an item is known by."""
    names = (value.get("id"), value.get("call_id"))
    return [(str(value.get("type")), name) for name in names if isinstance(name, str)]
