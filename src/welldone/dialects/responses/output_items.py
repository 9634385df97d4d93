"""Repair of the output items of a Responses stream.

Servers omit ids and indices, change them, or reuse them; they send text only in done events, or never send done events.
An event is matched to its item by id, then by index, then by what is open.
"""

from collections import deque
from collections.abc import Callable
from types import UnionType
from typing import ClassVar

from welldone.core.events import Json
from welldone.core.json_budget import exceeds_blocking_budget
from welldone.core.lenient_json import CharacterJoiner, as_list, as_object, is_nonempty_string, parse_strict
from welldone.core.repair_log import RepairLog, format_json, is_empty
from welldone.dialects.responses import emitter as em
from welldone.dialects.responses.emitter import PART_TEXTS, OutputItem, ResponsesEmitter, TextAccumulator
from welldone.dialects.responses.objects import has_required_members, is_schema_item, part_object

PART_LISTS = ("content", "summary")
"""Members of an item that contain parts."""
STABLE_ITEM_MEMBERS = ("id", "type", "call_id", "name", "arguments", "input")
"""Members that are equal in output_item.done and in the final output."""


def match_items(items: list[OutputItem], listed: list[Json]) -> list[OutputItem | None]:
    """Match the items of a final output to the streamed ones: by id, else by type; None for a new item."""
    unmatched = {item.index: item for item in items}
    by_key = {key: item for item in items for key in _item_keys(item.value)}
    identified = [next((by_key[key] for key in _item_keys(value) if key in by_key), None) for value in listed]
    matched = [None if item is None else unmatched.pop(item.index, None) for item in identified]
    by_kind: dict[str, deque[OutputItem]] = {}
    for item in unmatched.values():
        by_kind.setdefault(item.kind, deque()).append(item)
    for number, value in enumerate(listed):
        candidates = by_kind.get(str(value.get("type")))
        if matched[number] is None and candidates:
            matched[number] = candidates.popleft()
    return matched


def item_content(value: Json) -> list[object]:
    """Return the stable members and texts of an item, for comparison."""
    parts = [as_object(entry) for name in PART_LISTS for entry in as_list(value.get(name))]
    return [*map(value.get, STABLE_ITEM_MEMBERS), *(entry.get("text", entry.get("refusal")) for entry in parts)]


def _item_keys(value: Json) -> list[tuple[str, str]]:
    ids = (value.get("id"), value.get("call_id"))
    return [(str(value.get("type")), id) for id in ids if isinstance(id, str)]


LOCATOR_MEMBERS = frozenset({"type", "sequence_number", "item_id", "output_index", "content_index", "summary_index"})
"""Members that identify the item and part of an event."""
_LIST_MEMBERS: dict[str, type | UnionType] = {"annotations": list, "logprobs": list | None}


