"""What is to be seen of a load test that runs.

It is looked at while others are timed, so a look costs little: each record is taken once, of very many that came at
once only some are averaged, and nothing is sorted.
"""

import asyncio
import os
import select
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.reports.text import failed_count, format_duration
from welldone.bench.run import BenchProgress
from welldone.bench.stats import METRICS
from welldone.cli import ui
from welldone.reporting import sanitize_text

BIN_S = 2.0
"""Long enough for some answers, and short enough to see a server stall."""
BIN_COUNT = 30
"""A minute: what a person remembers."""
RECENT_BINS = 5
"""Bins of which the means are told: ten seconds."""
_MAX_SAMPLED_RECORDS = 100
"""Records of one look whose times are taken: enough for a mean, and less than a millisecond of work."""
_NEUTRAL_OUTCOMES = (RequestOutcome.OK, RequestOutcome.UNFINISHED)


class MonitorBin(msgspec.Struct):
    """What came out of the requests that ended within a short while."""

    ttft_count: int = 0
    ttft_sum_s: float = 0.0
    itl_count: int = 0
    itl_sum_s: float = 0.0
    tokens: int = 0

    @property
    def mean_ttft_s(self) -> float | None:
        return self.ttft_sum_s / self.ttft_count if self.ttft_count else None

    @property
    def mean_itl_s(self) -> float | None:
        return self.itl_sum_s / self.itl_count if self.itl_count else None


class BenchStepRow(msgspec.Struct, frozen=True):
    """A step, in short."""

    name: str
    state: str
    progress: float
    """How much of it is over."""
    errors: int
    request_rate: float
    token_rate: float


class BenchMonitor:
    """What a watch shows. `look` brings it up to date."""

    def __init__(self, progress: BenchProgress, clock: Callable[[], float] = time.monotonic) -> None:
        self.progress = progress
        self._clock = clock
        self._begun = clock()
        self.spent_s = 0.0
        """Since the run began."""
        self._start_step(self._begun)

    def _start_step(self, now: float) -> None:
        """A step begins."""
        self._number = self.progress.number
        self._step_begun = now
        self._load = self.progress.load
        self._seen_records = 0
        self._skipped = 0
        self.elapsed_s = 0.0
        self.outcomes: Counter[RequestOutcome] = Counter()
        self.tokens = 0
        self.last_error = ""
        """The latest reason of a failure, as the server gave it: text from outside."""
        self.bins: deque[MonitorBin] = deque([MonitorBin()], maxlen=BIN_COUNT)
        self._bin_number = 0

    # ---- looking

    def refresh(self) -> None:
        """Take what is new."""
        now = self._clock()
        if self.progress.number != self._number:
            self._start_step(now)
        self.spent_s = now - self._begun
        self.elapsed_s = now - self._step_begun
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
        tokens = sum(_token_count(record) for record in records)
        self.tokens += tokens
        current = self.bins[-1]
        current.tokens += tokens
        for record in records[-_MAX_SAMPLED_RECORDS:]:
            if record.outcome is RequestOutcome.OK:
                _add_times(current, record)
            elif record.outcome is not RequestOutcome.UNFINISHED:
                self.last_error = record.error

    # ---- telling

    @property
    def is_running(self) -> bool:
        """Whether a step runs; before the first, the server is looked at."""
        return self._load is not None

    @property
    def in_flight(self) -> int:
        """Requests that wait for their end."""
        return 0 if self._load is None else int(self._load.counts.under_way)

    @property
    def skipped(self) -> int:
        return self._skipped + (0 if self._load is None else int(self._load.counts.skipped))

    @property
    def recent(self) -> MonitorBin:
        """The last seconds in one."""
        some = list(self.bins)[-RECENT_BINS:]
        return MonitorBin(
            ttft_count=sum(one.ttft_count for one in some),
            ttft_sum_s=sum(one.ttft_sum_s for one in some),
            itl_count=sum(one.itl_count for one in some),
            itl_sum_s=sum(one.itl_sum_s for one in some),
            tokens=sum(one.tokens for one in some),
        )

    @property
    def recent_token_rate(self) -> float:
        """Tokens per second of late."""
        begun_s = max(0, self._bin_number - RECENT_BINS + 1) * BIN_S
        return self.recent.tokens / max(self.elapsed_s - begun_s, BIN_S)

    def running_step(self) -> BenchStepRow:
        """The step that runs."""
        watch, elapsed_s = self.progress, self.elapsed_s
        is_over = elapsed_s >= watch.seconds
        return BenchStepRow(
            name=watch.step,
            state="ending" if is_over else "running",
            progress=1.0 if is_over else elapsed_s / watch.seconds,
            errors=sum(count for end, count in self.outcomes.items() if end not in _NEUTRAL_OUTCOMES),
            request_rate=self.outcomes[RequestOutcome.OK] / elapsed_s if elapsed_s else 0.0,
            token_rate=self.tokens / elapsed_s if elapsed_s else 0.0,
        )

    def finished_steps(self, since: int = 0) -> list[BenchStepRow]:
        """The steps that are over, but for the first ones. Of two servers the second is named so."""
        steps = self.progress.steps
        return [
            BenchStepRow(
                name=step.id + (" (against)" if step.target != steps[0].target else ""),
                state="done",
                progress=1.0,
                errors=failed_count(step),
                request_rate=step.request_rate,
                token_rate=step.token_rate,
            )
            for step in steps[since:]
        ]


