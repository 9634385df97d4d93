"""Statistics of a load test: from the records of a step to its result, assertions, and comparisons.

Only successful requests count in the metrics; the others are counted by outcome. Times start when a request was due,
not when it was sent, since a user waits from then on, even if a busy client was late (no coordinated omission). Delays
of the client are reported separately (`ClientLoad`).
"""

import random
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import fsum, sqrt
from statistics import fmean
from typing import TypeAlias, TypedDict, Unpack

import msgspec

from welldone.bench.report import (
    AssertionResult,
    BenchRecord,
    BenchReport,
    ClientLoad,
    Distribution,
    MetricComparison,
    RequestOutcome,
    StepResult,
)
from welldone.bench.settings import Assertion, GoodputBound

PERCENTILES = {"p50": 500, "p60": 600, "p70": 700, "p80": 800, "p90": 900, "p95": 950, "p99": 990, "p99.9": 999}
"""How many of a thousand samples lie below. Integers, so that p90 is available from 100 samples and not from 101."""
_MIN_SAMPLES_BEYOND = 10
"""Samples above a percentile: with fewer, it says more about chance than about the server."""
_EXTRA_PERCENTILES = {"p99.9"}  # not in the format of inference-benchmarker
_MAX_REASONS = 20  # the others are counted together
_OTHER_REASONS = "other reasons"


def percentile(ordered: Sequence[float], share: float) -> float:
    """Interpolate a percentile as numpy.percentile does. `ordered` must be sorted and not empty."""
    position = share * (len(ordered) - 1)
    below = int(position)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return min(low + (high - low) * (position - below), high)  # rounding must not exceed a sample


def distribution(samples: Iterable[float]) -> Distribution:
    """Summarise samples, without percentiles for which there are too few."""
    ordered = sorted(samples)
    count = len(ordered)
    if not count:
        return Distribution(count=0, mean=None, minimum=None, maximum=None, percentiles={})
    named = {name: percentile(ordered, below / 1000) for name, below in PERCENTILES.items()}
    return Distribution(
        count=count,
        mean=fsum(ordered) / count,
        minimum=ordered[0],
        maximum=ordered[-1],
        percentiles={
            name: at for name, at in named.items() if count * (1000 - PERCENTILES[name]) >= _MIN_SAMPLES_BEYOND * 1000
        },
        all_percentiles={name: at for name, at in named.items() if name not in _EXTRA_PERCENTILES},
    )


# Metrics of one request.


def _since_due(at: float | None, record: BenchRecord) -> float | None:
    return None if at is None else at - record.due_s


def _time_to_first_token(record: BenchRecord) -> float | None:
    firsts = [at for at in (record.reasoning_s, record.content_s, record.tool_s) if at is not None]
    return _since_due(min(firsts, default=None), record)


def _inter_token_latency(record: BenchRecord) -> float | None:
    """Return the mean time between tokens. It cannot be derived from a single chunk, however many tokens it holds."""
    if record.tokens is None or record.tokens < 2 or len(record.times) < 2:
        return None
    return (record.times[-1] - record.times[0]) / (record.tokens - 1)


def _token_rate(record: BenchRecord) -> float | None:
    took_s = record.ended_s - record.due_s
    return None if record.tokens is None or took_s <= 0 else record.tokens / took_s


METRICS: Mapping[str, Callable[[BenchRecord], float | None]] = {
    "head": lambda record: _since_due(record.head_s, record),
    "role": lambda record: _since_due(record.role_s, record),
    "ttft": _time_to_first_token,
    "reasoning": lambda record: _since_due(record.reasoning_s, record),
    "content": lambda record: _since_due(record.content_s, record),
    "tool": lambda record: _since_due(record.tool_s, record),
    "itl": _inter_token_latency,
    "stall": lambda record: max(_chunk_gaps(record), default=None),
    "e2e": lambda record: _since_due(record.ended_s, record),
    "rate": _token_rate,
}
"""Metrics of a successful request, by their names in `StepResult.times`; None if the event did not happen."""
MAIN_METRICS = ("ttft", "itl", "e2e")


