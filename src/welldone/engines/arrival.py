"""How a file comes into the models folder: one at a time, hashed, and whole or not at all."""

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from welldone.engines import gguf
from welldone.engines.store import SUFFIX, Origin, write_origin

Progress = Callable[[str, int, int | None], None]
"""Told while a file comes: its name, the bytes that are there, and how many there will be where that is known."""
Free = Callable[[Path], int]
"""How many bytes there is room for in a folder."""

MARGIN_BYTES = 64 * 2**20
"""What is left free on the disk: a full one stops other programs as well."""
PIECE_BYTES = 2**20
_NAME_LIMIT = 200  # file systems take 255 bytes, and suffixes are added
_LOCK_LIMIT_S = 3600.0  # an hour is a large model on a slow line; who waits longer should look what is wrong
_LOOK_S = 0.2


class Trouble(StrEnum):
    """What went wrong, for the exit code."""

    MISTAKE = "mistake"
    """The user can mend it: a source that cannot be one, something that is not installed."""
    UNREACHABLE = "unreachable"
    """The world: no connection, no such file there, no room."""
    WRONG = "wrong"
    """What came is not what was meant: another hash, no GGUF."""


class PullError(Exception):
    """A model could not be fetched. The message is safe to show and says what to do next."""

    def __init__(self, message: str, trouble: Trouble) -> None:
        super().__init__(message)
        self.trouble = trouble


def silent(_name: str, _done_bytes: int, _total_bytes: int | None) -> None:
    """The progress of somebody who does not want to know."""


def free_bytes(folder: Path) -> int:
    """How many bytes there is room for."""
    return shutil.disk_usage(folder).free


def check_room(folder: Path, needed_bytes: int, free: Free) -> None:
    """Refuse what would fill the disk."""
    if (room := free(folder)) < needed_bytes + MARGIN_BYTES:
        raise PullError(
            f"not enough room: {megabytes(needed_bytes)} more are needed and {megabytes(room)} are free in {folder}; "
            "make room, or set WELLDONE_HOME to a folder on another disk",
            Trouble.UNREACHABLE,
        )


def megabytes(count: int) -> str:
    """A number of bytes for a person."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def clean_name(text: str) -> str:
    """The name under which a file is kept: only plain characters, never a path; `PullError` if it is no GGUF's."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", text)[-1]).lstrip(".-")
    if not name.lower().endswith(SUFFIX):
        raise PullError(f"{text!r} does not end in {SUFFIX}; name the file of a model", Trouble.MISTAKE)
    stem = name[: -len(SUFFIX)]
    return stem[:_NAME_LIMIT] + SUFFIX


def check_start(start: bytes) -> None:
    """Refuse what is no GGUF by its first bytes."""
    if start.startswith(gguf.MAGIC):
        return
    if start.lstrip()[:1] == b"<":
        hint = "it is a web page; take the link of the file itself, not of the page that shows it"
    elif start.startswith(b"version https://git-lfs"):
        hint = "it is a pointer of Git LFS; take the link that downloads the file itself"
    else:
        hint = f"it begins with {start[:4]!r}, and a GGUF with {gguf.MAGIC!r}"
    raise PullError(f"what came is no GGUF file: {hint}", Trouble.WRONG)


def check_hash(got: str, wanted: str | None, name: str) -> None:
    """Refuse a file that is another one than was meant."""
    if wanted is not None and got != wanted:
        raise PullError(
            f"{name} is not the file that was meant: its sha256 is {got}, expected was {wanted}; nothing was kept",
            Trouble.WRONG,
        )


def hash_file(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settle(part: Path, target: Path, *, source: str, sha256: str) -> None:
    """Give a whole file its name. After this it is there, also when the power fails."""
    _sync(part)
    part.replace(target)
    write_origin(target, Origin(source=source, sha256=sha256, fetched=datetime.now(UTC).isoformat(timespec="seconds")))
    _sync(target.parent)


def grown_bytes(folder: Path, suffixes: tuple[str, ...]) -> int:
    """How large the largest file with one of these suffixes is by now, in a folder that somebody else fills."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffixes):
                try:
                    largest = max(largest, (Path(root) / name).stat().st_size)
                except FileNotFoundError:
                    continue  # it was renamed meanwhile
    return largest


@contextmanager
def locked(
    target: Path, progress: Progress, *, limit_s: float = _LOCK_LIMIT_S, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Nobody else fetches this file meanwhile. The lock goes with the process, however it ends."""
    with target.with_name(f".{target.name}.lock").open("wb") as file:
        waited = 0.0
        while not _has_lock(file.fileno()):
            if waited >= limit_s:
                raise PullError(
                    f"another process has been fetching {target.name} for too long; end it and try again",
                    Trouble.UNREACHABLE,
                )
            progress(f"{target.name}: waiting for another process that fetches it", 0, None)
            pause(_LOOK_S)
            waited += _LOOK_S
        yield


def _has_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
