"""A load test that runs, as lines of text: a screen full for a terminal, and a single one for a log."""

from collections.abc import Sequence

from welldone.bench.record import RequestOutcome
from welldone.bench.reports.words import format_duration
from welldone.cli.gauge import BenchMonitor, BenchStepRow
from welldone.drawing.texts import sanitize_text

_SPARK_CHARACTERS = "▁▂▃▄▅▆▇█"
_STEP_COLUMNS = ("step", "state", "%", "errors", "req/s", "tokens/s")
_OTHER_LINES = 10
"""Lines of the panel that are no steps."""
_MIN_STEPS = 3
"""Steps that are shown on however low a terminal."""
_MAX_NAME_CHARS = 40
"""Characters of a step's name: ours are half as long."""
_WAITING_TEXT = "waiting for a first answer"


def panel_lines(monitor: BenchMonitor, *, columns: int, rows: int) -> list[str]:
    """The panel, no wider and no higher than the terminal."""
    drawn = [_title_line(monitor), "", *_step_lines(monitor, max(rows - _OTHER_LINES, _MIN_STEPS)), ""]
    drawn += _running_lines(monitor) if monitor.is_running else [_WAITING_TEXT]
    return [line[: columns - 1] for line in drawn[: rows - 1]]


def _title_line(monitor: BenchMonitor) -> str:
    watch = monitor.progress
    title = f", {sanitize_text(watch.title)}" if watch.title else ""
    return f"step {watch.number} of {watch.total}, {_format_clock(monitor.spent_s)}{title}"


def _format_clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _step_lines(monitor: BenchMonitor, most: int) -> list[str]:
    """The latest steps, as many as there is room for."""
    shown = [
        *monitor.finished_steps(max(0, len(monitor.progress.steps) - most)),
        *([monitor.running_step()] if monitor.is_running else []),
    ][-most:]
    width = max((len(row.name) for row in shown), default=len(_STEP_COLUMNS[0]))
    return [_step_line(_STEP_COLUMNS, width), *(_step_line(_step_cells(row), width) for row in shown)]


def _step_line(cells: Sequence[str], width: int) -> str:
    name, state, *numbers = cells
    return f"{name:<{width}}  {state:<7}" + "".join(f"  {number:>9}" for number in numbers)


def _step_cells(row: BenchStepRow) -> tuple[str, ...]:
    name = sanitize_text(row.name, _MAX_NAME_CHARS)
    share = f"{100 * row.progress:.0f}"
    return name, row.state, share, f"{row.errors:,}", f"{row.request_rate:,.2f}", f"{row.token_rate:,.1f}"


def _running_lines(monitor: BenchMonitor) -> list[str]:
    lately, bins = monitor.recent, monitor.bins
    drawn = [
        f"requests              {_request_counts(monitor)}",
        _metric_line("first token (ttft)", _format_seconds(lately.mean_ttft_s), [one.mean_ttft_s for one in bins]),
        _metric_line("between tokens (itl)", _format_seconds(lately.mean_itl_s), [one.mean_itl_s for one in bins]),
        _metric_line("tokens/s", f"{monitor.recent_token_rate:,.1f}", [one.tokens or None for one in bins]),
    ]
    return [*drawn, f"last failure          {sanitize_text(monitor.last_error)}"] if monitor.last_error else drawn


def _request_counts(monitor: BenchMonitor) -> str:
    """How many requests are where, each kind apart."""
    ended = ", ".join(f"{count:,} {end}" for end, count in monitor.outcomes.items() if end is not RequestOutcome.OK)
    said = [f"{monitor.in_flight:,} under way", f"{monitor.outcomes[RequestOutcome.OK]:,} ok", ended]
    return ", ".join(part for part in (*said, f"{monitor.skipped:,} skipped" if monitor.skipped else "") if part)


def _metric_line(label: str, mean: str, values: Sequence[float | None]) -> str:
    return f"{label:<20}  {mean:>8}  {sparkline(values)}"


def _format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)


def sparkline(values: Sequence[float | None]) -> str:
    """A small curve over zero; where nothing is known there is a gap."""
    highest = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else _spark(value / highest if highest else 0.0) for value in values)


def _spark(share: float) -> str:
    return _SPARK_CHARACTERS[min(int(share * len(_SPARK_CHARACTERS)), len(_SPARK_CHARACTERS) - 1)]


# ---- for a log


def running_line(monitor: BenchMonitor) -> str:
    """Where the step is that runs."""
    if not monitor.is_running:
        return _WAITING_TEXT
    row, lately = monitor.running_step(), monitor.recent
    times = f"ttft {_format_seconds(lately.mean_ttft_s)}, itl {_format_seconds(lately.mean_itl_s)}"
    return f"{sanitize_text(row.name, _MAX_NAME_CHARS)}: {100 * row.progress:.0f} %, {_request_counts(monitor)}, {_format_rates(row)}, {times}"


def finished_line(row: BenchStepRow) -> str:
    """What a step came to."""
    return f"{sanitize_text(row.name, _MAX_NAME_CHARS)}: done, {row.errors:,} failed, {_format_rates(row)}"


def _format_rates(row: BenchStepRow) -> str:
    return f"{row.request_rate:,.2f} req/s, {row.token_rate:,.1f} tokens/s"
