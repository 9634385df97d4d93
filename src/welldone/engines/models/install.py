"""How a file comes into the models folder: one at a time, hashed, and whole or not at all."""

import fcntl
import hashlib
import ipaddress
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from welldone.engines.models import store
from welldone.engines.models.store import GGUF_SUFFIX, ModelOrigin, split_file_names, write_origin

Progress = Callable[[str, int, int | None], None]
"""Told while a file comes: its name, the bytes that are there, and how many there will be where that is known."""
FreeSpace = Callable[[Path], int]
"""How many bytes there is room for in a folder."""

FREE_SPACE_MARGIN_BYTES = 64 * 2**20
"""What is left free on the disk: a full one stops other programs as well."""
BLOCK_BYTES = 2**20
_NAME_LIMIT = 200  # file systems take 255 bytes, and suffixes are added
_LOCK_TIMEOUT_S = 3600.0  # an hour is a large model on a slow line; who waits longer should look what is wrong
_LOCK_POLL_S = 0.2


class PullErrorKind(StrEnum):
    """What went wrong, for the exit code."""

    USER_ERROR = "mistake"
    """The user can mend it: a source that cannot be one, something that is not installed."""
    UNREACHABLE = "unreachable"
    """The world: no connection, no such file there, no room."""
    INVALID_FILE = "wrong"
    """What came is not what was meant: another hash, no GGUF."""


class PullError(Exception):
    """A model could not be fetched. The message is safe to show and says what to do next."""

    def __init__(self, message: str, kind: PullErrorKind) -> None:
        super().__init__(message)
        self.kind = kind


def no_progress(_name: str, _done_bytes: int, _total_bytes: int | None) -> None:
    """The progress of somebody who does not want to know."""


def free_bytes(folder: Path) -> int:
    """How many bytes there is room for."""
    return shutil.disk_usage(folder).free


def check_free_space(folder: Path, needed_bytes: int, free: FreeSpace) -> None:
    """Refuse what would fill the disk."""
    if (room := free(folder)) < needed_bytes + FREE_SPACE_MARGIN_BYTES:
        raise PullError(
            f"not enough room: {format_size(needed_bytes)} more are needed and {format_size(room)} are free in {folder}; "
            "make room, or set WELLDONE_HOME to a folder on another disk",
            PullErrorKind.UNREACHABLE,
        )


def format_size(size_bytes: int) -> str:
    """A number of bytes for a person."""
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def safe_file_name(text: str) -> str:
    """The name under which a file is kept: only plain characters, never a path; `PullError` if it is no GGUF's."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", text)[-1]).lstrip(".-")
    if not name.lower().endswith(GGUF_SUFFIX):
        raise PullError(f"{text!r} does not end in {GGUF_SUFFIX}; name the file of a model", PullErrorKind.USER_ERROR)
    stem = name[: -len(GGUF_SUFFIX)]
    return stem[:_NAME_LIMIT] + GGUF_SUFFIX


def check_gguf_magic(first_bytes: bytes) -> None:
    """Refuse what is no GGUF by its first bytes."""
    if first_bytes.startswith(store.MAGIC):
        return
    if first_bytes.lstrip()[:1] == b"<":
        hint = "it is a web page; take the link of the file itself, not of the page that shows it"
    elif first_bytes.startswith(b"version https://git-lfs"):
        hint = "it is a pointer of Git LFS; take the link that downloads the file itself"
    else:
        hint = f"it begins with {first_bytes[:4]!r}, and a GGUF with {store.MAGIC!r}"
    raise PullError(f"what came is no GGUF file: {hint}", PullErrorKind.INVALID_FILE)


def check_sha256(actual: str, expected: str | None, name: str) -> None:
    """Refuse a file that is another one than was meant."""
    if expected is not None and actual != expected:
        raise PullError(
            f"{name} is not the file that was meant: its sha256 is {actual}, expected was {expected}; nothing was kept",
            PullErrorKind.INVALID_FILE,
        )


def file_sha256(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install_file(part: Path, target: Path, *, source: str, sha256: str) -> None:
    """Give a whole file its name. After this it is there, also when the power fails."""
    _fsync(part)
    part.replace(target)
    write_origin(
        target, ModelOrigin(source=source, sha256=sha256, fetched=datetime.now(UTC).isoformat(timespec="seconds"))
    )
    _fsync(target.parent)


def largest_file_bytes(folder: Path, suffixes: tuple[str, ...]) -> int:
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
def download_lock(
    target: Path, progress: Progress, *, limit_s: float = _LOCK_TIMEOUT_S, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Nobody else fetches this file meanwhile. The lock goes with the process, however it ends."""
    with target.with_name(f".{target.name}.lock").open("wb") as file:
        waited = 0.0
        while not _try_lock(file.fileno()):
            if waited >= limit_s:
                raise PullError(
                    f"another process has been fetching {target.name} for too long; end it and try again",
                    PullErrorKind.UNREACHABLE,
                )
            progress(f"{target.name}: waiting for another process that fetches it", 0, None)
            pause(_LOCK_POLL_S)
            waited += _LOCK_POLL_S
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Where a model may come from, as a user writes it.


