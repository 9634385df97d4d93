"""Statistics of a step, compared with slow definitions and with known schedules."""

from array import array
from collections import Counter
from fractions import Fraction
from math import floor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.bench.report import BenchRecord, ClientLoad, RequestOutcome, StepResult
from welldone.bench.settings import GoodputBound
from welldone.bench.stats import (
    METRICS,
    PERCENTILES,
    distribution,
    metric_values,
    percentile,
    summarize_step,
)

OWN = ClientLoad(cpu=0.1, late_starts=0, max_delay_s=0.0, is_bottleneck=False)
SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)
TIMES = st.floats(0, 100)


def heard(
    *times: float, due: float = 0.0, end: RequestOutcome = RequestOutcome.OK, tokens: int | None = None, **more: object
) -> BenchRecord:
    """Return a request whose chunks arrived at these times, by default with a token per chunk."""
    made = len(times) if tokens is None else tokens
    record = BenchRecord(
        0, due, due, times=array("d", times), tokens=made, outcome=end, ended_s=max(times, default=due)
    )
    if times:
        record.content_s = times[0]
    for name, value in more.items():
        setattr(record, name, value)
    return record


def stepped(
    *records: BenchRecord, seconds: float = 10.0, skipped: int = 0, goodput: tuple[GoodputBound, ...] = ()
) -> StepResult:
    return summarize_step(
        records,
        id="throughput",
        target="http://127.0.0.1:8000/v1",
        is_open=False,
        max_vus=8,
        rate=None,
        seconds=seconds,
        due=len(records) + skipped,
        skipped=skipped,
        tokens_by="usage",
        client=OWN,
        goodput=goodput,
    )


def by_definition(samples: list[float], share: Fraction) -> Fraction:
    """numpy's linear method, in exact numbers."""
    ordered = sorted(Fraction(sample) for sample in samples)
    place = share * (len(ordered) - 1)
    below = floor(place)
    if below == len(ordered) - 1:
        return ordered[below]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below)


@given(SAMPLES, st.integers(0, 1000))
def test_a_percentile_agrees_with_its_definition(samples: list[float], below: int) -> None:
    found = percentile(sorted(samples), below / 1000)
    assert found == pytest.approx(float(by_definition(samples, Fraction(below, 1000))), rel=1e-9, abs=1e-6)
    assert min(samples) <= found <= max(samples)


@table(
    ("name", "least"),
    [("p50", 20), ("p60", 25), ("p80", 50), ("p90", 100), ("p95", 200), ("p99", 1000), ("p99.9", 10_000)],
)
def test_a_percentile_needs_ten_samples_above_it(name: str, least: int) -> None:
    assert name not in distribution(map(float, range(least - 1))).percentiles
    told = distribution(map(float, range(least))).percentiles[name]
    assert sum(sample > told for sample in range(least)) == 10


@given(st.lists(st.floats(0, 1e3), max_size=150))
def test_a_distribution_stays_within_its_samples(samples: list[float]) -> None:
    found = distribution(iter(samples))
    assert found.count == len(samples)
    assert (found.minimum, found.maximum) == (min(samples, default=None), max(samples, default=None))
    for name, value in found.percentiles.items():
        assert len(samples) * (1000 - PERCENTILES[name]) >= 10_000
        assert value == found.all_percentiles[name]
    assert list(found.all_percentiles) == (["p50", "p60", "p70", "p80", "p90", "p95", "p99"] if samples else [])
    told = list(found.all_percentiles.values())
    assert told == sorted(told)
    if samples:
        assert found.mean == pytest.approx(sum(samples) / len(samples))
    else:
        assert found.mean is None


def test_times_start_when_a_request_was_due() -> None:
    late = heard(3.0, 5.0, due=1.0, sent_s=2.5, head_s=2.7, role_s=2.75, ended_s=6.0)
    times = stepped(late).times
    assert {name: times[name].mean for name in ("head", "role", "ttft", "content", "e2e")} == {
        "head": pytest.approx(1.7),
        "role": pytest.approx(1.75),
        "ttft": 2.0,
        "content": 2.0,
        "e2e": 5.0,
    }


