"""Copies of stored responses in the shared store: any front end continues, returns and deletes them.

A process writes its responses in the background, and reads those of others when a request names them. While the store
is unavailable, each process has its own responses, and writes them later. The store has limits for each key, and
entries expire.
"""

import asyncio
from contextlib import suppress

import msgspec

from welldone.config.server import ServeSettings
from welldone.server.access.store import STORE_RETRY_S, RefusedError, ResponseLimits, SharedStore, StoreUnavailableError
from welldone.server.api.response_store import ResponseStore, StoredResponse

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
