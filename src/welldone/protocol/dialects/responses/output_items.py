"""The items of a stream that is mended: found by whatever its server says of them, opened late, closed whole.

Servers leave out ids and indices, change them, or give all items the same; they say a text only at its end, or never
close it. What they mean is told by the id first, then by the index, then by what is open.
"""

from collections import deque
from types import UnionType

from welldone.protocol import catalog
from welldone.protocol.dialects.responses.emitter import (
    ANNOTATION_ADDED,
    CALL_TEXTS,
    CLIENT_TOOL_CALLS,
    HOSTED_TOOL_EVENTS,
    INDEX_MEMBER_OF_PART,
    ITEM_ADDED,
    ITEM_DONE,
    ITEM_TYPE_OF_PART,
    ITEMS_WITH_STATUS,
    PART_ADDED,
    PART_DONE,
    PART_TEXTS,
    TEXT_DELTA_EVENTS,
    TEXT_EVENTS,
    OutputItem,
    ResponsesEmitter,
    TextAccumulator,
)
from welldone.protocol.dialects.responses.objects import is_schema_item, is_schema_part, part_object
from welldone.protocol.events import Json
from welldone.protocol.json_budget import exceeds_blocking_budget
from welldone.protocol.lenient_json import CharacterJoiner, as_list, as_object, parse_strict
from welldone.protocol.repair_log import RepairLog

# The items that a server lists at its end, beside those that it streamed.


PART_LISTS = ("content", "summary")
"""Where an item has its parts."""
STABLE_ITEM_MEMBERS = ("id", "type", "call_id", "name", "arguments", "input")
"""What an item says the same when it is closed and at the end."""


def match_items(items: list[OutputItem], listed: list[Json]) -> list[OutputItem | None]:
    """The item that each one of a server's list is: by its names, and else by its type; None for a new one."""
    left = {item.index: item for item in items}
    named = {name: item for item in items for name in _item_keys(item.value)}
    found = [next((named[name] for name in _item_keys(theirs) if name in named), None) for theirs in listed]
    matched = [None if item is None else left.pop(item.index, None) for item in found]
    by_kind: dict[str, deque[OutputItem]] = {}
    for item in left.values():
        by_kind.setdefault(item.kind, deque()).append(item)
    for number, theirs in enumerate(listed):
        others = by_kind.get(str(theirs.get("type")))
        if matched[number] is None and others:
            matched[number] = others.popleft()
    return matched


def item_content(value: Json) -> list[object]:
    """What an item says, with all its texts."""
    parts = [as_object(part) for place in PART_LISTS for part in as_list(value.get(place))]
    return [*map(value.get, STABLE_ITEM_MEMBERS), *(part.get("text", part.get("refusal")) for part in parts)]


def _item_keys(value: Json) -> list[tuple[str, str]]:
    """What an item is known by."""
    names = (value.get("id"), value.get("call_id"))
    return [(str(value.get("type")), name) for name in names if isinstance(name, str)]