def _chunk_gaps(record: BenchRecord) -> list[float]:
    return [later - sooner for sooner, later in pairwise(record.times)]


def metric_values(records: Iterable[BenchRecord], name: str) -> list[float]:
    """Return a metric of all successful requests that have it."""
    measure = METRICS[name]
    values = (measure(record) for record in records if record.outcome is RequestOutcome.OK)
    return [value for value in values if value is not None]


# Metrics of a step.


def tokens_until(records: Iterable[BenchRecord], seconds: float) -> float:
    """Return the tokens received by then, including those of failed or unfinished answers.

    Tokens are distributed evenly over the chunks of an answer: no server reports them per chunk.
    """
    answers = (record for record in records if record.times)
    return fsum(record.token_count * bisect_right(record.times, seconds) / len(record.times) for record in answers)


def requests_until(records: Iterable[BenchRecord], seconds: float) -> float:
    """Return the number of successful requests completed by then.

    A request in flight counts by the elapsed share of its duration. Otherwise a short step would seem slow, and a step
    shorter than its answers would have a rate of 0.
    """
    return fsum(_share_until(record, seconds) for record in records if record.outcome is RequestOutcome.OK)


def _share_until(record: BenchRecord, seconds: float) -> float:
    if record.ended_s <= seconds:
        return 1.0
    begun_s = min(record.sent_s, seconds)
    return (seconds - begun_s) / (record.ended_s - begun_s)


class StepSpec(TypedDict):
    """Properties of a step that are known before it runs."""

    id: str
    target: str
    is_open: bool
    max_vus: int
    rate: float | None


def summarize_step(
    records: Sequence[BenchRecord],
    *,
    seconds: float,
    due: int,
    skipped: int,
    tokens_by: str,
    client: ClientLoad,
    goodput: Sequence[GoodputBound],
    **spec: Unpack[StepSpec],
) -> StepResult:
    """Summarise a step. Totals cover successful requests; rates cover what was received within its seconds."""
    fine = [record for record in records if record.outcome is RequestOutcome.OK]
    prompts = [record.prompt_tokens for record in fine if record.prompt_tokens is not None]
    made = [record.tokens for record in fine if record.tokens is not None]
    return StepResult(
        **spec,
        seconds=seconds,
        due=due,
        skipped=skipped,
        outcomes=dict(Counter(record.outcome.value for record in records)),
        reasons=_count_reasons(records),
        invalid_streams=sum(bool(record.rules) for record in records),
        rules=dict(Counter(rule for record in records for rule in record.rules).most_common()),
        good=sum(_meets_bounds(record, goodput) for record in fine) if goodput else None,
        request_rate=requests_until(fine, seconds) / seconds if seconds else 0.0,
        token_rate=tokens_until(records, seconds) / seconds if seconds else 0.0,
        prompt_tokens=_mean_or_none(prompts),
        decoded_tokens=_mean_or_none(made),
        total_tokens=sum(made),
        total_prompt_tokens=sum(prompts),
        tokens_by=tokens_by,
        times={
            **{name: distribution(metric_values(fine, name)) for name in METRICS},
            "gap": distribution(gap for record in fine for gap in _chunk_gaps(record)),
        },
        client=client,
        records=tuple(records),
    )


