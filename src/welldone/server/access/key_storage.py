"""Where named API keys are stored: a key file, or the shared store. `welldone keys` and the admin endpoints use it.

A key itself is returned once, when it is added; only its digest is stored.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from welldone.server.access.key_file import changed_entries, free_slot, read_entries
from welldone.server.access.keys import MAX_KEYS, SharedKey, key_digest, make_key, parse_key
from welldone.server.access.store import StoreClient


class KeyExistsError(Exception):
    """There is a key with this name, or no room for another. The message is one line for the user."""


class KeyStorage(Protocol):
    """Stored keys, by their digests. All methods may raise `KeyFileError`, or an error of the shared store."""

    async def keys(self) -> dict[str, SharedKey | None]:
        """All keys; None for an entry in an unknown format."""

    async def add(self, digest: str, key: SharedKey) -> None:
        """Add a key. Raises `KeyExistsError`."""

    async def remove(self, digests: Collection[str]) -> None:
        """Remove keys."""


@dataclass(frozen=True)
class FileKeyStorage:
    """The keys of a key file."""

    path: Path

    async def keys(self) -> dict[str, SharedKey | None]:
        """All keys."""
        return await asyncio.to_thread(lambda: dict(read_entries(self.path)) if self.path.exists() else {})

    async def add(self, digest: str, key: SharedKey) -> None:
        """Add a key."""
        await asyncio.to_thread(self._add, digest, key)

    def _add(self, digest: str, key: SharedKey) -> None:
        with changed_entries(self.path) as entries:
            if len(entries) >= MAX_KEYS:
                raise KeyExistsError(f"{self.path} has {MAX_KEYS} keys already: remove one first")
            if digests_of(entries, key.name):
                raise _taken(key.name)
            entries[digest] = msgspec.structs.replace(key, slot=free_slot(entries))

    async def remove(self, digests: Collection[str]) -> None:
        """Remove keys."""
        await asyncio.to_thread(self._remove, digests)

    def _remove(self, digests: Collection[str]) -> None:
        with changed_entries(self.path) as entries:
            for digest in digests:
                entries.pop(digest, None)


@dataclass(frozen=True)
class SharedKeyStorage:
    """The keys of the shared store. `call` runs an operation of its client."""

    call: Callable[[Callable[[StoreClient], Awaitable[Any]]], Awaitable[Any]]

    async def keys(self) -> dict[str, SharedKey | None]:
        """All keys."""
        stored: Mapping[str, bytes] = await self.call(lambda client: client.keys())
        return {digest: parse_key(value) for digest, value in stored.items()}

    async def add(self, digest: str, key: SharedKey) -> None:
        """Add a key."""
        if digests_of(await self.keys(), key.name):
            raise _taken(key.name)
        await self.call(lambda client: client.put_key(digest, msgspec.json.encode(key)))

    async def remove(self, digests: Collection[str]) -> None:
        """Remove keys."""
        await self.call(lambda client: client.drop_keys(digests))


async def add_new_key(storage: KeyStorage, key: SharedKey) -> str:
    """Store a new random key with these permissions, and return it. Raises `KeyExistsError`."""
    made = make_key()
    await storage.add(key_digest(made).hex(), key)
    return made


async def remove_key(storage: KeyStorage, name: str) -> bool:
    """Remove the key of this name; False if there is none."""
    digests = digests_of(await storage.keys(), name)
    if digests:
        await storage.remove(digests)
    return bool(digests)


async def listed_keys(storage: KeyStorage) -> list[SharedKey]:
    """All keys in a known format, by name."""
    return sorted((key for key in (await storage.keys()).values() if key is not None), key=lambda key: key.name)


def digests_of(stored: Mapping[str, SharedKey | None], name: str) -> list[str]:
    """The digests of the keys with this name."""
    return [digest for digest, key in stored.items() if key is not None and key.name == name]


def _taken(name: str) -> KeyExistsError:
    return KeyExistsError(f"there already is a key {name}: choose another name, or remove it first")
