"""Timing of one answer. A stream collects its times itself; `Metrics` reads them once, at its end."""

import time
from bisect import bisect_left
from collections.abc import Callable

INTER_TOKEN_BUCKETS_S = tuple(
    ms / 1000 for ms in (1, 2.5, 5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 250, 500, 1000, 2500, 10_000)
)
"""From a small model on a large GPU (1 ms) to a stream held open by keep-alive comments."""


class StreamTimes:
    """Times of one answer. `record_chunk` is called for every chunk and takes half a microsecond."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.queued_s: float | None = None
        """Longest queue wait of an attempt."""
        self.ttft_s: float | None = None
        """From the request to the first chunk."""
        self.gaps: list[int] = [0] * (len(INTER_TOKEN_BUCKETS_S) + 1)
        """Times between chunks, per bucket."""
        self.gaps_s: float = 0.0
        self.is_finished = False
        self._clock = clock
        self._began = clock()
        self._last = self._began
        self.sent_s: float = 0.0
        """From the request to the last attempt before the first chunk."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request."""
        return self._clock() - self._began

    def record_attempt(self, queued_s: float) -> None:
        """Record an attempt after its queue wait: earlier attempts do not count for the upstream that answers."""
        self.queued_s = max(self.queued_s or 0.0, queued_s)
        if self.ttft_s is None:
            self.sent_s = self._clock() - self._began

    def record_chunk(self) -> float:
        """Record a chunk and return the current time."""
        now = self._clock()
        if self.ttft_s is None:
            self.ttft_s = now - self._began
        else:
            gap_s = now - self._last
            self.gaps[bisect_left(INTER_TOKEN_BUCKETS_S, gap_s)] += 1
            self.gaps_s += gap_s
        self._last = now
        return now
