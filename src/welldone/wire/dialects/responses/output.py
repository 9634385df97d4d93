"""The items of a stream that is mended: found by whatever its server says of them, opened late, closed whole.

Servers leave out ids and indices, change them, or give all items the same; they say a text only at its end, or never
close it. What they mean is told by the id first, then by the index, then by what is open.
"""

from welldone.wire import faults
from welldone.wire.budget import exceeds_blocking_budget
from welldone.wire.dialects.responses.known import (
    ANNOTATION_ADDED,
    TEXT_DELTA_EVENTS,
    ITEM_ADDED,
    ITEM_DONE,
    ITEM_TYPE_OF_PART,
    PART_ADDED,
    PART_DONE,
    TEXT_EVENTS,
    HOSTED_TOOL_EVENTS,
)
from welldone.wire.dialects.responses.listed import PART_LISTS, STABLE_ITEM_MEMBERS, match_items, item_content
from welldone.wire.dialects.responses.objects import is_schema_item, is_schema_part
from welldone.wire.dialects.responses.scribe import (
    CALL_TEXTS,
    CLIENT_TOOL_CALLS,
    PART_TEXTS,
    ITEMS_WITH_STATUS,
    OutputItem,
    ResponsesEmitter,
    TextAccumulator,
)
from welldone.wire.dialects.responses.texts import (
    LOCATOR_MEMBERS,
    TextRepairer,
    index_or_missing,
    extra_members,
    part_added_rule,
)
from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object, parse_strict
from welldone.wire.notes import RepairLog

_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_CALL_IDENTITY = ("call_id", "name")
_ITEM_WITHOUT_ID = "shell_call"
"""The events of these items have no `item_id`."""


