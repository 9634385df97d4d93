"""What must hold of a result (`ttft.p99<800ms`), and what a good request may take (`ttft:500`)."""

import re
from collections.abc import Iterable, Sequence

from welldone.bench.report import Checked, Step
from welldone.bench.settings import Assertion, Bound
from welldone.bench.stats import MEASURES, PERCENTILES, error_rate

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{0,15})?"  # longer ones nobody means
_SHAPE = re.compile(rf"([a-z_0-9]+)(?:\.([a-z0-9.]+))?\s*(<=?|>=?)\s*({_NUMBER})\s*([a-z%]*)")
_BOUND = re.compile(rf"([a-z_0-9]+):({_NUMBER})")

_TIMES = (*(name for name in MEASURES if name != "rate"), "gap")
_STATISTICS = ("mean", "min", "max", *PERCENTILES)
_SECONDS = {"ms": 1000, "s": 1}
_SHARES = {"%": 100, "": 1}
_PER_SECOND = {"": 1}
_UNITS = {
    **dict.fromkeys(_TIMES, _SECONDS),
    "rate": _PER_SECOND,
    "token_rate": _PER_SECOND,
    "request_rate": _PER_SECOND,
    "error_rate": _SHARES,
    "goodput": _SHARES,
}
"""Of each metric the units that a limit may have, and how many of each make one of its own. One divides by them: 57 %
is then the same number as 57 of 100."""
_BOUNDS = ("ttft", "itl", "e2e")
_WARMUP = "warmup"


def read_assertion(text: str) -> Assertion:
    """What a user wrote, as a value.

    Raises:
        ValueError: it cannot be understood; the message says what is wrong, and how it could be right.
    """
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no assertion: write a metric, then < <= > or >=, then a limit, as in ttft.p99<800ms"
        )
    metric, statistic, sign, number, unit = found.groups("")
    if metric not in _UNITS:
        raise ValueError(f"{text!r}: there is no metric {metric!r}; there are {', '.join(_UNITS)}")
    _check_statistic(text, metric, statistic)
    units = _UNITS[metric]
    if unit not in units:
        wanted = " or ".join(f"{metric}{'.' * bool(statistic)}{statistic}{sign}{number}{name}" for name in units)
        raise ValueError(f"{text!r}: a limit of {metric} has another unit; write {wanted}")
    return Assertion(text, metric, statistic, sign.startswith("<"), float(number) / units[unit])


def _check_statistic(text: str, metric: str, statistic: str) -> None:
    has_many = metric in _TIMES or metric == "rate"
    if has_many and statistic not in _STATISTICS:
        said = f"there is no statistic {statistic!r}" if statistic else f"{metric} is not one number"
        raise ValueError(f"{text!r}: {said}; write {metric}. and one of {', '.join(_STATISTICS)}")
    if statistic and not has_many:
        raise ValueError(f"{text!r}: {metric} is one number; write it without .{statistic}")


def read_bound(text: str) -> Bound:
    """What a good request may take, in milliseconds.

    Raises:
        ValueError: it cannot be understood; the message says how it could be right.
    """
    found = _BOUND.fullmatch(text.strip())
    if found is None or found[1] not in _BOUNDS:
        raise ValueError(f"{text!r} is no bound: write {', '.join(_BOUNDS)}, a colon and milliseconds, as in ttft:500")
    return Bound(found[1], float(found[2]) / 1000)


def judge(assertions: Iterable[Assertion], steps: Sequence[Step]) -> tuple[Checked, ...]:
    """Whether they hold, on every step but the warm-up. Of two servers the first is meant: that of the first step.

    `goodput` is the share of all requests that were due: one that was skipped or never ended is not good.
    """
    judged = [step for step in steps if step.id != _WARMUP and step.target == steps[0].target]
    return tuple(_checked(assertion, step) for assertion in assertions for step in judged)


def _checked(assertion: Assertion, step: Step) -> Checked:
    value = _value(assertion, step)
    is_kept = value is not None and _is_kept(assertion, value)
    return Checked(text=assertion.text, step=step.id, value=value, is_kept=is_kept)


def _is_kept(assertion: Assertion, value: float) -> bool:
    if value == assertion.limit:
        return "=" in assertion.text
    return (value < assertion.limit) == assertion.is_below


def _value(assertion: Assertion, step: Step) -> float | None:
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
            return _statistic(step, metric, assertion.statistic)


def _statistic(step: Step, metric: str, statistic: str) -> float | None:
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
