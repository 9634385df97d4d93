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
from welldone.engines.models.install import (
    BLOCK_BYTES,
    FREE_SPACE_MARGIN_BYTES,
    FreeSpace,
    Progress,
    PullError,
    PullErrorKind,
    check_free_space,
    check_gguf_magic,
    check_sha256,
    format_size,
    free_bytes,
    is_loopback,
    parse_download_url,
    redact_url,
)

_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_RESUME_INFO_LIMIT_BYTES = 65_536  # ours have less than 1 kB; http.client takes header lines of this length


class DownloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often it is tried."""

    stall_timeout_s: float = 60.0
    """Without a byte. Stores of large files answer within seconds; a line that lost its way does not come back."""
    retries: int = 3
    """In a row without getting on; waits double from one second."""
    max_redirects: int = 5
    """Large hosts use two."""
    space_check_bytes: int = FREE_SPACE_MARGIN_BYTES
    """What is written between two looks at the disk: no more than is left free."""


class DownloadResponse(Protocol):
    """What of a reply is used."""

    status: int
    headers: http.client.HTTPMessage

    def read1(self, n: int, /) -> bytes: ...
    def close(self) -> None: ...


class _RetryableError(Exception):
    """The connection broke, or the server is busy: worth another try."""


def download(
    url: str,
    part: Path,
    *,
    name: str,
    sha256: str | None,
    progress: Progress,
    limits: DownloadLimits,
    free: FreeSpace = free_bytes,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Fetch `url` into the file `part`, going on where an earlier try ended; its sha256. Raises `PullError`."""
    parse_download_url(url)
    with closing(_PartialFile(part, url)) as kept:
        fetching = _Download(url, kept, name, progress, limits, free)
        failures = 0
        while not kept.is_complete:
            before = kept.size
            try:
                fetching.fetch_rest()
            except _RetryableError as error:
                failures = 0 if kept.size - before > BLOCK_BYTES else failures + 1
                if failures > limits.retries or not fetching.has_response:
                    raise _unreachable_error(url, error, kept.size) from None
                pause(2.0 ** max(failures - 1, 0))
        got = kept.sha256()
        if sha256 is not None and got != sha256:
            kept.discard()
        check_sha256(got, sha256, name)
        return got


def remove_resume_info(part: Path) -> None:
    """Remove what was kept beside a file that is whole by now."""
    _resume_info_path(part).unlink(missing_ok=True)


class _ResumeInfo(msgspec.Struct, frozen=True):
    """Which file the bytes that are there belong to. The URL may hold a signature, so only its hash is kept."""

    url_sha256: str
    validator: str | None
    """The server's own mark of this version: a strong ETag, else the time of its last change."""
    total: int | None


def _resume_info_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