class OutputRepairer:
    """Says what a server says of its items, in the right order and with the right names."""

    def __init__(self, emitter: ResponsesEmitter, repair_log: RepairLog, id_stem: str) -> None:
        self.invalid_arguments_count = 0
        """How many calls had arguments that are no JSON object, though nothing had cut them."""
        self._emitter = emitter
        self._repair_log = repair_log
        self._id_stem = id_stem  # of ids that have to be made
        self._by_id: dict[str, OutputItem] = {}
        self._by_index: dict[int, OutputItem] = {}
        self._last_by_type: dict[str | None, OutputItem] = {}  # by type; of all types by None
        self._ids: set[str] = set()
        self._added_items: dict[OutputItem, Json] = {}  # as they were added: some servers say all at once there
        self._text_repairer = TextRepairer(emitter, repair_log)

    def process_event(self, value: Json, kind: str) -> None:
        """Say one of the events that tell of the output."""
        if kind in TEXT_EVENTS:
            self._on_text(value, TEXT_EVENTS[kind])
        elif kind == ITEM_ADDED:
            self._on_item_added(value)
        elif kind == ITEM_DONE:
            self._on_item_done(value)
        elif kind in PART_ADDED:
            self._on_part_added(value)
        elif kind in PART_DONE:
            self._on_part_done(value)
        elif kind in HOSTED_TOOL_EVENTS:
            self._on_hosted_tool_step(value, HOSTED_TOOL_EVENTS[kind])
        elif kind == ANNOTATION_ADDED:
            self._on_annotation(value)
        else:
            self._emitter.emit(kind, {}, value)

    def finish_output(self, output: object, status: str) -> None:
        """All items, as the server lists them at its end: what is still open is closed, as `status`."""
        listed = [as_object(theirs) for theirs in as_list(output)]
        known = match_items(self._emitter.items, listed)
        pairs = list(zip(self._emitter.items, listed, strict=False))
        is_same = all(item.is_open or item_content(item.value) == item_content(theirs) for item, theirs in pairs)
        if not is_same or len(self._emitter.items) != len(listed):
            self._repair_log.record(faults.resp.FINAL_OUTPUT, output)
        for theirs, found in zip(listed, known, strict=True):
            item = found or self._open_item(theirs, {})
            if item is None:
                continue
            if item.is_open:
                self._repair_log.record(faults.resp.DONE_EVENTS, theirs)
                self._close_item(item, theirs, status)
            # It may tell more here than when it was closed.
            fixed = (*STABLE_ITEM_MEMBERS, "status") if item.kind in ITEMS_WITH_STATUS else STABLE_ITEM_MEMBERS
            said_before = {name: item.value[name] for name in fixed if name in item.value}
            item.value = item.completed(theirs) | said_before
        self.close_all(status)

    def check_whole_output(self, output: object) -> None:
        """Note what is wrong with the items of a reply that was not streamed."""
        for item in map(as_object, as_list(output)):
            is_call = item.get("type") == "function_call"
            if is_call and not all(
                map(_is_nonempty_string, [item.get("id"), *map(item.get, _CALL_IDENTITY), item.get("arguments")])
            ):
                self._repair_log.record(faults.resp.FUNCTION_IDS, item)
            if (is_call or item.get("type") == "message") and item.get("status") not in ("completed", "incomplete"):
                self._repair_log.record(faults.resp.ITEM_STATUS, item)
            is_named = item.get("type") not in ("message", "reasoning") or isinstance(item.get("id"), str)
            if not is_named or not is_schema_item(item):
                self._repair_log.record(faults.resp.OBJECT_SCHEMA, item)

    def close_all(self, status: str) -> None:
        """All that is still open is closed."""
        for item in self._emitter.items:
            if item.is_open:
                self._repair_log.record(faults.resp.DONE_EVENTS, item.value)
                self._close_item(item, {}, status)

    # What is heard.

    def _on_item_added(self, value: Json) -> None:
        """An item begins."""
        given = as_object(value.get("item"))
        if self._is_repeated(given, value.get("output_index")):
            self._repair_log.record(faults.resp.ITEM_ADDED_FIRST, value)
            return
        item = self._open_item(given, value)
        if item is None:
            return
        if not is_schema_item(given):
            self._repair_log.record(faults.resp.OBJECT_SCHEMA, value)
        if value.get("output_index") != item.index:
            self._repair_log.record(faults.resp.OUTPUT_INDEX, value)
        if item.kind in ITEMS_WITH_STATUS and given.get("status") != "in_progress":
            self._repair_log.record(faults.resp.ITEM_STATUS, value)
        if item.kind == "function_call" and given.get("arguments") != "":
            self._repair_log.record(faults.resp.FUNCTION_IDS, value)

    def _on_item_done(self, value: Json) -> None:
        """An item is whole."""
        theirs = as_object(value.get("item"))
        kind = theirs.get("type")
        if not is_schema_item(theirs):
            self._repair_log.record(faults.resp.OBJECT_SCHEMA, value)
        about = {"item_id": theirs.get("id"), "output_index": value.get("output_index")}
        item = self._find_item(about, kind if isinstance(kind, str) else None)
        if item is None:
            self._repair_log.record(faults.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item(theirs, {"output_index": value.get("output_index")})
        if item is None:
            return
        if item.is_open:
            self._close_item(item, theirs, "completed", extra_members(value, "item"))
        else:
            self._repair_log.record(faults.resp.DONE_EVENTS, value)

    def _on_part_added(self, value: Json) -> None:
        """A part of an item begins."""
        given = as_object(value.get("part"))
        kind = self._part_type(value, given)
        if not is_schema_part(given):
            self._repair_log.record(faults.resp.OBJECT_SCHEMA, value)
        item = self._item_for_part(value, kind)
        if item is None or self._text_repairer.is_part_open(item, value, kind):
            self._repair_log.record(part_added_rule(kind), value)
        else:
            part = self._text_repairer.open_part(item, kind, value, given)
            self._text_repairer.check_index(part, value)

    def _on_part_done(self, value: Json) -> None:
        """A part is whole."""
        theirs = as_object(value.get("part"))
        if not is_schema_part(theirs):
            self._repair_log.record(faults.resp.OBJECT_SCHEMA, value)
        part = self._text_for_event(value, self._part_type(value, theirs))
        if part is None or not part.is_part_open:
            self._repair_log.record(faults.resp.DONE_EVENTS, value)
        else:
            self._text_repairer.close_part(part, theirs, extra_members(value, "part"))

    def _on_text(self, value: Json, kind: str) -> None:
        """More of a text, or all of it."""
        strand = self._text_for_event(value, kind)
        is_delta = value["type"] in TEXT_DELTA_EVENTS
        if is_delta and not isinstance(value.get("delta"), str):
            self._repair_log.record(faults.resp.DELTAS, value)
        elif strand is None or not strand.is_open:
            self._repair_log.record(faults.resp.DONE_EVENTS, value)
        elif is_delta:
            self._text_repairer.add_text(strand, value["delta"], extra_members(value, "delta"))
        else:
            self._text_repairer.finish_text(strand, value)

    def _on_annotation(self, value: Json) -> None:
        """A text gets an annotation."""
        part = self._text_for_event(value, "output_text")
        if part is None or not part.is_part_open:
            self._repair_log.record(faults.resp.DONE_EVENTS, value)
            return
        part.value["annotations"].append(value.get("annotation"))
        self._emitter.emit(value["type"], part.address, extra_members(value))

    def _on_hosted_tool_step(self, value: Json, kind: str) -> None:
        """A tool of the server does something."""
        item = self._find_item(value, kind)
        if item is None or not item.is_open:
            self._repair_log.record(faults.resp.ITEM_ADDED_FIRST if item is None else faults.resp.DONE_EVENTS, value)
        else:
            address = {"output_index": item.index} if kind == _ITEM_WITHOUT_ID else item.address
            self._emitter.emit(value["type"], address, extra_members(value))

    # Items.

    def _find_item(self, value: Json, kind: str | None) -> OutputItem | None:
        """The item of this type that an event is about; None where it never began."""
        id, index = value.get("item_id"), value.get("output_index")
        found = [self._by_id.get(id) if isinstance(id, str) else None, self._by_index.get(index_or_missing(index))]
        last = self._last_by_type.get(kind)
        if not isinstance(id, str) and type(index) is not int and last is not None and last.is_open:
            found.append(last)
        item = next((item for item in found if item is not None and kind in (None, item.kind)), None)
        if item is not None and index != item.index:
            self._repair_log.record(faults.resp.OUTPUT_INDEX, value)
        if item is not None and id != item.id and kind != _ITEM_WITHOUT_ID:
            self._repair_log.record(faults.resp.ITEM_ID_STABLE, value)
        return item

    def _is_repeated(self, given: Json, index: object) -> bool:
        """Whether an item was added before; some servers give many items the same id."""
        id = given.get("id")
        item = self._by_id.get(id) if isinstance(id, str) else None
        if item is None or item.kind != given.get("type") or item.value.get("call_id") != given.get("call_id"):
            return False
        return type(index) is not int or self._by_index.get(index) is item

    def _open_item(self, given: Json, value: Json) -> OutputItem | None:
        """A new item out of one that a server gave in an event; None where nobody could use it."""
        kind = given.get("type")
        if not isinstance(kind, str) or not kind:
            self._repair_log.record(faults.resp.ITEM_ADDED_FIRST, given)
            return None
        if kind in CLIENT_TOOL_CALLS and not _is_nonempty_string(given.get("name")):
            self._repair_log.record(faults.resp.FUNCTION_IDS, given)
            return None  # it may have a name when it is whole
        id = given.get("id")
        if not _is_nonempty_string(id) or id in self._ids:
            self._repair_log.record(
                faults.resp.FUNCTION_IDS if kind in CLIENT_TOOL_CALLS else faults.resp.ITEM_ID_STABLE, given
            )
            id = self._make_item_id(kind)
        item = self._emitter.open_item(self._initial_item(given | {"id": id}), extra_members(value, "item"))
        self._ids.add(item.id)
        self._last_by_type[kind] = self._last_by_type[None] = item
        for name in (item.id, given.get("id")):
            if isinstance(name, str):
                self._by_id[name] = item
        if type(index := value.get("output_index")) is int:
            self._by_index[index] = item
        self._added_items[item] = given
        return item

    def _make_item_id(self, kind: str) -> str:
        """An id for the next item, which no other has."""
        id = f"{_ID_PREFIXES.get(kind, 'item')}_{self._id_stem}_{len(self._emitter.items)}"
        while id in self._ids:
            id += "_"
        return id

    def _initial_item(self, value: Json) -> Json:
        """An item as it begins: nothing of what it will say is said yet."""
        kind = value["type"]
        if kind in CLIENT_TOOL_CALLS and not _is_nonempty_string(value.get("call_id")):
            self._repair_log.record(faults.resp.FUNCTION_IDS, value)
            value = value | {"call_id": f"call_{self._id_stem}_{len(self._emitter.items)}"}
        if kind in ITEMS_WITH_STATUS:
            value = value | {"status": "in_progress"}
        if kind == "message":
            return value | {"role": "assistant", "content": []}
        if kind == "reasoning":
            return value | {"summary": []} | ({"content": []} if "content" in value else {})
        return value | {CALL_TEXTS[kind].member: ""} if kind in CALL_TEXTS else value

    def _close_item(self, item: OutputItem, upstream: Json, status: str, members: Json | None = None) -> None:
        """An item is whole: as its server says, and else as it was said. Its own word for its `status` comes first."""
        given = self._added_items.pop(item, {})
        if item.kind in CLIENT_TOOL_CALLS and any(
            upstream.get(name, item.value[name]) != item.value[name] for name in _CALL_IDENTITY
        ):
            self._repair_log.record(faults.resp.FUNCTION_IDS, upstream)
        for place, parts in zip(PART_LISTS, (item.content, item.summary), strict=True):
            listed = upstream.get(place)
            self._text_repairer.close_parts(item, parts, listed if parts or listed else given.get(place))
        if item.arguments is not None and item.arguments.is_open:
            self._repair_log.record(faults.resp.ARGS_DONE, upstream)
            self._text_repairer.reconcile_text(
                item.arguments, upstream.get(item.arguments.spec.member), given.get(item.arguments.spec.member)
            )
        status = self._final_status(item, upstream, status)
        if item.kind == "function_call" and item.arguments is not None and status == "completed":
            arguments = item.arguments.text.encode()
            self.invalid_arguments_count += not (
                exceeds_blocking_budget(arguments) or isinstance(parse_strict(arguments), dict)
            )
        self._emitter.close_item(item, status, upstream, members)

    def _final_status(self, item: OutputItem, upstream: Json, status: str) -> str:
        told = upstream.get("status")
        is_known = told in ("completed", "incomplete") if item.kind in ITEMS_WITH_STATUS else told != "in_progress"
        if isinstance(told, str) and is_known:
            return told
        if upstream and (item.kind in ITEMS_WITH_STATUS or "status" in item.value):
            self._repair_log.record(faults.resp.ITEM_STATUS, upstream)
        return status

    # Parts, and other texts.

    def _part_type(self, value: Json, part: Json) -> str:
        """The type of the part that an event is about."""
        if value["type"].startswith("response.reasoning_summary"):
            return "summary_text"
        kind = part.get("type")
        if kind in PART_TEXTS and kind != "summary_text":
            return str(kind)
        item = self._find_item(value, None)
        return "reasoning_text" if item is not None and item.kind == "reasoning" else "output_text"

    def _item_for_part(self, value: Json, kind: str) -> OutputItem | None:
        """The item that a part is of: a new one where it was not added; None where it is closed."""
        item = self._find_item(value, ITEM_TYPE_OF_PART[kind])
        if item is None:
            self._repair_log.record(faults.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item(
                {"type": ITEM_TYPE_OF_PART[kind], "id": value.get("item_id")}, _locator_members(value)
            )
        return item if item is not None and item.is_open else None

    def _text_for_event(self, value: Json, kind: str) -> TextAccumulator | None:
        """The text that an event is about; a part that was not added begins now."""
        if kind in CALL_TEXTS:
            item = self._find_item(value, kind)
            if item is None:
                self._repair_log.record(faults.resp.ITEM_ADDED_FIRST, value)
            return None if item is None or not item.is_open else item.arguments
        speaker = self._item_for_part(value, kind)
        if speaker is None:
            return None
        part = self._text_repairer.find_part(speaker, value, kind)
        if part is None:
            self._repair_log.record(part_added_rule(kind), value)
            part = self._text_repairer.open_part(speaker, kind, _locator_members(value), {})
        self._text_repairer.check_index(part, value)
        return part


def _locator_members(value: Json) -> Json:
    """What tells of whom an event is, and nothing else of it."""
    return {key: item for key, item in value.items() if key in LOCATOR_MEMBERS}


def _is_nonempty_string(value: object) -> bool:
    return isinstance(value, str) and value != ""
