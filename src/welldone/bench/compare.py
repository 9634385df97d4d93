"""Two servers, or two runs, side by side: by how much they differ, and by how much chance alone would make them differ.

The noise band is a bootstrap: each round is drawn anew from its own requests, and the rounds from all rounds, many
times over; the band holds 95 of 100 of the ratios that come out. Two short ways make it cheap. The mean of samples
drawn anew has Student's distribution about their mean. Their percentile is one of the samples, at a place that has a
beta distribution, that of an order statistic. Requests that wait in one queue are slow together, so a step with many
of them knows less than their number says: they count as fewer, by how much the parts of the step differ.

One run against another has one round. What differed between the two (another hour, a warmer machine) no band within
them can know; rounds in turn do.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from math import fsum, sqrt
from statistics import fmean
from typing import TypeAlias

import msgspec

from welldone.bench.record import RequestOutcome
from welldone.bench.report import BenchReport, MetricComparison, StepResult
from welldone.bench.stats import PERCENTILES, percentile, requests_until, tokens_until, metric_values

NO_DIFFERENCE = "no difference"
FIRST_IS_BETTER = "the first is better"
SECOND_IS_BETTER = "the second is better"

_COMPARED_TIMES = ("ttft", "itl", "e2e")
_COMPARED_PERCENTILES = ("p50", "p90", "p99")
_BOOTSTRAP_DRAWS = 1000  # the ends of a band of 95 % have 25 of them beyond, enough for two digits
_BAND_TAIL = 0.025
_RATE_SLICES = 20
"""Parts of a step whose rates are compared: each long enough for some requests, and enough of them for a variance."""
_VARIANCE_PARTS = 10
"""Of a step, to see whether its samples are alike for a time. In simulated queues at 70 % load ten held the truth in
nine of ten bands, twenty in eight; one that is as good as full no run of the usual length can know."""
_INFINITE_RATIO = 1e6  # the ratio of something to nothing: JSON has no infinity
_MIN_SAMPLES = 2  # samples: with one there is no variance
_WARMUP_ID = "warmup"

SamplePair: TypeAlias = tuple["_ResampledValue", "_ResampledValue"]


class _ResampledValue(msgspec.Struct, frozen=True):
    """A number of one step, and what is needed to draw it anew."""

    value: float
    effective_count: float
    """So many independent samples tell as much as these."""
    deviation: float
    """The standard deviation of the samples, where the number is their mean."""
    percentile_share: float | None = None
    """Of the percentile, where it is one."""
    ordered: Sequence[float] = ()

    def resample(self, rng: random.Random) -> float:
        """The number as it might as well have been."""
        if self.percentile_share is not None:
            above = (self.effective_count - 1) * (1 - self.percentile_share)
            return percentile(self.ordered, rng.betavariate(self.effective_count - above, above + 1))
        freedom = self.effective_count - 1
        spread = sqrt(rng.gammavariate(freedom / 2, 2) / freedom)
        return self.value + self.deviation / sqrt(self.effective_count) * rng.gauss() / spread


def compare_reports(first: BenchReport, second: BenchReport, *, seed: int = 0) -> list[MetricComparison]:
    """Steps that both have, by their id; of a run on two servers the first of them."""
    theirs = {step.id: step for step in _first_target_steps(second)}
    pairs = [(step, theirs[step.id]) for step in _first_target_steps(first) if step.id in theirs]
    return [compared for pair in pairs for compared in compare_rounds([pair], seed=seed)]


def _first_target_steps(report: BenchReport) -> list[StepResult]:
    return [step for step in report.steps if step.id != _WARMUP_ID and step.target != report.against]


def compare_rounds(rounds: Sequence[tuple[StepResult, StepResult]], *, seed: int = 0) -> tuple[MetricComparison, ...]:
    """The rounds of one step, measured in turn. A metric is named after its step: `throughput ttft.p50`.

    What a round cannot tell, since it has too few samples or none, is left out.
    """
    rng = random.Random(seed)
    sampled = [(_step_samples(first), _step_samples(second)) for first, second in rounds]
    found: list[MetricComparison] = []
    for name in sampled[0][0] if sampled else ():
        if all(name in first and name in second for first, second in sampled):
            pairs = [(first[name], second[name]) for first, second in sampled]
            found += _compare_metric(f"{rounds[0][0].id} {name}", pairs, rng)
    return tuple(found)


def comparison_verdict(comparison: MetricComparison) -> str:
    """Whether the two differ by more than noise, and which is better then."""
    if not (comparison.low > 1 or comparison.high < 1):
        return NO_DIFFERENCE
    is_time = "." in comparison.metric.rpartition(" ")[2]  # times have statistics, rates are one number
    return FIRST_IS_BETTER if (comparison.ratio < 1) == is_time else SECOND_IS_BETTER


def _compare_metric(metric: str, pairs: Sequence[SamplePair], rng: random.Random) -> list[MetricComparison]:
    first = fsum(one.value for one, _ in pairs) / len(pairs)
    second = fsum(other.value for _, other in pairs) / len(pairs)
    if second > 0:
        ratio, (low, high) = first / second, _noise_band(pairs, rng)
    elif first > 0:  # a server that gave nothing at all may not go unmentioned
        ratio = low = high = _INFINITE_RATIO
    else:
        return []
    return [MetricComparison(metric=metric, first=first, second=second, ratio=ratio, low=low, high=high)]


def _noise_band(pairs: Sequence[SamplePair], rng: random.Random) -> tuple[float, float]:
    drawn = sorted(
        ratio for ratio in (_resampled_ratio(pairs, rng) for _ in range(_BOOTSTRAP_DRAWS)) if ratio is not None
    )
    return percentile(drawn, _BAND_TAIL), percentile(drawn, 1 - _BAND_TAIL)


def _resampled_ratio(pairs: Sequence[SamplePair], rng: random.Random) -> float | None:
    """The ratio as it might as well have been; None where there would be none."""
    chosen = rng.choices(pairs, k=len(pairs))
    second = fsum(other.resample(rng) for _, other in chosen)
    return fsum(first.resample(rng) for first, _ in chosen) / second if second > 0 else None


def _step_samples(step: StepResult) -> dict[str, _ResampledValue]:
    """The numbers of a step that can be compared, by name: none where its requests were not kept."""
    if not step.records:
        return {}
    records = sorted(step.records, key=lambda record: record.due_s)
    edges = [step.seconds * number / _RATE_SLICES for number in range(1, _RATE_SLICES + 1)]
    width_s = step.seconds / _RATE_SLICES
    found = {
        "request_rate": _mean_sample(_slice_rates([requests_until(records, edge) for edge in edges], width_s)),
        "token_rate": _mean_sample(_slice_rates([tokens_until(records, edge) for edge in edges], width_s)),
        "success_rate": _mean_sample(
            [
                float(record.outcome is RequestOutcome.OK)
                for record in records
                if record.outcome is not RequestOutcome.UNFINISHED
            ]
        ),
    }
    for metric in _COMPARED_TIMES:
        times = metric_values(records, metric)
        found[f"{metric}.mean"] = _mean_sample(times)
        for name in _COMPARED_PERCENTILES:
            found[f"{metric}.{name}"] = (
                _percentile_sample(times, name) if name in step.times[metric].percentiles else None
            )
    return {name: sample for name, sample in found.items() if sample is not None}


def _slice_rates(until: Sequence[float], width_s: float) -> list[float]:
    """The rate in each slice, out of what there was until its end."""
    return [(later - sooner) / width_s for sooner, later in pairwise((0.0, *until))] if width_s else []


def _mean_sample(samples: Sequence[float]) -> _ResampledValue | None:
    known = _effective_count(samples)
    return None if known < _MIN_SAMPLES else _ResampledValue(fmean(samples), known, sqrt(_variance(samples)))


def _percentile_sample(samples: Sequence[float], name: str) -> _ResampledValue | None:
    known = _effective_count(samples)
    share = PERCENTILES[name] / 1000
    ordered = sorted(samples)
    return None if known < _MIN_SAMPLES else _ResampledValue(percentile(ordered, share), known, 0.0, share, ordered)


def _effective_count(samples: Sequence[float]) -> float:
    """How many independent samples would tell as much as these, which are in their order in time.

    The means of parts of independent samples vary by as much less as the parts have samples. Where they vary more,
    samples of the same time are alike.
    """
    count = len(samples)
    parts = min(_VARIANCE_PARTS, count // 2)
    whole = _variance(samples) if parts > 1 else 0.0
    if not whole:
        return count
    edges = [count * number // parts for number in range(parts + 1)]
    means = [fmean(samples[begin:end]) for begin, end in pairwise(edges)]
    return count / max(1.0, count / parts * _variance(means) / whole)


def _variance(samples: Sequence[float]) -> float:
    mean = fmean(samples)
    return fsum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1)
