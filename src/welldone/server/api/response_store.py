"""Responses that a client may come back to: kept in memory, within limits; what was not used for longest goes first.

Whoever asks finds only what the same key has stored. A response holds what is its own: its input, its output, and the
name of the one that it went on from.
"""

from array import array
from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import TypeAlias

import msgspec

from welldone.protocol.events import Json
from welldone.protocol.json_budget import SMALL_TEXT_BYTES, decode_unlimited_in_steps

_ENTRY_BYTES = 768
"""What a response takes besides its texts; measured: 690."""
_ITEM_BYTES = 288
"""What an item takes so that it can be found by its id; measured: 270."""

_ResponseKey: TypeAlias = tuple[str, str]


class StoredResponse(msgspec.Struct, frozen=True):
    """One response. Its texts are kept as JSON: as objects they would take five times the memory.

    Where each item begins and ends is known: so one of them can be had without decoding the others.
    """

    response: bytes
    input: bytes
    item_ids: tuple[str, ...]
    """The ids of all items, those of the input first; empty where an item has none."""
    input_count: int
    """How many of them are the input's."""
    item_bounds: "array[int]"
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
        ids = sum(map(len, self.item_ids)) + len(self.item_ids) * _ITEM_BYTES
        return len(self.response) + len(self.input) + ids + _ENTRY_BYTES

    @property
    def items_bytes(self) -> int:
        """The length of all items: of what goes before the next input."""
        return sum(self.item_bounds[1::2]) - sum(self.item_bounds[::2])

    def item(self, index: int) -> bytes:
        """One of the items, as JSON."""
        text = self.input if index < self.input_count else self.response
        return text[self.item_bounds[2 * index] : self.item_bounds[2 * index + 1]]

    def as_object(self) -> Json:
        """The response."""
        found: Json = msgspec.json.decode(self.response)
        return found

    def decode_items(self) -> Generator[None, None, list[Json]]:
        """The items that were said to the model, and its own; decoded in steps of which each takes a turn."""
        items: list[Json] = []
        spent = 0
        for place in range(len(self.item_ids)):
            data = self.item(place)
            found = yield from decode_unlimited_in_steps(data)
            items.append(found)  # type: ignore[arg-type]  # it was encoded from an object
            spent += len(data)
            if spent > SMALL_TEXT_BYTES:
                spent = 0
                yield
        return items


class ResponseStore:
    """All of them. `limit` is how many are kept: 0 turns it off."""

    def __init__(self, *, limit: int, limit_bytes: int) -> None:
        self.is_enabled = limit > 0
        self.size_bytes = 0
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._responses: OrderedDict[_ResponseKey, StoredResponse] = OrderedDict()
        self._item_index: dict[
            _ResponseKey, tuple[str, int]
        ] = {}  # which response has an item, and which of its items it is

    def __len__(self) -> int:
        return len(self._responses)

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
        given, bounds = _join_items(items, 0)
        encoded, said = _encode_response(response)
        names = [item.get("id") for item in items] + [item.get("id") for item in _output_items(response)]
        ids = tuple(name if isinstance(name, str) else "" for name in names)
        stored = StoredResponse(encoded, given, ids, len(items), bounds + said, previous, is_native, is_background)
        key = (principal, response["id"])
        self._drop(key)
        if not self.is_enabled or stored.size_bytes > self._limit_bytes:
            return
        self._responses[key] = stored
        self._item_index |= {(principal, name): (key[1], place) for place, name in enumerate(ids) if name}
        self.size_bytes += stored.size_bytes
        while len(self._responses) > self._limit or self.size_bytes > self._limit_bytes:
            self._drop(next(iter(self._responses)))

    def get(self, principal: str, response_id: str) -> StoredResponse | None:
        """A response that this client has stored, if it is still there."""
        key = (principal, response_id)
        if key in self._responses:
            self._responses.move_to_end(key)
        return self._responses.get(key)

    def delete(self, principal: str, response_id: str) -> bool:
        """Forget a response; whether there was one."""
        return self._drop((principal, response_id))

    def chain(self, principal: str, response_id: str) -> list[StoredResponse] | None:
        """A response and all that it went on from, the first of them first; None where one of them is gone."""
        found = list(self._walk_back(principal, response_id))
        for key, _ in reversed(found):
            self._responses.move_to_end(key)  # what is needed together goes together
        if not found or found[-1][1].previous is not None:
            return None
        return [stored for _, stored in reversed(found)]

    def available_chain(self, principal: str, response_id: str) -> list[StoredResponse]:
        """The same, as far as it is still there."""
        return [stored for _, stored in self._walk_back(principal, response_id)][::-1]

    def item(self, principal: str, item_id: str) -> bytes | None:
        """An item of any response that this client has stored, as JSON."""
        owner, place = self._item_index.get((principal, item_id), ("", 0))
        stored = self.get(principal, owner)
        return None if stored is None else stored.item(place)

    def _walk_back(self, principal: str, response_id: str | None) -> Iterator[tuple[_ResponseKey, StoredResponse]]:
        seen = set()  # an upstream chooses its ids, and could choose one twice
        while response_id is not None and response_id not in seen:
            seen.add(response_id)
            key = (principal, response_id)
            stored = self._responses.get(key)
            if stored is None:
                return
            yield key, stored
            response_id = stored.previous

    def _drop(self, key: _ResponseKey) -> bool:
        stored = self._responses.pop(key, None)
        if stored is None:
            return False
        self.size_bytes -= stored.size_bytes
        principal, owner = key
        for name in stored.item_ids:
            if self._item_index.get((principal, name), ("", 0))[0] == owner:
                del self._item_index[principal, name]
        return True


def _output_items(response: Json) -> list[Json]:
    items = response.get("output")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _join_items(items: list[object] | list[Json], start: int) -> tuple[bytes, "array[int]"]:
    """A JSON array, and where each of its objects begins and ends in it; it stands at `start` of a longer text."""
    pieces = [msgspec.json.encode(item) for item in items]
    bounds = array("Q")
    place = start + 1
    for item, piece in zip(items, pieces, strict=True):
        if isinstance(item, dict):
            bounds.extend((place, place + len(piece)))
        place += len(piece) + 1
    return b"[" + b",".join(pieces) + b"]", bounds


def _encode_response(response: Json) -> tuple[bytes, "array[int]"]:
    """A response as JSON, and where each item of its output begins and ends."""
    output = response.get("output")
    if not isinstance(output, list):
        return msgspec.json.encode(response), array("Q")
    names = list(response)
    place = names.index("output")
    before, after = ({name: response[name] for name in some} for some in (names[:place], names[place + 1 :]))
    head = msgspec.json.encode(before)[:-1] + (b"," if before else b"") + b'"output":'
    items, bounds = _join_items(output, len(head))
    tail = b"," + msgspec.json.encode(after)[1:] if after else b"}"
    return head + items + tail, bounds
