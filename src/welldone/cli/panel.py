"""A load test that runs, as lines of text: a screen full for a terminal, and a single one for a log."""

from collections.abc import Sequence

from welldone.bench.record import End
from welldone.bench.reports.words import duration
from welldone.cli.gauge import Gauge, Row
from welldone.drawing.texts import printable

_SPARKS = "▁▂▃▄▅▆▇█"
_HEAD = ("step", "state", "%", "errors", "req/s", "tokens/s")
_BESIDE = 10
"""Lines of the panel that are no steps."""
_FEWEST = 3
"""Steps that are shown on however low a terminal."""
_NAMES = 40
"""Characters of a step's name: ours are half as long."""
_WAITING = "waiting for a first answer"


def lines(gauge: Gauge, *, columns: int, rows: int) -> list[str]:
    """The panel, no wider and no higher than the terminal."""
    drawn = [_facts(gauge), "", *_steps(gauge, max(rows - _BESIDE, _FEWEST)), ""]
    drawn += _running(gauge) if gauge.is_running else [_WAITING]
    return [line[: columns - 1] for line in drawn[: rows - 1]]


def _facts(gauge: Gauge) -> str:
    watch = gauge.watch
    title = f", {printable(watch.title)}" if watch.title else ""
    return f"step {watch.number} of {watch.total}, {_clock(gauge.spent_s)}{title}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _steps(gauge: Gauge, most: int) -> list[str]:
    """The latest steps, as many as there is room for."""
    shown = [*gauge.over(max(0, len(gauge.watch.steps) - most)), *([gauge.running()] if gauge.is_running else [])][
        -most:
    ]
    width = max((len(row.name) for row in shown), default=len(_HEAD[0]))
    return [_line(_HEAD, width), *(_line(_cells(row), width) for row in shown)]


def _line(cells: Sequence[str], width: int) -> str:
    name, state, *numbers = cells
    return f"{name:<{width}}  {state:<7}" + "".join(f"  {number:>9}" for number in numbers)


def _cells(row: Row) -> tuple[str, ...]:
    name = printable(row.name, _NAMES)
    share = f"{100 * row.share:.0f}"
    return name, row.state, share, f"{row.errors:,}", f"{row.request_rate:,.2f}", f"{row.token_rate:,.1f}"


def _running(gauge: Gauge) -> list[str]:
    lately, bins = gauge.lately, gauge.bins
    drawn = [
        f"requests              {_counts(gauge)}",
        _gauge("first token (ttft)", _time(lately.first_token_s), [one.first_token_s for one in bins]),
        _gauge("between tokens (itl)", _time(lately.between_tokens_s), [one.between_tokens_s for one in bins]),
        _gauge("tokens/s", f"{gauge.late_rate:,.1f}", [one.tokens or None for one in bins]),
    ]
    return [*drawn, f"last failure          {printable(gauge.why)}"] if gauge.why else drawn


def _counts(gauge: Gauge) -> str:
    """How many requests are where, each kind apart."""
    ended = ", ".join(f"{count:,} {end}" for end, count in gauge.ends.items() if end is not End.OK)
    said = [f"{gauge.under_way:,} under way", f"{gauge.ends[End.OK]:,} ok", ended]
    return ", ".join(part for part in (*said, f"{gauge.skipped:,} skipped" if gauge.skipped else "") if part)


def _gauge(label: str, mean: str, values: Sequence[float | None]) -> str:
    return f"{label:<20}  {mean:>8}  {sparkline(values)}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def sparkline(values: Sequence[float | None]) -> str:
    """A small curve over zero; where nothing is known there is a gap."""
    highest = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _spark(value / highest if highest else 0.0) for value in values)


def _spark(share: float) -> str:
    return _SPARKS[min(int(share * len(_SPARKS)), len(_SPARKS) - 1)]


# ---- for a log


def running_line(gauge: Gauge) -> str:
    """Where the step is that runs."""
    if not gauge.is_running:
        return _WAITING
    row, lately = gauge.running(), gauge.lately
    times = f"ttft {_time(lately.first_token_s)}, itl {_time(lately.between_tokens_s)}"
    return f"{printable(row.name, _NAMES)}: {100 * row.share:.0f} %, {_counts(gauge)}, {_rates(row)}, {times}"


def done_line(row: Row) -> str:
    """What a step came to."""
    return f"{printable(row.name, _NAMES)}: done, {row.errors:,} failed, {_rates(row)}"


def _rates(row: Row) -> str:
    return f"{row.request_rate:,.2f} req/s, {row.token_rate:,.1f} tokens/s"
