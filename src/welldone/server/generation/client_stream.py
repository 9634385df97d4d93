"""The response to one client: the only writer to it, from the early status to the end of the stream.

The handler's task sleeps in `wait` or `drain`. The callbacks of the sources (upstreams, engines) send and wake it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, auto
from typing import Protocol

from welldone.core.answer_format import KEEP_ALIVE
from welldone.core.repair_log import RepairResult
from welldone.gateway.error_mapping import ERROR_LIMIT_BYTES, AttemptFailure, client_too_slow
from welldone.http.messages import HttpRequest, StreamingResponse
from welldone.server.observe.counters import StreamTimes

EARLY_LIMIT_BYTES = ERROR_LIMIT_BYTES
"""Output before the stream is open: asyncio's own high-water mark, and the rest of an error is not needed."""
_KEEP_ALIVE_LIMIT = 45  # in a row: some clients give up after a hundred lines without data, and a comment has two

REPAIRS_HEADER = "x-welldone-repairs"
UPSTREAM_HEADER = "x-welldone-upstream"
TIMING_HEADER = "Server-Timing"
BROKEN_JSON_HEADER = "x-welldone-broken-json"
CONTINUED_HEADER = "x-welldone-continued"
"""How the answer was continued after a failure of its backend: `prefill`, `replay`."""
PRINTED_CALLS_HEADER = "x-welldone-printed-calls"
"""Number of choices that look like a tool call written as text."""
IGNORED_HEADER = "x-welldone-ignored-fields"
"""Fields of the request that the upstream's API cannot have, and tools that only OpenAI's servers run."""
REPORT_REQUEST_HEADER = "x-welldone-report"
"""Request header that asks for the report."""
_RULES_LIMIT = 64  # proxies limit a header to 4 to 8 KB


class ResponseState(IntEnum):
    """State of a response, as seen by the client."""

    WAITING = auto()
    """The backend has not started its reply; the stream may be open, with keep-alives only."""
    STARTED = auto()
    """The backend has started its reply, and the client has received nothing of it."""
    SENDING = auto()
    """The client has received a part of the reply: from here on attempts can only continue it."""
    COMPLETE = auto()
    """All parts have ended without failure."""
    FAILED = auto()


# Python 3.11 takes 15 times as long to look up a member of an enum, and each response needs a dozen.
_WAITING, _STARTED, _SENDING, _COMPLETE, _FAILED = ResponseState
_NEXT_STATES = {
    _WAITING: tuple(ResponseState)[1:],
    _STARTED: (_WAITING, *tuple(ResponseState)[2:]),  # WAITING: a retry discards the output
    _SENDING: (_COMPLETE, _FAILED),
    _COMPLETE: (),
    _FAILED: (),
}


class Source(Protocol):
    """A reply of a server, which is sent to the client."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read on. The server is not to blame for the silence up to now."""


