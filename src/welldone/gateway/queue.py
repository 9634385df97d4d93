"""Bounded FIFO queue in front of a model or upstream. Limits concurrency; rejects with 429 and Retry-After when full.

Invariant: while requests wait, all slots are taken. A free slot goes to the first waiter at once, so that a new
request that finds a free slot need not look at the queue.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from welldone.gateway.errors import ApiError

_EWMA_WEIGHT = 0.2
"""Weight of the latest duration in the moving average; the last ten make up nine tenths of it."""

_MAX_RETRY_AFTER_S = 120
"""Longest Retry-After; estimates beyond are worthless (the official client follows at most 60 s)."""


class RequestQueue:
    """Admits requests to one model. All methods belong to one event loop."""

    def __init__(
        self, slots: int, max_waiting: int, wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.running: int = 0
        self.admitted: int = 0
        self.slots: int = max(1, slots)
        """Requests that may run at once."""
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._clock = clock
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # removes any member in O(1)
        self._total_wait_s = 0.0
        self._mean_duration_s: float | None = None

    @property
    def capacity(self) -> int:
        """Requests that may run or wait at once."""
        return self.slots + self._max_waiting

    @property
    def is_full(self) -> bool:
        """Whether the next request would be rejected."""
        return self.running >= self.slots and len(self._waiters) >= self._max_waiting

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    @property
    def mean_wait_s(self) -> float:
        """Average wait of the admitted requests."""
        return self._total_wait_s / self.admitted if self.admitted else 0.0

    async def acquire(self) -> float:
        """Wait for a slot and return the seconds waited. The caller must `release` it.

        Raises:
            ApiError: 429 when the queue is full, 503 when the wait took too long.
        """
        waited_s = 0.0
        if self.running < self.slots:
            self.running += 1
        elif self.is_full:
            raise self.queue_full_error()
        else:
            began = self._clock()
            await self._wait()
            waited_s = self._clock() - began
        self.admitted += 1
        self._total_wait_s += waited_s
        return waited_s

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold a slot for the duration of the context; its value is the seconds waited.

        Raises:
            ApiError: as `acquire`.
        """
        waited_s = await self.acquire()
        began = self._clock()
        try:
            yield waited_s
        finally:
            self.release(self._clock() - began)

    def release(self, duration_s: float) -> None:
        """Free the slot of a request that ran for `duration_s`, and admit the next."""
        if self.running < 1:
            raise RuntimeError("released a slot that was not acquired")
        self._mean_duration_s = (
            duration_s
            if self._mean_duration_s is None
            else self._mean_duration_s + _EWMA_WEIGHT * (duration_s - self._mean_duration_s)
        )
        self._release_slot()

    def resize(self, slots: int) -> None:
        """Change the number of slots. Running requests are not interrupted."""
        self.slots = max(1, slots)
        self._admit_next()

    def configure(self, max_waiting: int, wait_s: float) -> None:
        """Change the limits of waiting. They apply to requests that arrive later."""
        self._max_waiting, self._wait_s = max_waiting, wait_s

    def retry_after_s(self) -> int:
        """Estimated whole seconds until a slot is free, from the mean duration of requests."""
        wait_s = (self._mean_duration_s or 0.0) * (self.waiting + 1) / self.slots
        return math.ceil(min(max(wait_s, 1.0), _MAX_RETRY_AFTER_S))

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(self._wait_s):
                await waiter
        except TimeoutError:
            # The slot may have been granted in the same loop iteration: then the request has it.
            if not _is_granted(waiter):
                message = f"This request was not started within {self._wait_s:g} seconds."
                raise self._overload_error(503, message, "queue_timeout") from None
        except asyncio.CancelledError:
            # The client disconnected when the slot was already granted: pass it on.
            if _is_granted(waiter):
                self._release_slot()
            raise
        finally:
            self._waiters.pop(waiter, None)

    def _release_slot(self) -> None:
        self.running -= 1
        self._admit_next()

    def _admit_next(self) -> None:
        while self._waiters and self.running < self.slots:
            waiter, _ = self._waiters.popitem(last=False)
            if not waiter.done():  # else it was cancelled, and its task has not run yet
                self.running += 1
                waiter.set_result(None)

    def queue_full_error(self) -> ApiError:
        """Return the error of a request that finds the queue full."""
        return self._overload_error(429, "The queue of this model is full.", "queue_full")

    def _overload_error(self, status: int, message: str, code: str) -> ApiError:
        return ApiError(status, f"{message} Try again later.", code=code, retry_after_s=self.retry_after_s())


def _is_granted(waiter: asyncio.Future[None]) -> bool:
    return waiter.done() and not waiter.cancelled()