def _mean_or_none(numbers: Sequence[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def _meets_bounds(record: BenchRecord, bounds: Iterable[GoodputBound]) -> bool:
    """Whether a request is within all limits. A metric that it does not have, such as itl with one token, is."""
    took = ((METRICS[bound.metric](record), bound.limit_s) for bound in bounds)
    return all(value is None or value <= limit_s for value, limit_s in took)


def _count_reasons(records: Iterable[BenchRecord]) -> dict[str, int]:
    """Count requests that are not ok by their error; rare errors are counted together."""
    bad = [record for record in records if record.outcome is not RequestOutcome.OK]
    whys = Counter(record.error or record.outcome.value for record in bad)
    often = dict(whys.most_common(_MAX_REASONS))
    others = whys.total() - sum(often.values())
    return often | {_OTHER_REASONS: often.get(_OTHER_REASONS, 0) + others} if others else often


# Assertions (`ttft.p99<800ms`) and limits of good requests (`ttft:500`).


_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{0,15})?"  # bounded: longer numbers are mistakes
_ASSERTION_PATTERN = re.compile(rf"([a-z_0-9]+)(?:\.([a-z0-9.]+))?\s*(<=?|>=?)\s*({_NUMBER})\s*([a-z%]*)")
_BOUND_PATTERN = re.compile(rf"([a-z_0-9]+):({_NUMBER})")

_TIME_METRICS = (*(name for name in METRICS if name != "rate"), "gap")
_STATISTICS = ("mean", "min", "max", *PERCENTILES)
_SECOND_UNITS = {"ms": 1000, "s": 1}
_SHARE_UNITS = {"%": 100, "": 1}
_RATE_UNITS = {"": 1}
_METRIC_UNITS = {
    **dict.fromkeys(_TIME_METRICS, _SECOND_UNITS),
    **dict.fromkeys(("rate", "token_rate", "request_rate"), _RATE_UNITS),
    **dict.fromkeys(("error_rate", "goodput"), _SHARE_UNITS),
}
"""Units of the limit, by metric, and the number of them in the metric's own unit. Limits are divided by it, so that
57 % is exactly 57 / 100."""


def parse_assertion(text: str) -> Assertion:
    """Parse an assertion.

    Raises:
        ValueError: the text is not an assertion; the message says how to correct it.
    """
    match = _ASSERTION_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not an assertion: write a metric, then < <= > or >=, then a limit, as in ttft.p99<800ms"
        )
    metric, statistic, sign, number, unit = match.groups("")
    if metric not in _METRIC_UNITS:
        raise ValueError(f"{text!r}: there is no metric {metric!r}; there are {', '.join(_METRIC_UNITS)}")
    has_many, units = metric in _TIME_METRICS or metric == "rate", _METRIC_UNITS[metric]
    if has_many and statistic not in _STATISTICS:
        problem = f"there is no statistic {statistic!r}" if statistic else f"{metric} is not one number"
        raise ValueError(f"{text!r}: {problem}; write {metric}. and one of {', '.join(_STATISTICS)}")
    if statistic and not has_many:
        raise ValueError(f"{text!r}: {metric} is one number; write it without .{statistic}")
    if unit not in units:
        correct = " or ".join(f"{metric}{'.' * bool(statistic)}{statistic}{sign}{number}{name}" for name in units)
        raise ValueError(f"{text!r}: a limit of {metric} has another unit; write {correct}")
    return Assertion(text, metric, statistic, sign.startswith("<"), float(number) / units[unit])


def parse_goodput_bound(text: str) -> GoodputBound:
    """Parse a limit for good requests, in milliseconds.

    Raises:
        ValueError: the text is not a limit; the message says how to correct it.
    """
    match = _BOUND_PATTERN.fullmatch(text.strip())
    if match is None or match[1] not in MAIN_METRICS:
        raise ValueError(
            f"{text!r} is not a limit: write {', '.join(MAIN_METRICS)}, a colon and milliseconds, as in ttft:500"
        )
    return GoodputBound(match[1], float(match[2]) / 1000)


def check_assertions(assertions: Iterable[Assertion], steps: Sequence[StepResult]) -> tuple[AssertionResult, ...]:
    """Check assertions on every step but the warm-up; of two servers, on the first, which is that of the first step.

    `goodput` is the share of due requests: skipped and unfinished requests are not good.
    """
    judged = [step for step in steps if not step.is_warmup and step.target == steps[0].target]
    return tuple(_check_assertion(assertion, step) for assertion in assertions for step in judged)


