"""Checks of the items of a Responses stream: how each is opened, told, closed and told again at the end."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.choices import as_list, as_object, as_text
from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.messages import StreamMessage
from welldone.rules.responses import (
    ITEM_ADDED,
    ITEM_DONE,
    PART_EVENTS,
    TEXT_EVENTS,
    ResponsesEvent,
    ResponsesItem,
    StreamedText,
    part_text,
    text_at,
)
from welldone.rules.rule import Violation

FINAL_ITEM_STATUSES = ("completed", "incomplete")
"""How an item may have ended."""
_ITEMS_WITH_STATUS = ("message", "function_call")
"""Types whose items must have one; others may."""
_ITEMS_WITH_PARTS = ("message", "reasoning")
"""Types whose items have parts with text."""
_STABLE_ITEM_MEMBERS = ("id", "type", "call_id", "name", "arguments", "input")
"""What an item says the same at its end and in the output."""


def output_index(view: TraceView) -> Iterator[Violation]:
    """Events whose `output_index` is not that of their item."""
    for event, item in view.responses_stream.item_events:
        if event.output_index != item.index:
            yield Violation(event.message, _event_member(event, "output_index"), f'"output_index":{item.index}')


def content_index(view: TraceView) -> Iterator[Violation]:
    """Events whose index is not that of their part."""
    for event, piece in view.responses_stream.part_events:
        if event.part_index != piece.index:
            name = f"{event.part_list}_index"
            yield Violation(event.message, _event_member(event, name), f'"{name}":{piece.index}')


def _event_member(event: ResponsesEvent, name: str) -> object:
    return {name: event.json[name]} if name in event.json else f"{event.type} without {name}"


def item_ids(view: TraceView) -> Iterator[Violation]:
    """Items without an id or with that of another one, and events that have another id than their item."""
    used: set[str] = set()
    for event, item in view.responses_stream.item_events:
        wanted = item.id
        if event is item.first_event and wanted:
            if wanted in used:
                yield Violation(event.message, wanted, "an id of its own for each item")
            used.add(wanted)
        # A call without an id has a rule of its own.
        is_call = event.item.get("type") == "function_call" and not event.item_id
        if (event.item_id != wanted or not wanted) and not is_call:
            name = "item_id" if event.has_item_id else "item.id"
            shown = f"{name} {event.item_id}" if event.item_id else f"{event.type} without {name}"
            if event.has_item_id or event.type in (ITEM_ADDED, ITEM_DONE):
                yield Violation(event.message, shown, f'"{wanted[:80] or "…"}", the id of the item')


def item_added(view: TraceView) -> Iterator[Violation]:
    """The first event of each item that is about something that was not added."""
    for item in view.responses_stream.items:
        if item.first_event.type != ITEM_ADDED:
            yield Violation(item.first_event.message, item.first_event.type, f"{ITEM_ADDED} before it")


def part_added(view: TraceView) -> Iterator[Violation]:
    """The first event of each text or refusal that is in no part, or in one of another type."""
    for piece in _all_texts(view):
        if not piece.is_reasoning:
            yield from _missing_part_added(piece)


def _all_texts(view: TraceView) -> Iterator[StreamedText]:
    return (piece for item in view.responses_stream.items for piece in item.all_texts)


def _missing_part_added(piece: StreamedText) -> Iterator[Violation]:
    odd = piece.mismatched_event if piece.first_event is piece.part_added else piece.first_event
    if odd is not None:
        name = PART_EVENTS[1] if odd.part_list == "summary" else PART_EVENTS[0]
        yield Violation(odd.message, odd.type, f"{name}.added of type {odd.part_type[:80]} before it")


def reasoning_parts(view: TraceView) -> Iterator[Violation]:
    """The same for thoughts."""
    for piece in _all_texts(view):
        if piece.is_reasoning:
            yield from _missing_part_added(piece)


def text_deltas(view: TraceView) -> Iterator[Violation]:
    """Texts that stand only in the events that close them."""
    for item in view.responses_stream.items:
        for piece in item.all_texts:
            event = piece.text_done or piece.part_done
            if event is not None and not piece.deltas and _full_text(event):
                yield Violation(
                    event.message, {"text": _full_text(event)}, f"{_delta_event(piece.part_type)} events before it"
                )
        if item.done is not None:
            yield from _unstreamed_parts(item, item.done)


def _unstreamed_parts(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    """The texts of an item that no event spoke of. Items of other types may have a content of their own."""
    for slot, pieces in item.texts.items() if item.type in _ITEMS_WITH_PARTS else ():
        for part in as_list(done.item.get(slot))[len(pieces) :]:
            if part_text(part):
                yield Violation(done.message, part, "the events that open this part and say its text before it")


def _full_text(event: ResponsesEvent) -> str:
    """The full value that an event says of a piece."""
    return part_text(event.json.get("part")) if event.event_prefix in PART_EVENTS else as_text(event.full_value)


def _delta_event(part_type: str) -> str:
    name = "reasoning_summary_text" if part_type == "summary_text" else part_type
    return f"response.{name[:80]}.delta"


def done_events(view: TraceView) -> Iterator[Violation]:
    """What was opened and not closed, or closed without its value, or spoken of after it was closed."""
    output = view.responses_stream
    yield from (Violation(event.message, event.type, "nothing about what was closed") for event in output.late_events)
    if not output.is_complete:
        return
    for item in output.items:
        for piece in item.all_texts:
            yield from _missing_done_events(piece)
        if item.done is None:
            yield Violation(
                item.last_event.message, f"item {item.index} is never done", f"{ITEM_DONE} with the whole item"
            )
        else:
            yield from _missing_item_text(item, item.done)


def _missing_done_events(piece: StreamedText) -> Iterator[Violation]:
    said = piece.text_done or piece.part_done or piece.first_event
    if piece.text_done is None and piece.part_type in TEXT_EVENTS.values():
        yield Violation(
            said.message, f"{piece.part_type[:80]} without its whole value", _delta_event(piece.part_type)[:-5] + "done"
        )
    if piece.part_done is None:
        name = PART_EVENTS[1] if said.part_list == "summary" else PART_EVENTS[0]
        yield Violation(said.message, f"a part of type {piece.part_type[:80]} that is not closed", f"{name}.done")
    for event in (piece.text_done, piece.part_done):
        if event is not None and piece.text and not _full_text(event):
            yield Violation(event.message, f"{event.type} without the text", "the whole text that was streamed")


def _missing_item_text(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    for slot, pieces in item.texts.items():
        for piece in pieces:
            if piece.text and not text_at(done.item, slot, piece.index):
                yield Violation(done.message, f"{done.type} without the text", f"the whole item, with its {slot}")
    if item.input_text is not None and item.input_text.text and not _tool_input(done.item):
        yield Violation(done.message, f"{done.type} without the arguments", "the whole item, with its arguments")


def _tool_input(item: dict[str, Any]) -> str:
    """The whole input of a tool, by whatever name."""
    return next((text for name in ("arguments", "input", "code") if (text := as_text(item.get(name)))), "")


def deltas_equal_done(view: TraceView) -> Iterator[Violation]:
    """The events that close a piece with another value than its deltas had."""
    for item in view.responses_stream.items:
        for slot, pieces in item.texts.items():
            for piece in pieces:
                whole = [
                    (event, _full_text(event)) for event in (piece.text_done, piece.part_done) if event is not None
                ]
                if item.done is not None:
                    whole.append((item.done, text_at(item.done.item, slot, piece.index)))
                yield from _differing_texts(piece, whole)
        if item.input_text is not None:
            said = item.input_text.text_done
            whole = [] if said is None else [(said, as_text(said.full_value))]
            whole += [] if item.done is None else [(item.done, _tool_input(item.done.item))]
            yield from _differing_texts(item.input_text, whole)


def _differing_texts(piece: StreamedText, full_texts: list[tuple[ResponsesEvent, str]]) -> Iterator[Violation]:
    for event, text in full_texts:
        if piece.deltas and text and text != piece.text:
            yield Violation(event.message, text, f"the deltas joined: {piece.text[:100]}")


def function_ids(view: TraceView) -> Iterator[Violation]:
    """Calls that lack what a call needs, or that change it."""
    for told in _whole_items(view):
        if told.get("type") == "function_call":
            yield from _incomplete_call(None, told)
    for item in view.responses_stream.items:
        events = [event for event in (item.added, item.done) if event and event.item.get("type") == "function_call"]
        for event in events:
            yield from _incomplete_call(event.message, event.item)
            yield from _changed_call_members(events[0].item, event)
        if events and events[0] is item.added and events[0].item.get("arguments"):
            yield Violation(events[0].message, {"arguments": events[0].item["arguments"]}, '"arguments":"" at first')


def _incomplete_call(at: StreamMessage | None, item: dict[str, Any]) -> Iterator[Violation]:
    missing = [name for name in ("id", "call_id", "name") if not as_text(item.get(name))]
    missing += [] if isinstance(item.get("arguments"), str) else ["arguments"]
    if missing:
        yield Violation(at, item, f"{', '.join(missing)} as a string")


def _changed_call_members(first: dict[str, Any], event: ResponsesEvent) -> Iterator[Violation]:
    for name in ("call_id", "name"):
        before, now = as_text(first.get(name)), as_text(event.item.get(name))
        if now and now != before:
            yield Violation(event.message, {name: now}, f'"{name}":"{before[:80]}", as before')


def _whole_items(view: TraceView) -> list[dict[str, Any]]:
    """The output of a reply that was not streamed."""
    return (
        [as_object(item) for item in as_list(view.reply_object.get("output"))]
        if view.reply_kind is ReplyKind.WHOLE
        else []
    )


def args_done(view: TraceView) -> Iterator[Violation]:
    """Calls whose arguments no event closes, or one that lacks them."""
    wanted = "response.function_call_arguments.done with the arguments"
    for item in view.responses_stream.items if view.responses_stream.is_complete else ():
        said = item.input_text.text_done if item.input_text is not None else None
        if item.type != "function_call":
            continue
        if said is None:
            yield Violation(item.last_event.message, f"call {item.index} has no end of its arguments", wanted)
        elif not isinstance(said.json.get("arguments"), str):
            yield Violation(said.message, said.json, wanted)


def item_status(view: TraceView) -> Iterator[Violation]:
    """Items whose status is not what has become of them."""
    for told in _whole_items(view):
        if told.get("type") in _ITEMS_WITH_STATUS and told.get("status") not in FINAL_ITEM_STATUSES:
            yield Violation(None, _status_fragment(told), _expected_final_status())
    for item in view.responses_stream.items:
        if item.added and item.type in _ITEMS_WITH_STATUS and item.added.item.get("status") != "in_progress":
            yield Violation(item.added.message, _status_fragment(item.added.item), '"status":"in_progress"')
        if item.done is not None:
            yield from _done_status(item, item.done)


def _done_status(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    status = done.item.get("status")
    was_open = item.added is not None and item.added.item.get("status") == "in_progress"
    is_ended = status in FINAL_ITEM_STATUSES if item.type in _ITEMS_WITH_STATUS else status not in ("in_progress", None)
    if not is_ended and (item.type in _ITEMS_WITH_STATUS or was_open or status is not None):
        yield Violation(done.message, _status_fragment(done.item), _expected_final_status())


def _status_fragment(item: dict[str, Any]) -> object:
    return {"status": item["status"]} if "status" in item else f"{as_text(item.get('type'))[:80]} without status"


def _expected_final_status() -> str:
    return " or ".join(f'"status":"{status}"' for status in FINAL_ITEM_STATUSES)


def final_output(view: TraceView) -> Iterator[Violation]:
    """The output at the end where it is not what was streamed."""
    output = view.responses_stream
    if not output.is_complete or output.end_event is None:
        return
    told = [as_object(item) for item in as_list(output.end_event.response.get("output"))]
    if len(told) != len(output.items):
        yield Violation(
            output.end_event.message, f"{len(told)} items in the output", f"the {len(output.items)} that were streamed"
        )
        return
    for item, final in zip(output.items, told, strict=True):
        yield from _differing_output(item, final, output.end_event)


def _differing_output(item: ResponsesItem, final: dict[str, Any], end: ResponsesEvent) -> Iterator[Violation]:
    said = item.done.item if item.done is not None else {"id": item.id}
    for name in _STABLE_ITEM_MEMBERS:
        text = as_text(said.get(name))
        if text and as_text(final.get(name)) != text:
            yield Violation(end.message, {name: final.get(name)}, f"{name} as it was streamed: {text[:80]}")
    for slot, pieces in item.texts.items():
        for piece in pieces:
            text = text_at(said, slot, piece.index) or piece.text
            if text_at(final, slot, piece.index) != text:
                yield Violation(end.message, final, f"the text that was streamed: {text[:80]}")
