"""Output of one response to its client: the buffer before the stream is open, backpressure, and waiting.

The handler's task sleeps in `_wait` or `_drain`. The callbacks of the sources (upstreams, engines) write and wake it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from welldone.gateway.error_mapping import ERROR_LIMIT_BYTES, AttemptFailure, client_too_slow
from welldone.http.messages import HttpRequest, StreamingResponse

EARLY_LIMIT_BYTES = ERROR_LIMIT_BYTES
"""Output before the stream is open: asyncio's own high-water mark, and the rest of an error is not needed."""


class ClientOutput(ABC):
    """Base of the classes that produce a response. They pause and resume its sources."""

    __slots__ = (
        *("_http_request", "_write_s", "_loop", "_stream", "_buffer", "_is_paused", "_waiter"),
        "__weakref__",
    )

    def __init__(self, http_request: HttpRequest, *, write_s: float) -> None:
        self._http_request = http_request
        self._write_s = write_s
        self._loop = asyncio.get_running_loop()
        self._stream: StreamingResponse | None = None
        self._buffer = bytearray()  # output before the stream is open
        self._is_paused = False  # the sources are paused until the client has read
        self._waiter: asyncio.Future[None] | None = None

    @abstractmethod
    def pause_sources(self) -> None:
        """Stop reading from the sources."""

    @abstractmethod
    def resume_sources(self) -> None:
        """Read on. They are not to blame for the silence up to now."""

    def wake(self) -> None:
        """Wake the handler's task: the state has changed."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, timeout_s: float) -> None:
        """Wait for a call of `wake`, at most for `timeout_s`. The caller checks the state before, without an await."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, timeout_s), self.wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def _open_stream(
        self, headers: Mapping[str, str], *, status: int = 200, trailers: Sequence[str] = ()
    ) -> StreamingResponse:
        """Send the head of the response and the buffered output."""
        first, self._buffer = bytes(self._buffer), bytearray()
        stream = await self._http_request.start_stream(headers, status=status, trailers=trailers, first=first)
        self._stream = stream
        stream.on_backpressure(self._pause)
        return stream

    async def _send_all(
        self, headers: Mapping[str, str], trailer_names: Sequence[str], trailers: Mapping[str, str]
    ) -> None:
        """Send a response whose output is complete: the head, the buffered output and the end in one write."""
        last, self._buffer = bytes(self._buffer), bytearray()
        stream = await self._http_request.start_stream(headers, trailers=trailer_names, holds_head=True)
        await stream.end(trailers, last=last)

    def _buffer_output(self, data: bytes) -> None:
        """Buffer output before the stream is open."""
        self._buffer += data
        if len(self._buffer) >= EARLY_LIMIT_BYTES:
            self._pause()

    def _pause(self) -> None:
        """Stop reading until the client has read; at once, since the loop may read megabytes before the task wakes."""
        self._is_paused = True
        self.pause_sources()
        self.wake()

    @property
    def has_backpressure(self) -> bool:
        """Whether the client reads too slowly."""
        return self._stream is not None and self._stream.has_backpressure

    async def _drain(self, stream: StreamingResponse) -> AttemptFailure | None:
        """Wait for a slow client with the sources paused; disconnect it if it reads nothing at all."""
        self.pause_sources()
        self._is_paused = False
        try:
            async with asyncio.timeout(self._write_s):
                await stream.drain()
        except TimeoutError:
            stream.abort()
            return client_too_slow(self._write_s)
        self.resume_sources()
        return None
