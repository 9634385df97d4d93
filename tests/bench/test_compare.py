"""Comparisons: real differences are found, and chance is not reported as a difference."""

import random
from array import array
from collections.abc import Sequence

import msgspec
import pytest

from tests.bench.reports import OTHER, URL, against, bare, rich
from tests.table import table
from welldone.bench.report import BenchRecord, BenchReport, ClientLoad, MetricComparison, RequestOutcome, StepResult
from welldone.bench.stats import (
    FIRST_IS_BETTER,
    NO_DIFFERENCE,
    SECOND_IS_BETTER,
    compare_reports,
    compare_rounds,
    comparison_verdict,
    summarize_step,
)

SECONDS = 60.0
TRIES = 25


def requests(rng: random.Random, slow: float = 1.0, count: int = 120, alike: float = 0.0) -> list[BenchRecord]:
    """Return sequential requests; `alike` is the correlation of their durations."""
    records = []
    luck = rng.gauss()
    for number in range(count):
        luck = alike * luck + (1 - alike**2) ** 0.5 * rng.gauss()
        due = number * SECONDS / count
        took = 0.4 * slow * 1.2**luck
        times = array("d", (due + took * (1 + chunk) / 10 for chunk in range(10)))
        records.append(
            BenchRecord(
                0, due, due, content_s=times[0], times=times, tokens=10, ended_s=times[-1], outcome=RequestOutcome.OK
            )
        )
    return records


def measured(
    records: Sequence[BenchRecord], id: str = "throughput", target: str = URL, seconds: float = SECONDS
) -> StepResult:
    return summarize_step(
        records,
        id=id,
        target=target,
        is_open=False,
        max_vus=1,
        rate=None,
        seconds=seconds,
        due=len(records),
        skipped=0,
        tokens_by="usage",
        client=ClientLoad(cpu=0, late_starts=0, max_delay_s=0, is_bottleneck=False),
        goodput=(),
    )


def reported(*steps: StepResult) -> BenchReport:
    return rich(steps=steps)


def by_metric(found: Sequence[MetricComparison]) -> dict[str, MetricComparison]:
    return {compared.metric.removeprefix("throughput "): compared for compared in found}


def coverage(*, count: int, rounds: int = 1, alike: float = 0.0) -> float:
    """Return how often the interval of `ttft.mean` contains 1 for two runs of the same server."""
    found = 0
    for seed in range(TRIES):
        rng = random.Random(seed)
        steps = [measured(requests(rng, count=count, alike=alike)) for _ in range(2 * rounds)]
        pairs = list(zip(steps[::2], steps[1::2], strict=True))
        found += comparison_verdict(by_metric(compare_rounds(pairs))["ttft.mean"]) == NO_DIFFERENCE
    return found / TRIES


@pytest.mark.parametrize("seed", range(3))
def test_a_run_does_not_differ_from_itself(seed: int) -> None:
    report = reported(measured(requests(random.Random(seed))))
    found = compare_reports(report, report)
    assert {comparison_verdict(compared) for compared in found} == {NO_DIFFERENCE}
    assert {compared.ratio for compared in found} == {1.0}


def test_the_compared_values_are_those_of_the_steps() -> None:
    rng = random.Random(1)
    first, second = measured(requests(rng)), measured(requests(rng, slow=1.5))
    found = by_metric(compare_reports(reported(first), reported(second)))
    times = [f"{name}.{statistic}" for name in ("ttft", "itl", "e2e") for statistic in ("mean", "p50", "p90")]
    assert set(found) == {"request_rate", "token_rate", "success_rate", *times}
    assert found["token_rate"].first == pytest.approx(first.token_rate)
    assert found["request_rate"].second == pytest.approx(second.request_rate)
    assert found["success_rate"].first == 1
    for name in times:
        metric, _, statistic = name.partition(".")
        for value, step in ((found[name].first, first), (found[name].second, second)):
            told = step.times[metric]
            assert value == pytest.approx(told.mean if statistic == "mean" else told.percentiles[statistic])
    for compared in found.values():
        assert compared.ratio == pytest.approx(compared.first / compared.second)
        assert compared.low <= compared.ratio <= compared.high


@pytest.mark.parametrize(("slow", "wanted"), [(1.5, FIRST_IS_BETTER), (1 / 1.5, SECOND_IS_BETTER)])
def test_a_significant_difference_is_found(slow: float, wanted: str) -> None:
    rng = random.Random(2)
    found = by_metric(compare_rounds([(measured(requests(rng)), measured(requests(rng, slow=slow)))]))
    for name in ("ttft.mean", "ttft.p50", "ttft.p90", "itl.mean", "e2e.mean"):
        assert comparison_verdict(found[name]) == wanted
        assert found[name].low <= 1 / slow <= found[name].high
    assert comparison_verdict(found["success_rate"]) == NO_DIFFERENCE


@pytest.mark.parametrize(
    ("metric", "ratio", "wanted"), [("ttft.p50", 2, SECOND_IS_BETTER), ("token_rate", 2, FIRST_IS_BETTER)]
)
def test_shorter_times_and_higher_rates_are_better(metric: str, ratio: float, wanted: str) -> None:
    for name in (metric, f"constant@1.20req/s {metric}"):
        found = MetricComparison(metric=name, first=ratio, second=1, ratio=ratio, low=ratio - 0.1, high=ratio + 0.1)
        assert comparison_verdict(found) == wanted
        assert comparison_verdict(msgspec.structs.replace(found, low=0.9)) == NO_DIFFERENCE


@pytest.mark.tier3
@pytest.mark.parametrize("rounds", [1, 4])
def test_the_interval_has_its_nominal_coverage(rounds: int) -> None:
    # Too few requests for a percentile: only means are resampled, which is quick.
    assert coverage(count=19, rounds=rounds) >= 0.9


