"""One reply of an upstream that goes to the client as it comes, byte for byte."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress

from welldone.net.inbound import Call, Stream
from welldone.net.outbound import Exchange, OutboundError
from welldone.serve import refusals
from welldone.serve.backends import Seat
from welldone.serve.errors import ApiError
from welldone.serve.troubles import ERROR_LIMIT_BYTES, ERROR_S, LEFT, Trouble, refused, timed_out, unreachable

_ENDS_BYTES = 1024  # at the start and at the end of a reply, where usage stands
_TOKENS = re.compile(rb'(?<!\\)"total_tokens"\s*:\s*(\d{1,9})\b')
_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(?:;[ -~]*)?", re.ASCII)
_ACTIVE = re.compile("html|xml|svg|script", re.IGNORECASE)
"""Types that a browser runs: a picture as SVG may have scripts, and XML may say how it is made into a page."""
_POLICY = "sandbox; default-src 'none'"
"""A file that a browser opens has no origin and runs nothing: it must not act as our page, which has the same one."""
_PASSED = ("content-disposition", "openai-model", "openai-version")


class Relay:
    """One exchange. The client's stream is opened when the upstream's reply begins, and not before: until then
    another upstream may be asked."""

    def __init__(self, call: Call, headers: Mapping[str, str], *, write_s: float) -> None:
        self.has_begun = False
        """Whether the client has heard something."""
        self._call = call
        self._ours = headers
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._kept = bytearray()  # what came before the stream was open; or an error
        self._first = b""
        self._last = b""
        self._stream: Stream | None = None
        self._exchange: Exchange | None = None
        self._is_held = False  # nothing is heard until the client has read
        self._is_over = False
        self._error: OutboundError | None = None
        self._heard_at = 0.0

    @property
    def tokens(self) -> int:
        """What the reply says that it cost."""
        found = _TOKENS.findall(self._first) or _TOKENS.findall(self._last)
        return int(found[-1]) if found else 0

    async def run(
        self, seat: Seat, method: str, path: str, *, body: bytes, content_type: str, is_again: bool = False
    ) -> Trouble | None:
        """Ask, and send on what comes; what went wrong, if something did."""
        self._heard_at = self._loop.time()
        accept = self._call.headers.get("Accept", "")
        accept = accept if accept.isascii() and accept.isprintable() and accept else "*/*"
        try:
            exchange = await seat.send(
                seat.address,
                method,
                path,
                self,
                body=body,
                accept=accept,
                content_type=content_type,
                is_fresh=is_again,
            )
        except OutboundError as error:
            return unreachable(error)
        self._exchange = exchange
        trouble: Trouble | None = LEFT
        try:
            trouble = await self._hear(exchange, seat)
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
        self._changed.set()

    def data(self, data: bytes) -> None:
        """More of it."""
        self._heard_at = self._loop.time()
        if self._stream is None:
            self._kept += data
            if len(self._kept) >= ERROR_LIMIT_BYTES and self._exchange is not None:
                self._exchange.pause()  # more is wanted when the client's stream is open; of an error, none
            self._changed.set()
            return
        self._say(self._stream, data)
        if self._stream.is_congested:
            self._is_held = True
            if self._exchange is not None:
                self._exchange.pause()  # now: the loop may read megabytes more before the task wakes
            self._changed.set()

    def end(self, error: OutboundError | None) -> None:
        """It has ended."""
        self._is_over, self._error = True, error
        self._changed.set()

    # What the handler's task does.

    async def _hear(self, exchange: Exchange, seat: Seat) -> Trouble | None:
        while not self._status and not self._is_over:
            if not await self._sleep(seat.first_byte_s):
                return timed_out(seat.first_byte_s)
        if not self._status:
            return self._lost()
        if not 200 <= self._status < 300:
            return await self._refused(seat)
        if self._headers.get("content-encoding", "identity").lower() != "identity":
            return Trouble(refusals.encoded(), "garbage")
        if self._headers.get("content-type", "").lower().startswith("text/html"):
            return Trouble(refusals.not_an_answer(), "garbage")
        exchange.pause()
        stream = await self._call.open(self._head(), status=self._status)
        self.has_begun = True
        self._stream = stream
        kept, self._kept = bytes(self._kept), bytearray()
        self._say(stream, kept)
        exchange.resume()
        return await self._send_on(exchange, stream, seat)

    async def _send_on(self, exchange: Exchange, stream: Stream, seat: Seat) -> Trouble | None:
        while not self._is_over:
            if self._is_held or stream.is_congested:
                if not self._is_held:
                    exchange.pause()
                self._is_held = False
                try:
                    async with asyncio.timeout(self._write_s):
                        await stream.drain()
                except TimeoutError:
                    return Trouble(ApiError(408, "The client does not read.", code="client_too_slow"), "left", False)
                self._heard_at = self._loop.time()  # the silence was not the upstream's
                exchange.resume()
            elif not await self._sleep(seat.idle_s):
                return timed_out(seat.idle_s)
        if self._error is not None:
            return self._lost()
        await stream.end()
        return None

    async def _refused(self, seat: Seat) -> Trouble:
        """What an error says."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ERROR_S):
                while not self._is_over and len(self._kept) < ERROR_LIMIT_BYTES:
                    self._changed.clear()
                    await self._changed.wait()
        body = bytes(self._kept[:ERROR_LIMIT_BYTES])
        return refused(self._status, self._headers, body, "input", seat.upstream)

    async def _sleep(self, patience_s: float) -> bool:
        """Wait until something changes; whether the upstream is still to be waited for."""
        self._changed.clear()
        left_s = self._heard_at + patience_s - self._loop.time()
        if left_s <= 0:
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._changed.wait()
        return True

    def _head(self) -> dict[str, str]:
        kind = self._headers.get("content-type", "")
        passed = {name: self._headers[name] for name in _PASSED if name in self._headers}
        if _ACTIVE.search(kind) and not passed.get("content-disposition", "").lower().startswith("attachment"):
            passed["content-disposition"] = "attachment"
        kind = kind if _TYPE.fullmatch(kind) else "application/octet-stream"
        return {**passed, "Content-Type": kind, "Content-Security-Policy": _POLICY, **self._ours}

    def _say(self, stream: Stream, data: bytes) -> None:
        if data:
            self._first += data[: _ENDS_BYTES - len(self._first)] if len(self._first) < _ENDS_BYTES else b""
            self._last = (self._last + data[-_ENDS_BYTES:])[-_ENDS_BYTES:]
            stream.write(data)

    def _lost(self) -> Trouble:
        error = self._error or OutboundError("nothing came")
        return Trouble(refusals.lost(str(error)), "lost", is_stale=error.is_stale, is_lost=True)
