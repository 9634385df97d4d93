"""Installation of model files: sources, checks, locking, and atomic placement in the models folder."""

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
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from welldone.engines.models import gguf
from welldone.engines.models.store import GGUF_SUFFIX, ModelOrigin, split_file_names, write_origin

Progress = Callable[[str, int, int | None], None]
"""Callback for the progress of a download: file name, bytes so far, total bytes if known."""
FreeSpace = Callable[[Path], int]
"""Function that returns the free bytes of a folder's disk."""

FREE_SPACE_MARGIN_BYTES = 64 * 2**20
"""Space that is left free: a full disk breaks other programs as well."""
BLOCK_BYTES = 2**20
_NAME_LIMIT = 200  # file systems allow 255 bytes, and suffixes are added
_LOCK_TIMEOUT_S = 3600.0  # enough for a large model on a slow line
_LOCK_POLL_S = 0.2


class PullErrorKind(StrEnum):
    """Category of a failure, for the exit code."""

    USER_ERROR = "mistake"
    """The user can fix it: an invalid source, a package that is not installed."""
    UNREACHABLE = "unreachable"
    """The environment: no connection, no such file on the server, no disk space."""
    INVALID_FILE = "wrong"
    """The file is not the expected one: another hash, not GGUF."""


class PullError(Exception):
    """A model could not be downloaded. The message contains no secret and tells what to do next."""

    def __init__(self, message: str, kind: PullErrorKind = PullErrorKind.UNREACHABLE) -> None:
        super().__init__(message)
        self.kind = kind


user_error: Callable[[str], PullError] = partial(PullError, kind=PullErrorKind.USER_ERROR)
"""The error for a mistake that the user can correct."""


def no_progress(_name: str, _done_bytes: int, _total_bytes: int | None) -> None:
    """Ignore the progress."""


def free_bytes(folder: Path) -> int:
    """Return the free bytes of the folder's disk."""
    return shutil.disk_usage(folder).free


def check_free_space(folder: Path, needed_bytes: int, free: FreeSpace) -> None:
    """Raise `PullError` unless the disk has room for more bytes and the margin."""
    if (available := free(folder)) < needed_bytes + FREE_SPACE_MARGIN_BYTES:
        raise PullError(
            f"not enough disk space in {folder}: {format_size(available)} are free, "
            f"{format_size(needed_bytes + FREE_SPACE_MARGIN_BYTES)} are needed "
            f"({format_size(FREE_SPACE_MARGIN_BYTES)} stay free); free some, or set WELLDONE_HOME to a folder on "
            "another disk"
        )


def format_size(size_bytes: int) -> str:
    """Format a number of bytes as MB or GB."""
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:,.1f} MB"


def safe_file_name(text: str) -> str:
    """Return a safe local file name for a path or URL; raise `PullError` unless it ends in .gguf."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", text)[-1]).lstrip(".-")
    if not name.lower().endswith(GGUF_SUFFIX):
        raise user_error(f"{text!r} does not end in {GGUF_SUFFIX}; give a GGUF file")
    stem = name[: -len(GGUF_SUFFIX)]
    return stem[:_NAME_LIMIT] + GGUF_SUFFIX


def check_gguf_magic(first_bytes: bytes) -> None:
    """Raise `PullError` unless a file starts as GGUF."""
    if first_bytes.startswith(gguf.MAGIC):
        return
    if first_bytes.lstrip()[:1] == b"<":
        hint = "it is a web page; use the link to the file itself"
    elif first_bytes.startswith(b"version https://git-lfs"):
        hint = "it is a Git LFS pointer; use the link that downloads the file itself"
    else:
        hint = f"it begins with {first_bytes[:4]!r}, and a GGUF file with {gguf.MAGIC!r}"
    raise PullError(f"the downloaded file is not a GGUF file: {hint}", PullErrorKind.INVALID_FILE)


def check_sha256(actual: str, expected: str | None, name: str) -> None:
    """Raise `PullError` if a hash is not the expected one."""
    if expected is not None and actual != expected:
        raise PullError(
            f"{name} has the sha256 {actual}, expected is {expected}; the download was discarded",
            PullErrorKind.INVALID_FILE,
        )


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install_file(part_file: Path, target: Path, *, source: str, sha256: str) -> None:
    """Move a complete file to its name and record its origin, durably: a power failure does not lose it."""
    _fsync(part_file)
    part_file.replace(target)
    write_origin(
        target, ModelOrigin(source=source, sha256=sha256, fetched=datetime.now(UTC).isoformat(timespec="seconds"))
    )
    _fsync(target.parent)


def largest_file_bytes(folder: Path, suffixes: tuple[str, ...]) -> int:
    """Return the size of the largest file with one of these suffixes, in a folder that another program writes to."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(suffixes):
                try:
                    largest = max(largest, (Path(root) / name).stat().st_size)
                except FileNotFoundError:
                    continue  # renamed meanwhile
    return largest


