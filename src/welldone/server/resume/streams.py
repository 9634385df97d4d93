"""Streams that outlive their connection: their events, kept in memory within limits of size, number and time.

The events of a stream are numbered from 1. Comments are not events: each reader gets keep-alives of its own. The
generation writes to a `ResumableStream` and never waits for a reader, until the events that nobody has received reach
the limit of bytes; from then on it waits for a reader as a stream without resume does. Events that a reader has
received are dropped first.
"""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from welldone.config.server import ServeSettings
from welldone.core import sse
from welldone.core.answer_format import KEEP_ALIVE
from welldone.gateway.errors import ApiError

BATCH_BYTES = 64 * 1024
"""Events that a reader takes at once: asyncio's own high-water mark of a connection."""
BATCH_EVENTS = 256
READING, STOPPED = b"reading", b"stopped"
"""Messages of a reader to the process that generates a stream."""
LOST = b"lost"
"""Message of the store to that process: it no longer has the copy, which must be written from the start."""

_KEEP_ALIVE_LINE = KEEP_ALIVE.removesuffix(b"\n")
"""After an `id:` field, openai-python reads the blank line after a comment as an event without data."""


class StreamState(StrEnum):
    """How far a stream has come."""

    RUNNING = "running"
    COMPLETE = "complete"
    CUT = "cut"
    """It ended without its last events: the server was stopped, or nobody read it."""


class EventBatch(msgspec.Struct, frozen=True):
    """The events after a given one, as far as they are known."""

    dropped: int
    """Number of the last event that is no longer kept."""
    count: int
    """Number of the newest event."""
    state: StreamState
    events: list[bytes] = []


class StreamLostError(Exception):
    """The process that had the stream is gone, or has dropped it."""


class EventSource(Protocol):
    """A stream that can be read: of this process, of another worker, or in the shared store."""

    async def read(self, after: int, wait_s: float) -> EventBatch:
        """Return the events after a number; waits up to `wait_s` for one. The reader has received all up to `after`.

        Raises:
            StreamLostError: the stream is gone.
            StoreUnavailableError: the shared store that has the stream does not answer.
            WriterDiedError: the stream has no more events, and no end.
        """

    async def stop(self) -> None:
        """End the generation, and forget the events."""

    def attach(self) -> None:
        """Count a reader, until `detach`."""

    def detach(self) -> None:
        """Count a reader less."""


class ReaderFormat(NamedTuple):
    """How events are written for a reader."""

    has_ids: bool
    """Whether each event has an `id:` field with its number."""
    first_number: int = 1
    """Number of the first event in the reader's API."""
    param: str = "Last-Event-ID"
    """Where the reader names an event."""

    @property
    def keep_alive(self) -> bytes:
        """A comment that the reader ignores."""
        return _KEEP_ALIVE_LINE if self.has_ids else KEEP_ALIVE

    def encode(self, events: list[bytes], after: int) -> bytes:
        """Return the bytes of the events that follow the one with the number `after`."""
        if not self.has_ids:
            return b"".join(events)
        return b"".join(b"id: %d\n%b" % (number, event) for number, event in enumerate(events, after + 1))


class EventSplitter:
    """Splits the output of a stream into events, without its comments."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that `data` completes. Our writers end each with an empty line (`sse.FRAME_END`)."""
        if not self._rest and sse.is_single_frame(data):
            return [data]
        *frames, self._rest = (self._rest + data).split(sse.FRAME_END)
        return [frame + sse.FRAME_END for frame in frames if not frame.startswith(b":")]


_EVENT_BYTES = 48
"""Memory of an event besides its bytes; measured: 33 for the object, 8 for its place in the list."""
_UNREAD_BYTES = 64 * 1024
"""Events that a stream may hold unread while the memory for all streams is full: a connection's own buffer."""


class StreamHead(NamedTuple):
    """Headers of the response, and names of its trailers."""

    headers: Mapping[str, str]
    trailer_names: tuple[str, ...]


