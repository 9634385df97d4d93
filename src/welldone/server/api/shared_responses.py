"""Copies of stored responses in the shared store: any front end continues, returns and deletes them.

A process writes its responses in the background, and reads those of others when a request names them. While the store
is unavailable, each process has its own responses. The store has limits for each key, and entries expire.
"""

import asyncio
import hashlib
from contextlib import suppress

import msgspec

from welldone.config.server import ServeSettings
from welldone.server.access.store import ResponseLimits, SharedStore, StoreClient, StoreUnavailableError
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
        self._unwritten: dict[_Key, StoredResponse] = {}
        self._writer: asyncio.Task[None] | None = None

    def put(self, principal: str, response_id: str, stored: StoredResponse) -> None:
        """Write a response in the background; of several versions the last one."""
        self._unwritten[principal, response_id] = stored
        if len(self._unwritten) > MAX_UNWRITTEN:
            del self._unwritten[next(iter(self._unwritten))]
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="stored responses")

    async def fetch(self, principal: str, response_id: str) -> None:
        """Read a response from the store, or learn that it was deleted."""
        key = (principal, response_id)
        deadline = asyncio.get_running_loop().time() + _ARRIVAL_S
        name = _name(*key)
        with suppress(StoreUnavailableError):
            while (value := await self._store.call(lambda client: client.get_response(name))) is None:
                is_known = self._local.get(*key) is not None
                if is_known or asyncio.get_running_loop().time() >= deadline:
                    return
                await asyncio.sleep(_POLL_S)
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
            if self._local.get(principal, next_id) is None:
                await self.fetch(principal, next_id)
            stored = self._local.get(principal, next_id)
            if stored is None or stored.previous is None:
                return
            size += stored.items_bytes
            next_id = stored.previous

    async def delete(self, principal: str, response_id: str) -> None:
        """Delete a response in the store, for all front ends."""
        self._unwritten.pop((principal, response_id), None)
        name = _name(principal, response_id)
        with suppress(StoreUnavailableError):
            await self._store.call(lambda client: client.drop_response(name, self._limits.ttl_s))

    async def close(self) -> None:
        """Write the last responses."""
        if self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer], timeout=CLOSE_S)
            self._writer.cancel()

    async def _write_all(self) -> None:
        while self._unwritten:
            key = next(iter(self._unwritten))
            value = _ENCODER.encode(self._unwritten.pop(key))
            owner, name = hashlib.sha256(key[0].encode()).hexdigest(), _name(*key)

            async def write(client: StoreClient, owner: str = owner, name: str = name, value: bytes = value) -> None:
                await client.put_response(owner, name, value, self._limits)

            try:
                await self._store.call(write)
            except StoreUnavailableError:
                self._unwritten.clear()  # other front ends do without them


def _name(principal: str, response_id: str) -> str:
    """Name of a copy. Another principal would look for another name."""
    return hashlib.sha256(f"{principal}\0{response_id}".encode(errors="surrogatepass")).hexdigest()