# The texts of items: parts and the input of calls, found by whatever a server says of them, and closed whole.


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
            self._repair_log.record(catalog.resp.CONTENT_INDEX, value)

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
            self._repair_log.record(catalog.resp.ARGS_DONE, value)
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
                self._repair_log.record(catalog.resp.DONE_EVENTS, upstream)
            if strand.is_part_open:
                self.close_part(strand, told, {})

    def close_part(self, part: TextAccumulator, upstream: Json, members: Json) -> None:
        """A part is whole."""
        whole = upstream.get(part.spec.member)
        if part.is_open:
            self._repair_log.record(catalog.resp.DONE_EVENTS, upstream)
            self.reconcile_text(part, whole)
        elif whole != part.text:
            self._repair_log.record(catalog.resp.DONE_EVENTS, upstream)
        self._emitter.close_part(part, _without_invalid_lists(upstream), members)

    def reconcile_text(self, accumulator: TextAccumulator, whole: object, given: object = None) -> None:
        """A text is whole: what its server says only now goes out first."""
        said = accumulator.text
        half = self._joiners.pop(accumulator, CharacterJoiner()).close()
        if given is None:
            given = self._added_parts.pop(accumulator, {}).get(accumulator.spec.member)
        if not isinstance(whole, str) or not whole:
            if said:
                self._repair_log.record(catalog.resp.DONE_EVENTS, whole)
            whole = said + half or given
        if not isinstance(whole, str) or whole == said:
            return
        if whole.startswith(said):
            self._repair_log.record(catalog.resp.DELTAS, whole)
            self._emitter.add_text(accumulator, whole[len(said) :])
        else:
            self._repair_log.record(catalog.resp.DELTA_EQUALS_DONE, whole)
            accumulator.pieces = [whole]

    def _take_logprobs(self, accumulator: TextAccumulator, members: Json) -> list[Json]:
        """The log probabilities among the members of an event of a text; what is no list of them is taken out."""
        if not accumulator.extra_members:
            return []
        logprobs = members.get("logprobs")
        if isinstance(logprobs, list):
            return logprobs
        self._repair_log.record(catalog.resp.LOGPROBS_ARRAY, logprobs)
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