@pytest.mark.parametrize("first", ["reasoning_s", "content_s", "tool_s"])
def test_the_first_token_may_be_of_any_kind(first: str) -> None:
    record = msgspec.structs.replace(heard(2.0, 3.0, content_s=3.0), **{first: 2.0})
    assert stepped(record).times["ttft"].mean == 2.0


@table(
    ("times", "tokens", "wanted"),
    [
        ((1.0, 2.0, 4.0), 3, 1.5),
        ((1.0, 2.0, 4.0), 7, 0.5),  # some chunks hold several
        ((1.0,), 1, None),
        ((1.0,), 5, None),  # one chunk: the times between tokens are unknown
        ((1.0, 2.0), 1, None),
        ((1.0, 2.0), None, None),
    ],
)
def test_the_time_between_tokens_is_the_span_divided_by_their_number(
    times: tuple[float, ...], tokens: int | None, wanted: float | None
) -> None:
    record = heard(*times)
    record.tokens = tokens
    assert METRICS["itl"](record) == wanted


def test_gaps_are_pooled_and_a_stall_is_the_longest_of_a_request() -> None:
    times = stepped(heard(1.0, 2.0, 5.0), heard(1.0, 1.5), heard(1.0)).times
    assert (times["gap"].count, times["gap"].minimum, times["gap"].maximum) == (3, 0.5, 3.0)
    assert (times["stall"].count, times["stall"].minimum, times["stall"].maximum) == (2, 0.5, 3.0)


def test_the_rate_of_a_request_is_its_tokens_per_duration() -> None:
    assert stepped(heard(2.0, 4.0, tokens=20, ended_s=5.0)).times["rate"].mean == 4.0
    assert stepped(heard(0.0, ended_s=0.0)).times["rate"].count == 0


@given(
    rate=st.integers(1, 50),
    per_chunk=st.integers(1, 4),
    users=st.integers(1, 5),
    end=st.sampled_from(RequestOutcome),
)
def test_the_token_rate_is_that_of_the_schedule_for_any_outcome(
    rate: int, per_chunk: int, users: int, end: RequestOutcome
) -> None:
    # Chunks in the middle of their intervals, and beyond the step: later ones do not count.
    times = [(number + 0.5) / rate for number in range(rate * 15)]
    records = [heard(*times, tokens=len(times) * per_chunk, end=end) for _ in range(users)]
    assert stepped(*records, seconds=10.0).token_rate == pytest.approx(rate * per_chunk * users)


def test_without_a_count_each_chunk_is_a_token() -> None:
    record = heard(1.0, 2.0, 30.0, end=RequestOutcome.UNFINISHED)
    record.tokens = None
    assert stepped(record).token_rate == pytest.approx(0.2)


def test_the_request_rate_counts_successful_requests_by_their_share_of_the_step() -> None:
    within, cut, later, after = (
        heard(9.0),
        heard(9.0, end=RequestOutcome.CUT),
        heard(16.0, due=8.0),
        heard(12.0, due=11.0),
    )
    step = stepped(within, cut, later, after)
    assert step.request_rate == pytest.approx((1 + 2 / 8) / 10)
    assert step.ok == 3  # those that end after the step are successful too


@pytest.mark.parametrize("took_s", [0.5, 2.4, 30.0])
def test_the_request_rate_of_a_closed_loop_does_not_depend_on_how_long_the_step_is(took_s: float) -> None:
    users = [heard((number + 1) * took_s, due=number * took_s) for number in range(40) for _ in range(8)]
    begun = [record for record in users if record.sent_s < 5.0]
    assert stepped(*begun, seconds=5.0).request_rate == pytest.approx(8 / took_s)


