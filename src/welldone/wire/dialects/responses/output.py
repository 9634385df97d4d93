"""The items of a stream that is mended: found by whatever its server says of them, opened late, closed whole.

Servers leave out ids and indices, change them, or give all items the same; they say a text only at its end, or never
close it. What they mean is told by the id first, then by the index, then by what is open.
"""

from welldone.wire import faults
from welldone.wire.budget import is_costly
from welldone.wire.dialects.responses.known import (
    ANNOTATION,
    DELTAS,
    ITEM_ADDED,
    ITEM_DONE,
    ITEM_OF,
    PART_ADDED,
    PART_DONE,
    SAYS,
    STEPS,
)
from welldone.wire.dialects.responses.listed import PLACES, SAME, match, said
from welldone.wire.dialects.responses.objects import is_schema_item, is_schema_part
from welldone.wire.dialects.responses.scribe import CALLS, NAMED, PARTS, WITH_STATUS, Item, Scribe, Strand
from welldone.wire.dialects.responses.texts import ADDRESS, Texts, number, others, part_fault
from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object, strict
from welldone.wire.notes import Notes

_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_CALLED = ("call_id", "name")
_NAMELESS = "shell_call"
"""The events of these items have no `item_id`."""


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
        self._given: dict[Item, Json] = {}  # as they were added: some servers say all at once there
        self._texts = Texts(scribe, notes)

    def hear(self, value: Json, kind: str) -> None:
        """Say one of the events that tell of the output."""
        if kind in SAYS:
            self._say(value, SAYS[kind])
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
        listed = [as_object(theirs) for theirs in as_list(output)]
        known = match(self._scribe.items, listed)
        pairs = list(zip(self._scribe.items, listed, strict=False))
        is_same = all(item.is_open or said(item.value) == said(theirs) for item, theirs in pairs)
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
            fixed = (*SAME, "status") if item.kind in WITH_STATUS else SAME
            said_before = {name: item.value[name] for name in fixed if name in item.value}
            item.value = item.whole(theirs) | said_before
        self.close_all(status)

    def review(self, output: object) -> None:
        """Note what is wrong with the items of a reply that was not streamed."""
        for item in map(as_object, as_list(output)):
            is_call = item.get("type") == "function_call"
            if is_call and not all(map(_is_name, [item.get("id"), *map(item.get, _CALLED), item.get("arguments")])):
                self._notes.note(faults.resp.FUNCTION_IDS, item)
            if (is_call or item.get("type") == "message") and item.get("status") not in ("completed", "incomplete"):
                self._notes.note(faults.resp.ITEM_STATUS, item)
            is_named = item.get("type") not in ("message", "reasoning") or isinstance(item.get("id"), str)
            if not is_named or not is_schema_item(item):
                self._notes.note(faults.resp.OBJECT_SCHEMA, item)

    def close_all(self, status: str) -> None:
        """All that is still open is closed."""
        for item in self._scribe.items:
            if item.is_open:
                self._notes.note(faults.resp.DONE_EVENTS, item.value)
                self._close(item, {}, status)

    # What is heard.

    def _add(self, value: Json) -> None:
        """An item begins."""
        given = as_object(value.get("item"))
        if self._is_repeated(given, value.get("output_index")):
            self._notes.note(faults.resp.ITEM_ADDED_FIRST, value)
            return
        item = self._open_item(given, value)
        if item is None:
            return
        if not is_schema_item(given):
            self._notes.note(faults.resp.OBJECT_SCHEMA, value)
        if value.get("output_index") != item.index:
            self._notes.note(faults.resp.OUTPUT_INDEX, value)
        if item.kind in WITH_STATUS and given.get("status") != "in_progress":
            self._notes.note(faults.resp.ITEM_STATUS, value)
        if item.kind == "function_call" and given.get("arguments") != "":
            self._notes.note(faults.resp.FUNCTION_IDS, value)

    def _finish(self, value: Json) -> None:
        """An item is whole."""
        theirs = as_object(value.get("item"))
        kind = theirs.get("type")
        if not is_schema_item(theirs):
            self._notes.note(faults.resp.OBJECT_SCHEMA, value)
        about = {"item_id": theirs.get("id"), "output_index": value.get("output_index")}
        item = self._find(about, kind if isinstance(kind, str) else None)
        if item is None:
            self._notes.note(faults.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item(theirs, {"output_index": value.get("output_index")})
        if item is None:
            return
        if item.is_open:
            self._close(item, theirs, "completed", others(value, "item"))
        else:
            self._notes.note(faults.resp.DONE_EVENTS, value)

    def _add_part(self, value: Json) -> None:
        """A part of an item begins."""
        given = as_object(value.get("part"))
        kind = self._part_kind(value, given)
        if not is_schema_part(given):
            self._notes.note(faults.resp.OBJECT_SCHEMA, value)
        item = self._speaker(value, kind)
        if item is None or self._texts.is_open(item, value, kind):
            self._notes.note(part_fault(kind), value)
        else:
            part = self._texts.open(item, kind, value, given)
            self._texts.compare(part, value)

    def _finish_part(self, value: Json) -> None:
        """A part is whole."""
        theirs = as_object(value.get("part"))
        if not is_schema_part(theirs):
            self._notes.note(faults.resp.OBJECT_SCHEMA, value)
        part = self._strand(value, self._part_kind(value, theirs))
        if part is None or not part.is_part_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
        else:
            self._texts.close(part, theirs, others(value, "part"))

    def _say(self, value: Json, kind: str) -> None:
        """More of a text, or all of it."""
        strand = self._strand(value, kind)
        is_delta = value["type"] in DELTAS
        if is_delta and not isinstance(value.get("delta"), str):
            self._notes.note(faults.resp.DELTAS, value)
        elif strand is None or not strand.is_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
        elif is_delta:
            self._texts.say(strand, value["delta"], others(value, "delta"))
        else:
            self._texts.finish(strand, value)

    def _annotate(self, value: Json) -> None:
        """A text gets an annotation."""
        part = self._strand(value, "output_text")
        if part is None or not part.is_part_open:
            self._notes.note(faults.resp.DONE_EVENTS, value)
            return
        part.value["annotations"].append(value.get("annotation"))
        self._scribe.event(value["type"], part.address, others(value))

    def _step(self, value: Json, kind: str) -> None:
        """A tool of the server does something."""
        item = self._find(value, kind)
        if item is None or not item.is_open:
            self._notes.note(faults.resp.ITEM_ADDED_FIRST if item is None else faults.resp.DONE_EVENTS, value)
        else:
            address = {"output_index": item.index} if kind == _NAMELESS else item.address
            self._scribe.event(value["type"], address, others(value))

    # Items.

    def _find(self, value: Json, kind: str | None) -> Item | None:
        """The item of this type that an event is about; None where it never began."""
        id, index = value.get("item_id"), value.get("output_index")
        found = [self._by_id.get(id) if isinstance(id, str) else None, self._by_index.get(number(index))]
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
            id = self._mint(kind)
        item = self._scribe.open_item(self._begun(given | {"id": id}), others(value, "item"))
        self._ids.add(item.id)
        self._last[kind] = self._last[None] = item
        for name in (item.id, given.get("id")):
            if isinstance(name, str):
                self._by_id[name] = item
        if type(index := value.get("output_index")) is int:
            self._by_index[index] = item
        self._given[item] = given
        return item

    def _mint(self, kind: str) -> str:
        """An id for the next item, which no other has."""
        id = f"{_PREFIXES.get(kind, 'item')}_{self._stem}_{len(self._scribe.items)}"
        while id in self._ids:
            id += "_"
        return id

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
        for place, parts in zip(PLACES, (item.content, item.summary), strict=True):
            listed = theirs.get(place)
            self._texts.close_all(item, parts, listed if parts or listed else given.get(place))
        if item.call is not None and item.call.is_open:
            self._notes.note(faults.resp.ARGS_DONE, theirs)
            self._texts.settle(item.call, theirs.get(item.call.way.member), given.get(item.call.way.member))
        status = self._final_status(item, theirs, status)
        if item.kind == "function_call" and item.call is not None and status == "completed":
            arguments = item.call.whole.encode()
            self.broken_arguments += not (is_costly(arguments) or isinstance(strict(arguments), dict))
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
        part = self._texts.find(speaker, value, kind)
        if part is None:
            self._notes.note(part_fault(kind), value)
            part = self._texts.open(speaker, kind, _only_index(value), {})
        self._texts.compare(part, value)
        return part


def _only_index(value: Json) -> Json:
    """What tells of whom an event is, and nothing else of it."""
    return {key: item for key, item in value.items() if key in ADDRESS}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""
