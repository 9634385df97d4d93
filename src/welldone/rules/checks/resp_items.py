"""Checks of the items of a Responses stream: how each is opened, told, closed and told again at the end."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.choices import as_list, as_object, as_text
from welldone.rules.heard import Form, Heard
from welldone.rules.messages import Message
from welldone.rules.responses import ITEM_ADDED, ITEM_DONE, PARTS, TEXTS, Event, Item, Piece, part_text, text_at
from welldone.rules.rule import Place

STATUSES = ("completed", "incomplete")
"""How an item may have ended."""
_WITH_STATUS = ("message", "function_call")
"""Types whose items must have one; others may."""
_SPOKEN = ("message", "reasoning")
"""Types whose items have parts with text."""
_SAME = ("id", "type", "call_id", "name", "arguments", "input")
"""What an item says the same at its end and in the output."""


def output_index(heard: Heard) -> Iterator[Place]:
    """Events whose `output_index` is not that of their item."""
    for event, item in heard.output.about:
        if event.output_index != item.place:
            yield Place(event.message, _member(event, "output_index"), f'"output_index":{item.place}')


def content_index(heard: Heard) -> Iterator[Place]:
    """Events whose index is not that of their part."""
    for event, piece in heard.output.parts:
        if event.part_index != piece.place:
            name = f"{event.slot}_index"
            yield Place(event.message, _member(event, name), f'"{name}":{piece.place}')


def _member(event: Event, name: str) -> object:
    return {name: event.json[name]} if name in event.json else f"{event.type} without {name}"


def item_ids(heard: Heard) -> Iterator[Place]:
    """Items without an id or with that of another one, and events that have another id than their item."""
    used: set[str] = set()
    for event, item in heard.output.about:
        wanted = item.id
        if event is item.first and wanted:
            if wanted in used:
                yield Place(event.message, wanted, "an id of its own for each item")
            used.add(wanted)
        # A call without an id has a rule of its own.
        is_call = event.item.get("type") == "function_call" and not event.item_id
        if (event.item_id != wanted or not wanted) and not is_call:
            name = "item_id" if event.has_item_id else "item.id"
            shown = f"{name} {event.item_id}" if event.item_id else f"{event.type} without {name}"
            if event.has_item_id or event.type in (ITEM_ADDED, ITEM_DONE):
                yield Place(event.message, shown, f'"{wanted[:80] or "…"}", the id of the item')


def item_added(heard: Heard) -> Iterator[Place]:
    """The first event of each item that is about something that was not added."""
    for item in heard.output.items:
        if item.first.type != ITEM_ADDED:
            yield Place(item.first.message, item.first.type, f"{ITEM_ADDED} before it")


def part_added(heard: Heard) -> Iterator[Place]:
    """The first event of each text or refusal that is in no part, or in one of another type."""
    for piece in _pieces(heard):
        if not piece.is_reasoning:
            yield from _unopened(piece)


def _pieces(heard: Heard) -> Iterator[Piece]:
    return (piece for item in heard.output.items for piece in item.all_pieces)


def _unopened(piece: Piece) -> Iterator[Place]:
    odd = piece.other if piece.first is piece.added else piece.first
    if odd is not None:
        name = PARTS[1] if odd.slot == "summary" else PARTS[0]
        yield Place(odd.message, odd.type, f"{name}.added of type {odd.kind[:80]} before it")


def reasoning_parts(heard: Heard) -> Iterator[Place]:
    """The same for thoughts."""
    for piece in _pieces(heard):
        if piece.is_reasoning:
            yield from _unopened(piece)


def deltas(heard: Heard) -> Iterator[Place]:
    """Texts that stand only in the events that close them."""
    for item in heard.output.items:
        for piece in item.all_pieces:
            event = piece.said or piece.done
            if event is not None and not piece.deltas and _full(event):
                yield Place(event.message, {"text": _full(event)}, f"{_delta_of(piece.kind)} events before it")
        if item.done is not None:
            yield from _unstreamed(item, item.done)


def _unstreamed(item: Item, done: Event) -> Iterator[Place]:
    """The texts of an item that no event spoke of. Items of other types may have a content of their own."""
    for slot, pieces in item.pieces.items() if item.type in _SPOKEN else ():
        for part in as_list(done.item.get(slot))[len(pieces) :]:
            if part_text(part):
                yield Place(done.message, part, "the events that open this part and say its text before it")


def _full(event: Event) -> str:
    """The full value that an event says of a piece."""
    return part_text(event.json.get("part")) if event.name in PARTS else as_text(event.value)


def _delta_of(kind: str) -> str:
    name = "reasoning_summary_text" if kind == "summary_text" else kind
    return f"response.{name[:80]}.delta"


def done_events(heard: Heard) -> Iterator[Place]:
    """What was opened and not closed, or closed without its value, or spoken of after it was closed."""
    output = heard.output
    yield from (Place(event.message, event.type, "nothing about what was closed") for event in output.late)
    if not output.is_whole:
        return
    for item in output.items:
        for piece in item.all_pieces:
            yield from _unclosed(piece)
        if item.done is None:
            yield Place(item.last.message, f"item {item.place} is never done", f"{ITEM_DONE} with the whole item")
        else:
            yield from _empty_item(item, item.done)


def _unclosed(piece: Piece) -> Iterator[Place]:
    said = piece.said or piece.done or piece.first
    if piece.said is None and piece.kind in TEXTS.values():
        yield Place(said.message, f"{piece.kind[:80]} without its whole value", _delta_of(piece.kind)[:-5] + "done")
    if piece.done is None:
        name = PARTS[1] if said.slot == "summary" else PARTS[0]
        yield Place(said.message, f"a part of type {piece.kind[:80]} that is not closed", f"{name}.done")
    for event in (piece.said, piece.done):
        if event is not None and piece.text and not _full(event):
            yield Place(event.message, f"{event.type} without the text", "the whole text that was streamed")


def _empty_item(item: Item, done: Event) -> Iterator[Place]:
    for slot, pieces in item.pieces.items():
        for piece in pieces:
            if piece.text and not text_at(done.item, slot, piece.place):
                yield Place(done.message, f"{done.type} without the text", f"the whole item, with its {slot}")
    if item.input is not None and item.input.text and not _input_of(done.item):
        yield Place(done.message, f"{done.type} without the arguments", "the whole item, with its arguments")


def _input_of(item: dict[str, Any]) -> str:
    """The whole input of a tool, by whatever name."""
    return next((text for name in ("arguments", "input", "code") if (text := as_text(item.get(name)))), "")


def deltas_equal_done(heard: Heard) -> Iterator[Place]:
    """The events that close a piece with another value than its deltas had."""
    for item in heard.output.items:
        for slot, pieces in item.pieces.items():
            for piece in pieces:
                whole = [(event, _full(event)) for event in (piece.said, piece.done) if event is not None]
                if item.done is not None:
                    whole.append((item.done, text_at(item.done.item, slot, piece.place)))
                yield from _unlike(piece, whole)
        if item.input is not None:
            said = item.input.said
            whole = [] if said is None else [(said, as_text(said.value))]
            whole += [] if item.done is None else [(item.done, _input_of(item.done.item))]
            yield from _unlike(item.input, whole)


def _unlike(piece: Piece, whole: list[tuple[Event, str]]) -> Iterator[Place]:
    for event, text in whole:
        if piece.deltas and text and text != piece.text:
            yield Place(event.message, text, f"the deltas joined: {piece.text[:100]}")


def function_ids(heard: Heard) -> Iterator[Place]:
    """Calls that lack what a call needs, or that change it."""
    for told in _whole_items(heard):
        if told.get("type") == "function_call":
            yield from _not_a_call(None, told)
    for item in heard.output.items:
        events = [event for event in (item.added, item.done) if event and event.item.get("type") == "function_call"]
        for event in events:
            yield from _not_a_call(event.message, event.item)
            yield from _changed(events[0].item, event)
        if events and events[0] is item.added and events[0].item.get("arguments"):
            yield Place(events[0].message, {"arguments": events[0].item["arguments"]}, '"arguments":"" at first')


def _not_a_call(at: Message | None, item: dict[str, Any]) -> Iterator[Place]:
    missing = [name for name in ("id", "call_id", "name") if not as_text(item.get(name))]
    missing += [] if isinstance(item.get("arguments"), str) else ["arguments"]
    if missing:
        yield Place(at, item, f"{', '.join(missing)} as a string")


def _changed(first: dict[str, Any], event: Event) -> Iterator[Place]:
    for name in ("call_id", "name"):
        before, now = as_text(first.get(name)), as_text(event.item.get(name))
        if now and now != before:
            yield Place(event.message, {name: now}, f'"{name}":"{before[:80]}", as before')


def _whole_items(heard: Heard) -> list[dict[str, Any]]:
    """The output of a reply that was not streamed."""
    return [as_object(item) for item in as_list(heard.reply.get("output"))] if heard.form is Form.WHOLE else []


def args_done(heard: Heard) -> Iterator[Place]:
    """Calls whose arguments no event closes, or one that lacks them."""
    wanted = "response.function_call_arguments.done with the arguments"
    for item in heard.output.items if heard.output.is_whole else ():
        said = item.input.said if item.input is not None else None
        if item.type != "function_call":
            continue
        if said is None:
            yield Place(item.last.message, f"call {item.place} has no end of its arguments", wanted)
        elif not isinstance(said.json.get("arguments"), str):
            yield Place(said.message, said.json, wanted)


def item_status(heard: Heard) -> Iterator[Place]:
    """Items whose status is not what has become of them."""
    for told in _whole_items(heard):
        if told.get("type") in _WITH_STATUS and told.get("status") not in STATUSES:
            yield Place(None, _status(told), _ended())
    for item in heard.output.items:
        if item.added and item.type in _WITH_STATUS and item.added.item.get("status") != "in_progress":
            yield Place(item.added.message, _status(item.added.item), '"status":"in_progress"')
        if item.done is not None:
            yield from _done_status(item, item.done)


def _done_status(item: Item, done: Event) -> Iterator[Place]:
    status = done.item.get("status")
    was_open = item.added is not None and item.added.item.get("status") == "in_progress"
    is_ended = status in STATUSES if item.type in _WITH_STATUS else status not in ("in_progress", None)
    if not is_ended and (item.type in _WITH_STATUS or was_open or status is not None):
        yield Place(done.message, _status(done.item), _ended())


def _status(item: dict[str, Any]) -> object:
    return {"status": item["status"]} if "status" in item else f"{as_text(item.get('type'))[:80]} without status"


def _ended() -> str:
    return " or ".join(f'"status":"{status}"' for status in STATUSES)


def final_output(heard: Heard) -> Iterator[Place]:
    """The output at the end where it is not what was streamed."""
    output = heard.output
    if not output.is_whole or output.end is None:
        return
    told = [as_object(item) for item in as_list(output.end.response.get("output"))]
    if len(told) != len(output.items):
        yield Place(
            output.end.message, f"{len(told)} items in the output", f"the {len(output.items)} that were streamed"
        )
        return
    for item, final in zip(output.items, told, strict=True):
        yield from _unrepeated(item, final, output.end)


def _unrepeated(item: Item, final: dict[str, Any], end: Event) -> Iterator[Place]:
    said = item.done.item if item.done is not None else {"id": item.id}
    for name in _SAME:
        text = as_text(said.get(name))
        if text and as_text(final.get(name)) != text:
            yield Place(end.message, {name: final.get(name)}, f"{name} as it was streamed: {text[:80]}")
    for slot, pieces in item.pieces.items():
        for piece in pieces:
            text = text_at(said, slot, piece.place) or piece.text
            if text_at(final, slot, piece.place) != text:
                yield Place(end.message, final, f"the text that was streamed: {text[:80]}")