def _token_count(record: BenchRecord) -> int:
    """As the server counts them; the tokenizer's turn comes after the step, and until then a chunk is a token."""
    return len(record.times) if record.tokens is None else record.tokens


def _add_times(current: MonitorBin, record: BenchRecord) -> None:
    first_s = METRICS["ttft"](record)
    if first_s is not None:
        current.ttft_count += 1
        current.ttft_sum_s += first_s
    tokens = _token_count(record)
    if tokens > 1 and len(record.times) > 1:
        current.itl_count += 1
        current.itl_sum_s += (record.times[-1] - record.times[0]) / (tokens - 1)


# A load test that runs, as lines of text: a screen full for a terminal, and a single one for a log.


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


# How a load test is doing, while it runs: a panel on a terminal that is written over, and lines anywhere else.
#
# It is drawn in the same thread that times answers, so it is drawn by hand, with a few strings: a library for such
# tables takes twenty milliseconds for each, which would be seen in the times.


REFRESH_S = 0.25
LOG_INTERVAL_S = 10.0
"""Between two lines of a log. Who waits for a minute without one wonders."""
_FLUSH_TIMEOUT_S = 1.0
"""What a terminal that takes nothing is waited for in the end, when nothing is measured any more."""
_DEFAULT_SIZE = (80, 24)  # of a terminal that does not know it


@asynccontextmanager
async def live_view(progress: BenchProgress, *, is_quiet: bool, every_s: float = REFRESH_S) -> AsyncIterator[None]:
    """Shows what `watch` is at. In the end nothing of it is left on a terminal."""
    gauge = BenchMonitor(progress)
    terminal = None if is_quiet else _open_terminal()
    view = _LogView(gauge) if terminal is None else _TerminalView(gauge, terminal)
    task = asyncio.create_task(_refresh_loop(gauge, view, every_s))
    try:
        yield
    finally:
        task.cancel()
        with suppress(OSError):
            view.close()


async def _refresh_loop(monitor: BenchMonitor, view: "_LogView | _TerminalView", every_s: float) -> None:
    with suppress(OSError):  # nobody looks any more, which does not stop the run
        while True:
            monitor.refresh()
            view.update()
            await asyncio.sleep(every_s)


def _open_terminal() -> int | None:
    """The terminal at standard error, opened anew so that our writes do not wait; None where there is none."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.open(os.ttyname(sys.stderr.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # it belongs to another user, or to a container's host
        return None


class _LogView:
    """A line now and then, and one at the end of each step."""

    def __init__(self, monitor: BenchMonitor, clock: Callable[[], float] = time.monotonic) -> None:
        self._monitor = monitor
        self._clock = clock
        self._last_line_at = clock()
        self._reported_steps = 0

    def update(self) -> None:
        """Say what is new, if it is time."""
        self.close()
        if self._clock() - self._last_line_at >= LOG_INTERVAL_S:
            self._print(running_line(self._monitor))

    def close(self) -> None:
        """Say how the last steps ended."""
        for row in self._monitor.finished_steps(since=self._reported_steps):
            self._reported_steps += 1
            self._print(finished_line(row))

    def _print(self, text: str) -> None:
        self._last_line_at = self._clock()
        ui.print_note(text)


class _TerminalView:
    """Lines that are written over those before. What the terminal does not take at once waits for the next look."""

    def __init__(self, monitor: BenchMonitor, terminal: int) -> None:
        self._monitor = monitor
        self._terminal = terminal
        self._height = 0
        self._pending = b""

    def update(self) -> None:
        """Draw the panel, if the last one is out."""
        if self._write():
            columns, rows = os.get_terminal_size(self._terminal)
            self._draw(panel_lines(self._monitor, columns=columns or _DEFAULT_SIZE[0], rows=rows or _DEFAULT_SIZE[1]))
            self._write()

    def close(self) -> None:
        """Take it away."""
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
        """The lines over those before. None of them wraps, however wide its letters are."""
        up = f"\x1b[{self._height}A" if self._height else ""
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        self._pending = f"\x1b[?7l\r{up}{body}\x1b[J\x1b[?7h".encode(sys.stderr.encoding, "replace")
        self._height = len(lines)

    def _write(self) -> bool:
        """Write what is left; whether all is out."""
        with suppress(BlockingIOError):
            while self._pending:
                self._pending = self._pending[os.write(self._terminal, self._pending) :]
        return not self._pending
