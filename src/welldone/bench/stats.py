"""From the records of a step to what it came to.

Only requests that ended well are averaged; the others are counted, each by its end. Times count from when a request
was due, not from when it was sent: who waits for an answer waits from then on, also where a busy tool was late. How
late it was is said apart (`Own`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import fsum

from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.bench.report import Distribution, ClientLoad, StepResult
from welldone.bench.settings import GoodputBound

PERCENTILES = {"p50": 500, "p60": 600, "p70": 700, "p80": 800, "p90": 900, "p95": 950, "p99": 990, "p99.9": 999}
"""How many of a thousand samples lie below each. Whole numbers, so that p90 begins at 100 samples and not at 101."""
_MIN_SAMPLES_BEYOND = 10
"""Samples that must lie above a percentile: with fewer it says more about chance than about the server."""
_EXTRA_PERCENTILES = {"p99.9"}  # inference-benchmarker, for whose form all percentiles are kept, does not know it
_MAX_REASONS = 20  # as many as a screen shows; the others are counted together
_OTHER_REASONS = "other reasons"


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which that share of the samples lies, between two of them as numpy.percentile has it.

    There must be a sample, and they must be in order.
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    return min(low + (high - low) * (place - below), high)  # rounding may not lead beyond a sample


def distribution(samples: Iterable[float]) -> Distribution:
    """What there is to say of some samples, and no percentile that they are too few for."""
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


# Of one request.


def _since_due(at: float | None, record: BenchRecord) -> float | None:
    return None if at is None else at - record.due_s


def _time_to_first_token(record: BenchRecord) -> float | None:
    firsts = [at for at in (record.reasoning_s, record.content_s, record.tool_s) if at is not None]
    return _since_due(min(firsts, default=None), record)


def _inter_token_latency(record: BenchRecord) -> float | None:
    """The mean time between tokens. One chunk tells nothing about it, however many tokens it holds."""
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
"""What is measured of a request that ended well, under the names of `Step.times`; None where it did not happen."""


def _chunk_gaps(record: BenchRecord) -> list[float]:
    return [later - sooner for sooner, later in pairwise(record.times)]


def metric_values(records: Iterable[BenchRecord], name: str) -> list[float]:
    """A measure of each request that ended well and has it."""
    measure = METRICS[name]
    found = (measure(record) for record in records if record.outcome is RequestOutcome.OK)
    return [value for value in found if value is not None]


# Of many.


def tokens_until(records: Iterable[BenchRecord], seconds: float) -> float:
    """How many tokens had come by then, also of answers that ended badly or not at all.

    A chunk holds its share of the tokens of its answer: which chunk holds how many, no server says.
    """
    return fsum(_record_tokens_until(record, seconds) for record in records)


def _record_tokens_until(record: BenchRecord, seconds: float) -> float:
    chunks = len(record.times)
    tokens = chunks if record.tokens is None else record.tokens
    return tokens * bisect_right(record.times, seconds) / chunks if chunks else 0.0


def requests_until(records: Iterable[BenchRecord], seconds: float) -> float:
    """How many requests that ended well had been served by then.

    One that was under way counts by the share of its time that had passed. If it counted as nothing, a short step would
    seem slow, and one that is shorter than its answers would seem to serve nobody.
    """
    return fsum(_share_until(record, seconds) for record in records if record.outcome is RequestOutcome.OK)


def _share_until(record: BenchRecord, seconds: float) -> float:
    if record.ended_s <= seconds:
        return 1.0
    begun_s = min(record.sent_s, seconds)
    return (seconds - begun_s) / (record.ended_s - begun_s)


def error_rate(step: StepResult) -> float | None:
    """Which share of the requests that ended did not end well. Those that were left at the end of the step did
    neither; nor did those that were skipped."""
    ended = step.requests - step.outcomes.get(RequestOutcome.UNFINISHED, 0)
    return (ended - step.ok) / ended if ended else None


def summarize_step(
    records: Sequence[BenchRecord],
    *,
    id: str,
    target: str,
    is_open: bool,
    max_vus: int,
    rate: float | None,
    seconds: float,
    due: int,
    skipped: int,
    tokens_by: str,
    client: ClientLoad,
    goodput: Sequence[GoodputBound],
) -> StepResult:
    """What a step of so many seconds came to. Its totals are those of the requests that ended well; its rates count
    what came within its seconds, of any request."""
    fine = [record for record in records if record.outcome is RequestOutcome.OK]
    prompts = [record.prompt_tokens for record in fine if record.prompt_tokens is not None]
    made = [record.tokens for record in fine if record.tokens is not None]
    return StepResult(
        id=id,
        target=target,
        is_open=is_open,
        max_vus=max_vus,
        rate=rate,
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
    """Whether it kept all bounds. What did not happen (nothing is between the tokens of one) took no time."""
    took = ((METRICS[bound.metric](record), bound.limit_s) for bound in bounds)
    return all(value is None or value <= limit_s for value, limit_s in took)


def _count_reasons(records: Iterable[BenchRecord]) -> dict[str, int]:
    """Why those that are not ok ended. All of them are in it."""
    whys = Counter(
        record.error or record.outcome.value for record in records if record.outcome is not RequestOutcome.OK
    )
    often = dict(whys.most_common(_MAX_REASONS))
    others = whys.total() - sum(often.values())
    return often | {_OTHER_REASONS: often.get(_OTHER_REASONS, 0) + others} if others else often