@pytest.mark.tier3
def test_the_interval_accounts_for_correlated_requests() -> None:
    # With the assumption of independence the coverage would be 40 %.
    assert coverage(count=120, alike=0.8) >= 0.7


def test_more_requests_make_the_interval_narrower() -> None:
    rng = random.Random(3)
    few, many = (
        by_metric(compare_rounds([(measured(requests(rng, count=count)), measured(requests(rng, count=count)))]))[
            "ttft.p50"
        ]
        for count in (60, 2000)
    )
    assert many.high - many.low < (few.high - few.low) / 2


def test_rounds_that_differ_make_the_interval_wider() -> None:
    rng = random.Random(4)
    calm = [(measured(requests(rng)), measured(requests(rng))) for _ in range(4)]
    odd = [(measured(requests(rng, slow)), measured(requests(rng))) for slow in (0.5, 1.5, 0.7, 1.4)]
    narrow, wide = by_metric(compare_rounds(calm))["ttft.mean"], by_metric(compare_rounds(odd))["ttft.mean"]
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    assert comparison_verdict(wide) == NO_DIFFERENCE


def test_the_interval_is_reproducible() -> None:
    rng = random.Random(5)
    rounds = [(measured(requests(rng)), measured(requests(rng)))]
    assert compare_rounds(rounds) == compare_rounds(rounds)
    assert compare_rounds(rounds) != compare_rounds(rounds, seed=1)


def test_a_server_that_fails_more_often_is_worse() -> None:
    rng = random.Random(6)
    first, second = requests(rng), requests(rng)
    for record in second[::3]:
        record.outcome = RequestOutcome.CUT
    for record in first[::4]:
        record.outcome = RequestOutcome.UNFINISHED  # not a failure
    found = by_metric(compare_rounds([(measured(first), measured(second))]))["success_rate"]
    assert found.first == 1
    assert found.second == pytest.approx(2 / 3)
    assert comparison_verdict(found) == FIRST_IS_BETTER


def test_a_server_without_answers_is_worse_on_either_side() -> None:
    fine = measured(requests(random.Random(1)))
    dead = measured(
        [msgspec.structs.replace(one, outcome=RequestOutcome.CUT, times=array("d")) for one in fine.records]
    )
    names = {"request_rate", "token_rate", "success_rate"}
    for pair, wanted in (((fine, dead), FIRST_IS_BETTER), ((dead, fine), SECOND_IS_BETTER)):
        found = by_metric(compare_rounds([pair]))
        assert {name: comparison_verdict(compared) for name, compared in found.items()} == dict.fromkeys(names, wanted)


def test_a_slow_tail_affects_high_percentiles_only() -> None:
    rng = random.Random(11)
    tail = [one for number in range(120) for one in requests(rng, 4.0 if number % 7 == 0 else 1.0)[number : number + 1]]
    found = by_metric(compare_rounds([(measured(requests(rng)), measured(tail))]))
    assert {name: comparison_verdict(found[name]) for name in ("ttft.p50", "ttft.p90")} == {
        "ttft.p50": NO_DIFFERENCE,
        "ttft.p90": FIRST_IS_BETTER,
    }


def test_steps_are_matched_by_id_without_the_warm_up() -> None:
    rng = random.Random(7)
    ids = ("warmup", "throughput", "constant@1.00req/s", "constant@2.00req/s")
    first = reported(*(measured(requests(rng), id) for id in ids))
    second = reported(*(measured(requests(rng), id) for id in reversed(ids[:3])))
    found = [compared.metric for compared in compare_reports(first, second) if compared.metric.endswith(" token_rate")]
    assert found == ["throughput token_rate", "constant@1.00req/s token_rate"]


def test_of_a_run_on_two_servers_the_first_is_compared() -> None:
    rng = random.Random(8)
    both = rich(against=OTHER, steps=(measured(requests(rng)), measured(requests(rng, 9.0), target=OTHER)))
    assert {comparison_verdict(compared) for compared in compare_reports(both, reported(both.steps[0]))} == {
        NO_DIFFERENCE
    }


@table("count", [0, 1, 2, 4, 19])
def test_with_too_few_requests_no_percentile_is_compared(count: int) -> None:
    rng = random.Random(9)
    rounds = [(measured(requests(rng, count=120)), measured(requests(rng, count=count)))]
    found = by_metric(compare_rounds(rounds))
    assert not any(".p" in name for name in found)
    assert ("ttft.mean" in found) == (count > 1)


def test_a_metric_that_a_round_lacks_is_omitted() -> None:
    rng = random.Random(10)
    full, thin = measured(requests(rng)), measured(requests(rng, count=30))
    assert "throughput ttft.p90" not in {compared.metric for compared in compare_rounds([(full, full), (full, thin)])}


def test_empty_rounds_have_no_comparisons() -> None:
    dead = [
        msgspec.structs.replace(record, outcome=RequestOutcome.CUT, times=array("d"))
        for record in requests(random.Random(1))
    ]
    fine = measured(requests(random.Random(1)))
    assert compare_rounds([]) == ()
    assert compare_rounds([(measured(dead), measured(dead))]) == ()
    assert compare_reports(reported(fine), bare()) == compare_reports(bare(), reported(fine)) == []
    assert {
        compared.metric for compared in compare_rounds([(measured(requests(random.Random(1)), seconds=0.0), fine)])
    } == {
        f"throughput {name}.{statistic}" for name in ("ttft", "itl", "e2e") for statistic in ("mean", "p50", "p90")
    } | {"throughput success_rate"}


def test_reports_of_all_kinds_can_be_compared() -> None:
    assert compare_reports(rich(), rich())
    assert compare_reports(against(), against())
