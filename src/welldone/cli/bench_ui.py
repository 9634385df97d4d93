"""Live view of a load test: a panel on a terminal, lines in a log.

It runs in the thread that times answers, so a refresh is cheap: each record is read once, only a sample of many records
is averaged, and nothing is sorted.
"""

import asyncio
import os
import select
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from statistics import fmean
from typing import TYPE_CHECKING

import msgspec

from welldone.bench.report import BenchRecord, RequestOutcome
from welldone.bench.reports.text import NEUTRAL_OUTCOMES, format_duration
from welldone.bench.stats import METRICS
from welldone.cli import ui
from welldone.reporting import sanitize_text

if TYPE_CHECKING:  # its HTTP client is an extra
    from welldone.bench.run import BenchProgress

BIN_S = 2.0
"""Long enough for some answers, and short enough to show a stall."""
BIN_COUNT = 30
"""One minute."""
RECENT_BINS = 5
"""Bins of the current means: ten seconds."""
_MAX_SAMPLED_RECORDS = 100
"""Records per refresh whose times are averaged: less than a millisecond of work."""


class MonitorBin(msgspec.Struct):
    """Times and tokens of the requests that ended within a short interval."""

    ttft_s: list[float] = []
    itl_s: list[float] = []
    tokens: int = 0


class BenchStepRow(msgspec.Struct, frozen=True):
    """One row of the table of steps."""

    name: str
    state: str
    progress: float
    """Elapsed share of its duration."""
    errors: int
    request_rate: float
    token_rate: float


