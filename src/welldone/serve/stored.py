"""Responses that a client may come back to: kept in memory, within limits; what was not used for longest goes first.

Whoever asks finds only what the same key has stored. A response holds what is its own: its input, its output, and the
name of the one that it went on from.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from welldone.wire.events import Json

_ENTRY_BYTES = 512
"""What a response takes besides its texts; measured: 430."""
_ITEM_BYTES = 256
"""What an item takes so that it can be found by its id; measured: 213."""

_Key: TypeAlias = tuple[str, str]


class Stored(msgspec.Struct, frozen=True):
    """One response. Its texts are kept as JSON: as objects they would take five times the memory."""

    response: bytes
    input: bytes
    items: tuple[str, ...]
    """The ids of all items."""
    said_bytes: int
    """The length of all items: of what goes before the next input."""
    previous: str | None = None
    """The response that it went on from."""
    is_native: bool = False
    """Whether an upstream that speaks this dialect made it, and knows it too."""

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        ids = sum(map(len, self.items)) + len(self.items) * _ITEM_BYTES
        return len(self.response) + len(self.input) + ids + _ENTRY_BYTES

    def as_object(self) -> Json:
        """The response."""
        found: Json = msgspec.json.decode(self.response)
        return found

    def input_items(self) -> list[Json]:
        """The items that were said to the model."""
        found: list[Json] = msgspec.json.decode(self.input)
        return found

    def all_items(self) -> list[Json]:
        """The items that were said to the model, and its own."""
        return self.input_items() + _output(self.as_object())


class Store:
    """All of them. `limit` is how many are kept: 0 turns it off."""

    def __init__(self, *, limit: int, limit_bytes: int) -> None:
        self.is_on = limit > 0
        self.size_bytes = 0
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[_Key, Stored] = OrderedDict()
        self._owners: dict[_Key, str] = {}  # which response has an item

    def __len__(self) -> int:
        return len(self._kept)

    def put(
        self, principal: str, response: Json, items: list[Json], *, previous: str | None = None, is_native: bool = False
    ) -> None:
        """Keep a response, with the items of its input; in place of what was kept under its id."""
        output, encode = _output(response), msgspec.json.encode
        ids = [item.get("id") for item in (*items, *output)]
        names = tuple(dict.fromkeys(name for name in ids if isinstance(name, str)))
        given = encode(items)
        stored = Stored(encode(response), given, names, len(given) + len(encode(output)), previous, is_native)
        key = (principal, response["id"])
        self._drop(key)
        if not self.is_on or stored.size_bytes > self._limit_bytes:
            return
        self._kept[key] = stored
        self._owners |= {(principal, name): key[1] for name in names}
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

    def item(self, principal: str, name: str) -> Json | None:
        """An item of any response that this client has stored."""
        owner = self._owners.get((principal, name))
        stored = None if owner is None else self.get(principal, owner)
        items = [] if stored is None else stored.all_items()
        return next((item for item in items if item.get("id") == name), None)

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
            if self._owners.get((principal, name)) == owner:
                del self._owners[principal, name]
        return True


def _output(response: Json) -> list[Json]:
    items = response.get("output")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
