"""In-memory store of responses with an LRU limit on their number and size.

A principal sees only its own responses. A response has its own input and output, and the id of the previous one.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterator
from typing import TypeAlias

import msgspec

from welldone.protocol.events import Json
from welldone.protocol.json_budget import SMALL_TEXT_BYTES, decode_unlimited_in_steps

_ENTRY_BYTES = 768
"""Memory of a response besides its JSON; measured: 690."""
_ITEM_BYTES = 368
"""Memory of an item besides its JSON and id; measured: 346."""

_OUTPUT = msgspec.Raw(b"\0")
"""Marks the place of the output items: JSON has no such byte."""

_ResponseKey: TypeAlias = tuple[str, str]


class StoredResponse(msgspec.Struct, frozen=True):
    """One response, as JSON: decoded objects would take five times the memory.

    Items are stored separately, so that one can be read without decoding the others.
    """

    head: bytes
    """The response up to its output items."""
    tail: bytes
    items: tuple[bytes, ...]
    """Input items, then output items."""
    item_ids: tuple[str, ...]
    """Ids of the items; empty for an item without one."""
    input_count: int
    """Number of input items."""
    previous: str | None = None
    """Id of the previous response."""
    is_native: bool = False
    """An upstream with the same dialect generated it, and may have stored it under the same id."""
    is_background: bool = False
    is_streamed: bool = False
    """It was created with `stream`."""
    is_imported: bool = False
    """It is the copy of another process's response, as it was in the shared store."""

    @property
    def response(self) -> bytes:
        """The whole response."""
        return self.head + b",".join(self.items[self.input_count :]) + self.tail

    @property
    def size_bytes(self) -> int:
        """Approximate memory."""
        ids = sum(map(len, self.item_ids)) + len(self.item_ids) * _ITEM_BYTES
        return len(self.head) + len(self.tail) + self.items_bytes + ids + _ENTRY_BYTES

    @property
    def items_bytes(self) -> int:
        """Length of all items."""
        return sum(map(len, self.items))

    def decode_items(self) -> Generator[None, None, list[Json]]:
        """Decode the input and output items. Yields between slow steps."""
        items: list[Json] = []
        decoded_bytes = 0
        for data in self.items:
            item = yield from decode_unlimited_in_steps(data)
            if isinstance(item, dict):  # an upstream may send other output
                items.append(item)
            decoded_bytes += len(data)
            if decoded_bytes > SMALL_TEXT_BYTES:
                decoded_bytes = 0
                yield
        return items


class ResponseStore:
    """The stored responses. `limit`: their number; 0 disables the store."""

    def __init__(self, *, limit: int, limit_bytes: int) -> None:
        self.is_enabled: bool = limit > 0
        self.size_bytes: int = 0
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._responses: OrderedDict[_ResponseKey, StoredResponse] = OrderedDict()
        self._item_index: dict[_ResponseKey, tuple[str, int]] = {}  # principal, item id -> response id, index

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
        is_streamed: bool = False,
    ) -> StoredResponse:
        """Store a response with its input items, replacing an earlier one with the same id. Returns its stored form."""
        head, tail, output = msgspec.json.encode(response), b"", response.get("output")
        values: list[object] = list(items)
        if isinstance(output, list):
            values += output
            head, _, tail = msgspec.json.encode(response | {"output": [_OUTPUT]}).partition(bytes(_OUTPUT))
        found = [value.get("id") if isinstance(value, dict) else None for value in values]
        ids = tuple(item_id if isinstance(item_id, str) else "" for item_id in found)
        encoded = tuple(map(msgspec.json.encode, values))
        stored = StoredResponse(head, tail, encoded, ids, len(items), previous, is_native, is_background, is_streamed)
        self.add(principal, response["id"], stored)
        return stored

    def add(self, principal: str, response_id: str, stored: StoredResponse) -> None:
        """Store a response, replacing an earlier one with the same id."""
        key, ids = (principal, response_id), stored.item_ids
        self.delete(*key)
        if not self.is_enabled or stored.size_bytes > self._limit_bytes:
            return
        self._responses[key] = stored
        self._item_index |= {(principal, item_id): (key[1], index) for index, item_id in enumerate(ids) if item_id}
        self.size_bytes += stored.size_bytes
        while len(self._responses) > self._limit or self.size_bytes > self._limit_bytes:
            self.delete(*next(iter(self._responses)))

    def get(self, principal: str, response_id: str) -> StoredResponse | None:
        """Return a stored response of this principal."""
        key = (principal, response_id)
        if key in self._responses:
            self._responses.move_to_end(key)
        return self._responses.get(key)

    def delete(self, principal: str, response_id: str) -> bool:
        """Delete a response. Returns whether it existed."""
        stored = self._responses.pop((principal, response_id), None)
        if stored is None:
            return False
        self.size_bytes -= stored.size_bytes
        for item_id in stored.item_ids:
            if self._item_index.get((principal, item_id), ("", 0))[0] == response_id:
                del self._item_index[principal, item_id]
        return True

    def delete_all(self, principal: str) -> None:
        """Delete all responses of a principal."""
        for owner, response_id in tuple(self._responses):
            if owner == principal:
                self.delete(owner, response_id)

    def chain(self, principal: str, response_id: str) -> list[StoredResponse] | None:
        """Return a response and all previous ones, oldest first; None if one of them is gone."""
        newest_first = list(self._walk_back(principal, response_id))
        for key, _ in reversed(newest_first):
            self._responses.move_to_end(key)  # a chain is evicted as a whole
        if not newest_first or newest_first[-1][1].previous is not None:
            return None
        return [stored for _, stored in reversed(newest_first)]

    def available_chain(self, principal: str, response_id: str) -> list[StoredResponse]:
        """Return a response and the previous ones that are still stored, oldest first."""
        return [stored for _, stored in self._walk_back(principal, response_id)][::-1]

    def item(self, principal: str, item_id: str) -> bytes | None:
        """Return an item of any stored response of this principal, as JSON."""
        response_id, index = self._item_index.get((principal, item_id), ("", 0))
        stored = self.get(principal, response_id)
        return None if stored is None else stored.items[index]

    def _walk_back(self, principal: str, response_id: str | None) -> Iterator[tuple[_ResponseKey, StoredResponse]]:
        seen = set()  # upstreams choose ids: a cycle is possible
        while response_id is not None and response_id not in seen:
            seen.add(response_id)
            key = (principal, response_id)
            stored = self._responses.get(key)
            if stored is None:
                return
            yield key, stored
            response_id = stored.previous
