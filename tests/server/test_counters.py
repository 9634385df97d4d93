"""Quantiles from buckets, and sums of counts of several processes."""

import pytest

from tests.table import table
from welldone.server.observe.counters import WINDOW_S, RecentCounts, UpstreamCounts, WindowCounts, quantile

BOUNDS = (1.0, 2.0, 4.0)


@table(
    ("counts", "share", "expected"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.5),
        ([0, 4, 0, 0], 0.5, 1.5),
        ([1, 0, 3, 0], 0.5, 2.0 + 2.0 / 3),
        ([1, 0, 3, 0], 1.0, 4.0),
        ([2, 2, 0, 0], 0.5, 1.0),
        ([0, 0, 0, 5], 0.5, 4.0),
        ([9, 0, 0, 1], 0.95, 4.0),
    ],
)
def test_a_quantile_is_interpolated_within_its_bucket(counts: list[int], share: float, expected: float | None) -> None:
    assert quantile(BOUNDS, counts, share) == (None if expected is None else pytest.approx(expected))


def test_counts_of_two_processes_are_added() -> None:
    one = UpstreamCounts(running=1, waiting=0, ttft_counts=[1, 2], findings={"a": 1}, attempts={"200": 3})
    other = UpstreamCounts(running=2, waiting=5, ttft_counts=[0, 4], findings={"a": 2, "b": 1}, attempts={})
    both = one.plus(other)
    assert (both.running, both.waiting, both.ttft_counts) == (3, 5, [1, 6])
    assert (both.findings, both.attempts) == ({"a": 3, "b": 1}, {"200": 3})
    assert one.findings == {"a": 1}
    assert both.window == WindowCounts()


def test_recent_counts_forget_what_is_older_than_the_window() -> None:
    now = 1_000_000.0
    recent = RecentCounts(lambda: now)
    assert recent.total() == WindowCounts()
    recent.current().requests += 2
    recent.current().failures += 1
    now += WINDOW_S / 2
    recent.current().repaired += 1
    assert recent.total() == WindowCounts(requests=2, failures=1, repaired=1)
    now += WINDOW_S / 2
    assert recent.total() == WindowCounts(repaired=1)
    now += 100 * WINDOW_S
    assert recent.total() == WindowCounts()
    recent.current().breaking += 1
    assert recent.total().plus(WindowCounts(requests=1)) == WindowCounts(requests=1, breaking=1)