SOURCE_FORMATS = "default, hf:OWNER/REPOSITORY/FILE.gguf[@REVISION] and https://HOST/PATH/FILE.gguf"
_HUB_SOURCE = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)/(?P<path>[^@]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)


class WebSource(msgspec.Struct, frozen=True):
    """A file on a web server."""

    url: str

    def __str__(self) -> str:
        """For a person, and for keeping: without what may be secret."""
        return redact_url(self.url)

    @property
    def path(self) -> str:
        """Where the file is on its server."""
        return unquote(urlsplit(self.url).path)

    def files(self) -> "list[WebSource]":
        """All files of the model that this one belongs to."""
        split = urlsplit(self.url)
        paths = _split_model_paths(split.path)
        return [self] if len(paths) == 1 else [WebSource(split._replace(path=path).geturl()) for path in paths]


class HubSource(msgspec.Struct, frozen=True):
    """A file on the Hugging Face hub."""

    repository: str
    path: str
    revision: str | None

    def __str__(self) -> str:
        """As a user writes it."""
        return f"hf:{self.repository}/{self.path}" + (f"@{self.revision}" if self.revision else "")

    def files(self) -> "list[HubSource]":
        """All files of the model that this one belongs to."""
        return [HubSource(self.repository, path, self.revision) for path in _split_model_paths(self.path)]


ModelSource: TypeAlias = WebSource | HubSource


def parse_source(text: str) -> ModelSource:
    """What `text` names; `PullError` if it is nothing that a model can be fetched from."""
    source: ModelSource
    if text.startswith(("https://", "http://")):
        parse_download_url(text)
        source = WebSource(text)
    elif match := _HUB_SOURCE.fullmatch(text):
        source = HubSource(match["repository"], match["path"], match["revision"])
        if ".." in source.path.split("/"):
            raise PullError(f"{text!r} leaves its repository", PullErrorKind.USER_ERROR)
    else:
        raise PullError(
            f"{_printable(text)} is no source of a model{_source_hint(text)}; known are {SOURCE_FORMATS}",
            PullErrorKind.USER_ERROR,
        )
    safe_file_name(source.path)
    return source


def parse_download_url(url: str) -> SplitResult:
    """The parts of a URL that may be fetched from: https, or http on this machine; `PullError` for any other."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError as error:
        raise PullError(f"{redact_url(url)} is no URL: {error}", PullErrorKind.USER_ERROR) from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise PullError(
            "the URL has characters that a URL has not; write them percent-encoded", PullErrorKind.USER_ERROR
        )
    if not host or split.scheme not in ("https", "http"):
        raise PullError(
            f"{redact_url(url)} is no URL of a file; write https://HOST/PATH/FILE.gguf", PullErrorKind.USER_ERROR
        )
    if split.username is not None:
        raise PullError("a password in a URL ends up in logs; leave it out", PullErrorKind.USER_ERROR)
    if split.scheme == "http" and not is_loopback(host):
        raise PullError(
            f"{redact_url(url)} is not encrypted; use https (http is for this machine only)", PullErrorKind.USER_ERROR
        )
    return split


def redact_url(url: str) -> str:
    """A URL for a person: without its query, which may hold a signature, and without a password."""
    return _printable(re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", url)[0]))


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split_model_paths(path: str) -> list[str]:
    folder, slash, name = path.rpartition("/")
    return [folder + slash + each for each in split_file_names(name)]


def _source_hint(text: str) -> str:
    """What was meant, perhaps."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+/[^@]+\.gguf(@.*)?", text) and not Path(text).exists():
        return f" (did you mean 'hf:{text}'?)"
    if text.endswith(GGUF_SUFFIX):
        return f" (a file that is here already is served with: welldone serve -m {text})"
    return ""


def _printable(text: str) -> str:
    return text if text and text.isprintable() else ascii(text)
