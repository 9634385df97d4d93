"""A file from a web server: resumed where it broke off, and only over connections that can be trusted."""

import hashlib
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Protocol
from urllib.parse import urljoin, urlsplit

import msgspec

from welldone import __version__
from welldone.engines.arrival import (
    MARGIN_BYTES,
    PIECE_BYTES,
    Free,
    Progress,
    PullError,
    Trouble,
    check_hash,
    check_room,
    check_start,
    free_bytes,
    megabytes,
)
from welldone.engines.sources import is_loopback, shown, split_url

_REDIRECTS = (301, 302, 303, 307, 308)
_MARK_LIMIT_BYTES = 65_536  # ours have less than 1 kB; http.client takes header lines of this length


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often it is tried."""

    silence_s: float = 60.0
    """Without a byte. Stores of large files answer within seconds; a line that lost its way does not come back."""
    retries: int = 3
    """In a row without getting on; waits double from one second."""
    redirects: int = 5
    """Large hosts use two."""
    look_bytes: int = MARGIN_BYTES
    """What is written between two looks at the disk: no more than is left free."""


class Reply(Protocol):
    """What of a reply is used."""

    status: int
    headers: http.client.HTTPMessage

    def read1(self, n: int, /) -> bytes: ...
    def close(self) -> None: ...


class _BrokenError(Exception):
    """The connection broke, or the server is busy: worth another try."""


def download(
    url: str,
    part: Path,
    *,
    name: str,
    sha256: str | None,
    progress: Progress,
    limits: Limits,
    free: Free = free_bytes,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Fetch `url` into the file `part`, going on where an earlier try ended; its sha256. Raises `PullError`."""
    split_url(url)
    with closing(_Part(part, url)) as kept:
        fetching = _Fetching(url, kept, name, progress, limits, free)
        failures = 0
        while not kept.is_whole:
            before = kept.size
            try:
                fetching.go_on()
            except _BrokenError as error:
                failures = 0 if kept.size - before > PIECE_BYTES else failures + 1
                if failures > limits.retries or not fetching.has_answered:
                    raise _unreachable(url, error, kept.size) from None
                pause(2.0 ** max(failures - 1, 0))
        got = kept.sha256()
        if sha256 is not None and got != sha256:
            kept.discard()
        check_hash(got, sha256, name)
        return got


def forget(part: Path) -> None:
    """Remove what was kept beside a file that is whole by now."""
    _mark_path(part).unlink(missing_ok=True)


class _Mark(msgspec.Struct, frozen=True):
    """Which file the bytes that are there belong to. The URL may hold a signature, so only its hash is kept."""

    url_sha256: str
    validator: str | None
    """The server's own mark of this version: a strong ETag, else the time of its last change."""
    total: int | None


def _mark_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


