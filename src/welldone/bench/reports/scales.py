"""An axis: from which number to which it goes, where its ticks stand, and what is written at them.

Any number may come in. What is no number is left out; what is beyond all reason is held at the end of the axis.
"""

import math
from collections.abc import Iterable

import msgspec

_MAX_VALUE = 1e9
"""No time in seconds, rate or count of a run is beyond this: 30 years, or a thousand million."""
_MIN_VALUE = 1e-6
"""The smallest number on a logarithmic axis: a clock that tells microseconds tells nothing below."""
_TICK_COUNT = 5
"""About so many ticks fit under a plot on a phone."""
_NO_VALUE = "-"
"""Stands where there is no number."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A way from numbers to places."""

    low: float
    high: float
    is_log: bool = False
    ticks: tuple[tuple[float, str], ...]
    """Numbers, and what is written there."""
    unit: str = ""
    """Of what is written at the ticks."""

    def position(self, value: float) -> float:
        """Where the number stands: 0 at the beginning of the axis, 1 at its end."""
        share = (self._transform(value) - self._transform(self.low)) / (
            self._transform(self.high) - self._transform(self.low)
        )
        return share if 0 <= share <= 1 else float(share > 1)

    def value_at(self, position: float) -> float:
        """The number that stands at the place."""
        low, high = self._transform(self.low), self._transform(self.high)
        bent = low + position * (high - low)
        return math.exp(bent) if self.is_log else bent

    def _transform(self, value: float) -> float:
        return math.log(max(value, _MIN_VALUE)) if self.is_log else value


def finite_values(values: Iterable[float | None]) -> list[float]:
    """The values that are numbers, none below zero, none beyond reason."""
    return [min(max(value, 0.0), _MAX_VALUE) for value in values if value is not None and math.isfinite(value)]


def linear_axis(
    values: Iterable[float], *, is_time: bool = False, is_from_zero: bool = True, is_tight: bool = False
) -> Axis:
    """An axis of even steps that holds the values; a tight one ends where they do, and not at a tick."""
    held = finite_values(values) or [0.0]
    low, high = 0.0 if is_from_zero else min(held), max(held)
    if high - low < max(_MIN_VALUE, high * _MIN_VALUE):  # one value, as good as
        low, high = 0.0, high if high >= _MIN_VALUE else 1.0
    factor, unit = _time_unit(high) if is_time else (1.0, "")
    step = round_up_step((high - low) * factor / _TICK_COUNT)
    first, last = math.floor(low * factor / step + 1e-9), math.ceil(high * factor / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    ticks = tuple((number * step / factor, f"{number * step:,.{digits}f}") for number in range(first, last + 1))
    if is_tight:
        return Axis(low=low, high=high, ticks=tuple(tick for tick in ticks if low <= tick[0] <= high), unit=unit)
    return Axis(low=ticks[0][0], high=ticks[-1][0], ticks=ticks, unit=unit)


def log_axis(values: Iterable[float], *, is_time: bool = False) -> Axis:
    """An axis on which every tenfold is as long as any other."""
    held = [max(value, _MIN_VALUE) for value in finite_values(values)] or [1.0]
    steps = _decimal_steps(math.floor(math.log10(min(held)) + 1e-9), math.ceil(math.log10(max(held)) - 1e-9))
    first = max((number for number, step in enumerate(steps) if step <= min(held) * (1 + 1e-9)), default=0)
    last = next((number for number, step in enumerate(steps) if step >= max(held) * (1 - 1e-9)), len(steps) - 1)
    kept = steps[first : max(last, first + 1) + 1]
    words = format_seconds if is_time else format_number
    return Axis(low=kept[0], high=kept[-1], is_log=True, ticks=tuple((step, words(step)) for step in _thin_ticks(kept)))


def needs_log_axis(values: Iterable[float]) -> bool:
    """Whether the values lie so far apart that even steps would hide most of them."""
    held = finite_values(values)
    return bool(held) and max(held) > 20 * max(min(held), _MIN_VALUE)


def format_number(value: float | None) -> str:
    """A number with three digits that count."""
    if value is None or not math.isfinite(value):
        return _NO_VALUE
    size = abs(value)
    if size >= _MAX_VALUE * 1_000:
        return f"{value:.2e}"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_seconds(seconds: float | None) -> str:
    """A time, in the unit that suits it."""
    if seconds is None or not math.isfinite(seconds):
        return _NO_VALUE
    factor, unit = _time_unit(abs(seconds))
    return f"{format_number(seconds * factor)} {unit}"


def format_percent(value: float | None) -> str:
    """A share of one, in percent."""
    return _NO_VALUE if value is None or not math.isfinite(value) else f"{format_number(value * 100)} %"


def _time_unit(seconds: float) -> tuple[float, str]:
    if 0 < seconds < 0.000_999_5:
        return 1e6, "µs"
    return (1e3, "ms") if seconds < 0.999_5 else (1.0, "s")


def round_up_step(step: float) -> float:
    """The next number up that people count by: 1, 2 or 5 and noughts."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step * (1 - 1e-9))


def _thin_ticks(steps: list[float]) -> list[float]:
    """So many of the steps as there is room for: on a long axis powers of ten, and not all of them."""
    if len(steps) <= _TICK_COUNT + 1:
        return steps
    powers = [step for step in steps if math.isclose(math.log10(step), round(math.log10(step)))]
    return powers[:: -(-len(powers) // (_TICK_COUNT + 1))]


def _decimal_steps(low: int, high: int) -> list[float]:
    return [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