def part_added_rule(kind: str) -> catalog.Rule:
    """The fault of a part that was not added as it should be."""
    return catalog.resp.REASONING_PARTS if ITEM_TYPE_OF_PART[kind] == "reasoning" else catalog.resp.PART_ADDED_FIRST


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
            self._repair_log.record(catalog.resp.FINAL_OUTPUT, output)
        for theirs, found in zip(listed, known, strict=True):
            item = found or self._open_item(theirs, {})
            if item is None:
                continue
            if item.is_open:
                self._repair_log.record(catalog.resp.DONE_EVENTS, theirs)
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
                self._repair_log.record(catalog.resp.FUNCTION_IDS, item)
            if (is_call or item.get("type") == "message") and item.get("status") not in ("completed", "incomplete"):
                self._repair_log.record(catalog.resp.ITEM_STATUS, item)
            is_named = item.get("type") not in ("message", "reasoning") or isinstance(item.get("id"), str)
            if not is_named or not is_schema_item(item):
                self._repair_log.record(catalog.resp.OBJECT_SCHEMA, item)

    def close_all(self, status: str) -> None:
        """All that is still open is closed."""
        for item in self._emitter.items:
            if item.is_open:
                self._repair_log.record(catalog.resp.DONE_EVENTS, item.value)
                self._close_item(item, {}, status)

    # What is heard.

    def _on_item_added(self, value: Json) -> None:
        """An item begins."""
        given = as_object(value.get("item"))
        if self._is_repeated(given, value.get("output_index")):
            self._repair_log.record(catalog.resp.ITEM_ADDED_FIRST, value)
            return
        item = self._open_item(given, value)
        if item is None:
            return
        if not is_schema_item(given):
            self._repair_log.record(catalog.resp.OBJECT_SCHEMA, value)
        if value.get("output_index") != item.index:
            self._repair_log.record(catalog.resp.OUTPUT_INDEX, value)
        if item.kind in ITEMS_WITH_STATUS and given.get("status") != "in_progress":
            self._repair_log.record(catalog.resp.ITEM_STATUS, value)
        if item.kind == "function_call" and given.get("arguments") != "":
            self._repair_log.record(catalog.resp.FUNCTION_IDS, value)

    def _on_item_done(self, value: Json) -> None:
        """An item is whole."""
        theirs = as_object(value.get("item"))
        kind = theirs.get("type")
        if not is_schema_item(theirs):
            self._repair_log.record(catalog.resp.OBJECT_SCHEMA, value)
        about = {"item_id": theirs.get("id"), "output_index": value.get("output_index")}
        item = self._find_item(about, kind if isinstance(kind, str) else None)
        if item is None:
            self._repair_log.record(catalog.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item(theirs, {"output_index": value.get("output_index")})
        if item is None:
            return
        if item.is_open:
            self._close_item(item, theirs, "completed", extra_members(value, "item"))
        else:
            self._repair_log.record(catalog.resp.DONE_EVENTS, value)

    def _on_part_added(self, value: Json) -> None:
        """A part of an item begins."""
        given = as_object(value.get("part"))
        kind = self._part_type(value, given)
        if not is_schema_part(given):
            self._repair_log.record(catalog.resp.OBJECT_SCHEMA, value)
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
            self._repair_log.record(catalog.resp.OBJECT_SCHEMA, value)
        part = self._text_for_event(value, self._part_type(value, theirs))
        if part is None or not part.is_part_open:
            self._repair_log.record(catalog.resp.DONE_EVENTS, value)
        else:
            self._text_repairer.close_part(part, theirs, extra_members(value, "part"))

    def _on_text(self, value: Json, kind: str) -> None:
        """More of a text, or all of it."""
        strand = self._text_for_event(value, kind)
        is_delta = value["type"] in TEXT_DELTA_EVENTS
        if is_delta and not isinstance(value.get("delta"), str):
            self._repair_log.record(catalog.resp.DELTAS, value)
        elif strand is None or not strand.is_open:
            self._repair_log.record(catalog.resp.DONE_EVENTS, value)
        elif is_delta:
            self._text_repairer.add_text(strand, value["delta"], extra_members(value, "delta"))
        else:
            self._text_repairer.finish_text(strand, value)

    def _on_annotation(self, value: Json) -> None:
        """A text gets an annotation."""
        part = self._text_for_event(value, "output_text")
        if part is None or not part.is_part_open:
            self._repair_log.record(catalog.resp.DONE_EVENTS, value)
            return
        part.value["annotations"].append(value.get("annotation"))
        self._emitter.emit(value["type"], part.address, extra_members(value))

    def _on_hosted_tool_step(self, value: Json, kind: str) -> None:
        """A tool of the server does something."""
        item = self._find_item(value, kind)
        if item is None or not item.is_open:
            self._repair_log.record(catalog.resp.ITEM_ADDED_FIRST if item is None else catalog.resp.DONE_EVENTS, value)
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
            self._repair_log.record(catalog.resp.OUTPUT_INDEX, value)
        if item is not None and id != item.id and kind != _ITEM_WITHOUT_ID:
            self._repair_log.record(catalog.resp.ITEM_ID_STABLE, value)
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
            self._repair_log.record(catalog.resp.ITEM_ADDED_FIRST, given)
            return None
        if kind in CLIENT_TOOL_CALLS and not _is_nonempty_string(given.get("name")):
            self._repair_log.record(catalog.resp.FUNCTION_IDS, given)
            return None  # it may have a name when it is whole
        id = given.get("id")
        if not _is_nonempty_string(id) or id in self._ids:
            self._repair_log.record(
                catalog.resp.FUNCTION_IDS if kind in CLIENT_TOOL_CALLS else catalog.resp.ITEM_ID_STABLE, given
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
            self._repair_log.record(catalog.resp.FUNCTION_IDS, value)
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
            self._repair_log.record(catalog.resp.FUNCTION_IDS, upstream)
        for place, parts in zip(PART_LISTS, (item.content, item.summary), strict=True):
            listed = upstream.get(place)
            self._text_repairer.close_parts(item, parts, listed if parts or listed else given.get(place))
        if item.arguments is not None and item.arguments.is_open:
            self._repair_log.record(catalog.resp.ARGS_DONE, upstream)
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
            self._repair_log.record(catalog.resp.ITEM_STATUS, upstream)
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
            self._repair_log.record(catalog.resp.ITEM_ADDED_FIRST, value)
            item = self._open_item(
                {"type": ITEM_TYPE_OF_PART[kind], "id": value.get("item_id")}, _locator_members(value)
            )
        return item if item is not None and item.is_open else None

    def _text_for_event(self, value: Json, kind: str) -> TextAccumulator | None:
        """The text that an event is about; a part that was not added begins now."""
        if kind in CALL_TEXTS:
            item = self._find_item(value, kind)
            if item is None:
                self._repair_log.record(catalog.resp.ITEM_ADDED_FIRST, value)
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
