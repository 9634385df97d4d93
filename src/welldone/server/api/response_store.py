"""Stored responses: in memory, with an LRU limit on their number and size, and copies in the shared store.

A principal sees only its own responses. A response has its own input and output, and the id of the previous one.

With a shared store any front end continues, returns and deletes them. A process writes its responses in the background,
and reads those of others when a request names them. While the store is unavailable, each process has its own responses,
and writes them later. The store has limits for each key, and entries expire.

An upstream that stores responses itself has one client, the gateway, and would let any key continue any response. So an
id in a request is forwarded only if the same key received it (`UpstreamIdOwners`). With one API key, or none, all
clients are equal, and unknown ids are forwarded: they may be from before a restart, or from another gateway.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from typing import TypeAlias

import msgspec

from welldone.config.server import ServeSettings
from welldone.core.events import Json
from welldone.core.json_budget import SMALL_TEXT_BYTES, decode_unlimited_in_steps
from welldone.server.access.store import STORE_RETRY_S, RefusedError, ResponseLimits, SharedStore, StoreUnavailableError
from welldone.server.observe.workers import WorkerQuery, WorkerSync

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
        raw_ids = [value.get("id") if isinstance(value, dict) else None for value in values]
        ids = tuple(item_id if isinstance(item_id, str) else "" for item_id in raw_ids)
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


MAX_UNWRITTEN = 1_024
"""Responses that wait for the store; the oldest are not shared."""
CLOSE_S = 2.0
"""Time at shutdown to write the last responses."""

_ARRIVAL_S, _POLL_S = 0.3, 0.05
"""How long a reader waits for a response that is not there yet: a client may name it milliseconds after its end."""
_CHAIN_LIMIT = 1_000
"""Responses of one conversation that are read from the store."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StoredResponse)
_Key = tuple[str, str]  # principal, response id


class SharedResponses:
    """Connects the responses of this process, `local`, with those in the store."""

    def __init__(self, store: SharedStore, local: ResponseStore, settings: ServeSettings) -> None:
        self._store = store
        self._local = local
        self._limits = ResponseLimits(settings.stored_s, settings.stored_responses, settings.stored_bytes)
        self._unwritten: dict[_Key, None] = {}
        self._writer: asyncio.Task[None] | None = None

    def put(self, principal: str, response_id: str) -> None:
        """Write a local response in the background; of several versions the last one."""
        self._unwritten[principal, response_id] = None
        if len(self._unwritten) > MAX_UNWRITTEN:
            del self._unwritten[next(iter(self._unwritten))]
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="stored responses")

    async def fetch(self, principal: str, response_id: str) -> None:
        """Read a response from the store, or learn that it was deleted.

        Raises:
            StoreUnavailableError: it is not here, and the store did not say whether it has it.
        """
        key = (principal, response_id)
        deadline = asyncio.get_running_loop().time() + _ARRIVAL_S
        name = self._store.copy_name(*key)
        try:
            while (value := await self._store.find(lambda client: client.get_response(name))) is None:
                if self._local.get(*key) is not None or asyncio.get_running_loop().time() >= deadline:
                    return
                await asyncio.sleep(_POLL_S)
        except StoreUnavailableError:
            if self._local.get(*key) is None:
                raise
            return
        own = self._local.get(*key)
        if not value:
            self._local.delete(*key)
            self._unwritten.pop(key, None)
        elif own is None or own.is_imported:
            with suppress(msgspec.DecodeError):  # another version of the program may have written it
                self._local.add(*key, msgspec.structs.replace(_DECODER.decode(value), is_imported=True))

    async def fetch_chain(self, principal: str, response_id: str, limit_bytes: int) -> None:
        """Read a response and those before it, up to a number of bytes, as far as they are not here."""
        await self.fetch(principal, response_id)
        seen: set[str] = set()
        size, next_id = 0, response_id
        while next_id not in seen and len(seen) < _CHAIN_LIMIT and size <= limit_bytes:
            seen.add(next_id)
            if next_id != response_id and self._local.get(principal, next_id) is None:
                await self.fetch(principal, next_id)
            stored = self._local.get(principal, next_id)
            if stored is None or stored.previous is None:
                return
            size += stored.items_bytes
            next_id = stored.previous

    async def delete(self, principal: str, response_id: str) -> None:
        """Delete a response in the store, for all front ends.

        Raises:
            StoreUnavailableError: others may still have it.
        """
        name = self._store.copy_name(principal, response_id)
        with suppress(RefusedError):  # nothing is shared
            await self._store.call(lambda client: client.drop_response(name, self._limits.ttl_s))
        self._unwritten.pop((principal, response_id), None)

    async def close(self) -> None:
        """Write the last responses."""
        if self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer], timeout=CLOSE_S)
            self._writer.cancel()

    async def _write_all(self) -> None:
        while self._unwritten:
            key = next(iter(self._unwritten))
            del self._unwritten[key]
            try:
                await self._write(*key)
            except RefusedError:
                self._unwritten.clear()  # other front ends do without them
            except StoreUnavailableError:
                self._unwritten.setdefault(key)
                await asyncio.sleep(STORE_RETRY_S)

    async def _write(self, principal: str, response_id: str) -> None:
        if (stored := self._local.get(principal, response_id)) is not None:
            owner, name = self._store.copy_name(principal), self._store.copy_name(principal, response_id)
            value = _ENCODER.encode(stored)
            await self._store.call(lambda client: client.put_response(owner, name, value, self._limits))