def _check_assertion(assertion: Assertion, step: StepResult) -> AssertionResult:
    value = _metric_value(assertion, step)
    if value is None or value == assertion.limit:
        is_met = value is not None and "=" in assertion.text
    else:
        is_met = (value < assertion.limit) == assertion.is_below
    return AssertionResult(text=assertion.text, step=step.id, value=value, passed=is_met)


def _metric_value(assertion: Assertion, step: StepResult) -> float | None:
    rates = {"token_rate": step.token_rate, "request_rate": step.request_rate, "error_rate": step.error_rate}
    if assertion.metric == "goodput":
        return step.good / step.due if step.good is not None and step.due else None
    if assertion.metric in rates:
        return rates[assertion.metric]
    return step.statistic(assertion.metric, assertion.statistic)


# Comparison of two servers or two runs: ratios with confidence intervals.
#
# The interval comes from a bootstrap: the requests of each round are resampled, and the rounds too, many times; the
# interval holds 95 % of the resulting ratios. Two shortcuts make it cheap. The mean of resampled values has Student's
# t-distribution around their mean. A percentile of resampled values is one of the samples, at a position with a beta
# distribution, that of an order statistic. Requests that wait in the same queue are slow together, so they carry less
# information than their number suggests: their effective number is reduced by how much the parts of a step differ.
#
# Two separate runs are one round. Differences between them (another hour, a warmer machine) are not covered by the
# interval; alternating rounds cover them.


NO_DIFFERENCE = "no difference"
FIRST_IS_BETTER = "the first is better"
SECOND_IS_BETTER = "the second is better"

_COMPARED_PERCENTILES = ("p50", "p90", "p99")
_BOOTSTRAP_DRAWS = 1000  # 25 of them lie beyond each end of a 95 % interval, enough for two digits
_BAND_TAIL = 0.025
_RATE_SLICES = 20
"""Parts of a step whose rates are compared: each long enough for some requests, and enough of them for a variance."""
_VARIANCE_PARTS = 10
"""Parts of a step for the autocorrelation of its samples. In simulated queues at 70 % load, ten parts give intervals
that hold the true ratio in nine of ten cases, twenty parts in eight; near saturation no run of usual length does."""
_INFINITE_RATIO = 1e6  # for a division by zero: JSON has no infinity
_MIN_SAMPLES = 2  # for a variance

SamplePair: TypeAlias = tuple["_ResampledValue", "_ResampledValue"]


class _ResampledValue(msgspec.Struct, frozen=True):
    """A value of one step, and what is needed to resample it."""

    value: float
    effective_count: float
    """Effective number of independent samples."""
    deviation: float
    """Standard deviation of the samples, if the value is their mean."""
    percentile_share: float | None = None
    """Share of the percentile, if the value is one."""
    ordered: Sequence[float] = ()

    def resample(self, rng: random.Random) -> float:
        """Draw a value from the sampling distribution."""
        if self.percentile_share is not None:
            above = (self.effective_count - 1) * (1 - self.percentile_share)
            return percentile(self.ordered, rng.betavariate(self.effective_count - above, above + 1))
        freedom = self.effective_count - 1
        scale = sqrt(rng.gammavariate(freedom / 2, 2) / freedom)
        return self.value + self.deviation / sqrt(self.effective_count) * rng.gauss() / scale


def compare_reports(first: BenchReport, second: BenchReport) -> list[MetricComparison]:
    """Compare steps with the same id; of a run on two servers, those of the first."""
    theirs = {step.id: step for step in _first_target_steps(second)}
    pairs = [(step, theirs[step.id]) for step in _first_target_steps(first) if step.id in theirs]
    return [compared for pair in pairs for compared in compare_rounds([pair])]


def _first_target_steps(report: BenchReport) -> list[StepResult]:
    return [step for step in report.steps if not step.is_warmup and step.target != report.against]