class _Part:
    """The bytes that have come so far, their hash, and their mark, which lies beside them."""

    def __init__(self, path: Path, url: str) -> None:
        self._url_sha256 = hashlib.sha256(url.encode()).hexdigest()
        self._digest = hashlib.sha256()
        self._file = path.open("a+b")
        self.path = path
        self.size = 0
        self.mark: _Mark | None = None
        self.is_whole = False
        self._load()

    def begin(self, validator: str | None, total: int | None) -> None:
        """Start from nothing."""
        self._file.truncate(0)
        self._digest, self.size = hashlib.sha256(), 0
        self.mark = _Mark(self._url_sha256, validator, total)
        _mark_path(self.path).write_bytes(msgspec.json.encode(self.mark))

    def add(self, piece: bytes) -> None:
        """Keep what came."""
        self._file.write(piece)
        self._digest.update(piece)
        self.size += len(piece)

    def sha256(self) -> str:
        """The hash of all that is there."""
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Throw away what is there: no later try shall go on with it."""
        self.path.unlink(missing_ok=True)
        forget(self.path)

    def close(self) -> None:
        """Let the bytes out. What there is stays, for a later try."""
        self._file.close()
        if self.size == 0:
            self.discard()

    def _load(self) -> None:
        """Go on with what an earlier try left, if it is of the same URL and the server can tell if it still holds."""
        mark = self._read_mark()
        if mark is None or mark.url_sha256 != self._url_sha256 or mark.validator is None:
            return
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            self._digest.update(piece)
            self.size += len(piece)
        self.mark = mark
        self.is_whole = self.size == mark.total

    def _read_mark(self) -> _Mark | None:
        try:
            with _mark_path(self.path).open("rb") as file:
                return msgspec.json.decode(file.read(_MARK_LIMIT_BYTES), type=_Mark)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None


class _Fetching:
    """One file that is being fetched, over as many connections as it takes."""

    def __init__(self, url: str, kept: _Part, name: str, progress: Progress, limits: Limits, free: Free) -> None:
        self._url = url
        self._kept = kept
        self._name = name
        self._progress = progress
        self._limits = limits
        self._free = free
        self.has_answered = False

    def go_on(self) -> None:
        """Ask for what is missing, and keep what comes; `_BrokenError` if the connection ends before the file does."""
        with closing(self._open()) as reply:
            total = self._begin(reply)
            check_room(self._kept.path.parent, max(0, (total or 0) - self._kept.size), self._free)
            self._keep(reply, total)

    def _open(self) -> Reply:
        """The reply to our question, wherever it is kept."""
        url, headers = self._url, {"Accept-Encoding": "identity", "User-Agent": f"welldone/{__version__}"}
        if self._kept.size and self._kept.mark is not None and self._kept.mark.validator is not None:
            headers |= {"Range": f"bytes={self._kept.size}-", "If-Range": self._kept.mark.validator}
        for _ in range(self._limits.redirects + 1):
            reply = self._ask(url, headers)
            self.has_answered = True
            if reply.status not in _REDIRECTS:
                return reply
            reply.close()
            url = redirected(url, reply.headers.get("Location", ""))
        raise PullError(f"{shown(self._url)} was redirected too often; is the link right?", Trouble.UNREACHABLE)

    def _ask(self, url: str, headers: dict[str, str]) -> Reply:
        parts = urlsplit(url)
        # Without the handlers for errors and redirects: both are decided here. Nothing is asked of a proxy about
        # this machine.
        proxies: dict[str, str] | None = {} if is_loopback(parts.hostname or "") else None
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
        ):
            opener.add_handler(handler)
        try:
            reply: Reply = opener.open(urllib.request.Request(url, headers=headers), timeout=self._limits.silence_s)
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenError(_why(error, self._limits.silence_s)) from None
        return reply

    def _begin(self, reply: Reply) -> int | None:
        """Look at a reply's head; how long the whole file is."""
        match reply.status:
            case 200:
                total = _number(reply.headers.get("Content-Length", ""))
                self._kept.begin(_validator(reply.headers), total)
                return total
            case 206:
                return self._resume(reply.headers)
            case 416:
                self._kept.begin(None, None)
                raise _BrokenError("the server has another version of the file now")
            case status if status == 429 or status >= 500:
                raise _BrokenError(f"the server answered {status}")
            case status:
                raise _refused(self._url, status)

    def _resume(self, headers: http.client.HTTPMessage) -> int | None:
        match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", headers.get("Content-Range", ""))
        if match is None or int(match[1]) != self._kept.size:
            self._kept.begin(None, None)
            raise _BrokenError("the server answered with another part of the file than was asked for")
        total = _number(match[2])
        if not self._is_same(headers, total):
            self._kept.begin(None, None)
            raise _BrokenError("the server has another version of the file now")
        return total

    def _is_same(self, headers: http.client.HTTPMessage, total: int | None) -> bool:
        """Whether a part is of the version that is kept. Some servers ignore If-Range and send parts of any version.

        A part has the ETag of its version where the whole has one, and need not repeat Last-Modified (RFC 9110 15.3.7).
        """
        mark = self._kept.mark
        if mark is None or (None not in (mark.total, total) and mark.total != total):
            return False
        now = _validator(headers)
        return now == mark.validator or (now is None and not (mark.validator or "").startswith('"'))

    def _keep(self, reply: Reply, total: int | None) -> None:
        looked = self._kept.size
        self._progress(self._name, self._kept.size, total)
        while total is None or self._kept.size < total:
            piece = self._piece(reply, PIECE_BYTES if total is None else min(PIECE_BYTES, total - self._kept.size))
            if not piece:
                break
            if self._kept.size == 0:
                check_start(piece)
            self._kept.add(piece)
            self._progress(self._name, self._kept.size, total)
            if self._kept.size - looked >= self._limits.look_bytes:
                looked = self._kept.size
                check_room(self._kept.path.parent, 0, self._free)
        if total is not None and self._kept.size < total:
            raise _BrokenError("the connection ended before the file did")
        if self._kept.size == 0:
            check_start(b"")
        self._kept.is_whole = True

    def _piece(self, reply: Reply, limit: int) -> bytes:
        try:
            return reply.read1(limit)
        except (OSError, http.client.HTTPException) as error:
            raise _BrokenError(_why(error, self._limits.silence_s)) from None


def redirected(url: str, location: str) -> str:
    """Where a redirect leads, if we go there: never from an encrypted connection to one that is not."""
    if not location:
        raise PullError(f"{shown(url)} is redirected to nowhere", Trouble.UNREACHABLE)
    try:
        target = urljoin(url, location)
        is_encrypted = split_url(target).scheme == "https"
    except (PullError, ValueError) as error:
        raise PullError(f"{shown(url)} is redirected to where we do not go: {error}", Trouble.UNREACHABLE) from None
    if urlsplit(url).scheme == "https" and not is_encrypted:
        raise PullError(f"{shown(url)} is redirected to {shown(target)}, which is not encrypted", Trouble.UNREACHABLE)
    return target


def _refused(url: str, status: int) -> PullError:
    if status in (401, 403):
        hint = f"is not for everybody ({status}); fetch it with your own account and serve it with -m FILE"
    elif status in (404, 410):
        hint = f"is not there ({status}); check the link"
    else:
        hint = f"cannot be fetched: the server answered {status}"
    return PullError(f"{shown(url)} {hint}", Trouble.UNREACHABLE)


def _unreachable(url: str, error: Exception, size: int) -> PullError:
    kept = f"; {megabytes(size)} are kept, and the same command goes on from there" if size else ""
    return PullError(
        f"{shown(url)} could not be fetched: {error}; check the connection and try again{kept}", Trouble.UNREACHABLE
    )


def _why(error: Exception, silence_s: float) -> str:
    """What broke, without the URL, which may hold a signature."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"nothing came for {silence_s:g} s"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted ({reason.verify_message})"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return "the connection broke"


def _validator(headers: http.client.HTTPMessage) -> str | None:
    etag = headers.get("ETag", "")
    # "A client MUST NOT generate an If-Range header field containing an entity tag that is marked as weak." (RFC 9110)
    if etag.startswith('"'):
        return str(etag)
    changed = headers.get("Last-Modified")
    return None if changed is None else str(changed)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None
