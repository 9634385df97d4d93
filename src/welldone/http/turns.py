"""Turns of the event loop: bytes from a socket are processed in slices, one slice of one connection in each turn.

Otherwise one peer could hold up all streams: uvloop reads up to 256 KB at once, 32 times in a row, and the smallest
requests, frames and comments cost microseconds for each byte. The work in a turn is counted, not timed: the same input
takes the same turns on any machine. Long computations are generators, which `run_cooperatively` runs.
"""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

ResultValue = TypeVar("ResultValue")

SMALL_BYTES = 1024
"""The shortest slice. It takes up to 7 ms, whatever it contains (lines of `{}` to repair)."""
SMALL_LINES = 16
"""Lines of a read of up to `SMALL_BYTES` that is processed at once: it takes less than 0.4 ms.

Such reads are not bounded over connections: they are what streams mostly consist of, and a turn costs as much.
"""

_QUEUES: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Callable[[], object]]] = WeakKeyDictionary()
"""What waits for a turn, by event loop."""


def add_turn(work: Callable[[], object], *, only_if_free: bool = False) -> bool:
    """Call `work` in a turn of its own, after all that waits already.

    With `only_if_free`, it is not called if something waits; then False is returned.
    """
    loop = asyncio.get_running_loop()
    queue = _QUEUES.setdefault(loop, deque())
    if not queue:
        loop.call_soon(_run_next, loop, queue)
    elif only_if_free:
        return False
    queue.append(work)
    return True


def _run_next(loop: asyncio.AbstractEventLoop, queue: deque[Callable[[], object]]) -> None:
    work = queue.popleft()
    if queue:
        loop.call_soon(_run_next, loop, queue)
    work()


async def next_turn() -> None:
    """Wait for a turn."""
    turn = asyncio.Event()
    add_turn(turn.set)
    await turn.wait()


async def run_cooperatively(steps: Generator[None, None, ResultValue]) -> ResultValue:
    """Run a generator to its end, one step per event loop iteration, and return its value."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: ResultValue = end.value
            return value
        await asyncio.sleep(0)


class SlicedProtocol(asyncio.Protocol):
    """A protocol whose data is processed in slices. While one waits for its turn, the socket is not read."""

    slice_bytes: int
    """Longest slice."""
    SLICE_LINES: ClassVar[int]
    """Most line breaks in a slice of more than `SMALL_BYTES`. Requests, chunks, frames and comments end with one."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._unprocessed = b""  # read from the socket; what follows `_position` is for later slices
        self._position = 0
        self._is_waiting = False  # for a turn
        self._is_read_paused = False

    @abstractmethod
    def _process(self, data: bytes) -> None:
        """Process a slice."""

    def data_received(self, data: bytes) -> None:
        """Process the data, at once if it is one slice."""
        if not self._unprocessed and (
            (len(data) <= SMALL_BYTES and len(data.splitlines()) <= SMALL_LINES)
            # What comes in the same iteration of the event loop waits for the next one.
            or (self._slice_end(data) == len(data) and add_turn(bool, only_if_free=True))
        ):
            self._process(data)
        else:
            # Rarely there is a rest: the socket is not read while a slice waits.
            self._unprocessed = self._unprocessed[self._position :] + data if self._unprocessed else data
            self._position = 0
            if self._transport is not None:
                self._transport.pause_reading()
            self._wait_for_turn()

    def pause_reading(self) -> None:
        """Read and process nothing until `resume_reading`."""
        if not self._is_read_paused:
            self._is_read_paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, after the reason for a pause is gone."""
        if self._is_read_paused:
            self._is_read_paused = False
            if self._unprocessed:
                self._wait_for_turn()
            else:
                self._read_on()

    def _read_on(self) -> None:
        """Read from the socket again, after the last slice."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _wait_for_turn(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            add_turn(self._take_turn)

    def _take_turn(self) -> None:
        self._is_waiting = False
        if self._is_read_paused:
            return
        start = self._position
        self._position = self._slice_end(self._unprocessed, start)
        data = self._unprocessed[start : self._position]
        if self._position == len(self._unprocessed):
            self._unprocessed, self._position = b"", 0
        if data:
            try:
                self._process(data)
            except BaseException:
                if self._transport is not None:
                    self._transport.abort()  # as asyncio does after an exception in `data_received`
                raise
        if self._unprocessed:
            self._wait_for_turn()
        elif not self._is_read_paused:
            self._read_on()

    def _slice_end(self, data: bytes, start: int = 0) -> int:
        size = min(len(data) - start, self.slice_bytes)
        while size > SMALL_BYTES and _line_breaks(data[start : start + size], self.SLICE_LINES + 1) > self.SLICE_LINES:
            size = max(SMALL_BYTES, size // 2)
        return start + size


def _line_breaks(data: bytes, limit: int) -> int:
    """Count the line breaks, of each kind up to a limit. `replace` searches several bytes at once, `count` does not."""
    return 2 * len(data) - len(data.replace(b"\n", b"", limit)) - len(data.replace(b"\r", b"", limit))