MAX_IDS = 65_536
"""Stored ids, about 15 MB. The oldest are dropped, and rejected from then on."""
_ID_LIMIT = 256
"""Characters of an id; OpenAI's have up to 70. Longer ones are not stored."""
_ITEMS_LIMIT = 1_024
"""Stored items of one response."""
_AMBIGUOUS = ""
"""Owner of an id that two keys received: neither may use it, since the upstream cannot tell them apart."""
_OWNER_TOPIC = "owner"


class UpstreamIdOwners:
    """The owners of ids. `is_strict`: there are several keys, and unknown ids are rejected.

    With several workers each stores the ids that it sent, and queries the others for unknown ones.
    """

    def __init__(self, worker_sync: WorkerSync, *, is_strict: bool, limit: int = MAX_IDS) -> None:
        self.is_strict = is_strict
        self._worker_sync = worker_sync
        self._limit = limit
        self._owners: OrderedDict[str, str] = OrderedDict()
        worker_sync.register(_OWNER_TOPIC, self._answer_query)

    def __len__(self) -> int:
        return len(self._owners)

    def claim(self, principal: str, response: Json) -> None:
        """Store the ids of a response that a key receives."""
        if not self.is_strict:
            return
        for state_id in _state_ids(response):
            if self._owners.setdefault(state_id, principal) != principal:
                self._owners[state_id] = _AMBIGUOUS
            self._owners.move_to_end(state_id)
        while len(self._owners) > self._limit:
            self._owners.popitem(last=False)

    async def not_owned(self, principal: str, ids: Iterable[str]) -> set[str]:
        """Return the ids that the key did not receive, or that are no longer stored."""
        if not self.is_strict:
            return set()
        unowned = {state_id for state_id in ids if self._owners.get(state_id) != principal}
        unknown = [state_id for state_id in unowned if state_id not in self._owners]
        if unknown:
            for reply in await self._worker_sync.gather(_OWNER_TOPIC, {"principal": principal, "ids": unknown}):
                unowned.difference_update(reply.decode().split("\n"))
        return unowned

    async def _answer_query(self, query: WorkerQuery) -> bytes:
        principal = query["principal"]
        return "\n".join(state_id for state_id in query["ids"] if self._owners.get(state_id) == principal).encode()


def state_references(body: Json) -> Iterator[tuple[str, str]]:
    """Return the parameters and ids that refer to upstream state, except `previous_response_id`."""
    conversation = body.get("conversation")
    conversation_id = conversation.get("id") if isinstance(conversation, dict) else conversation
    if isinstance(conversation_id, str):
        yield "conversation", conversation_id
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict) or not isinstance(item.get("id"), str):
            continue
        item_type = item.get("type")
        if item_type == "item_reference" or (item_type is None and "role" not in item):
            yield f"input[{index}]", item["id"]


def _state_ids(response: Json) -> Iterator[str]:
    conversation, output = response.get("conversation"), response.get("output")
    items = output[:_ITEMS_LIMIT] if isinstance(output, list) else []
    for value in (response, conversation, *items):
        state_id = value.get("id") if isinstance(value, dict) else None
        if isinstance(state_id, str) and 0 < len(state_id) <= _ID_LIMIT and "\n" not in state_id:
            yield state_id
