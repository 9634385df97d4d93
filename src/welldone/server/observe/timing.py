"""When the pieces of one answer came. A stream gathers its times by itself and hands them over once, at its end."""

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
"""From a small model on a large GPU (1 ms) to a line that keep-alive comments hold open."""


class StreamTimes:
    """The times of one answer. `more` is called for every piece, and costs half a microsecond."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.queued_s: float | None = None
        """The longest that a part of the request waited for a place."""
        self.ttft_s: float | None = None
        """From the request to the first piece."""
        self.gaps = [0] * (len(INTER_TOKEN_BUCKETS_S) + 1)
        """How many pieces came after a time up to each bound."""
        self.gaps_s = 0.0
        self.is_finished = False
        self._clock = clock
        self._began = clock()
        self._last = self._began
        self._sent_s = 0.0

    @property
    def has_begun(self) -> bool:
        """Whether a first piece came."""
        return self.ttft_s is not None

    @property
    def chunk_count(self) -> int:
        """How many came."""
        return sum(self.gaps) + self.has_begun

    @property
    def elapsed_s(self) -> float:
        """Since the request came."""
        return self._clock() - self._began

    @property
    def upstream_ttft_s(self) -> float | None:
        """From when the request was last sent on to the first piece."""
        return None if self.ttft_s is None else self.ttft_s - self._sent_s

    def record_queued(self, seconds: float) -> None:
        """A part of the request waited so long for a place."""
        self.queued_s = max(self.queued_s or 0.0, seconds)

    def record_sent(self) -> None:
        """The request is sent on now: what an earlier attempt took is not the fault of the one that answers."""
        if self.ttft_s is None:
            self._sent_s = self._clock() - self._began

    def record_chunk(self) -> float:
        """One more piece is here; the time that it is now."""
        now = self._clock()
        if self.ttft_s is None:
            self.ttft_s = now - self._began
        else:
            gap_s = now - self._last
            self.gaps[bisect_left(INTER_TOKEN_BUCKETS_S, gap_s)] += 1
            self.gaps_s += gap_s
        self._last = now
        return now