@contextmanager
def download_lock(
    target: Path, progress: Progress, *, limit_s: float = _LOCK_TIMEOUT_S, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Prevent other processes from downloading the same file. The kernel releases the lock when the process ends."""
    with target.with_name(f".{target.name}.lock").open("wb") as file:
        waited_s = 0.0
        while True:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited_s >= limit_s:
                    text = f"another process has been downloading {target.name} for more than {limit_s:g} s"
                    raise PullError(f"{text}; end it and try again") from None
                progress(f"{target.name}: waiting for another process that downloads it", 0, None)
                pause(_LOCK_POLL_S)
                waited_s += _LOCK_POLL_S
        yield


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SOURCE_FORMATS = "default, hf:OWNER/REPOSITORY[:QUANTISATION], hf:OWNER/REPOSITORY/FILE.gguf[@REVISION] or https://HOST/PATH/FILE.gguf"
_HUB_URL = "https://huggingface.co"
_HUB_PREFIX = "hf:"
_HUB_FILE_PATH = re.compile(
    r"/(?P<repository>(?!datasets/|spaces/)[\w.-]+/[\w.-]+)/resolve/(?P<revision>[^/?]+)/(?P<path>[^?]+)(?:\?download=true)?",
    re.ASCII,
)
_REPOSITORY = r"[\w.-]+/(?![^/]+\.gguf(?:@|$))[\w.-]+"  # the name of a file in its place is a mistake
_HUB_SOURCE = re.compile(
    rf"hf:(?P<repository>{_REPOSITORY})(?:/(?P<path>[^@]+)|:(?P<label>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?", re.ASCII
)


class WebSource(msgspec.Struct, frozen=True):
    """A file on a web server."""

    url: str

    def __str__(self) -> str:
        """Omit the query, which may contain a signature."""
        return redact_url(self.url)

    @property
    def path(self) -> str:
        """Path of the file on its server."""
        return unquote(urlsplit(self.url).path)

    def files(self) -> "list[WebSource]":
        """Return all files of the split model that this file is part of."""
        split = urlsplit(self.url)
        paths = split_model_paths(split.path)
        return [self] if len(paths) == 1 else [WebSource(split._replace(path=path).geturl()) for path in paths]

    def on_hub(self, endpoint: str | None) -> "HubSource | None":
        """Return the same file as a source on the Hub, if the URL is that of a file in one of its repositories."""
        hub = (endpoint or _HUB_URL).rstrip("/")
        match = _HUB_FILE_PATH.fullmatch(self.url.removeprefix(hub))
        if match is None or not self.url.startswith(hub) or ".." in unquote(match["path"]).split("/"):
            return None
        return HubSource(match["repository"], unquote(match["path"]), unquote(match["revision"]))


class HubSource(msgspec.Struct, frozen=True):
    """A file on the Hugging Face Hub."""

    repository: str
    path: str
    revision: str | None

    def __str__(self) -> str:
        """Return the source in the format that `parse_source` reads."""
        return f"{_HUB_PREFIX}{self.repository}/{self.path}" + (f"@{self.revision}" if self.revision else "")

    def files(self) -> "list[HubSource]":
        """Return all files of the split model that this file is part of."""
        return [HubSource(self.repository, path, self.revision) for path in split_model_paths(self.path)]


class HubRepository(msgspec.Struct, frozen=True):
    """A repository on the Hugging Face Hub, and perhaps one of its quantisations."""

    repository: str
    label: str | None
    """The quantisation, such as `Q4_K_M`."""
    revision: str | None

    def __str__(self) -> str:
        """Return the source in the format that `parse_source` reads."""
        label = f":{self.label}" if self.label else ""
        return f"{_HUB_PREFIX}{self.repository}{label}" + (f"@{self.revision}" if self.revision else "")


ModelSource: TypeAlias = WebSource | HubSource


def parse_source(text: str) -> ModelSource | HubRepository:
    """Parse a source; raise `PullError` if it is not valid."""
    if text.startswith(("https://", "http://")):
        parse_download_url(text)
        source = WebSource(text)
        safe_file_name(source.path)
        return source
    if _HUB_SOURCE.fullmatch(text):
        return parse_hub_source(text)
    raise user_error(f"{_printable(text)} is not a model source{_source_hint(text)}; use {SOURCE_FORMATS}")


def parse_hub_source(text: str) -> HubSource | HubRepository:
    """Parse a source on the Hub, with or without `hf:`; raise `PullError` if it is not valid."""
    match = _HUB_SOURCE.fullmatch(text if text.startswith(_HUB_PREFIX) else _HUB_PREFIX + text)
    if match is None:
        raise user_error(f"{_printable(text)} is not a repository on the Hub; write OWNER/REPOSITORY:QUANTISATION")
    if match["path"] is None:
        return HubRepository(match["repository"], match["label"], match["revision"])
    source = HubSource(match["repository"], match["path"], match["revision"])
    if ".." in source.path.split("/"):
        raise user_error(f"{text!r} leaves its repository")
    safe_file_name(source.path)
    return source


def parse_hub_file(source: str) -> HubSource | None:
    """Return the file on the Hub that a stored origin names, if it does."""
    try:
        parsed = parse_hub_source(source) if source.startswith(_HUB_PREFIX) else None
    except PullError:
        return None
    return parsed if isinstance(parsed, HubSource) else None


def parse_download_url(url: str) -> SplitResult:
    """Parse a URL that may be downloaded: https, or http on this machine. Raises `PullError` for any other."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError as error:
        raise user_error(f"{redact_url(url)} is not a URL: {error}") from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise user_error("the URL contains characters that must be percent-encoded")
    if not host or split.scheme not in ("https", "http"):
        raise user_error(f"{redact_url(url)} is not the URL of a file; write https://HOST/PATH/FILE.gguf")
    if split.username is not None:
        raise user_error("a password in a URL ends up in logs; remove it")
    if split.scheme == "http" and not is_loopback(host):
        raise user_error(f"{redact_url(url)} is not encrypted; use https (http is allowed for this machine only)")
    return split


def redact_url(url: str) -> str:
    """Return the URL without its query, which may contain a signature, and without a password."""
    return _printable(re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", url)[0]))


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_model_paths(path: str) -> list[str]:
    """Return the paths of all files of the model that a file belongs to."""
    folder, slash, name = path.rpartition("/")
    return [folder + slash + each for each in split_file_names(name)]


def _source_hint(text: str) -> str:
    if _HUB_SOURCE.fullmatch(_HUB_PREFIX + text) and not Path(text).exists():
        return f" (did you mean 'hf:{text}'?)"
    if text.endswith(GGUF_SUFFIX):
        return f" (to serve a local file: welldone serve -m {text})"
    return ""


def _printable(text: str) -> str:
    return text if text and text.isprintable() else ascii(text)
