"""Resumable HTTP download of a model file, over https only (http is allowed for this machine)."""

import asyncio
import base64
import hashlib
import re
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

import msgspec

from welldone import __version__
from welldone.engines.models import install
from welldone.engines.models.install import FreeSpace, Progress, PullError, check_sha256, redact_url
from welldone.http.address import Address, TlsOptions, encode_request
from welldone.http.connect import HttpClientError, connect
from welldone.http.response_parser import ResponseParser

_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
_READ_BYTES = 65_536  # the parser needs 0.04 s for 200 MB in pieces of this size, 0.4 s in pieces of 256 KB
_RESUME_INFO_LIMIT_BYTES = 65_536  # ours have under 1 kB; an ETag may fill the head of a response


class DownloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and retries of a download."""

    stall_timeout_s: float = 60.0
    """Limit between two reads. File hosts answer within seconds."""
    retries: int = 3
    """Retries in a row without progress; the delay doubles from one second."""
    max_redirects: int = 5
    """Large hosts use two."""
    space_check_bytes: int = install.FREE_SPACE_MARGIN_BYTES
    """Bytes written between two checks of the free space: no more than the margin."""


class _RetryableError(Exception):
    """The connection failed, or the server is busy."""


def remove_resume_info(part: Path) -> None:
    """Remove the resume information of a complete download."""
    _resume_info_path(part).unlink(missing_ok=True)


class _ResumeInfo(msgspec.Struct, frozen=True):
    """Identity of a partial download, stored beside it. Only the hash of the URL is stored: it may have a signature."""

    url_sha256: str
    validator: str | None
    """Validator of this version for `If-Range`: a strong ETag, or else Last-Modified."""
    total: int | None


def _resume_info_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


class _PartialFile:
    """A partial download: its file, its hash so far, and its resume information."""

    def __init__(self, path: Path, url: str) -> None:
        self._url_sha256 = hashlib.sha256(url.encode()).hexdigest()
        self._digest = hashlib.sha256()
        self._file = path.open("a+b")
        self.path = path
        self.size: int = 0
        self.resume_info: _ResumeInfo | None = None
        self.is_complete: bool = False
        self._load()

    def restart(self, validator: str | None, total: int | None) -> None:
        """Truncate the file and store new resume information."""
        self._file.truncate(0)
        self._digest, self.size = hashlib.sha256(), 0
        self.resume_info = _ResumeInfo(self._url_sha256, validator, total)
        _resume_info_path(self.path).write_bytes(msgspec.json.encode(self.resume_info))

    def append(self, data: bytes) -> None:
        """Add downloaded bytes."""
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    def sha256(self) -> str:
        """Return the hash of the bytes so far."""
        return self._digest.hexdigest()

    def discard(self) -> None:
        """Delete the file, so that no later attempt resumes it."""
        self.path.unlink(missing_ok=True)
        remove_resume_info(self.path)

    def close(self) -> None:
        """Close the file. Unless it is empty it is kept, for a later attempt."""
        self._file.close()
        if self.size == 0:
            self.discard()

    def _load(self) -> None:
        """Resume an earlier attempt, if it has the same URL and a validator."""
        try:
            with _resume_info_path(self.path).open("rb") as file:
                info = msgspec.json.decode(file.read(_RESUME_INFO_LIMIT_BYTES), type=_ResumeInfo)
        except (FileNotFoundError, msgspec.MsgspecError):
            return
        if info.url_sha256 != self._url_sha256 or info.validator is None:
            return
        self._file.seek(0)
        while block := self._file.read(install.BLOCK_BYTES):
            self._digest.update(block)
            self.size += len(block)
        self.resume_info = info
        self.is_complete = self.size == info.total


class _Connection:
    """The connection of one request at a time. The body of the response is read piece by piece."""

    def __init__(self, stall_timeout_s: float) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._reader = asyncio.StreamReader()
        self._parser = ResponseParser("GET", install.BLOCK_BYTES)
        self._transport: asyncio.Transport | None = None

    async def request(self, url: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
        """Send a request on a new connection; return the status and headers. Raises `_RetryableError`."""
        self.close()
        split = urlsplit(url)
        tls = TlsOptions() if split.scheme == "https" else None
        address = Address(host=split.hostname or "", port=split.port or (80 if tls is None else 443), tls=tls)
        proxy = None if tls is None else _find_proxy(split)
        self._reader = asyncio.StreamReader(limit=install.BLOCK_BYTES)
        self._parser = ResponseParser("GET", install.BLOCK_BYTES, is_decompressed=False)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        try:
            self._transport = await connect(address, protocol, timeout_s=self._stall_timeout_s, proxy=proxy)
        except HttpClientError as error:
            route = "" if proxy is None else f"through the proxy {proxy.authority}: "
            detail = f" ({error.detail})" if error.detail else ""
            raise _RetryableError(f"{route}{error}{detail}") from None
        path = split._replace(scheme="", netloc="", path=split.path or "/", fragment="").geturl()
        fields = [*headers.items(), ("Connection", "close")]
        self._transport.write(encode_request(address, "GET", path, headers=fields))
        while self._parser.status is None:
            await self._receive()
        return self._parser.status, {name.lower(): value for name, value in reversed(self._parser.headers)}

    async def read(self) -> bytes:
        """Return the next piece of the body, empty at its end. Raises `_RetryableError`."""
        while not self._parser.body and not self._parser.is_complete:
            await self._receive()
        return self._parser.take_body()

    async def _receive(self) -> None:
        if self._parser.error is not None:
            raise _RetryableError(self._parser.error)
        try:
            async with asyncio.timeout(self._stall_timeout_s):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError:
            raise _RetryableError(f"no data for {self._stall_timeout_s:g} s") from None
        except OSError:
            data = b""  # a reset connection: the parser reports what is missing
        if data:
            self._parser.feed(data)
        else:
            self._parser.feed_eof()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


def _find_proxy(server: SplitResult) -> Address | None:
    """Return the proxy that the environment sets for https, except for this machine and the hosts of NO_PROXY."""
    text = urllib.request.getproxies().get("https")
    if not text or install.is_loopback(server.hostname or "") or urllib.request.proxy_bypass(server.netloc):
        return None
    proxy = urlsplit(text if "://" in text else f"http://{text}")
    try:
        host, port = proxy.hostname, proxy.port or 80
    except ValueError:
        host, port = None, 0
    if host is None:
        raise install.user_error("HTTPS_PROXY is not the URL of a proxy; write http://HOST:PORT")
    headers: tuple[tuple[str, str], ...] = ()
    if proxy.username is not None:
        credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
        headers = (("Proxy-Authorization", f"Basic {base64.b64encode(credentials).decode()}"),)
    return Address(host=host, port=port, headers=headers)


@dataclass
class Download:
    """The download of one file to `part`, over several connections if necessary. It resumes an earlier attempt."""

    url: str
    part: Path
    name: str
    sha256: str | None
    progress: Progress
    limits: DownloadLimits
    free: FreeSpace
    pause: Callable[[float], None]
    has_response: bool = field(default=False, init=False)
    partial: _PartialFile = field(init=False)

    def run(self) -> str:
        """Download the file and return its sha256. Raises `PullError`."""
        install.parse_download_url(self.url)
        with closing(_PartialFile(self.part, self.url)) as partial:
            self.partial = partial
            failures = 0
            while not partial.is_complete:
                size_before = partial.size
                try:
                    asyncio.run(self.fetch_rest())
                except _RetryableError as error:
                    failures = 0 if partial.size - size_before > install.BLOCK_BYTES else failures + 1
                    if failures > self.limits.retries or not self.has_response:
                        raise _unreachable_error(self.url, error, partial.size) from None
                    self.pause(2.0 ** max(failures - 1, 0))
            actual = partial.sha256()
            if self.sha256 is not None and actual != self.sha256:
                partial.discard()
            check_sha256(actual, self.sha256, self.name)
            return actual

    async def fetch_rest(self) -> None:
        """Request the missing bytes and append them; `_RetryableError` if the connection ends early.

        It is the only task of its event loop, so that writing to the disk may block.
        """
        with closing(_Connection(self.limits.stall_timeout_s)) as connection:
            status, headers = await self._follow_redirects(connection)
            total = self._check_response(status, headers)
            self._check_space(total)
            await self._save_body(connection, total)

    async def _follow_redirects(self, connection: _Connection) -> tuple[int, Mapping[str, str]]:
        url, fields = self.url, {"Accept-Encoding": "identity", "User-Agent": f"welldone/{__version__}"}
        info = self.partial.resume_info
        if self.partial.size and info is not None and info.validator is not None:
            fields |= {"Range": f"bytes={self.partial.size}-", "If-Range": info.validator}
        for _ in range(self.limits.max_redirects + 1):
            status, headers = await connection.request(url, fields)
            self.has_response = True
            if status not in _REDIRECT_STATUSES:
                return status, headers
            url = resolve_redirect(url, headers.get("location", ""))
        raise PullError(f"{redact_url(self.url)} was redirected too often; check the link")

    def _check_response(self, status: int, headers: Mapping[str, str]) -> int | None:
        """Check the status and headers; return the size of the complete file, if known."""
        match status:
            case 200:
                total = _parse_length(headers.get("content-length", ""))
                self.partial.restart(_validator(headers), total)
                return total
            case 206:
                return self._check_content_range(headers)
            case 416:
                self.partial.restart(None, None)
                raise _RetryableError("the file has changed on the server")
            case _ if status == 429 or status >= 500:
                raise _RetryableError(f"the server answered {status}")
            case _:
                raise _status_error(self.url, status)

    def _check_content_range(self, headers: Mapping[str, str]) -> int | None:
        match = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", headers.get("content-range", ""))
        if match is None or int(match[1]) != self.partial.size:
            self.partial.restart(None, None)
            raise _RetryableError("the server sent another range of the file than was requested")
        total = _parse_length(match[2])
        if not self._is_same_version(headers, total):
            self.partial.restart(None, None)
            raise _RetryableError("the file has changed on the server")
        return total

    def _is_same_version(self, headers: Mapping[str, str], total: int | None) -> bool:
        """Return whether a range belongs to the version of the partial file. Some servers ignore If-Range.

        A 206 has the ETag of its version if the 200 has one, and may omit Last-Modified (RFC 9110 §15.3.7).
        """
        info = self.partial.resume_info
        if info is None or (None not in (info.total, total) and info.total != total):
            return False
        validator = _validator(headers)
        return validator == info.validator or (validator is None and not (info.validator or "").startswith('"'))

    def _check_space(self, total: int | None) -> None:
        install.check_free_space(self.partial.path.parent, max(0, (total or 0) - self.partial.size), self.free)

    async def _save_body(self, connection: _Connection, total: int | None) -> None:
        size_checked = self.partial.size
        self.progress(self.name, self.partial.size, total)
        while total is None or self.partial.size < total:
            limit = None if total is None else total - self.partial.size
            block = (await connection.read())[:limit]
            if not block:
                break
            if self.partial.size == 0:
                install.check_gguf_magic(block)
            self.partial.append(block)
            self.progress(self.name, self.partial.size, total)
            if self.partial.size - size_checked >= self.limits.space_check_bytes:
                size_checked = self.partial.size
                self._check_space(total)
        if total is not None and self.partial.size < total:
            raise _RetryableError("the connection ended before the end of the file")
        if self.partial.size == 0:
            install.check_gguf_magic(b"")
        self.partial.is_complete = True


def resolve_redirect(url: str, location: str) -> str:
    """Return the target of a redirect; raise `PullError` if it is not allowed, such as one from https to http."""
    if not location:
        raise PullError(f"{redact_url(url)} is redirected without a Location header")
    try:
        target = urljoin(url, location)
        is_encrypted = install.parse_download_url(target).scheme == "https"
    except (PullError, ValueError) as error:
        raise PullError(f"{redact_url(url)} is redirected to an address that is not allowed: {error}") from None
    if urlsplit(url).scheme == "https" and not is_encrypted:
        raise PullError(f"{redact_url(url)} is redirected to {redact_url(target)}, which is not encrypted")
    return target


def _status_error(url: str, status: int) -> PullError:
    if status in (401, 403):
        hint = f"requires authentication ({status}); download it yourself and serve it with -m FILE"
    elif status in (404, 410):
        hint = f"was not found ({status}); check the link"
    else:
        hint = f"cannot be downloaded: the server answered {status}"
    return PullError(f"{redact_url(url)} {hint}")


def _unreachable_error(url: str, error: Exception, size: int) -> PullError:
    resume = f"; {install.format_size(size)} are kept, and the same command resumes the download" if size else ""
    return PullError(f"{redact_url(url)} could not be downloaded: {error}; check the connection and try again{resume}")


def _validator(headers: Mapping[str, str]) -> str | None:
    etag = headers.get("etag", "")
    # RFC 9110 §13.1.5: "A client MUST NOT generate an If-Range header field containing an entity tag that is marked
    # as weak."
    validator = etag if etag.startswith('"') else headers.get("last-modified", "")
    return validator if validator and validator.isprintable() else None  # else it cannot be sent


def _parse_length(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None
