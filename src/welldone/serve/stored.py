"""Responses that a client may come back to: kept in memory, within limits; what was not used for longest goes first.

Whoever asks finds only what the same key has stored. A response holds what is its own: its input, its output, and the
name of the one that it went on from.
"""

from array import array
from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import TypeAlias

import msgspec

from welldone.wire.budget import SMALL_BYTES, decoding_all
from welldone.wire.events import Json

_ENTRY_BYTES = 768
"""What a response takes besides its texts; measured: 690."""
_ITEM_BYTES = 288
"""What an item takes so that it can be found by its id; measured: 270."""

_Key: TypeAlias = tuple[str, str]


class Stored(msgspec.Struct, frozen=True):
    """One response. Its texts are kept as JSON: as objects they would take five times the memory.

    Where each item begins and ends is known: so one of them can be had without decoding the others.
    """

    response: bytes
    input: bytes
    items: tuple[str, ...]
    """The ids of all items, those of the input first; empty where an item has none."""
    inputs: int
    """How many of them are the input's."""
    bounds: "array[int]"
    """Where each item begins and ends, in `input` or in `response`."""
    previous: str | None = None
    """The response that it went on from."""
    is_native: bool = False
    """Whether an upstream that speaks this dialect made it, and knows it too."""
    is_background: bool = False
    """Whether nobody waited for it, so that it can be cancelled."""

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        ids = sum(map(len, self.items)) + len(self.items) * _ITEM_BYTES
        return len(self.response) + len(self.input) + ids + _ENTRY_BYTES

    @property
    def said_bytes(self) -> int:
        """The length of all items: of what goes before the next input."""
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def item(self, place: int) -> bytes:
        """One of the items, as JSON."""
        text = self.input if place < self.inputs else self.response
        return text[self.bounds[2 * place] : self.bounds[2 * place + 1]]

    def as_object(self) -> Json:
        """The response."""
        found: Json = msgspec.json.decode(self.response)
        return found

    def all_items(self) -> Generator[None, None, list[Json]]:
        """The items that were said to the model, and its own; decoded in steps of which each takes a turn."""
        items: list[Json] = []
        spent = 0
        for place in range(len(self.items)):
            data = self.item(place)
            found = yield from decoding_all(data)
            items.append(found)  # type: ignore[arg-type]  # it was encoded from an object
            spent += len(data)
            if spent > SMALL_BYTES:
                spent = 0
                yield
        return items


class Store:
    """All of them. `limit` is how many are kept: 0 turns it off."""

    def __init__(self, *, limit: int, limit_bytes: int) -> None:
        self.is_on = limit > 0
        self.size_bytes = 0
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[_Key, Stored] = OrderedDict()
        self._owners: dict[_Key, tuple[str, int]] = {}  # which response has an item, and which of its items it is

    def __len__(self) -> int:
        return len(self._kept)

    def put(
        self,
        principal: str,
        response: Json,
        items: list[Json],
        *,
        previous: str | None = None,
        is_native: bool = False,
        is_background: bool = False,
    ) -> None:
        """Keep a response, with the items of its input; in place of what was kept under its id."""
        given, bounds = _joined(items, 0)
        encoded, said = _encoded(response)
        names = [item.get("id") for item in items] + [item.get("id") for item in _output(response)]
        ids = tuple(name if isinstance(name, str) else "" for name in names)
        stored = Stored(encoded, given, ids, len(items), bounds + said, previous, is_native, is_background)
        key = (principal, response["id"])
        self._drop(key)
        if not self.is_on or stored.size_bytes > self._limit_bytes:
            return
        self._kept[key] = stored
        self._owners |= {(principal, name): (key[1], place) for place, name in enumerate(ids) if name}
        self.size_bytes += stored.size_bytes
        while len(self._kept) > self._limit or self.size_bytes > self._limit_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, principal: str, name: str) -> Stored | None:
        """A response that this client has stored, if it is still there."""
        key = (principal, name)
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def delete(self, principal: str, name: str) -> bool:
        """Forget a response; whether there was one."""
        return self._drop((principal, name))

    def chain(self, principal: str, name: str) -> list[Stored] | None:
        """A response and all that it went on from, the first of them first; None where one of them is gone."""
        found = list(self._back(principal, name))
        for key, _ in reversed(found):
            self._kept.move_to_end(key)  # what is needed together goes together
        if not found or found[-1][1].previous is not None:
            return None
        return [stored for _, stored in reversed(found)]

    def since(self, principal: str, name: str) -> list[Stored]:
        """The same, as far as it is still there."""
        return [stored for _, stored in self._back(principal, name)][::-1]

    def item(self, principal: str, name: str) -> bytes | None:
        """An item of any response that this client has stored, as JSON."""
        owner, place = self._owners.get((principal, name), ("", 0))
        stored = self.get(principal, owner)
        return None if stored is None else stored.item(place)

    def _back(self, principal: str, name: str | None) -> Iterator[tuple[_Key, Stored]]:
        seen = set()  # an upstream chooses its ids, and could choose one twice
        while name is not None and name not in seen:
            seen.add(name)
            key = (principal, name)
            stored = self._kept.get(key)
            if stored is None:
                return
            yield key, stored
            name = stored.previous

    def _drop(self, key: _Key) -> bool:
        stored = self._kept.pop(key, None)
        if stored is None:
            return False
        self.size_bytes -= stored.size_bytes
        principal, owner = key
        for name in stored.items:
            if self._owners.get((principal, name), ("", 0))[0] == owner:
                del self._owners[principal, name]
        return True


def _output(response: Json) -> list[Json]:
    items = response.get("output")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _joined(items: list[object] | list[Json], start: int) -> tuple[bytes, "array[int]"]:
    """A JSON array, and where each of its objects begins and ends in it; it stands at `start` of a longer text."""
    pieces = [msgspec.json.encode(item) for item in items]
    bounds = array("Q")
    place = start + 1
    for item, piece in zip(items, pieces, strict=True):
        if isinstance(item, dict):
            bounds.extend((place, place + len(piece)))
        place += len(piece) + 1
    return b"[" + b",".join(pieces) + b"]", bounds


def _encoded(response: Json) -> tuple[bytes, "array[int]"]:
    """A response as JSON, and where each item of its output begins and ends."""
    output = response.get("output")
    if not isinstance(output, list):
        return msgspec.json.encode(response), array("Q")
    names = list(response)
    place = names.index("output")
    before, after = ({name: response[name] for name in some} for some in (names[:place], names[place + 1 :]))
    head = msgspec.json.encode(before)[:-1] + (b"," if before else b"") + b'"output":'
    items, bounds = _joined(output, len(head))
    tail = b"," + msgspec.json.encode(after)[1:] if after else b"}"
    return head + items + tail, bounds