class TextRepairer:
    """Repairs events about parts and tool input."""

    def __init__(self, emitter: ResponsesEmitter, repair_log: RepairLog) -> None:
        self._emitter = emitter
        self._repair_log = repair_log
        # By item index, index member, and the server's index.
        self._parts: dict[tuple[int, str, int], TextAccumulator] = {}
        # Parts as added: some servers send the whole text there.
        self._added_parts: dict[TextAccumulator, Json] = {}
        self._joiners: dict[TextAccumulator, CharacterJoiner] = {}  # surrogate pairs split over deltas
        self.plain_text_part: TextAccumulator | None = None
        """The text that the last event extended, if it did nothing else."""

    def find_part(self, item: OutputItem, value: Json, part_type: str) -> TextAccumulator | None:
        """Return the part of an event, if it has this type and was started."""
        text_part = self.part_at(item, value, part_type)
        if text_part is not None and text_part.kind == part_type:
            return text_part
        parts = item.parts[PART_TEXTS[part_type].part_list]
        is_last = bool(parts) and parts[-1].kind == part_type and parts[-1].is_part_open
        return parts[-1] if is_last else None

    def part_at(self, item: OutputItem, value: Json, part_type: str) -> TextAccumulator | None:
        """Return the part with the index of an event."""
        name = PART_TEXTS[part_type].index_member
        return self._parts.get((item.index, name, index_or_missing(value.get(name))))

    def open_part(self, item: OutputItem, kind: str, value: Json, added: Json) -> TextAccumulator:
        """Start a part; `added` is the part in the event `value`."""
        empty = part_object(kind) | self._without_invalid_lists(added) | {"type": kind, PART_TEXTS[kind].member: ""}
        text_part = self._emitter.open_part(item, empty, extra_members(value, "part"))
        self._added_parts[text_part] = added
        name = text_part.spec.index_member
        self._parts[item.index, name, text_part.address[name]] = text_part
        if type(index := value.get(name)) is int:
            self._parts[item.index, name, index] = text_part
        return text_part

    def check_index(self, text_part: TextAccumulator, value: Json) -> None:
        """Log an index that is not that of the part."""
        name = text_part.spec.index_member
        self._repair_log.record_if(value.get(name) != text_part.address[name], "resp-content-index", value)

    def add_text(self, accumulator: TextAccumulator, text: str, members: Json) -> None:
        """Extend a text."""
        accumulator.logprobs += self._take_logprobs(accumulator, members)
        joiner = self._joiners.setdefault(accumulator, CharacterJoiner())
        self._emitter.add_text(accumulator, joiner.feed(text), members)
        is_plain = members == accumulator.extra_members and joiner.is_idle
        self.plain_text_part = accumulator if is_plain else None

    def finish_text(self, accumulator: TextAccumulator, value: Json) -> None:
        """Close a text with the value of a done event."""
        members = extra_members(value, accumulator.spec.member)
        self._take_logprobs(accumulator, members)
        name = accumulator.value.get("name")
        is_renamed = accumulator.kind == "function_call" and members.get("name", name) != name
        self._repair_log.record_if(is_renamed, "resp-args-done", value)
        self.reconcile_text(accumulator, value.get(accumulator.spec.member))
        self._emitter.close_text(accumulator, members)

    def close_parts(self, item: OutputItem, part_list: str, upstream: object) -> None:
        """Close the parts of a finished item; `upstream` is the list of the server."""
        if item.kind not in ("message", "reasoning"):
            return  # its lists pass as they are
        parts = item.parts[part_list]
        place = item.kind, part_list
        kinds = [part_type for part_type, spec in PART_TEXTS.items() if (spec.item_type, spec.part_list) == place]
        listed = upstream if isinstance(upstream, list) else [upstream] if upstream else []
        named = [{"text": entry} if isinstance(entry, str) else entry for entry in listed]
        entries = self._repair_log.read_objects(named, "resp-object-schema")
        entries = [entry | {"type": kinds[0]} if kinds and _is_plain_text(entry) else entry for entry in entries]
        fitting = [entry for entry in entries if entry.get("type") in kinds]
        sent = "".join(text_part.text for text_part in parts)
        others = [
            entry for entry in entries if entry.get("type") not in kinds and str(entry.get("text") or entry) not in sent
        ]
        if others:
            self._repair_log.drop("resp-object-schema", others)
        for new_part in fitting[len(parts) :]:
            self._repair_log.record(part_added_rule(new_part["type"]), new_part)
            self.open_part(item, new_part["type"], {}, {})
        for index, text_part in enumerate(parts):
            value = fitting[index] if index < len(fitting) and fitting[index]["type"] == text_part.kind else {}
            if text_part.is_part_open or (text_part.text and value.get(text_part.spec.member) != text_part.text):
                self._repair_log.record("resp-done-events", upstream)
            if text_part.is_part_open:
                self.close_part(text_part, value, {})

    def close_part(self, text_part: TextAccumulator, upstream: Json, members: Json) -> None:
        """Close a part."""
        whole = upstream.get(text_part.spec.member)
        self._repair_log.record_if(text_part.is_open or whole != text_part.text, "resp-done-events", upstream)
        if text_part.is_open:
            self.reconcile_text(text_part, whole)
        self._emitter.close_part(text_part, self._without_invalid_lists(upstream), members)

    def reconcile_text(self, accumulator: TextAccumulator, whole: object, added: object = None) -> None:
        """Compare a text with its full value `whole`; send a missing rest as a delta."""
        sent = accumulator.text
        half = self._joiners.pop(accumulator, CharacterJoiner()).close()
        if added is None:
            added = self._added_parts.pop(accumulator, {}).get(accumulator.spec.member)
        if isinstance(whole, dict):  # arguments that are not encoded
            whole = format_json(whole)
        if not isinstance(whole, str) or not whole:
            if sent or not is_empty(whole):
                self._repair_log.drop("resp-done-events", whole)
            whole = sent + half or added
        if not isinstance(whole, str) or whole == sent:
            return
        if whole.startswith(sent):
            self._repair_log.record("resp-deltas", whole)
            self._emitter.add_text(accumulator, whole[len(sent) :])
        else:
            self._repair_log.record("resp-delta-equals-done", whole)
            accumulator.pieces = [whole]

    def _without_invalid_lists(self, entry: Json) -> Json:
        wrong = {name for name, types in _LIST_MEMBERS.items() if name in entry and not isinstance(entry[name], types)}
        if "annotations" in wrong:
            self._repair_log.drop("resp-object-schema", entry["annotations"])
        return {name: value for name, value in entry.items() if name not in wrong}

    def _take_logprobs(self, accumulator: TextAccumulator, members: Json) -> list[Json]:
        """Return the `logprobs` among the members of an event; remove them if they are not a list."""
        if not accumulator.extra_members:
            return []
        logprobs = members.get("logprobs")
        if isinstance(logprobs, list):
            return logprobs
        self._repair_log.record("resp-logprobs-array", logprobs)
        members.pop("logprobs", None)
        return []


