"""API keys in a file: digests and permissions of named keys, which `welldone keys` adds and removes.

A running server reads the file again when it has changed. One that cannot be read changes nothing.
"""

import asyncio
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec

from welldone.server.access.keys import MAX_KEYS, SharedKey
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
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
