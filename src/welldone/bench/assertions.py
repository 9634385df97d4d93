"""What must hold of a result (`ttft.p99<800ms`), and what a good request may take (`ttft:500`)."""

import re
from collections.abc import Iterable, Sequence

from welldone.bench.report import AssertionResult, StepResult
from welldone.bench.settings import Assertion, GoodputBound
from welldone.bench.stats import METRICS, PERCENTILES, error_rate

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{0,15})?"  # longer ones nobody means
_ASSERTION_PATTERN = re.compile(rf"([a-z_0-9]+)(?:\.([a-z0-9.]+))?\s*(<=?|>=?)\s*({_NUMBER})\s*([a-z%]*)")
_BOUND_PATTERN = re.compile(rf"([a-z_0-9]+):({_NUMBER})")

_TIME_METRICS = (*(name for name in METRICS if name != "rate"), "gap")
_STATISTICS = ("mean", "min", "max", *PERCENTILES)
_SECOND_UNITS = {"ms": 1000, "s": 1}
_SHARE_UNITS = {"%": 100, "": 1}
_RATE_UNITS = {"": 1}
_METRIC_UNITS = {
    **dict.fromkeys(_TIME_METRICS, _SECOND_UNITS),
    "rate": _RATE_UNITS,
    "token_rate": _RATE_UNITS,
    "request_rate": _RATE_UNITS,
    "error_rate": _SHARE_UNITS,
    "goodput": _SHARE_UNITS,
}
"""Of each metric the units that a limit may have, and how many of each make one of its own. One divides by them: 57 %
is then the same number as 57 of 100."""
_BOUND_METRICS = ("ttft", "itl", "e2e")
_WARMUP_STEP = "warmup"


def parse_assertion(text: str) -> Assertion:
    """What a user wrote, as a value.

    Raises:
        ValueError: it cannot be understood; the message says what is wrong, and how it could be right.
    """
    found = _ASSERTION_PATTERN.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no assertion: write a metric, then < <= > or >=, then a limit, as in ttft.p99<800ms"
        )
    metric, statistic, sign, number, unit = found.groups("")
    if metric not in _METRIC_UNITS:
        raise ValueError(f"{text!r}: there is no metric {metric!r}; there are {', '.join(_METRIC_UNITS)}")
    _check_statistic(text, metric, statistic)
    units = _METRIC_UNITS[metric]
    if unit not in units:
        wanted = " or ".join(f"{metric}{'.' * bool(statistic)}{statistic}{sign}{number}{name}" for name in units)
        raise ValueError(f"{text!r}: a limit of {metric} has another unit; write {wanted}")
    return Assertion(text, metric, statistic, sign.startswith("<"), float(number) / units[unit])


def _check_statistic(text: str, metric: str, statistic: str) -> None:
    has_many = metric in _TIME_METRICS or metric == "rate"
    if has_many and statistic not in _STATISTICS:
        said = f"there is no statistic {statistic!r}" if statistic else f"{metric} is not one number"
        raise ValueError(f"{text!r}: {said}; write {metric}. and one of {', '.join(_STATISTICS)}")
    if statistic and not has_many:
        raise ValueError(f"{text!r}: {metric} is one number; write it without .{statistic}")


def parse_goodput_bound(text: str) -> GoodputBound:
    """What a good request may take, in milliseconds.

    Raises:
        ValueError: it cannot be understood; the message says how it could be right.
    """
    found = _BOUND_PATTERN.fullmatch(text.strip())
    if found is None or found[1] not in _BOUND_METRICS:
        raise ValueError(
            f"{text!r} is no bound: write {', '.join(_BOUND_METRICS)}, a colon and milliseconds, as in ttft:500"
        )
    return GoodputBound(found[1], float(found[2]) / 1000)


def check_assertions(assertions: Iterable[Assertion], steps: Sequence[StepResult]) -> tuple[AssertionResult, ...]:
    """Whether they hold, on every step but the warm-up. Of two servers the first is meant: that of the first step.

    `goodput` is the share of all requests that were due: one that was skipped or never ended is not good.
    """
    judged = [step for step in steps if step.id != _WARMUP_STEP and step.target == steps[0].target]
    return tuple(_check_assertion(assertion, step) for assertion in assertions for step in judged)


def _check_assertion(assertion: Assertion, step: StepResult) -> AssertionResult:
    value = _metric_value(assertion, step)
    is_kept = value is not None and _is_met(assertion, value)
    return AssertionResult(text=assertion.text, step=step.id, value=value, passed=is_kept)


def _is_met(assertion: Assertion, value: float) -> bool:
    if value == assertion.limit:
        return "=" in assertion.text
    return (value < assertion.limit) == assertion.is_below


def _metric_value(assertion: Assertion, step: StepResult) -> float | None:
    match assertion.metric:
        case "token_rate":
            return step.token_rate
        case "request_rate":
            return step.request_rate
        case "error_rate":
            return error_rate(step)
        case "goodput":
            return step.good / step.due if step.good is not None and step.due else None
        case metric:
            return _distribution_statistic(step, metric, assertion.statistic)


def _distribution_statistic(step: StepResult, metric: str, statistic: str) -> float | None:
    times = step.times[metric]
    match statistic:
        case "mean":
            return times.mean
        case "min":
            return times.minimum
        case "max":
            return times.maximum
        case _:
            return times.percentiles.get(statistic)
