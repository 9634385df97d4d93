"""Counters, histograms and times of answers as plain numbers, and as Prometheus families when /metrics is scraped.

Updates belong to one event loop; reads from other threads get an atomic copy. A stream collects its times itself;
`Metrics` reads them once, at its end. `RepairSummary` logs what was repaired in the last minutes.
"""

import asyncio
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import add

import msgspec

from welldone.server.observe import log


class Histogram:
    """A family of histograms with one label. Unlike prometheus_client's, it accepts observations in bulk."""

    def __init__(self, bounds: tuple[float, ...], values: Iterable[str]) -> None:
        self._bounds = bounds
        self._names = [*map(str, bounds), "+Inf"]
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self.set_series((), values)

    def set_series(self, removed: Iterable[str], added: Iterable[str]) -> None:
        """Remove the series of some values of the label, and add empty ones of others."""
        for value in removed:
            self._sums.pop(value, None)
            self._counts.pop(value, None)
        for value in added:
            self._sums[value] = 0.0
            self._counts[value] = [0] * len(self._names)

    def observe(self, value: str, seconds: float) -> None:
        """Record one observation."""
        self._counts[value][bisect_left(self._bounds, seconds)] += 1
        self._sums[value] += seconds

    def add_many(self, value: str, counts: Sequence[int], total_s: float) -> None:
        """Record many observations: counts per bucket, and their sum."""
        totals = self._counts[value]
        for bucket, count in enumerate(counts):
            totals[bucket] += count
        self._sums[value] += total_s

    def counts(self, value: str) -> list[int]:
        """Observations per bucket; the last one has no bound."""
        return list(self._counts[value])

    def samples(self) -> list[tuple[str, list[tuple[str, float]], float]]:
        """For each value of the label: cumulative counts by bound, and the sum."""
        return [
            (value, list(zip(self._names, accumulate(counts), strict=True)), self._sums[value])
            for value, counts in tuple(self._counts.items())
        ]


WINDOW_S = 300.0
"""Length of `RecentCounts`: long enough for rates of a quiet server, short enough to show a recovery."""
_WINDOW_BUCKETS = 30  # the window moves in steps of 10 s


class WindowCounts(msgspec.Struct):
    """Requests to an upstream within a window of time."""

    requests: int = 0
    """Those with a result; without those whose client disconnected."""
    failures: int = 0
    """Those that the upstream failed."""
    repaired: int = 0
    """Answers with repairs."""
    breaking: int = 0
    """Answers with a repair that some client would break on without."""

    def plus(self, added: "WindowCounts") -> "WindowCounts":
        """The sum."""
        return WindowCounts(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(added)))


class RecentCounts:
    """Counts of the last `WINDOW_S` seconds, in a fixed number of buckets that are used again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets = [(-_WINDOW_BUCKETS, WindowCounts())] * _WINDOW_BUCKETS  # with the number of their step

    def current(self) -> WindowCounts:
        """The bucket to count in."""
        step = self._step()
        slot = step % _WINDOW_BUCKETS
        if self._buckets[slot][0] != step:
            self._buckets[slot] = (step, WindowCounts())
        return self._buckets[slot][1]

    def total(self) -> WindowCounts:
        """The counts of the window."""
        oldest, total = self._step() - _WINDOW_BUCKETS, WindowCounts()
        for step, counts in self._buckets:
            if step > oldest:
                total = total.plus(counts)
        return total

    def _step(self) -> int:
        return int(self._clock() / (WINDOW_S / _WINDOW_BUCKETS))


class UpstreamCounts(msgspec.Struct):
    """Counts of an upstream in one process."""

    running: int
    waiting: int
    ttft_counts: list[int]
    """Times to first token, per bucket."""
    findings: dict[str, int]
    """Repairs by rule."""
    attempts: dict[str, int]
    """Attempts by outcome."""
    window: WindowCounts = msgspec.field(default_factory=WindowCounts)
    """Requests of the last minutes."""

    def plus(self, added: "UpstreamCounts") -> "UpstreamCounts":
        """The sum."""
        return UpstreamCounts(
            running=self.running + added.running,
            waiting=self.waiting + added.waiting,
            ttft_counts=list(map(add, self.ttft_counts, added.ttft_counts)),
            findings=dict(Counter(self.findings) + Counter(added.findings)),
            attempts=dict(Counter(self.attempts) + Counter(added.attempts)),
            window=self.window.plus(added.window),
        )


def quantile(bounds: Sequence[float], counts: Sequence[int], fraction: float) -> float | None:
    """Estimate a quantile by linear interpolation within its bucket, as Prometheus' histogram_quantile.

    Beyond the last bound, that bound is returned.
    """
    rank = fraction * sum(counts)
    if not rank:
        return None
    below, start = 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if below + count >= rank:
            return start + (bound - start) * (rank - below) / count
        below, start = below + count, bound
    return start


class TokenRate(msgspec.Struct):
    """Moving average of tokens per second: each request reduces the weight of earlier ones by a tenth."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Add a request; 0 seconds: unknown."""
        if seconds > 0:
            self.tokens = 0.9 * self.tokens + tokens
            self.seconds = 0.9 * self.seconds + seconds

    @property
    def tokens_per_s(self) -> float:
        """The average."""
        return self.tokens / self.seconds if self.seconds else 0.0


INTERVAL_S = 300.0
"""Short enough to see a deployment go wrong, long enough not to fill a log."""
_RULES = 3  # by name; the others are counted
_SUCCESS = "200"  # outcome of an attempt


class RepairSummary:
    """Logs what has changed since the last summary. `counts` returns the counters of all upstreams so far."""

    def __init__(self, counts: Callable[[], Mapping[str, UpstreamCounts]]) -> None:
        self._counts = counts
        self._last: Mapping[str, UpstreamCounts] = {}  # as large as the metrics: upstreams times rules
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Report from now on, in the running event loop."""
        self._last = self._counts()
        self._schedule()

    def stop(self) -> None:
        """Report no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def report(self) -> None:
        """Log a line for each upstream with repairs since the last report."""
        counts = self._counts()
        for name, now in counts.items():
            before = self._last.get(name)
            repairs = Counter(now.findings) - Counter({} if before is None else before.findings)
            if not repairs:
                continue
            answers = now.attempts.get(_SUCCESS, 0) - (0 if before is None else before.attempts.get(_SUCCESS, 0))
            fields: dict[str, log.FieldValue] = {
                "upstream": name,
                "minutes": round(INTERVAL_S / 60, 1),
                "answers": max(0, answers),  # a reload may reset the counters
                "repaired": [f"{rule}:{count}" for rule, count in repairs.most_common(_RULES)],
            }
            if len(repairs) > _RULES:
                fields["other_rules"] = len(repairs) - _RULES
            log.event(logging.INFO, "answers of an upstream were repaired", fields)
        self._last = counts

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._tick)

    def _tick(self) -> None:
        self.report()
        self._schedule()


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
