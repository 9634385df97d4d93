"""Numbered events of a stream, and where a reader gets them from.

The events of a stream are numbered from 1. Comments are not events: each reader gets keep-alives of its own.
"""

from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec

from welldone.protocol import sse
from welldone.protocol.dialects.base import KEEP_ALIVE

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
