"""The items that a server lists at its end, beside those that it streamed."""

from collections import deque

from welldone.wire.dialects.responses.scribe import OutputItem
from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object

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