class BenchMonitor:
    """State of the live view. `refresh` updates it."""

    def __init__(self, progress: "BenchProgress", clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = progress
        self._clock = clock
        self._started_at = clock()
        self.spent_s: float = 0.0
        """Since the start of the run."""
        self._start_step(self._started_at)

    def _start_step(self, now: float) -> None:
        self._number = self.progress.number
        self._step_started_at = now
        self._load = self.progress.load
        self._seen_records = 0
        self._skipped = 0
        self.elapsed_s: float = 0.0
        self.outcomes: Counter[RequestOutcome] = Counter()
        self.tokens: int = 0
        self.last_error: str = ""
        """The last error message, as the server sent it: not sanitized."""
        self.bins: deque[MonitorBin] = deque([MonitorBin()], maxlen=BIN_COUNT)
        self._bin_number = 0

    def refresh(self) -> None:
        """Read the new records."""
        now = self._clock()
        if self.progress.number != self._number:
            self._start_step(now)
        self.spent_s = now - self._started_at
        self.elapsed_s = now - self._step_started_at
        self._advance_bins()
        if self._load is not None:
            self._add_records(self._load.records[self._seen_records :])
        if self.progress.load is not self._load:  # another round of the same step
            self._skipped += 0 if self._load is None else self._load.counts.skipped
            self._load, self._seen_records = self.progress.load, 0
            self._add_records(self._load.records)

    def _advance_bins(self) -> None:
        number = int(self.elapsed_s / BIN_S)
        self.bins.extend(MonitorBin() for _ in range(min(number - self._bin_number, BIN_COUNT)))
        self._bin_number = number

    def _add_records(self, records: Sequence[BenchRecord]) -> None:
        self._seen_records += len(records)
        self.outcomes.update(record.outcome for record in records)
        tokens = sum(record.token_count for record in records)
        self.tokens += tokens
        current = self.bins[-1]
        current.tokens += tokens
        for record in records[-_MAX_SAMPLED_RECORDS:]:
            if record.outcome is RequestOutcome.OK:
                _add_times(current, record)
            elif record.outcome is not RequestOutcome.UNFINISHED:
                self.last_error = record.error

    @property
    def is_running(self) -> bool:
        """Whether a step is running; before the first step the server is probed."""
        return self._load is not None

    @property
    def in_flight(self) -> int:
        """Requests in flight."""
        return 0 if self._load is None else int(self._load.counts.in_flight)

    @property
    def skipped(self) -> int:
        return self._skipped + (0 if self._load is None else int(self._load.counts.skipped))

    @property
    def recent(self) -> MonitorBin:
        """The recent bins as one."""
        recent = MonitorBin()
        for each in list(self.bins)[-RECENT_BINS:]:
            recent.ttft_s += each.ttft_s
            recent.itl_s += each.itl_s
            recent.tokens += each.tokens
        return recent

    @property
    def recent_token_rate(self) -> float:
        """Tokens per second in the recent bins."""
        start_s = max(0, self._bin_number - RECENT_BINS + 1) * BIN_S
        return self.recent.tokens / max(self.elapsed_s - start_s, BIN_S)

    def running_step(self) -> BenchStepRow:
        """Return the row of the current step."""
        progress, elapsed_s = self.progress, self.elapsed_s
        is_over = elapsed_s >= progress.seconds
        return BenchStepRow(
            name=progress.step,
            state="ending" if is_over else "running",
            progress=1.0 if is_over else elapsed_s / progress.seconds,
            errors=sum(count for outcome, count in self.outcomes.items() if outcome not in NEUTRAL_OUTCOMES),
            request_rate=self.outcomes[RequestOutcome.OK] / elapsed_s if elapsed_s else 0.0,
            token_rate=self.tokens / elapsed_s if elapsed_s else 0.0,
        )

    def finished_steps(self, since: int = 0) -> list[BenchStepRow]:
        """Return the rows of finished steps from the given index on. Those of a second server are marked."""
        steps = self.progress.steps
        return [
            BenchStepRow(
                name=step.id + (" (against)" if step.target != steps[0].target else ""),
                state="done",
                progress=1.0,
                errors=step.failed,
                request_rate=step.request_rate,
                token_rate=step.token_rate,
            )
            for step in steps[since:]
        ]


def _add_times(current: MonitorBin, record: BenchRecord) -> None:
    first_s = METRICS["ttft"](record)
    if first_s is not None:
        current.ttft_s.append(first_s)
    tokens = record.token_count  # a tokenizer counts after the step
    if tokens > 1 and len(record.times) > 1:
        current.itl_s.append((record.times[-1] - record.times[0]) / (tokens - 1))


def _mean(times_s: Sequence[float]) -> float | None:
    return fmean(times_s) if times_s else None


# Text of the live view: a panel for a terminal, single lines for a log.

_SPARK_CHARACTERS = "▁▂▃▄▅▆▇█"
_STEP_COLUMNS = ("step", "state", "%", "errors", "req/s", "tokens/s")
_OTHER_LINES = 10
"""Lines of the panel other than steps."""
_MIN_STEPS = 3
"""Steps shown on the smallest terminal."""
_MAX_NAME_CHARS = 40
"""Characters of a step's name: those of this client are half as long."""
_WAITING_TEXT = "waiting for the first answer"


def panel_lines(monitor: BenchMonitor, *, columns: int, rows: int) -> list[str]:
    """Return the panel, fitted to the terminal."""
    progress = monitor.progress
    title = f", {sanitize_text(progress.title)}" if progress.title else ""
    minutes, seconds = divmod(int(monitor.spent_s), 60)
    lines = [f"step {progress.number} of {progress.total}, {minutes}:{seconds:02}{title}", ""]
    lines += [*_step_lines(monitor, max(rows - _OTHER_LINES, _MIN_STEPS)), ""]
    lines += _running_lines(monitor) if monitor.is_running else [_WAITING_TEXT]
    return [line[: columns - 1] for line in lines[: rows - 1]]


def _step_lines(monitor: BenchMonitor, max_steps: int) -> list[str]:
    """Return the latest steps, as many as there is room for."""
    shown = [
        *monitor.finished_steps(max(0, len(monitor.progress.steps) - max_steps)),
        *([monitor.running_step()] if monitor.is_running else []),
    ][-max_steps:]
    width = max((len(row.name) for row in shown), default=len(_STEP_COLUMNS[0]))
    lines = []
    for name, state, *numbers in (_STEP_COLUMNS, *map(_step_cells, shown)):
        lines.append(f"{name:<{width}}  {state:<7}" + "".join(f"  {number:>9}" for number in numbers))
    return lines


def _step_cells(row: BenchStepRow) -> tuple[str, ...]:
    name = sanitize_text(row.name, _MAX_NAME_CHARS)
    share = f"{100 * row.progress:.0f}"
    return name, row.state, share, f"{row.errors:,}", f"{row.request_rate:,.2f}", f"{row.token_rate:,.1f}"


def _running_lines(monitor: BenchMonitor) -> list[str]:
    recent, bins = monitor.recent, monitor.bins
    lines = [
        f"requests              {_request_counts(monitor)}",
        _metric_line("first token (ttft)", _format_mean(recent.ttft_s), [_mean(each.ttft_s) for each in bins]),
        _metric_line("between tokens (itl)", _format_mean(recent.itl_s), [_mean(each.itl_s) for each in bins]),
        _metric_line("tokens/s", f"{monitor.recent_token_rate:,.1f}", [each.tokens or None for each in bins]),
    ]
    return [*lines, f"last failure          {sanitize_text(monitor.last_error)}"] if monitor.last_error else lines


def _request_counts(monitor: BenchMonitor) -> str:
    others = [f"{count:,} {outcome}" for outcome, count in monitor.outcomes.items() if outcome is not RequestOutcome.OK]
    skipped = [f"{monitor.skipped:,} skipped"] if monitor.skipped else []
    ok = monitor.outcomes[RequestOutcome.OK]
    return ", ".join([f"{monitor.in_flight:,} in flight", f"{ok:,} ok", *others, *skipped])


def _metric_line(label: str, mean: str, values: Sequence[float | None]) -> str:
    return f"{label:<20}  {mean:>8}  {sparkline(values)}"


def _format_mean(times_s: Sequence[float]) -> str:
    return format_duration(fmean(times_s)) if times_s else "-"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a bar chart of one line, scaled from zero; None is a gap."""
    highest = max((value for value in values if value is not None), default=0.0) or 1.0
    steps = len(_SPARK_CHARACTERS)
    bars = (None if value is None else min(int(value / highest * steps), steps - 1) for value in values)
    return "".join(" " if bar is None else _SPARK_CHARACTERS[bar] for bar in bars)


def running_line(monitor: BenchMonitor) -> str:
    """Return the log line of the current step."""
    if not monitor.is_running:
        return _WAITING_TEXT
    row, recent = monitor.running_step(), monitor.recent
    name = sanitize_text(row.name, _MAX_NAME_CHARS)
    times = f"ttft {_format_mean(recent.ttft_s)}, itl {_format_mean(recent.itl_s)}"
    return f"{name}: {100 * row.progress:.0f} %, {_request_counts(monitor)}, {_format_rates(row)}, {times}"


def finished_line(row: BenchStepRow) -> str:
    """Return the log line of a finished step."""
    return f"{sanitize_text(row.name, _MAX_NAME_CHARS)}: done, {row.errors:,} failed, {_format_rates(row)}"


def _format_rates(row: BenchStepRow) -> str:
    return f"{row.request_rate:,.2f} req/s, {row.token_rate:,.1f} tokens/s"


# The views. They write a few strings by hand: 0.5 ms. A library for live displays would wait for a terminal that is
# stopped, and draw longer (rich: 4 ms for these lines, 40 ms for a table), which would show in the measured times.

REFRESH_S = 0.25
LOG_INTERVAL_S = 10.0
"""Between two lines of a log."""
_FLUSH_TIMEOUT_S = 1.0
"""Wait at the end, after the measurement, for a terminal that accepts no output."""
_DEFAULT_SIZE = (80, 24)  # if the terminal does not report its size


@asynccontextmanager
async def live_view(progress: "BenchProgress", *, is_quiet: bool, every_s: float = REFRESH_S) -> AsyncIterator[None]:
    """Show the progress until the context ends; a terminal is cleared then."""
    monitor = BenchMonitor(progress)
    terminal = None if is_quiet else _open_terminal()
    view = _LogView(monitor) if terminal is None else _TerminalView(monitor, terminal)
    task = asyncio.create_task(_refresh_loop(monitor, view, every_s))
    try:
        yield
    finally:
        task.cancel()
        with suppress(OSError):
            view.close()


async def _refresh_loop(monitor: BenchMonitor, view: "_LogView | _TerminalView", every_s: float) -> None:
    with suppress(OSError):  # a closed terminal does not stop the run
        while True:
            monitor.refresh()
            view.update()
            await asyncio.sleep(every_s)


def _open_terminal() -> int | None:
    """Open the terminal at stderr again, non-blocking; None if there is none."""
    if not ui.is_interactive():
        return None
    try:
        return os.open(os.ttyname(sys.stderr.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # it belongs to another user, or to a container's host
        return None


class _LogView:
    """Prints a line at intervals, and one at the end of each step."""

    def __init__(self, monitor: BenchMonitor) -> None:
        self._monitor = monitor
        self._last_line_at = time.monotonic()
        self._reported_steps = 0

    def update(self) -> None:
        """Print finished steps, and a progress line when it is due."""
        self.close()
        if time.monotonic() - self._last_line_at >= LOG_INTERVAL_S:
            self._print(running_line(self._monitor))

    def close(self) -> None:
        """Print finished steps."""
        for row in self._monitor.finished_steps(since=self._reported_steps):
            self._reported_steps += 1
            self._print(finished_line(row))

    def _print(self, text: str) -> None:
        self._last_line_at = time.monotonic()
        ui.print_note(text)


class _TerminalView:
    """Overwrites the panel in place. Output that the terminal does not accept at once is kept for the next refresh."""

    def __init__(self, monitor: BenchMonitor, terminal: int) -> None:
        self._monitor = monitor
        self._terminal = terminal
        self._height = 0
        self._pending = b""

    def update(self) -> None:
        """Draw the panel, if the last one is written."""
        if self._write():
            columns, rows = os.get_terminal_size(self._terminal)
            self._draw(panel_lines(self._monitor, columns=columns or _DEFAULT_SIZE[0], rows=rows or _DEFAULT_SIZE[1]))
            self._write()

    def close(self) -> None:
        """Clear the panel."""
        try:
            until = time.monotonic() + _FLUSH_TIMEOUT_S
            while not self._write() and (left_s := until - time.monotonic()) > 0:
                select.select([], [self._terminal], [], left_s)
            if not self._pending:
                self._draw([])
                self._write()
        finally:
            os.close(self._terminal)

    def _draw(self, lines: Sequence[str]) -> None:
        """Overwrite the last panel, with line wrapping turned off."""
        up = f"\x1b[{self._height}A" if self._height else ""
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        self._pending = f"\x1b[?7l\r{up}{body}\x1b[J\x1b[?7h".encode(sys.stderr.encoding, "replace")
        self._height = len(lines)

    def _write(self) -> bool:
        """Write pending output; return whether all is written."""
        with suppress(BlockingIOError):
            while self._pending:
                self._pending = self._pending[os.write(self._terminal, self._pending) :]
        return not self._pending
