"""Arrival times: constant, Poisson, bursty, and from a file."""

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.bench import load
from welldone.bench.load import bursty_arrivals, constant_arrivals, read_arrival_times
from welldone.bench.settings import MAX_BURSTINESS

RATES = st.floats(0.01, 1000)


def gaps(times: Iterator[float], count: int = 20_000) -> list[float]:
    return [later - sooner for sooner, later in pairwise(islice(times, count))]


@given(RATES, st.integers(0, 10_000))
def test_constant_arrivals_do_not_drift(rate: float, number: int) -> None:
    assert next(islice(constant_arrivals(rate), number, None)) == number / rate


@table("burstiness", [0.25, 1.0, 4.0, 16.0])
def test_gaps_have_the_mean_of_the_rate_and_the_variance_of_the_burstiness(burstiness: float) -> None:
    found = gaps(bursty_arrivals(5.0, burstiness, random.Random(1)))
    assert fmean(found) == pytest.approx(0.2, rel=0.1)
    assert (pstdev(found) / fmean(found)) ** 2 == pytest.approx(burstiness, rel=0.15)


def test_poisson_arrivals_are_independent() -> None:
    found = gaps(bursty_arrivals(5.0, 1.0, random.Random(1)))
    assert fmean(found) == pytest.approx(0.2, rel=0.05)
    # Memoryless: the remaining time has the same distribution after a long wait.
    long = [gap for gap in found if gap > 0.2]
    assert sum(gap > 0.4 for gap in long) / len(long) == pytest.approx(len(long) / len(found), rel=0.1)


@given(RATES, st.floats(0.1, 100), st.integers())
def test_times_are_sorted_and_reproducible(rate: float, burstiness: float, seed: int) -> None:
    times = list(islice(bursty_arrivals(rate, burstiness, random.Random(seed)), 50))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == list(islice(bursty_arrivals(rate, burstiness, random.Random(seed)), 50))


@table(
    "make",
    [
        lambda rng: constant_arrivals(0),
        lambda rng: constant_arrivals(float("inf")),
        lambda rng: bursty_arrivals(-1, 1.0, rng),
        lambda rng: bursty_arrivals(float("nan"), 1.0, rng),
        lambda rng: bursty_arrivals(1, 0, rng),
        lambda rng: bursty_arrivals(1, MAX_BURSTINESS * 2, rng),
    ],
)
def test_an_invalid_rate_is_rejected_at_once(make: Callable[[random.Random], Iterator[float]]) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        make(random.Random(0))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "arrivals.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@table(
    ("text", "wanted"),
    [
        ("5\n6.5\n\n5.25", [0, 0.25, 1.5]),
        ('{"timestamp": 5}\r\n{"timestamp": 6.5, "model": "m"}\n', [0, 1.5]),
        ('{"timestamp": 0, "hash_ids": [1]}\n{"timestamp": 3052, "input_length": 7, "hash_ids": []}', [0, 3.052]),
        ("-3\n1e2\n", [0, 103]),
        ("7", [0]),
    ],
)
def test_arrival_times_are_read_from_a_file(tmp_path: Path, text: str, wanted: list[float]) -> None:
    assert read_arrival_times(written(tmp_path, text)) == pytest.approx(wanted)


@given(times=st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_times_from_a_file_are_sorted_and_start_at_0(
    tmp_path_factory: pytest.TempPathFactory, times: list[int]
) -> None:
    path = written(tmp_path_factory.mktemp("times"), "\n".join(json.dumps({"timestamp": at}) for at in times))
    assert read_arrival_times(path) == [at - min(times) for at in sorted(times)]


@table(
    ("text", "match"),
    [
        ("", "no times"),
        ("\n \n", "no times"),
        ("1\ntwo", "line 2: each line must be"),
        ('{"time": 1}', "line 1: each line must be"),
        ('{"timestamp": "2024-01-01"}', "line 1"),
        ("[1, 2]", "line 1"),
        ("NaN", "line 1"),
        ("1e999", "line 1"),
        (b"\xff\xfe", "line 1"),
        (b'{"timestamp": "\xff"}', "line 1"),
        ('{"timestamp": 1, "x": ' + "[" * 100_000, "line 1"),
    ],
)
def test_a_file_without_times_is_rejected_with_a_message(tmp_path: Path, text: str | bytes, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        read_arrival_times(written(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [".", "nothing"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be read: (Is a directory|No such file)"):
        read_arrival_times(tmp_path / name)


def test_the_length_of_a_line_is_limited(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: longer than"):
        read_arrival_times(written(tmp_path, "1\n" + " " * (2 << 20)))


def test_the_number_of_times_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_MAX_ARRIVALS", 3)
    assert read_arrival_times(written(tmp_path, "1\n2\n3\n")) == [0, 1, 2]
    with pytest.raises(ValueError, match="more than 3 times"):
        read_arrival_times(written(tmp_path, "1\n2\n3\n4\n"))
