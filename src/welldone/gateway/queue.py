"""A model's door: so many requests run at once, so many wait in order, and the rest is told when to come again.

The law: while anyone waits, every place is taken. So a place that becomes free goes to the first in the queue at once,
and who comes while one is free need not look at the queue.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from welldone.gateway.errors import ApiError

_EWMA_WEIGHT = 0.2
"""How much the latest request counts in the mean: the last ten make up nine tenths of it."""

_MAX_RETRY_AFTER_S = 120
"""Of Retry-After: a guess about a later time is worth nothing (the official client heeds 60 s at most)."""


class RequestQueue:
    """Admits requests to one model. All methods belong to one event loop."""

    def __init__(
        self, slots: int, max_waiting: int, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.running = 0
        self.admitted = 0
        self.rejected = 0
        """Those who found the queue full."""
        self.timed_out = 0
        """Those who waited too long."""
        self._slots = max(1, slots)
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._clock = clock
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # both ends and any member in O(1)
        self._total_wait_s = 0.0
        self._mean_duration_s: float | None = None

    @property
    def slots(self) -> int:
        """How many may run at once."""
        return self._slots

    @property
    def capacity(self) -> int:
        """How many may be here at once, running and waiting."""
        return self._slots + self._max_waiting

    @property
    def is_full(self) -> bool:
        """Whether one more would be refused."""
        return self.running >= self._slots and len(self._waiters) >= self._max_waiting

    @property
    def waiting(self) -> int:
        """How many are in the queue."""
        return len(self._waiters)

    @property
    def mean_wait_s(self) -> float:
        """How long those who were admitted waited, on average."""
        return self._total_wait_s / self.admitted if self.admitted else 0.0

    async def acquire(self) -> float:
        """Wait for a place, and tell how long that took. Who has entered must leave.

        Raises:
            ApiError: 429 where the queue is full, 503 where the wait became too long.
        """
        waited_s = 0.0
        if self.is_full:
            raise self.queue_full_error()
        if self.running < self._slots:
            self.running += 1
        else:
            began = self._clock()
            await self._wait()
            waited_s = self._clock() - began
        self.admitted += 1
        self._total_wait_s += waited_s
        return waited_s

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """A place for as long as it is needed; how long it was waited for.

        Raises:
            ApiError: as `enter` does.
        """
        waited_s = await self.acquire()
        began = self._clock()
        try:
            yield waited_s
        finally:
            self.release(self._clock() - began)

    def release(self, duration_s: float) -> None:
        """Free the place of a request that ran so long, and let the next one in."""
        if self.running < 1:
            raise RuntimeError("left without having entered")
        self._mean_duration_s = (
            duration_s
            if self._mean_duration_s is None
            else self._mean_duration_s + _EWMA_WEIGHT * (duration_s - self._mean_duration_s)
        )
        self._release_slot()

    def resize(self, slots: int) -> None:
        """Let so many run at once from now on. Who runs already goes on."""
        self._slots = max(1, slots)
        self._admit_next()

    def retry_after_s(self) -> int:
        """In how many whole seconds a place should be free for one who comes then, by how long requests take."""
        ahead = (self._mean_duration_s or 0.0) * (self.waiting + 1) / self._slots
        return math.ceil(min(max(ahead, 1.0), _MAX_RETRY_AFTER_S))

    async def _wait(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[turn] = None
        try:
            async with asyncio.timeout(self._wait_s):
                await turn
        except TimeoutError:
            # The turn may have come in the same moment: then the place is ours.
            if not _is_granted(turn):
                self.timed_out += 1
                raise self._overload_error(
                    503, "No place became free in time for this request.", "queue_timeout"
                ) from None
        except asyncio.CancelledError:
            # The client left just as its turn came: the place goes on to the next.
            if _is_granted(turn):
                self._release_slot()
            raise
        finally:
            self._waiters.pop(turn, None)

    def _release_slot(self) -> None:
        self.running -= 1
        self._admit_next()

    def _admit_next(self) -> None:
        while self._waiters and self.running < self._slots:
            turn, _ = self._waiters.popitem(last=False)
            if not turn.done():  # else it was cancelled, and its task has not yet run
                self.running += 1
                turn.set_result(None)

    def queue_full_error(self) -> ApiError:
        """The error for one more than there is room for."""
        self.rejected += 1
        return self._overload_error(429, "Too many requests wait for this model already.", "queue_full")

    def _overload_error(self, status: int, message: str, code: str) -> ApiError:
        return ApiError(status, f"{message} Try again later.", code=code, retry_after_s=self.retry_after_s())


def _is_granted(waiter: asyncio.Future[None]) -> bool:
    return waiter.done() and not waiter.cancelled()