class ResumableStream:
    """The events of one stream. `is_background`: the generation goes on without readers, and waits for none."""

    def __init__(self, owner: "StreamRegistry", principal: str, stream_id: str, *, is_background: bool) -> None:
        self.principal = principal
        self.id = stream_id
        self.is_background = is_background
        self.state: StreamState = StreamState.RUNNING
        self.opened: asyncio.Future[StreamHead] = asyncio.get_running_loop().create_future()
        """Its head; or the error that came before it."""
        self.trailers: Mapping[str, str] = {}
        self.readers: int = 0
        self.is_stopped: bool = False
        """Whether the generation was told to stop."""
        self.size_bytes: int = 0
        self.task: asyncio.Task[None] | None = None
        """Generates the events."""
        self.abort: Callable[[ApiError], None] | None = None
        """Ends the generation with an error event."""
        self.on_backpressure: Callable[[], object] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self._owner = owner
        self._splitter = EventSplitter()
        self._events: list[bytes] = []
        self._dropped = 0
        self._received = 0  # number of the last event that some reader has received
        self._change: asyncio.Future[None] | None = None  # awaited by readers
        self._room: asyncio.Future[None] | None = None  # awaited by the generation

    @property
    def count(self) -> int:
        """Number of the newest event."""
        return self._dropped + len(self._events)

    # For the generation.

    def write(self, data: bytes) -> None:
        """Add output."""
        if self.state is not StreamState.RUNNING:
            return
        events = self._splitter.feed(data)
        self._events += events
        self._resize(sum(map(len, events)) + _EVENT_BYTES * len(events))
        if self._is_over_limit:
            self._owner.evict_ended()
            self._trim()
            if self.has_backpressure and self.on_backpressure is not None:
                self.on_backpressure()
        if events:
            self._notify()

    def end(self, state: StreamState) -> None:
        """End the stream. Later calls do nothing."""
        if self.state is StreamState.RUNNING:
            self.state = state
            self._notify()
            self._owner.stream_ended(self)

    def fail(self, error: ApiError) -> None:
        """End the stream, unless it has ended; with an error if its head was not sent."""
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # there may be no reader
        self.end(StreamState.CUT)

    @property
    def _is_over_limit(self) -> bool:
        return self.size_bytes > self._owner.stream_limit_bytes or self._owner.is_full

    @property
    def has_backpressure(self) -> bool:
        """Whether the limit is reached with events that nobody has received."""
        return (
            self._is_over_limit
            and self.size_bytes > _UNREAD_BYTES
            and self.state is StreamState.RUNNING
            and not self.is_background
        )

    async def drain(self) -> None:
        """Wait until a reader has received enough."""
        while self.has_backpressure:
            self._trim()  # readers may have received more since the last write
            if not self.has_backpressure:
                break
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    # For readers.

    async def read(self, after: int, wait_s: float) -> EventBatch:
        """See `EventSource.read`."""
        if self._received < after <= self.count:
            self._received = after
            self._wake_generation()
        return await self.peek(after, wait_s)

    async def peek(self, after: int, wait_s: float) -> EventBatch:
        """Like `read`, for a reader that is no client."""
        if self.count <= after and self.state is StreamState.RUNNING and wait_s > 0:
            if self._change is None:
                self._change = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._change], timeout=wait_s)
        start = max(0, after - self._dropped)
        events: list[bytes] = []
        size = 0
        for event in self._events[start : start + BATCH_EVENTS]:
            events.append(event)
            size += len(event)
            if size > BATCH_BYTES:
                break
        return EventBatch(self._dropped, self.count, self.state, events)

    async def stop(self) -> None:
        """See `EventSource.stop`."""
        self.stop_generation(ApiError(409, "The stream was stopped by its client.", code="stream_stopped"))
        if self.task is not None:
            await asyncio.wait([self.task])
        self._owner.remove(self)

    def stop_generation(self, error: ApiError) -> None:
        """End the generation with an error event; cancel it if it has not begun."""
        self.is_stopped = True
        if self.abort is not None:
            self.abort(error)
            self._wake_generation()
        elif self.task is not None:
            self.task.cancel()

    def attach(self) -> None:
        """See `EventSource.attach`."""
        self.readers += 1
        self._owner.schedule_removal(self)

    def detach(self) -> None:
        """See `EventSource.detach`."""
        self.readers -= 1
        self._owner.schedule_removal(self)

    def _notify(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        self._change = None

    def _wake_generation(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        self._room = None

    def _resize(self, difference: int) -> None:
        self.size_bytes += difference
        self._owner.size_bytes += difference

    def _trim(self) -> None:
        """Drop the oldest events that a reader has received, and some more than necessary: not for each new event."""
        owner = self._owner
        excess = max(self.size_bytes - owner.stream_limit_bytes, owner.size_bytes - owner.limit_bytes)
        excess += owner.stream_limit_bytes // 8
        last = len(self._events) if self.is_background else self._received - self._dropped
        count = freed = 0
        while count < last and freed < excess:
            freed += len(self._events[count]) + _EVENT_BYTES
            count += 1
        del self._events[:count]
        self._dropped += count
        self._resize(-freed)

    def release(self) -> None:
        """Free the memory of the events."""
        self._dropped += len(self._events)
        self._events = []
        self._resize(-self.size_bytes)


class StreamRegistry:
    """All resumable streams of a process, by principal and id."""

    def __init__(self, settings: ServeSettings) -> None:
        self.is_enabled: bool = settings.resume_s > 0
        self.keep_s: float = settings.resume_s
        self.stream_limit_bytes: int = settings.resume_stream_bytes
        self.limit_bytes: int = settings.resume_bytes
        self.size_bytes = 0
        self.on_remove: Callable[[ResumableStream], object] | None = None
        self._limit_per_principal = settings.resume_streams
        self._streams: dict[tuple[str, str], ResumableStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def is_full(self) -> bool:
        """Whether the memory for all streams is used up."""
        return self.size_bytes > self.limit_bytes

    @property
    def streams(self) -> tuple[ResumableStream, ...]:
        """All streams, oldest first."""
        return tuple(self._streams.values())

    def get(self, principal: str, stream_id: str) -> ResumableStream | None:
        """Return a stream of this principal."""
        return self._streams.get((principal, stream_id))

    def open(self, principal: str, stream_id: str, *, is_background: bool = False) -> ResumableStream | None:
        """Add a stream; None if this principal has too many that are running or being read."""
        own = [stream for stream in self._streams.values() if stream.principal == principal]
        if len(own) >= self._limit_per_principal:
            ended = next(filter(_is_evictable, own), None)
            if ended is None:
                return None
            self.remove(ended)
        stream = ResumableStream(self, principal, stream_id, is_background=is_background)
        self._streams[principal, stream_id] = stream
        return stream

    def remove(self, stream: ResumableStream) -> None:
        """Forget a stream."""
        if self._streams.pop((stream.principal, stream.id), None) is None:
            return
        self.schedule_removal(stream)
        if self.on_remove is not None:
            self.on_remove(stream)

    def evict_ended(self) -> None:
        """Forget ended streams, oldest first, while the memory is full."""
        for stream in filter(_is_evictable, self.streams):
            if not self.is_full:
                break
            self.remove(stream)

    def stream_ended(self, stream: ResumableStream) -> None:
        """Keep an ended stream for a while; the limits may evict it earlier, in the order of the ends."""
        key = (stream.principal, stream.id)
        if key in self._streams:
            self._streams[key] = self._streams.pop(key)
            self.schedule_removal(stream)

    def schedule_removal(self, stream: ResumableStream) -> None:
        """Restart the time that a stream is kept without a reader."""
        if stream.timer is not None:
            stream.timer.cancel()
            stream.timer = None
        if stream.readers > 0:
            return
        if self.get(stream.principal, stream.id) is not stream:
            stream.release()  # it was removed while it was read
        elif stream.state is not StreamState.RUNNING or not stream.is_background:
            stream.timer = asyncio.get_running_loop().call_later(self.keep_s, self._expire, stream)

    def _expire(self, stream: ResumableStream) -> None:
        if stream.task is not None:
            stream.task.cancel()  # as without resume, when the client disconnects
        self.remove(stream)


def _is_evictable(stream: ResumableStream) -> bool:
    return stream.state is not StreamState.RUNNING and stream.readers == 0
