"""Counts as plain numbers: cheap to add to while requests run, and read when someone asks for the page of metrics.

Adding belongs to one event loop; who reads in another thread gets a copy that was made in one step.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec


class MetricSeries:
    """One family of counters or gauges: a number for each set of labels."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), *, is_gauge: bool = False) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = tuple(labels)
        self.is_gauge = is_gauge
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, number: float, *labels: str) -> None:
        """Count so many more."""
        self.values[labels] = self.values.get(labels, 0.0) + number

    def samples(self) -> tuple[tuple[tuple[str, ...], float], ...]:
        """All numbers as they are now, with their labels."""
        return tuple(self.values.items())


class Histogram:
    """One family of histograms by one label. Unlike the library's it takes many observations in one go."""

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...], label: str, values: Iterable[str]) -> None:
        self.name = name
        self.help_text = help_text
        self.label = label
        self._bounds = bounds
        self._names = [*map(str, bounds), "+Inf"]
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        for value in values:
            self.add_series(value)

    def add_series(self, value: str) -> None:
        """Have a series for this value of the label."""
        self._sums[value] = 0.0
        self._counts[value] = [0] * len(self._names)

    def observe(self, value: str, seconds: float) -> None:
        """One thing took so long."""
        self._counts[value][bisect_left(self._bounds, seconds)] += 1
        self._sums[value] += seconds

    def add_many(self, value: str, counts: Sequence[int], total_s: float) -> None:
        """Many things: how many up to each bound, and what all took together."""
        self._counts[value] = [old + new for old, new in zip(self._counts[value], counts, strict=True)]
        self._sums[value] += total_s

    def counts(self, value: str) -> list[int]:
        """How many were in each bucket; the last one has no bound."""
        return list(self._counts[value])

    def samples(self) -> list[tuple[str, list[tuple[str, float]], float]]:
        """For each value of the label: how many up to each bound, smaller ones included, and the sum."""
        return [
            (value, list(zip(self._names, accumulate(counts), strict=True)), self._sums[value])
            for value, counts in tuple(self._counts.items())
        ]


class UpstreamCounts(msgspec.Struct):
    """What one process has counted of an upstream."""

    running: int
    waiting: int
    ttft_counts: list[int]
    """How many first tokens came within each bound of time."""
    findings: dict[str, int]
    """How often each rule was broken."""
    attempts: dict[str, int]
    """By how they ended."""

    def plus(self, other: "UpstreamCounts") -> "UpstreamCounts":
        """Both together."""
        return UpstreamCounts(
            running=self.running + other.running,
            waiting=self.waiting + other.waiting,
            ttft_counts=[one + another for one, another in zip(self.ttft_counts, other.ttft_counts, strict=True)],
            findings=dict(Counter(self.findings) + Counter(other.findings)),
            attempts=dict(Counter(self.attempts) + Counter(other.attempts)),
        )


def quantile(bounds: Sequence[float], counts: Sequence[int], fraction: float) -> float | None:
    """The time within which this share of all came, by a straight line in its bucket, as Prometheus draws it.

    Beyond the last bound nothing is known: then it is that bound.
    """
    wanted = fraction * sum(counts)
    if not wanted:
        return None
    below, start = 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if below + count >= wanted:
            return start + (bound - start) * (wanted - below) / count
        below, start = below + count, bound
    return start


class TokenRate:
    """Tokens a second over the last requests: each new one makes the older ones count a tenth less."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long; 0 seconds: not known."""
        if seconds > 0:
            self._tokens = 0.9 * self._tokens + tokens
            self._seconds = 0.9 * self._seconds + seconds

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second."""
        return self._tokens / self._seconds if self._seconds else 0.0
