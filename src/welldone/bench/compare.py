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

from welldone.bench.record import End
from welldone.bench.report import BenchReport, Compared, Step
from welldone.bench.stats import PERCENTILES, percentile, requests_until, tokens_until, values

SAME = "no difference"
FIRST = "the first is better"
SECOND = "the second is better"

_TIMES = ("ttft", "itl", "e2e")
_SHOWN = ("p50", "p90", "p99")
_DRAWS = 1000  # the ends of a band of 95 % have 25 of them beyond, enough for two digits
_TAIL = 0.025
_SLICES = 20
"""Parts of a step whose rates are compared: each long enough for some requests, and enough of them for a variance."""
_PARTS = 10
"""Of a step, to see whether its samples are alike for a time. In simulated queues at 70 % load ten held the truth in
nine of ten bands, twenty in eight; one that is as good as full no run of the usual length can know."""
_ENDLESS = 1e6  # the ratio of something to nothing: JSON has no infinity
_LEAST = 2  # samples: with one there is no variance
_WARMUP = "warmup"

Pair: TypeAlias = tuple["_Sample", "_Sample"]


class _Sample(msgspec.Struct, frozen=True):
    """A number of one step, and what is needed to draw it anew."""

    value: float
    known: float
    """So many independent samples tell as much as these."""
    deviation: float
    """The standard deviation of the samples, where the number is their mean."""
    share: float | None = None
    """Of the percentile, where it is one."""
    ordered: Sequence[float] = ()

    def drawn(self, rng: random.Random) -> float:
        """The number as it might as well have been."""
        if self.share is not None:
            above = (self.known - 1) * (1 - self.share)
            return percentile(self.ordered, rng.betavariate(self.known - above, above + 1))
        freedom = self.known - 1
        spread = sqrt(rng.gammavariate(freedom / 2, 2) / freedom)
        return self.value + self.deviation / sqrt(self.known) * rng.gauss() / spread


def compare(first: BenchReport, second: BenchReport, *, seed: int = 0) -> list[Compared]:
    """Steps that both have, by their id; of a run on two servers the first of them."""
    theirs = {step.id: step for step in _own_steps(second)}
    pairs = [(step, theirs[step.id]) for step in _own_steps(first) if step.id in theirs]
    return [compared for pair in pairs for compared in ratios([pair], seed=seed)]


def _own_steps(report: BenchReport) -> list[Step]:
    return [step for step in report.steps if step.id != _WARMUP and step.target != report.against]


def ratios(rounds: Sequence[tuple[Step, Step]], *, seed: int = 0) -> tuple[Compared, ...]:
    """The rounds of one step, measured in turn. A metric is named after its step: `throughput ttft.p50`.

    What a round cannot tell, since it has too few samples or none, is left out.
    """
    rng = random.Random(seed)
    sampled = [(_samples(first), _samples(second)) for first, second in rounds]
    found: list[Compared] = []
    for name in sampled[0][0] if sampled else ():
        if all(name in first and name in second for first, second in sampled):
            pairs = [(first[name], second[name]) for first, second in sampled]
            found += _compared(f"{rounds[0][0].id} {name}", pairs, rng)
    return tuple(found)


def verdict(compared: Compared) -> str:
    """Whether the two differ by more than noise, and which is better then."""
    if not (compared.low > 1 or compared.high < 1):
        return SAME
    is_time = "." in compared.metric.rpartition(" ")[2]  # times have statistics, rates are one number
    return FIRST if (compared.ratio < 1) == is_time else SECOND


def _compared(metric: str, pairs: Sequence[Pair], rng: random.Random) -> list[Compared]:
    first = fsum(one.value for one, _ in pairs) / len(pairs)
    second = fsum(other.value for _, other in pairs) / len(pairs)
    if second > 0:
        ratio, (low, high) = first / second, _band(pairs, rng)
    elif first > 0:  # a server that gave nothing at all may not go unmentioned
        ratio = low = high = _ENDLESS
    else:
        return []
    return [Compared(metric=metric, first=first, second=second, ratio=ratio, low=low, high=high)]


def _band(pairs: Sequence[Pair], rng: random.Random) -> tuple[float, float]:
    drawn = sorted(ratio for ratio in (_drawn(pairs, rng) for _ in range(_DRAWS)) if ratio is not None)
    return percentile(drawn, _TAIL), percentile(drawn, 1 - _TAIL)


def _drawn(pairs: Sequence[Pair], rng: random.Random) -> float | None:
    """The ratio as it might as well have been; None where there would be none."""
    chosen = rng.choices(pairs, k=len(pairs))
    second = fsum(other.drawn(rng) for _, other in chosen)
    return fsum(first.drawn(rng) for first, _ in chosen) / second if second > 0 else None


def _samples(step: Step) -> dict[str, _Sample]:
    """The numbers of a step that can be compared, by name: none where its requests were not kept."""
    if not step.records:
        return {}
    records = sorted(step.records, key=lambda record: record.due_s)
    edges = [step.seconds * number / _SLICES for number in range(1, _SLICES + 1)]
    width_s = step.seconds / _SLICES
    found = {
        "request_rate": _mean(_slices([requests_until(records, edge) for edge in edges], width_s)),
        "token_rate": _mean(_slices([tokens_until(records, edge) for edge in edges], width_s)),
        "success_rate": _mean([float(record.end is End.OK) for record in records if record.end is not End.UNFINISHED]),
    }
    for metric in _TIMES:
        times = values(records, metric)
        found[f"{metric}.mean"] = _mean(times)
        for name in _SHOWN:
            found[f"{metric}.{name}"] = _percentile(times, name) if name in step.times[metric].percentiles else None
    return {name: sample for name, sample in found.items() if sample is not None}


def _slices(until: Sequence[float], width_s: float) -> list[float]:
    """The rate in each slice, out of what there was until its end."""
    return [(later - sooner) / width_s for sooner, later in pairwise((0.0, *until))] if width_s else []


def _mean(samples: Sequence[float]) -> _Sample | None:
    known = _known(samples)
    return None if known < _LEAST else _Sample(fmean(samples), known, sqrt(_variance(samples)))


def _percentile(samples: Sequence[float], name: str) -> _Sample | None:
    known = _known(samples)
    share = PERCENTILES[name] / 1000
    ordered = sorted(samples)
    return None if known < _LEAST else _Sample(percentile(ordered, share), known, 0.0, share, ordered)


def _known(samples: Sequence[float]) -> float:
    """How many independent samples would tell as much as these, which are in their order in time.

    The means of parts of independent samples vary by as much less as the parts have samples. Where they vary more,
    samples of the same time are alike.
    """
    count = len(samples)
    parts = min(_PARTS, count // 2)
    whole = _variance(samples) if parts > 1 else 0.0
    if not whole:
        return count
    edges = [count * number // parts for number in range(parts + 1)]
    means = [fmean(samples[begin:end]) for begin, end in pairwise(edges)]
    return count / max(1.0, count / parts * _variance(means) / whole)


def _variance(samples: Sequence[float]) -> float:
    mean = fmean(samples)
    return fsum((sample - mean) ** 2 for sample in samples) / (len(samples) - 1)