class _PartialFile:
    """The bytes that have come so far, their hash, and their mark, which lies beside them."""

    def __init__(self, path: Path, url: str) -> None:
        self._url_sha256 = hashlib.sha256(url.encode()).hexdigest()
        self._digest = hashlib.sha256()
        self._file = path.open("a+b")
        self.path = path
        self.size = 0
        self.resume_info: _ResumeInfo | None = None
        self.is_complete = False
        self._load()

    def restart(self, validator: str | None, total: int | None) -> None:
        """Start from nothing."""
        self._file.truncate(0)
        self._digest, self.size = hashlib.sha256(), 0
        self.resume_info = _ResumeInfo(self._url_sha256, validator, total)
        _resume_info_path(self.path).write_bytes(msgspec.json.encode(self.resume_info))

    def append(self, data: bytes) -> None:
        """Keep what came."""
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def sha256(self) -> str:
        """The hash of all that is there."""
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Throw away what is there: no later try shall go on with it."""
        self.path.unlink(missing_ok=True)
        remove_resume_info(self.path)

    def close(self) -> None:
        """Let the bytes out. What there is stays, for a later try."""
        self._file.close()
        if self.size == 0:
            self.discard()

    def _load(self) -> None:
        """Go on with what an earlier try left, if it is of the same URL and the server can tell if it still holds."""
        mark = self._read_resume_info()
        if mark is None or mark.url_sha256 != self._url_sha256 or mark.validator is None:
            return
        self._file.seek(0)
        while piece := self._file.read(BLOCK_BYTES):
            self._digest.update(piece)
            self.size += len(piece)
        self.resume_info = mark
        self.is_complete = self.size == mark.total

    def _read_resume_info(self) -> _ResumeInfo | None:
        try:
            with _resume_info_path(self.path).open("rb") as file:
                return msgspec.json.decode(file.read(_RESUME_INFO_LIMIT_BYTES), type=_ResumeInfo)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None


class _Download:
    """One file that is being fetched, over as many connections as it takes."""

    def __init__(
        self, url: str, partial: _PartialFile, name: str, progress: Progress, limits: DownloadLimits, free: FreeSpace
    ) -> None:
        self._url = url
        self._partial = partial
        self._name = name
        self._progress = progress
        self._limits = limits
        self._free = free
        self.has_response = False

    def fetch_rest(self) -> None:
        """Ask for what is missing, and keep what comes; `_BrokenError` if the connection ends before the file does."""
        with closing(self._follow_redirects()) as reply:
            total = self._check_response(reply)
            check_free_space(self._partial.path.parent, max(0, (total or 0) - self._partial.size), self._free)
            self._save_body(reply, total)

    def _follow_redirects(self) -> DownloadResponse:
        """The reply to our question, wherever it is kept."""
        url, headers = self._url, {"Accept-Encoding": "identity", "User-Agent": f"welldone/{__version__}"}
        if (
            self._partial.size
            and self._partial.resume_info is not None
            and self._partial.resume_info.validator is not None
        ):
            headers |= {"Range": f"bytes={self._partial.size}-", "If-Range": self._partial.resume_info.validator}
        for _ in range(self._limits.max_redirects + 1):
            reply = self._request(url, headers)
            self.has_response = True
            if reply.status not in _REDIRECT_STATUSES:
                return reply
            reply.close()
            url = resolve_redirect(url, reply.headers.get("Location", ""))
        raise PullError(
            f"{redact_url(self._url)} was redirected too often; is the link right?", PullErrorKind.UNREACHABLE
        )

    def _request(self, url: str, headers: dict[str, str]) -> DownloadResponse:
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
            reply: DownloadResponse = opener.open(
                urllib.request.Request(url, headers=headers), timeout=self._limits.stall_timeout_s
            )
        except (OSError, http.client.HTTPException) as error:
            raise _RetryableError(_describe_network_error(error, self._limits.stall_timeout_s)) from None
        return reply

    def _check_response(self, reply: DownloadResponse) -> int | None:
        """Look at a reply's head; how long the whole file is."""
        match reply.status:
            case 200:
                total = _parse_length(reply.headers.get("Content-Length", ""))
                self._partial.restart(_validator(reply.headers), total)
                return total
            case 206:
                return self._check_content_range(reply.headers)
            case 416:
                self._partial.restart(None, None)
                raise _RetryableError("the server has another version of the file now")
            case status if status == 429 or status >= 500:
                raise _RetryableError(f"the server answered {status}")
            case status:
                raise _status_error(self._url, status)

    def _check_content_range(self, headers: http.client.HTTPMessage) -> int | None:
        match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", headers.get("Content-Range", ""))
        if match is None or int(match[1]) != self._partial.size:
            self._partial.restart(None, None)
            raise _RetryableError("the server answered with another part of the file than was asked for")
        total = _parse_length(match[2])
        if not self._is_same_version(headers, total):
            self._partial.restart(None, None)
            raise _RetryableError("the server has another version of the file now")
        return total

    def _is_same_version(self, headers: http.client.HTTPMessage, total: int | None) -> bool:
        """Whether a part is of the version that is kept. Some servers ignore If-Range and send parts of any version.

        A part has the ETag of its version where the whole has one, and need not repeat Last-Modified (RFC 9110 15.3.7).
        """
        mark = self._partial.resume_info
        if mark is None or (None not in (mark.total, total) and mark.total != total):
            return False
        now = _validator(headers)
        return now == mark.validator or (now is None and not (mark.validator or "").startswith('"'))

    def _save_body(self, reply: DownloadResponse, total: int | None) -> None:
        looked = self._partial.size
        self._progress(self._name, self._partial.size, total)
        while total is None or self._partial.size < total:
            piece = self._read_block(
                reply, BLOCK_BYTES if total is None else min(BLOCK_BYTES, total - self._partial.size)
            )
            if not piece:
                break
            if self._partial.size == 0:
                check_gguf_magic(piece)
            self._partial.append(piece)
            self._progress(self._name, self._partial.size, total)
            if self._partial.size - looked >= self._limits.space_check_bytes:
                looked = self._partial.size
                check_free_space(self._partial.path.parent, 0, self._free)
        if total is not None and self._partial.size < total:
            raise _RetryableError("the connection ended before the file did")
        if self._partial.size == 0:
            check_gguf_magic(b"")
        self._partial.is_complete = True

    def _read_block(self, reply: DownloadResponse, limit: int) -> bytes:
        try:
            return reply.read1(limit)
        except (OSError, http.client.HTTPException) as error:
            raise _RetryableError(_describe_network_error(error, self._limits.stall_timeout_s)) from None


def resolve_redirect(url: str, location: str) -> str:
    """Where a redirect leads, if we go there: never from an encrypted connection to one that is not."""
    if not location:
        raise PullError(f"{redact_url(url)} is redirected to nowhere", PullErrorKind.UNREACHABLE)
    try:
        target = urljoin(url, location)
        is_encrypted = parse_download_url(target).scheme == "https"
    except (PullError, ValueError) as error:
        raise PullError(
            f"{redact_url(url)} is redirected to where we do not go: {error}", PullErrorKind.UNREACHABLE
        ) from None
    if urlsplit(url).scheme == "https" and not is_encrypted:
        raise PullError(
            f"{redact_url(url)} is redirected to {redact_url(target)}, which is not encrypted",
            PullErrorKind.UNREACHABLE,
        )
    return target


def _status_error(url: str, status: int) -> PullError:
    if status in (401, 403):
        hint = f"is not for everybody ({status}); fetch it with your own account and serve it with -m FILE"
    elif status in (404, 410):
        hint = f"is not there ({status}); check the link"
    else:
        hint = f"cannot be fetched: the server answered {status}"
    return PullError(f"{redact_url(url)} {hint}", PullErrorKind.UNREACHABLE)


def _unreachable_error(url: str, error: Exception, size: int) -> PullError:
    kept = f"; {format_size(size)} are kept, and the same command goes on from there" if size else ""
    return PullError(
        f"{redact_url(url)} could not be fetched: {error}; check the connection and try again{kept}",
        PullErrorKind.UNREACHABLE,
    )


def _describe_network_error(error: Exception, stall_timeout_s: float) -> str:
    """What broke, without the URL, which may hold a signature."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return f"nothing came for {stall_timeout_s:g} s"
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


def _parse_length(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None