def compare_rounds(rounds: Sequence[tuple[StepResult, StepResult]], *, seed: int = 0) -> tuple[MetricComparison, ...]:
    """Compare alternating rounds of one step. Metrics are named after the step: `throughput ttft.p50`.

    Metrics for which a round has too few samples are omitted.
    """
    rng = random.Random(seed)
    sampled = [(_step_samples(first), _step_samples(second)) for first, second in rounds]
    comparisons: list[MetricComparison] = []
    for name in sampled[0][0] if sampled else ():
        if all(name in first and name in second for first, second in sampled):
            pairs = [(first[name], second[name]) for first, second in sampled]
            comparisons += _compare_metric(f"{rounds[0][0].id} {name}", pairs, rng)
    return tuple(comparisons)


def comparison_verdict(comparison: MetricComparison) -> str:
    """Return whether the two differ significantly, and which one is better."""
    if not (comparison.low > 1 or comparison.high < 1):
        return NO_DIFFERENCE
    is_time = "." in comparison.metric.rpartition(" ")[2]  # times have statistics, rates do not
    return FIRST_IS_BETTER if (comparison.ratio < 1) == is_time else SECOND_IS_BETTER


def _compare_metric(metric: str, pairs: Sequence[SamplePair], rng: random.Random) -> list[MetricComparison]:
    first = fsum(sample.value for sample, _ in pairs) / len(pairs)
    second = fsum(sample.value for _, sample in pairs) / len(pairs)
    if second > 0:
        ratio, (low, high) = first / second, _noise_band(pairs, rng)
    elif first > 0:  # the second server completed nothing: the difference must be reported
        ratio = low = high = _INFINITE_RATIO
    else:
        return []
    return [MetricComparison(metric=metric, first=first, second=second, ratio=ratio, low=low, high=high)]


def _noise_band(pairs: Sequence[SamplePair], rng: random.Random) -> tuple[float, float]:
    ratios = []
    for _ in range(_BOOTSTRAP_DRAWS):
        chosen = rng.choices(pairs, k=len(pairs))
        second = fsum(sample.resample(rng) for _, sample in chosen)
        if second > 0:
            ratios.append(fsum(first.resample(rng) for first, _ in chosen) / second)
    ratios.sort()
    return percentile(ratios, _BAND_TAIL), percentile(ratios, 1 - _BAND_TAIL)


def _step_samples(step: StepResult) -> dict[str, _ResampledValue]:
    """Return the comparable metrics of a step by name; none if its requests were not recorded."""
    if not step.records:
        return {}
    records = sorted(step.records, key=lambda record: record.due_s)
    edges = [step.seconds * number / _RATE_SLICES for number in range(_RATE_SLICES + 1)]
    ended = [record.outcome for record in records if record.outcome is not RequestOutcome.UNFINISHED]
    samples = {
        "request_rate": _mean_sample(_slice_rates([requests_until(records, edge) for edge in edges[1:]], edges[1])),
        "token_rate": _mean_sample(_slice_rates([tokens_until(records, edge) for edge in edges[1:]], edges[1])),
        "success_rate": _mean_sample([float(outcome is RequestOutcome.OK) for outcome in ended]),
    }
    for metric in MAIN_METRICS:
        times = metric_values(records, metric)
        samples[f"{metric}.mean"] = _mean_sample(times)
        for name in _COMPARED_PERCENTILES:
            if name in step.times[metric].percentiles:
                samples[f"{metric}.{name}"] = _percentile_sample(times, name)
    return {name: sample for name, sample in samples.items() if sample is not None}


def _slice_rates(until: Sequence[float], width_s: float) -> list[float]:
    """Return the rate in each slice, from cumulative counts."""
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
    """Return the number of independent samples with the same information as these, which are in order of time.

    The mean of n independent samples has 1/n of their variance. If the means of parts of a step vary more than that,
    its samples are correlated in time.
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