def _is_plain_text(content_part: Json) -> bool:
    return content_part.get("type") in (None, "text", "input_text") and isinstance(content_part.get("text"), str)


def extra_members(value: Json, *names: str) -> Json:
    """Return the members of an event other than locators and `names`."""
    return {key: item for key, item in value.items() if key not in LOCATOR_MEMBERS and key not in names}


def index_or_missing(value: object) -> int:
    """Return an index; -1 if it is not an integer."""
    return value if type(value) is int else -1


def part_added_rule(part_type: str) -> str:
    """Return the rule that a missing part.added event violates."""
    return "resp-reasoning-parts" if PART_TEXTS[part_type].item_type == "reasoning" else "resp-part-added-first"


_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_CALL_IDENTITY = ("call_id", "name")
_UNPLACED_LIMIT = 4096  # more deltas without a text come only from a broken server
_ITEM_WITHOUT_ID = "shell_call"
"""Item type whose events have no `item_id`."""


class OutputRepairer:
    """Repairs events about output items."""

    def __init__(self, emitter: ResponsesEmitter, repair_log: RepairLog, id_stem: str) -> None:
        self.invalid_arguments_count: int = 0
        """Number of complete calls whose arguments are not a JSON object."""
        self._emitter = emitter
        self._repair_log = repair_log
        self._id_stem = id_stem  # of generated ids
        self._by_id: dict[str, OutputItem] = {}
        self._by_index: dict[int, OutputItem] = {}
        self._last_by_type: dict[str | None, OutputItem] = {}  # None: of any type
        self._ids: set[str] = set()
        self._added_items: dict[OutputItem, Json] = {}  # as added: some servers send the whole item there
        # Deltas without an open text, which it may repeat, by type and locators.
        self._unplaced: dict[tuple[str, str], list[str]] = {}
        self._text_repairer = TextRepairer(emitter, repair_log)

    def take_plain_text_part(self) -> TextAccumulator | None:
        """Return the text that the last event extended, if it did nothing else."""
        text_part, self._text_repairer.plain_text_part = self._text_repairer.plain_text_part, None
        return text_part

    def finish_output(self, output: object, status: str) -> None:
        """Reconcile the items with the final output of the server; close open items with `status`."""
        listed = self._repair_log.read_objects(output or [], "resp-final-output")
        known = match_items(self._emitter.items, listed)
        pairs = list(zip(self._emitter.items, listed, strict=False))
        is_same = all(item.is_open or item_content(item.value) == item_content(value) for item, value in pairs)
        self._repair_log.record_if(not is_same or len(self._emitter.items) != len(listed), "resp-final-output", output)
        for value, known_item in zip(listed, known, strict=True):
            item = known_item or self._open_item(value, {})
            if item is None:
                self._repair_log.drop("resp-final-output", value)
                continue
            if item.is_open:
                self._repair_log.record("resp-done-events", value)
                self._close_item(item, value, status)
            # The final output may have more members than output_item.done.
            fixed = (*STABLE_ITEM_MEMBERS, "status") if item.kind in em.ITEMS_WITH_STATUS else STABLE_ITEM_MEMBERS
            sent = {name: item.value[name] for name in fixed if name in item.value}
            item.value = item.completed(value) | sent
        self.close_all(status)
        parts = [text_part for item in self._emitter.items for name in PART_LISTS for text_part in item.parts[name]]
        texts = [text for text in (*parts, *(item.arguments for item in self._emitter.items)) if text is not None]
        for (text_type, _), deltas in self._unplaced.items():
            late = "".join(deltas)
            if not any(text.text.endswith(late) for text in texts if text.kind == text_type):
                self._repair_log.drop("resp-done-events", late)

    def check_whole_output(self, output: object) -> None:
        """Log violations in the items of a non-streamed reply."""
        for item in map(as_object, as_list(output)):
            item_type = item.get("type")
            is_identified = all(is_nonempty_string(item.get(name)) for name in ("id", *_CALL_IDENTITY, "arguments"))
            self._repair_log.record_if(item_type == "function_call" and not is_identified, "resp-function-ids", item)
            is_done = item_type not in ("message", "function_call") or item.get("status") in ("completed", "incomplete")
            self._repair_log.record_if(not is_done, "resp-item-status", item)
            is_named = item_type not in ("message", "reasoning") or isinstance(item.get("id"), str)
            self._repair_log.record_if(not is_named or not is_schema_item(item), "resp-object-schema", item)

    def close_all(self, status: str) -> None:
        """Close all open items."""
        for item in self._emitter.items:
            if item.is_open:
                self._repair_log.record("resp-done-events", item.value)
                self._close_item(item, {}, status)

    def _on_item_added(self, value: Json) -> None:
        added = self._repair_log.read_object(value.get("item"), "resp-object-schema")
        if self._is_repeated(added, value.get("output_index")):
            self._repair_log.record("resp-item-added-first", value)
            return
        item = self._open_item(added, value)
        if item is None:
            return
        record_if = self._repair_log.record_if
        record_if(not is_schema_item(added), "resp-object-schema", value)
        record_if(value.get("output_index") != item.index, "resp-output-index", value)
        is_started = item.kind not in em.ITEMS_WITH_STATUS or added.get("status") == "in_progress"
        record_if(not is_started, "resp-item-status", value)
        record_if(item.kind == "function_call" and added.get("arguments") != "", "resp-function-ids", value)

    def _on_item_done(self, value: Json) -> None:
        final = self._repair_log.read_object(value.get("item"), "resp-object-schema")
        item_type = final.get("type")
        self._repair_log.record_if(not is_schema_item(final), "resp-object-schema", value)
        locators = {"item_id": final.get("id"), "output_index": value.get("output_index")}
        item = self._find_item(locators, item_type if isinstance(item_type, str) else None)
        if item is None:
            self._repair_log.record("resp-item-added-first", value)
            item = self._open_item(final, {"output_index": value.get("output_index")})
        if item is None:
            self._repair_log.drop("resp-item-added-first", final)
        elif item.is_open:
            self._close_item(item, final, "completed", extra_members(value, "item"))
        else:
            self._repair_log.record("resp-done-events", value)

    def _on_part_added(self, value: Json) -> None:
        added = self._repair_log.read_object(value.get("part"), "resp-object-schema")
        part_type = self._part_type(value, added)
        self._repair_log.record_if(not has_required_members(added), "resp-object-schema", value)
        item = self._item_for_part(value, part_type)
        open_part = None if item is None else self._text_repairer.part_at(item, value, part_type)
        if item is None or (open_part is not None and open_part.is_part_open):
            self._repair_log.record(part_added_rule(part_type), value)
        else:
            text_part = self._text_repairer.open_part(item, part_type, value, added)
            self._text_repairer.check_index(text_part, value)

    def _on_part_done(self, value: Json) -> None:
        final = self._repair_log.read_object(value.get("part"), "resp-object-schema")
        self._repair_log.record_if(not has_required_members(final), "resp-object-schema", value)
        text_part = self._text_for_event(value, self._part_type(value, final))
        if text_part is None or not text_part.is_part_open:
            self._repair_log.record("resp-done-events", value)
        else:
            self._text_repairer.close_part(text_part, final, extra_members(value, "part"))

    def _on_text(self, value: Json) -> None:
        text = self._text_for_event(value, em.TEXT_EVENTS[value["type"]])
        is_delta = value["type"] in em.TEXT_DELTA_EVENTS
        if is_delta and not isinstance(value.get("delta"), str):
            self._repair_log.drop("resp-deltas", value.get("delta"))
        elif text is None or not text.is_open:
            self._repair_log.record("resp-done-events", value)
            if is_delta:
                place = _locator_members(value) | {"sequence_number": None}
                deltas = self._unplaced.setdefault((em.TEXT_EVENTS[value["type"]], format_json(place)), [])
                deltas.append(value["delta"])
                if sum(map(len, self._unplaced.values())) > _UNPLACED_LIMIT:
                    self._repair_log.drop("resp-done-events", deltas)
        elif is_delta:
            self._text_repairer.add_text(text, value["delta"], extra_members(value, "delta"))
        else:
            self._text_repairer.finish_text(text, value)

    def _on_annotation(self, value: Json) -> None:
        text_part = self._text_for_event(value, "output_text")
        if text_part is None or not text_part.is_part_open:
            self._repair_log.record("resp-done-events", value)
            return
        text_part.value["annotations"].append(value.get("annotation"))
        self._emitter.emit(value["type"], text_part.address, extra_members(value))

    def _on_hosted_tool_step(self, value: Json) -> None:
        item_type = em.HOSTED_TOOL_EVENTS[value["type"]]
        item = self._find_item(value, item_type)
        if item is None or not item.is_open:
            self._repair_log.record("resp-item-added-first" if item is None else "resp-done-events", value)
        else:
            address = {"output_index": item.index} if item_type == _ITEM_WITHOUT_ID else item.address
            self._emitter.emit(value["type"], address, extra_members(value))

    HANDLERS: ClassVar[dict[str, Callable[["OutputRepairer", Json], None]]] = {
        **dict.fromkeys(em.TEXT_EVENTS, _on_text),
        **dict.fromkeys(em.HOSTED_TOOL_EVENTS, _on_hosted_tool_step),
        **dict.fromkeys(em.AUDIO_EVENTS, lambda self, value: self._emitter.emit(value["type"], {}, value)),
        "response.output_item.added": _on_item_added,
        "response.output_item.done": _on_item_done,
        "response.content_part.added": _on_part_added,
        "response.content_part.done": _on_part_done,
        "response.reasoning_summary_part.added": _on_part_added,
        "response.reasoning_summary_part.done": _on_part_done,
        "response.output_text.annotation.added": _on_annotation,
    }
    """Methods that repair and write an event about the output, by event type."""

    def _find_item(self, value: Json, item_type: str | None) -> OutputItem | None:
        """Return the item of an event, if it has this type and was started."""
        id, index = value.get("item_id"), value.get("output_index")
        candidates = [self._by_id.get(id) if isinstance(id, str) else None, self._by_index.get(index_or_missing(index))]
        last = self._last_by_type.get(item_type)
        if not isinstance(id, str) and type(index) is not int and last is not None and last.is_open:
            candidates.append(last)
        item = next((item for item in candidates if item is not None and item_type in (None, item.kind)), None)
        self._repair_log.record_if(item is not None and index != item.index, "resp-output-index", value)
        if item is not None and id != item.id and item_type != _ITEM_WITHOUT_ID:
            self._repair_log.record("resp-item-id-stable", value)
        return item

    def _is_repeated(self, added: Json, index: object) -> bool:
        """Whether an item was added before. Some servers give several items the same id."""
        id = added.get("id")
        item = self._by_id.get(id) if isinstance(id, str) else None
        if item is None or item.kind != added.get("type") or item.value.get("call_id") != added.get("call_id"):
            return False
        return type(index) is not int or self._by_index.get(index) is item

    def _open_item(self, upstream: Json, value: Json) -> OutputItem | None:
        """Start an item; `upstream` is the item in the event `value`. None if it lacks its type or name."""
        item_type = upstream.get("type")
        if not isinstance(item_type, str) or not item_type:
            self._repair_log.record("resp-item-added-first", upstream)
            return None
        if item_type in em.CLIENT_TOOL_CALLS and not is_nonempty_string(upstream.get("name")):
            self._repair_log.record("resp-function-ids", upstream)
            return None  # output_item.done may have the name
        id = upstream.get("id")
        if not is_nonempty_string(id) or id in self._ids:
            rule = "resp-function-ids" if item_type in em.CLIENT_TOOL_CALLS else "resp-item-id-stable"
            self._repair_log.record(rule, upstream)
            id = f"{_ID_PREFIXES.get(item_type, 'item')}_{self._id_stem}_{len(self._emitter.items)}"
            while id in self._ids:
                id += "_"
        item = self._emitter.open_item(self._initial_item(upstream | {"id": id}), extra_members(value, "item"))
        self._ids.add(item.id)
        self._last_by_type[item_type] = self._last_by_type[None] = item
        for known_id in (item.id, upstream.get("id")):
            if isinstance(known_id, str):
                self._by_id[known_id] = item
        if type(index := value.get("output_index")) is int:
            self._by_index[index] = item
        self._added_items[item] = upstream
        return item

    def _initial_item(self, value: Json) -> Json:
        """Empty an item for output_item.added, and add its missing members."""
        item_type = value["type"]
        if item_type in em.CLIENT_TOOL_CALLS and not is_nonempty_string(value.get("call_id")):
            self._repair_log.record("resp-function-ids", value)
            value = value | {"call_id": f"call_{self._id_stem}_{len(self._emitter.items)}"}
        if item_type in em.ITEMS_WITH_STATUS:
            value = value | {"status": "in_progress"}
        if item_type == "message":
            return value | {"role": "assistant", "content": []}
        if item_type == "reasoning":
            return value | {"summary": []} | ({"content": []} if "content" in value else {})
        return value | {em.CALL_TEXTS[item_type].member: ""} if item_type in em.CALL_TEXTS else value

    def _close_item(self, item: OutputItem, upstream: Json, status: str, members: Json | None = None) -> None:
        """Close an item; `upstream` is its final value. Its own status takes precedence over `status`."""
        added = self._added_items.pop(item, {})
        is_changed = any(upstream.get(name, item.value.get(name)) != item.value.get(name) for name in _CALL_IDENTITY)
        self._repair_log.record_if(item.kind in em.CLIENT_TOOL_CALLS and is_changed, "resp-function-ids", upstream)
        for name in PART_LISTS:
            listed = upstream.get(name)
            self._text_repairer.close_parts(item, name, listed if item.parts[name] or listed else added.get(name))
        arguments = item.arguments
        if arguments is not None and arguments.is_open:
            member = arguments.spec.member
            self._repair_log.record("resp-args-done", upstream)
            self._text_repairer.reconcile_text(arguments, upstream.get(member), added.get(member))
        status = self._final_status(item, upstream, status)
        if item.kind == "function_call" and arguments is not None and status == "completed":
            text = arguments.text.encode()
            is_object = exceeds_blocking_budget(text) or isinstance(parse_strict(text), dict)
            self.invalid_arguments_count += not is_object
        self._emitter.close_item(item, status, upstream, members)

    def _final_status(self, item: OutputItem, upstream: Json, status: str) -> str:
        own, is_required = upstream.get("status"), item.kind in em.ITEMS_WITH_STATUS
        is_final = own in ("completed", "incomplete") if is_required else own != "in_progress"
        if isinstance(own, str) and is_final:
            return own
        self._repair_log.record_if(upstream and (is_required or "status" in item.value), "resp-item-status", upstream)
        return status

    def _part_type(self, value: Json, content_part: Json) -> str:
        if value["type"].startswith("response.reasoning_summary"):
            return "summary_text"
        part_type = content_part.get("type")
        if isinstance(part_type, str) and part_type in PART_TEXTS and part_type != "summary_text":
            return str(part_type)
        item = self._find_item(value, None)
        return "reasoning_text" if item is not None and item.kind == "reasoning" else "output_text"

    def _item_for_part(self, value: Json, part_type: str) -> OutputItem | None:
        """Return the item of a part, starting it if necessary; None if it is closed."""
        item_type = PART_TEXTS[part_type].item_type
        item = self._find_item(value, item_type)
        if item is None:
            self._repair_log.record("resp-item-added-first", value)
            item = self._open_item({"type": item_type, "id": value.get("item_id")}, _locator_members(value))
        return item if item is not None and item.is_open else None

    def _text_for_event(self, value: Json, text_type: str) -> TextAccumulator | None:
        """Return the text of an event, starting its part if necessary; None if it is closed."""
        if text_type in em.CALL_TEXTS:
            item = self._find_item(value, text_type)
            self._repair_log.record_if(item is None, "resp-item-added-first", value)
            return None if item is None or not item.is_open else item.arguments
        item = self._item_for_part(value, text_type)
        if item is None:
            return None
        text_part = self._text_repairer.find_part(item, value, text_type)
        if text_part is None:
            self._repair_log.record(part_added_rule(text_type), value)
            text_part = self._text_repairer.open_part(item, text_type, _locator_members(value), {})
        self._text_repairer.check_index(text_part, value)
        return text_part


def _locator_members(value: Json) -> Json:
    return {key: item for key, item in value.items() if key in LOCATOR_MEMBERS}
