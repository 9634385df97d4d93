"""Timing of one answer. A stream collects its times itself; `Metrics` reads them once, at its end."""

import time
from bisect import bisect_left
from collections.abc import Callable

INTER_TOKEN_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""From a small model on a large GPU (1 ms) to a stream held open by keep-alive comments."""


class StreamTimes:
    """Times of one answer. `record_chunk` is called for every chunk and takes half a microsecond."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.queued_s: float | None = None
        """Longest queue wait of an attempt."""
        self.ttft_s: float | None = None
        """From the request to the first chunk."""
        self.gaps = [0] * (len(INTER_TOKEN_BUCKETS_S) + 1)
        """Times between chunks, per bucket."""
        self.gaps_s = 0.0
        self.is_finished = False
        self._clock = clock
        self._began = clock()
        self._last = self._began
        self.sent_s = 0.0
        """From the request to the last attempt before the first chunk."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request."""
        return self._clock() - self._began

    def record_queued(self, seconds: float) -> None:
        """Record the queue wait of an attempt."""
        self.queued_s = max(self.queued_s or 0.0, seconds)

    def record_sent(self) -> None:
        """Record the start of an attempt: earlier attempts do not count for the upstream that answers."""
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