class ClientStream:
    """The response to one client. `sources` are those that are paused while the client reads too slowly."""

    def __init__(self, request: HttpRequest, sources: Mapping[int, Source], *, write_s: float) -> None:
        self.state: ResponseState = _WAITING
        self.stream: StreamingResponse | None = None
        """The stream, once it is open."""
        self.buffered: bytearray = bytearray()
        """Output before the stream is open."""
        self._request = request
        self._sources = sources
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._is_paused = False  # the sources are paused until the client has read
        self._waiter: asyncio.Future[None] | None = None
        self._last_output = b""  # is sent with the end of the body
        self._last_sent_at = time.monotonic()
        self._keep_alive_count = 0

    # Called by the sources.

    def enter(self, state: ResponseState) -> None:
        """Change the state, unless the response has ended or is already further, and wake the handler's task."""
        if state in _NEXT_STATES[self.state]:
            self.state = state
        self.wake()

    def wake(self) -> None:
        """Wake the handler's task."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def send(self, data: bytes | None) -> None:
        """Send bytes of the answer, or buffer them until the stream is open."""
        if not data:
            return
        stream = self.stream
        if stream is None:
            if not data.replace(KEEP_ALIVE, b"").strip():
                return  # a keep-alive alone: a failure can still become an HTTP status
            self.buffer(data)
            self.enter(_STARTED)
        else:
            self._mark_sent()
            stream.write(data)

    def send_last(self, data: bytes | None) -> None:
        """Send the last bytes: an open stream gets them together with the end of the body."""
        if self.stream is None:
            self.send(data)
        else:
            self._last_output = data or b""

    def buffer(self, data: bytes) -> None:
        """Buffer output before the stream is open."""
        self.buffered += data
        if len(self.buffered) >= EARLY_LIMIT_BYTES:
            self._pause()

    def discard(self) -> None:
        """Drop the buffered output: another attempt begins again."""
        self.buffered.clear()
        self._is_paused = False
        self.enter(_WAITING)

    def _mark_sent(self) -> None:
        if self.state < _SENDING:
            self.state = _SENDING
        self._keep_alive_count = 0
        self._last_sent_at = time.monotonic()

    def _pause(self) -> None:
        """Stop reading until the client has read; at once, since the loop may read megabytes before the task wakes."""
        self._is_paused = True
        for source in self._sources.values():
            source.pause()
        self.wake()

    # The handler's task.

    async def wait_for_start(self, early_s: float) -> None:
        """Wait for a reply: an early error becomes an HTTP status, later queued requests receive keep-alives."""
        early_end = time.monotonic() + early_s
        while self.state is _WAITING and (left_s := early_end - time.monotonic()) > 0:
            await self.wait(left_s)

    async def open(self, headers: Mapping[str, str], *, status: int = 200, trailers: Sequence[str] = ()) -> None:
        """Send the head of the response and the buffered output; if it is complete, `end` sends all in one write."""
        output, self.buffered = bytes(self.buffered), bytearray()
        is_complete = self.state is _COMPLETE
        if is_complete:
            self._last_output, output = output, b""
        elif output:
            self._mark_sent()
        self.stream = await self._request.start_stream(
            headers, status=status, trailers=trailers, first=output, holds_head=is_complete
        )
        self.stream.on_backpressure(self._pause)

    async def wait(self, timeout_s: float) -> None:
        """Wait for a call of `wake`, at most for `timeout_s`. The caller checks the state before, without an await."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, timeout_s), self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    @property
    def has_backpressure(self) -> bool:
        """Whether the client reads too slowly."""
        return self.stream is not None and self.stream.has_backpressure

    @property
    def is_blocked(self) -> bool:
        """Whether the client must read before more is sent."""
        return self._is_paused or (self.stream is not None and self.stream.has_backpressure)

    async def drain(self) -> AttemptFailure | None:
        """Wait for a slow client with the sources paused; disconnect it if it reads nothing at all."""
        assert self.stream is not None
        self._pause()
        self._is_paused = False
        try:
            async with asyncio.timeout(self._write_s):
                await self.stream.drain()
        except TimeoutError:
            self.stream.abort()
            return client_too_slow(self._write_s)
        for source in self._sources.values():
            source.resume()
        return None

    async def wait_with_keep_alive(self, sent_at: float, interval_s: float, make: Callable[[], bytes]) -> None:
        """Wait for a call of `wake`, until the next keep-alive. `sent_at`: time of the last chunk on the fast path."""
        assert self.stream is not None
        now = time.monotonic()
        if sent_at > self._last_sent_at:
            self._last_sent_at = sent_at
            self._keep_alive_count = 0
        due_s = self._last_sent_at + interval_s - now
        if due_s <= 0:
            due_s, self._last_sent_at = interval_s, now
            if self._keep_alive_count < _KEEP_ALIVE_LIMIT:
                self._keep_alive_count += 1
                self.stream.write(make())
        await self.wait(due_s)

    async def end(self, trailers: Mapping[str, str] | None = None) -> None:
        """End the stream."""
        assert self.stream is not None
        await self.stream.end(trailers, last=self._last_output)


class ReportHeaders:
    """The report on one response."""

    def __init__(self, times: StreamTimes, shows_upstreams: bool, ignored_fields: Sequence[str] = ()) -> None:
        self._times = times
        self._ignored = {IGNORED_HEADER: ", ".join(ignored_fields[:_RULES_LIMIT])} if ignored_fields else {}
        self._shows_upstreams = shows_upstreams  # this client may see the names of upstreams
        names = (REPAIRS_HEADER, BROKEN_JSON_HEADER, PRINTED_CALLS_HEADER, CONTINUED_HEADER, TIMING_HEADER)
        self.trailer_names: tuple[str, ...] = (*names, UPSTREAM_HEADER) if shows_upstreams else names
        """Names of the trailers of a stream."""

    def headers(self, upstream: str) -> dict[str, str]:
        """Return the headers at the start of the response, with the upstream of the last attempt."""
        return {TIMING_HEADER: self._timing(), **self._ignored, **self._upstream_header(upstream)}

    def trailers(self, result: RepairResult, upstream: str, continued: Sequence[str]) -> dict[str, str]:
        """Return the trailers at its end."""
        rules = [entry.rule for entry in result.repairs]
        broken_json = f"content={result.invalid_json_count}, arguments={result.invalid_arguments_count}"
        return {
            REPAIRS_HEADER: ", ".join(rules[:_RULES_LIMIT]),
            BROKEN_JSON_HEADER: broken_json,
            PRINTED_CALLS_HEADER: str(result.text_tool_calls),
            CONTINUED_HEADER: ", ".join(continued),
            TIMING_HEADER: self._timing(),
            # Again: the headers of a queued stream precede the choice of an upstream, and attempts may have failed.
            **self._upstream_header(upstream),
        }

    def _upstream_header(self, upstream: str) -> dict[str, str]:
        return {UPSTREAM_HEADER: upstream} if upstream and self._shows_upstreams else {}

    def _timing(self) -> str:
        """Format times in milliseconds (https://www.w3.org/TR/server-timing/)."""
        times = self._times
        known = (("queue", times.queued_s), ("first", times.ttft_s), ("total", times.elapsed_s))
        return ", ".join(f"{name};dur={seconds * 1000:.1f}" for name, seconds in known if seconds is not None)
