"""Where named API keys are stored: a key file, or the shared store, to which this module connects.

`welldone keys` and the admin endpoints use it. A key itself is returned once, when it is added; only its
digest and permissions are stored. A running server reads the file again when it has changed. One that cannot be read
changes nothing.
"""

import asyncio
import fcntl
import importlib
import logging
import os
import stat
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

from welldone.server.access.keys import MAX_KEYS, SharedKey, key_digest, make_key, parse_key
from welldone.server.access.store import STORE_TIMEOUT_S, StoreClient
from welldone.server.observe import log

FILE_LIMIT_BYTES = 4 * 2**20
"""`MAX_KEYS` entries of 4 KiB: each may name a hundred models."""

_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Entries = Annotated[dict[_Digest, SharedKey], msgspec.Meta(max_length=MAX_KEYS)]
_DECODER: msgspec.json.Decoder[dict[str, SharedKey]] = msgspec.json.Decoder(_Entries)


class KeyFileError(Exception):
    """The file cannot be used. The message is one line for the user."""


def read_entries(path: Path) -> dict[str, SharedKey]:
    """Return the keys of the file by their digests."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise KeyFileError(f"there is no file {path}; welldone keys add NAME --keys-file {path} creates it") from None
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > FILE_LIMIT_BYTES:
        raise KeyFileError(f"{path} has more than {FILE_LIMIT_BYTES // 2**20} MiB: is it a file of welldone keys?")
    try:
        entries = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KeyFileError(f"{path} is not a file of welldone keys: {error}") from None
    if len({key.name for key in entries.values()}) < len(entries):
        raise KeyFileError(f"{path} has two keys of the same name")
    return entries


def permission_warning(path: Path) -> str | None:
    """Return a warning if other users can change the file."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users of this machine can change the keys in {path}: run chmod 600 {path}"
    return None


@contextmanager
def changed_entries(path: Path) -> Iterator[dict[str, SharedKey]]:
    """Yield the keys of the file, none if it does not exist, and write them back if the block ends normally.

    The file is replaced at once, and other programs that change it wait. It is readable for its owner only.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            entries = read_entries(path) if path.exists() else {}
            yield entries
            _replace(path, msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n")
    except OSError as error:
        raise KeyFileError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def free_slot(entries: dict[str, SharedKey]) -> int:
    """Return the lowest place of rate limit counters that no key of the file has."""
    taken = {key.slot for key in entries.values()}
    return next(slot for slot in range(len(entries) + 1) if slot not in taken)


class WatchedKeyFile:
    """The keys of a file for a running server."""

    def __init__(self, path: Path) -> None:
        """Raises `KeyFileError`."""
        self._path = path
        self._stamp = _stamp(path)
        self._entries = read_entries(path)

    async def find(self, digest: bytes) -> bytes | None:
        """Return the entry of the key with this digest."""
        await asyncio.to_thread(self._refresh)
        key = self._entries.get(digest.hex())
        return None if key is None else msgspec.json.encode(key)

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._entries = read_entries(self._path)
        except KeyFileError as error:
            log.event(logging.WARNING, f"{error}; the keys that it had before stay valid")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when the file is replaced or written."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


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


def connect_store(url: str, *, timeout_s: float = STORE_TIMEOUT_S) -> StoreClient:
    """A client of the shared store. `redis_store` is imported lazily: its library is an optional dependency."""
    module = importlib.import_module("welldone.server.access.redis_store")
    client: StoreClient = module.RedisStoreClient(url, timeout_s=timeout_s)
    return client


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