def test_only_successful_requests_are_averaged() -> None:
    fine = heard(1.0, 2.0, prompt_tokens=10, head_s=0.5)
    bad = [
        heard(5.0, 9.0, tokens=99, end=end, prompt_tokens=99, head_s=4.0)
        for end in RequestOutcome
        if end is not RequestOutcome.OK
    ]
    alone, among = stepped(fine), stepped(fine, *bad)
    assert among.times == alone.times
    assert (among.prompt_tokens, among.decoded_tokens) == (10, 2)
    assert (among.total_prompt_tokens, among.total_tokens) == (10, 2)


RECORDS = st.builds(
    lambda times, due, end, why, rules: heard(*sorted(times), due=due, end=end, error=why, rules=rules),
    st.lists(TIMES, max_size=5),
    TIMES,
    st.sampled_from(RequestOutcome),
    st.sampled_from(["", "lost", "other reasons", *map(str, range(40))]),
    st.sampled_from([(), ("a",), ("a", "b")]),
)


@given(st.lists(RECORDS, max_size=60), st.integers(0, 5), st.just(0.0) | st.floats(1e-6, 50))
def test_counts_add_up(records: list[BenchRecord], skipped: int, seconds: float) -> None:
    step = stepped(*records, skipped=skipped, seconds=seconds)
    assert step.due == step.skipped + step.requests
    assert step.outcomes == Counter(record.outcome.value for record in records)
    assert sum(step.reasons.values()) == step.requests - step.ok
    assert len(step.reasons) <= 21
    assert step.invalid_streams == step.rules.get("a", 0) >= step.rules.get("b", 0)
    assert step.times["e2e"].count == step.ok
    assert step.records == tuple(records)
    assert seconds or step.request_rate == step.token_rate == 0
    assert step.request_rate * seconds <= step.ok + 1e-9


def test_reasons_are_sorted_by_frequency_and_default_to_the_outcome() -> None:
    records = [heard(end=RequestOutcome.CUT, error="lost") for _ in range(2)] + [heard(end=RequestOutcome.UNFINISHED)]
    records += [heard(end=RequestOutcome.REFUSED, error="429: later") for _ in range(3)]
    assert list(stepped(*records).reasons.items()) == [("429: later", 3), ("lost", 2), ("unfinished", 1)]


def test_a_step_without_requests_has_no_metrics() -> None:
    step = stepped(skipped=3)
    assert (step.requests, step.due, step.prompt_tokens, step.decoded_tokens) == (0, 3, None, None)
    assert set(step.times) == {*METRICS, "gap"}
    assert {times.count for times in step.times.values()} == {0}


@table(
    ("bounds", "good"),
    [
        ((), None),
        ((GoodputBound("ttft", 1.0),), 3),
        ((GoodputBound("ttft", 0.9),), 1),
        ((GoodputBound("ttft", 1.0), GoodputBound("e2e", 2.0)), 2),
        ((GoodputBound("itl", 0.5),), 2),  # one token is within the limit
    ],
)
def test_a_good_request_is_within_all_limits(bounds: tuple[GoodputBound, ...], good: int | None) -> None:
    records = [heard(1.0, 2.0), heard(1.0, 3.0), heard(0.5), heard(0.5, end=RequestOutcome.CUT)]
    if good == 2 and bounds[0].metric == "itl":
        records[0].tokens = 3
    assert stepped(*records, goodput=bounds).good == good


def test_values_are_those_of_successful_requests_that_have_them() -> None:
    assert metric_values([heard(1.0), heard(2.0, end=RequestOutcome.CUT), heard(3.0, content_s=None)], "ttft") == [1.0]


def test_the_error_rate_covers_finished_requests() -> None:
    fine, cut, left = heard(1.0), heard(1.0, end=RequestOutcome.CUT), heard(1.0, end=RequestOutcome.UNFINISHED)
    assert stepped(fine, fine, fine, cut, left, left, skipped=9).error_rate == 0.25
    assert stepped(left).error_rate is None
