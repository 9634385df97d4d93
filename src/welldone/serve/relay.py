"""One reply of an upstream that goes to the client as it comes, byte for byte."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress

from welldone.net.inbound import HttpRequest, StreamingResponse
from welldone.net.outbound import Exchange, HttpClientError
from welldone.serve import refusals
from welldone.serve.backends import BackendLease
from welldone.serve.errors import ApiError
from welldone.serve.troubles import (
    ERROR_LIMIT_BYTES,
    ERROR_BODY_TIMEOUT_S,
    CLIENT_DISCONNECTED,
    AttemptFailure,
    status_failure,
    timeout_failure,
    connection_failure,
)

_USAGE_SCAN_BYTES = 1024  # at the start and at the end of a reply, where usage stands
_TOKENS = re.compile(rb'(?<!\\)"total_tokens"\s*:\s*(\d{1,9})\b')
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;[ -~]*)?", re.ASCII)
_ACTIVE_CONTENT = re.compile("html|xml|svg|script", re.IGNORECASE)
"""Types that a browser runs: a picture as SVG may have scripts, and XML may say how it is made into a page."""
_CONTENT_SECURITY_POLICY = "sandbox; default-src 'none'"
"""A file that a browser opens has no origin and runs nothing: it must not act as our page, which has the same one."""
_FORWARDED_HEADERS = ("content-disposition", "openai-model", "openai-version")


class PassthroughExchange:
    """One exchange. The client's stream is opened when the upstream's reply begins, and not before: until then
    another upstream may be asked."""

    def __init__(self, http_request: HttpRequest, headers: Mapping[str, str], *, write_s: float) -> None:
        self.has_begun = False
        """Whether the client has heard something."""
        self._http_request = http_request
        self._response_headers = headers
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._buffer = bytearray()  # what came before the stream was open; or an error
        self._first_bytes = b""
        self._last_bytes = b""
        self._stream: StreamingResponse | None = None
        self._exchange: Exchange | None = None
        self._is_paused = False  # nothing is heard until the client has read
        self._is_finished = False
        self._error: HttpClientError | None = None
        self._last_received_at = 0.0

    @property
    def tokens(self) -> int:
        """What the reply says that it cost."""
        found = _TOKENS.findall(self._first_bytes) or _TOKENS.findall(self._last_bytes)
        return int(found[-1]) if found else 0

    async def run(
        self, lease: BackendLease, method: str, path: str, *, body: bytes, content_type: str, is_retry: bool = False
    ) -> AttemptFailure | None:
        """Ask, and send on what comes; what went wrong, if something did."""
        self._last_received_at = self._loop.time()
        accept = self._http_request.headers.get("Accept", "")
        accept = accept if accept.isascii() and accept.isprintable() and accept else "*/*"
        try:
            exchange = await lease.send(
                lease.address,
                method,
                path,
                self,
                body=body,
                accept=accept,
                content_type=content_type,
                is_fresh=is_retry,
            )
        except HttpClientError as error:
            return connection_failure(error)
        self._exchange = exchange
        trouble: AttemptFailure | None = CLIENT_DISCONNECTED
        try:
            trouble = await self._receive_reply(exchange, lease)
        finally:
            exchange.close()
            self._exchange = None  # it holds us: rings are left to the collector
            if trouble is not None and self._stream is not None:
                self._stream.abort()  # nobody shall take it for a whole reply
        return trouble

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self._status, self._headers = status, headers
        self._wakeup.set()

    def data(self, data: bytes) -> None:
        """More of it."""
        self._last_received_at = self._loop.time()
        if self._stream is None:
            self._buffer += data
            if len(self._buffer) >= ERROR_LIMIT_BYTES and self._exchange is not None:
                self._exchange.pause()  # more is wanted when the client's stream is open; of an error, none
            self._wakeup.set()
            return
        self._write(self._stream, data)
        if self._stream.has_backpressure:
            self._is_paused = True
            if self._exchange is not None:
                self._exchange.pause()  # now: the loop may read megabytes more before the task wakes
            self._wakeup.set()

    def end(self, error: HttpClientError | None) -> None:
        """It has ended."""
        self._is_finished, self._error = True, error
        self._wakeup.set()

    # What the handler's task does.

    async def _receive_reply(self, exchange: Exchange, lease: BackendLease) -> AttemptFailure | None:
        while not self._status and not self._is_finished:
            if not await self._wait(lease.first_byte_s):
                return timeout_failure(lease.first_byte_s)
        if not self._status:
            return self._disconnected()
        if not 200 <= self._status < 300:
            return await self._read_error(lease)
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            return AttemptFailure(refusals.compressed_reply(), "garbage")
        if self._headers.get("content-type", "").lower().startswith("text/html"):
            return AttemptFailure(refusals.unrecognized_reply(), "garbage")
        exchange.pause()
        stream = await self._http_request.start_stream(self._reply_headers(), status=self._status)
        self.has_begun = True
        self._stream = stream
        kept, self._buffer = bytes(self._buffer), bytearray()
        self._write(stream, kept)
        exchange.resume()
        return await self._forward_body(exchange, stream, lease)

    async def _forward_body(
        self, exchange: Exchange, stream: StreamingResponse, lease: BackendLease
    ) -> AttemptFailure | None:
        while not self._is_finished:
            if self._is_paused or stream.has_backpressure:
                if not self._is_paused:
                    exchange.pause()
                self._is_paused = False
                try:
                    async with asyncio.timeout(self._write_s):
                        await stream.drain()
                except TimeoutError:
                    return AttemptFailure(
                        ApiError(408, "The client does not read.", code="client_too_slow"), "left", False
                    )
                self._last_received_at = self._loop.time()  # the silence was not the upstream's
                exchange.resume()
            elif not await self._wait(lease.idle_s):
                return timeout_failure(lease.idle_s)
        if self._error is not None:
            return self._disconnected()
        await stream.end()
        return None

    async def _read_error(self, lease: BackendLease) -> AttemptFailure:
        """What an error says."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ERROR_BODY_TIMEOUT_S):
                while not self._is_finished and len(self._buffer) < ERROR_LIMIT_BYTES:
                    self._wakeup.clear()
                    await self._wakeup.wait()
        body = bytes(self._buffer[:ERROR_LIMIT_BYTES])
        return status_failure(self._status, self._headers, body, "input", lease.upstream)

    async def _wait(self, timeout_s: float) -> bool:
        """Wait until something changes; whether the upstream is still to be waited for."""
        self._wakeup.clear()
        left_s = self._last_received_at + timeout_s - self._loop.time()
        if left_s <= 0:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._wakeup.wait()
        return True

    def _reply_headers(self) -> dict[str, str]:
        kind = self._headers.get("content-type", "")
        passed = {name: self._headers[name] for name in _FORWARDED_HEADERS if name in self._headers}
        if _ACTIVE_CONTENT.search(kind) and not passed.get("content-disposition", "").lower().startswith("attachment"):
            passed["content-disposition"] = "attachment"
        kind = kind if _MEDIA_TYPE.fullmatch(kind) else "application/octet-stream"
        return {
            **passed,
            "Content-Type": kind,
            "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
            **self._response_headers,
        }

    def _write(self, stream: StreamingResponse, data: bytes) -> None:
        if data:
            self._first_bytes += (
                data[: _USAGE_SCAN_BYTES - len(self._first_bytes)]
                if len(self._first_bytes) < _USAGE_SCAN_BYTES
                else b""
            )
            self._last_bytes = (self._last_bytes + data[-_USAGE_SCAN_BYTES:])[-_USAGE_SCAN_BYTES:]
            stream.write(data)

    def _disconnected(self) -> AttemptFailure:
        error = self._error or HttpClientError("nothing came")
        return AttemptFailure(
            refusals.upstream_disconnected(str(error)), "lost", is_stale=error.is_stale, is_disconnect=True
        )
