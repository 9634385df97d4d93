"""The items that a server lists at its end, beside those that it streamed."""

from collections import deque

from welldone.wire.dialects.responses.scribe import Item
from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object

PLACES = ("content", "summary")
"""Where an item has its parts."""
SAME = ("id", "type", "call_id", "name", "arguments", "input")
"""What an item says the same when it is closed and at the end."""


def match(items: list[Item], listed: list[Json]) -> list[Item | None]:
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


def said(value: Json) -> list[object]:
    """What an item says, with all its texts."""
    parts = [as_object(part) for place in PLACES for part in as_list(value.get(place))]
    return [*map(value.get, SAME), *(part.get("text", part.get("refusal")) for part in parts)]


def _names(value: Json) -> list[tuple[str, str]]:
    """What an item is known by."""
    names = (value.get("id"), value.get("call_id"))
    return [(str(value.get("type")), name) for name in names if isinstance(name, str)]
