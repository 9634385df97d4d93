"""Resumable HTTP download of a model file, over https only (http is allowed for this machine)."""

import hashlib
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import BadStatusLine, HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

import msgspec

from welldone import __version__
from welldone.engines.models import install
from welldone.engines.models.install import FreeSpace, Progress, PullError, redact_url
from welldone.http.address import TlsOptions, ssl_context

_READ_BYTES = 65_536
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")


class DownloadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts and retries of a download."""

    stall_timeout_s: float = 60.0
    """Limit between two reads. File hosts answer within seconds."""
    retries: int = 3
    """Retries in a row without progress; the delay doubles from one second."""
    space_check_bytes: int = install.FREE_SPACE_MARGIN_BYTES
    """Bytes written between two checks of the free space: no more than the margin."""


class _RetryableError(Exception):
    """The connection failed, or the server is busy."""


class _ResumeInfo(msgspec.Struct, frozen=True):
    """Identity of a partial download, stored beside it. Only the hash of the URL is stored: it may have a signature."""

    url_sha256: str
    validator: str
    """Validator of this version for `If-Range`: a strong ETag, or else Last-Modified."""
    total: int | None


class SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects to https, and to http on this machine."""

    max_redirections = max_repeats = 5  # large hosts use two

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """Follow a redirect; raise `PullError` if it is not allowed, such as one from https to http."""
        problem = ""
        try:
            if install.parse_download_url(newurl).scheme != "https" == req.type:
                problem = f"{redact_url(newurl)}, which is not encrypted"
        except PullError as error:
            problem = f"an address that is not allowed: {error}"
        if problem:
            fp.close()
            raise PullError(f"{redact_url(req.full_url)} is redirected to {problem}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass
class Download:
    """The download of one file to `part_file`, over several connections if necessary. It resumes an earlier attempt."""

    url: str
    part_file: Path
    name: str
    progress: Progress
    limits: DownloadLimits
    free: FreeSpace
    pause: Callable[[float], None]
    _has_response: bool = field(default=False, init=False)

    def run(self) -> None:
        """Download the file. Raises `PullError`."""
        host = install.parse_download_url(self.url).hostname or ""
        proxies = {} if install.is_loopback(host) else _https_proxy()
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPSHandler(context=ssl_context(TlsOptions())),
            SafeRedirects(),
        )
        failures = 0
        while (info := self._resume_info()) is None or self._size(info) != info.total:
            size = self._size(info)
            try:
                self._fetch_rest(size, info)
                break
            except _RetryableError as error:
                new_size = self._size(self._resume_info())
                failures = 0 if new_size - size > install.BLOCK_BYTES else failures + 1
                if failures > self.limits.retries or not self._has_response:
                    route = "" if not proxies or urllib.request.proxy_bypass(host) else " through the proxy"
                    kept = f"; {install.format_size(new_size)} are kept, and the same command resumes the download"
                    raise PullError(
                        f"{redact_url(self.url)} could not be downloaded{route}: {error}; check the connection and "
                        f"try again{kept if new_size else ''}"
                    ) from None
                self.pause(2.0 ** max(failures - 1, 0))

    def discard(self) -> None:
        """Delete the partial file, so that no later attempt resumes it."""
        self.part_file.unlink(missing_ok=True)
        self.remove_resume_info()

    def remove_resume_info(self) -> None:
        """Remove the resume information of a complete download."""
        self._info_path.unlink(missing_ok=True)

    @property
    def _info_path(self) -> Path:
        return self.part_file.with_name(self.part_file.name + ".json")

    @property
    def _url_sha256(self) -> str:
        return hashlib.sha256(self.url.encode()).hexdigest()

    def _resume_info(self) -> _ResumeInfo | None:
        """Return what is known of an earlier attempt with the same URL."""
        try:
            info = msgspec.json.decode(self._info_path.read_bytes(), type=_ResumeInfo)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return info if info.url_sha256 == self._url_sha256 else None

    def _size(self, info: _ResumeInfo | None) -> int:
        """Return the number of bytes that can be kept."""
        return self.part_file.stat().st_size if info is not None and self.part_file.exists() else 0

    def _fetch_rest(self, size: int, info: _ResumeInfo | None) -> None:
        """Request the missing bytes and append them; `_RetryableError` if the connection ends early."""
        request = Request(self.url, headers={"User-Agent": f"welldone/{__version__}"})
        if size and info is not None:
            request.add_header("Range", f"bytes={size}-")
            request.add_header("If-Range", info.validator)
        try:
            with self._network_errors():
                response: HTTPResponse = self._opener.open(request, timeout=self.limits.stall_timeout_s)
        except HTTPError as error:
            error.close()
            self._has_response = True
            raise self._status_error(error.code) from None
        self._has_response = True
        with response:
            total = self._start(size, info, response)
            try:
                self._save_body(response, size if response.status == 206 else 0, total)
            finally:
                if self.part_file.stat().st_size == 0:
                    self.discard()

    def _status_error(self, status: int) -> Exception:
        if status == 416:
            self.discard()
            return _RetryableError("the file has changed on the server")
        if status == 429 or status >= 500:
            return _RetryableError(f"the server answered {status}")
        hint = f"cannot be downloaded: the server answered {status}"
        if status in (401, 403):
            hint = f"requires authentication ({status}); download it yourself and serve it with -m FILE"
        elif status in (404, 410):
            hint = f"was not found ({status}); check the link"
        elif status in (301, 302, 303, 307, 308):
            hint = "was redirected too often, or without a Location header; check the link"
        return PullError(f"{redact_url(self.url)} {hint}")

    def _start(self, size: int, info: _ResumeInfo | None, response: HTTPResponse) -> int | None:
        """Check that the response is what is missing, or start again; return the size of the file, if known."""
        validator = _validator(response.headers)
        if response.status == 206 and info is not None:
            match = _RANGE.fullmatch(response.headers.get("content-range", ""))
            total = _parse_length(match[2]) if match is not None else None
            # A 206 has the ETag of its version if the 200 has one, and may omit Last-Modified (RFC 9110 §15.3.7).
            # Some servers ignore If-Range.
            is_same = validator == info.validator or (validator is None and not info.validator.startswith('"'))
            is_same_size = None in (info.total, total) or info.total == total
            if match is None or int(match[1]) != size or not is_same or not is_same_size:
                self.discard()
                raise _RetryableError("the file has changed on the server")
        else:
            total = _parse_length(response.headers.get("content-length", ""))
            self.discard()
            self.part_file.touch()
            if validator is not None:
                info = _ResumeInfo(self._url_sha256, validator, total)
                self._info_path.write_bytes(msgspec.json.encode(info))
        return total

    def _save_body(self, response: HTTPResponse, size: int, total: int | None) -> None:
        self._check_space(size, total)
        size_checked = size
        self.progress(self.name, size, total)
        with self.part_file.open("ab") as file:
            while total is None or size < total:
                with self._network_errors():
                    block = response.read1(_READ_BYTES)[: None if total is None else total - size]
                if not block:
                    break
                if size == 0:
                    install.check_gguf_magic(block)
                file.write(block)
                size += len(block)
                self.progress(self.name, size, total)
                if size - size_checked >= self.limits.space_check_bytes:
                    size_checked = size
                    self._check_space(size, total)
        if size < (1 if total is None else total):
            raise _RetryableError("the connection ended before the end of the file")
        if size == 0:
            install.check_gguf_magic(b"")

    def _check_space(self, size: int, total: int | None) -> None:
        install.check_free_space(self.part_file.parent, max(0, (total or 0) - size), self.free)

    @contextmanager
    def _network_errors(self) -> Iterator[None]:
        """Make `_RetryableError` of a failed connection."""
        try:
            yield
        except HTTPError:
            raise
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, OSError) else error
            match cause:
                case TimeoutError():
                    reason = f"no data for {self.limits.stall_timeout_s:g} s"
                case OSError():
                    reason = (cause.strerror or str(cause)).lower()
                case BadStatusLine():
                    reason = "the reply is not HTTP"
                case _:
                    reason = "the connection ended before the end of the file"
            raise _RetryableError(reason) from None


def _https_proxy() -> dict[str, str]:
    """Return the proxy that the environment sets for https."""
    text = urllib.request.getproxies().get("https")
    if not text:
        return {}
    try:
        proxy = urlsplit(text if "://" in text else f"http://{text}")
        is_valid = proxy.hostname and proxy.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise install.user_error("HTTPS_PROXY is not the URL of a proxy; write http://HOST:PORT")
    return {"https": text}


def _validator(headers: HTTPMessage) -> str | None:
    etag = headers.get("etag", "")
    # RFC 9110 §13.1.5: "A client MUST NOT generate an If-Range header field containing an entity tag that is marked
    # as weak."
    validator = etag if etag.startswith('"') else headers.get("last-modified", "")
    return validator if validator and validator.isprintable() else None  # else it cannot be sent


def _parse_length(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None
