"""Live view of `welldone bench`, on a terminal and in a log."""

import asyncio
import os
import pty
import re
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import SupportsIndex, overload

import msgspec
import pytest

from tests.bench.reports import HOSTILE, OTHER, broken, record, step
from tests.cli.run import LIMIT_S
from tests.http.aio import run
from tests.table import table
from welldone.bench.load import LoadCounters
from welldone.bench.report import BenchRecord, RequestOutcome
from welldone.bench.run import BenchProgress
from welldone.cli import bench_ui
from welldone.cli.bench_ui import BIN_COUNT, BIN_S, BenchMonitor, live_view

FRAME = "\x1b[?7l\r"
"""The start of each redraw."""
ESCAPES = re.compile(r"\x1b\[\??\d*[A-Za-z]")


class Records(list[BenchRecord]):
    """Records that count how often they are read."""

    read_count = 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> BenchRecord: ...
    @overload
    def __getitem__(self, key: slice) -> list[BenchRecord]: ...
    def __getitem__(self, key: SupportsIndex | slice) -> BenchRecord | list[BenchRecord]:
        value = super().__getitem__(key)
        self.read_count += len(value) if isinstance(value, list) else 1
        return value


class FakeLoad(msgspec.Struct):
    """A load with fixed records and counts."""

    records: list[BenchRecord] = msgspec.field(default_factory=Records)
    counts: LoadCounters = msgspec.field(default_factory=LoadCounters)


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _progress(*records: BenchRecord, **counts: int) -> BenchProgress:
    """Return the progress of a run in its second step of three."""
    load = FakeLoad(Records(records), LoadCounters(**counts))
    warm = step("warmup", [record(0)])
    return BenchProgress(
        title="m at http://127.0.0.1:8000/v1",
        step="throughput",
        number=2,
        total=3,
        seconds=20.0,
        load=load,
        steps=[warm],
    )


def _refreshed(progress: BenchProgress, seconds: float = 10.0) -> BenchMonitor:
    clock = Clock()
    monitor = BenchMonitor(progress, clock)
    clock.now = seconds
    monitor.refresh()
    return monitor


# Numbers.


def test_the_numbers_of_a_step_are_those_of_its_records() -> None:
    records = [record(number) for number in range(4)]
    monitor = _refreshed(_progress(*records, broken(4, RequestOutcome.REFUSED, "429: later"), in_flight=3, skipped=2))
    row = monitor.running_step()
    assert (row.name, row.state, row.progress, row.errors) == ("throughput", "running", 0.5, 1)
    assert (row.request_rate, row.token_rate) == (0.4, 8.0)
    assert (monitor.in_flight, monitor.skipped, monitor.last_error) == (3, 2, "429: later")
    assert monitor.outcomes == {RequestOutcome.OK: 4, RequestOutcome.REFUSED: 1}
    firsts = [one.times[0] - one.due_s for one in records]
    gaps = [(one.times[-1] - one.times[0]) / 19 for one in records]
    assert sum(monitor.recent.ttft_s) == pytest.approx(sum(firsts))
    assert sum(monitor.recent.itl_s) == pytest.approx(sum(gaps))
    assert monitor.recent_token_rate == pytest.approx(80 / 8)  # of four bins, and the current one


def test_chunks_count_as_tokens_until_tokens_are_counted() -> None:
    monitor = _refreshed(_progress(record(0, tokens=None)))
    assert monitor.tokens == 20
    assert len(monitor.recent.itl_s) == 1


def test_only_complete_answers_are_averaged() -> None:
    monitor = _refreshed(_progress(broken(0, RequestOutcome.CUT, "gone"), broken(1, RequestOutcome.UNFINISHED, "")))
    assert monitor.recent.ttft_s == []
    assert monitor.recent.itl_s == []
    assert monitor.running_step().errors == 1


def test_each_record_is_read_once() -> None:
    progress = _progress()
    monitor, records = BenchMonitor(progress), progress.load.records
    for number in range(50):
        records.append(record(number))
        monitor.refresh()
        monitor.refresh()
    assert records.read_count == 50
    assert monitor.outcomes[RequestOutcome.OK] == 50


def test_of_many_new_records_all_are_counted_and_the_last_are_averaged() -> None:
    slow = [record(number, content_s=number * 0.25 + 9.0) for number in range(1000)]
    fast = [record(number, content_s=number * 0.25 + 1.0) for number in range(100)]
    monitor = _refreshed(_progress(*slow, *fast))
    assert (monitor.outcomes[RequestOutcome.OK], monitor.tokens) == (1100, 22_000)
    assert monitor.recent.ttft_s == pytest.approx([1.0] * 100)


def test_a_new_step_resets_the_counters() -> None:
    progress = _progress(record(0), skipped=1)
    monitor = _refreshed(progress)
    progress.steps.append(step("throughput", [record(0)]))
    progress.step, progress.number, progress.load = (
        "constant@1.00req/s",
        3,
        FakeLoad([broken(0, RequestOutcome.CUT, "gone")]),
    )
    monitor.refresh()
    assert (monitor.outcomes, monitor.skipped, monitor.elapsed_s) == ({RequestOutcome.CUT: 1}, 0, 0.0)
    assert [row.name for row in monitor.finished_steps()] == ["warmup", "throughput"]


def test_rounds_of_one_step_are_added_up() -> None:
    progress = _progress(record(0), skipped=1)
    monitor = _refreshed(progress)
    progress.load.records.append(record(1))  # after the last refresh
    progress.load = FakeLoad([record(2)], LoadCounters(skipped=2))
    monitor.refresh()
    monitor.refresh()
    assert (monitor.outcomes[RequestOutcome.OK], monitor.skipped) == (3, 3)


def test_a_step_that_waits_for_its_last_answers_is_ending() -> None:
    row = _refreshed(_progress(record(0)), seconds=21.0).running_step()
    assert (row.state, row.progress) == ("ending", 1.0)


def test_steps_of_the_second_server_are_marked() -> None:
    progress = _progress()
    progress.steps = [step("throughput", [record(0)]), step("throughput", [record(0)], target=OTHER)]
    assert [row.name for row in _refreshed(progress).finished_steps()] == ["throughput", "throughput (against)"]


def test_the_sparkline_covers_a_minute() -> None:
    progress, clock = _progress(record(0)), Clock()
    monitor = BenchMonitor(progress, clock)
    monitor.refresh()
    clock.now = BIN_S
    monitor.refresh()
    assert [len(one.ttft_s) for one in monitor.bins] == [1, 0]
    clock.now = 1e9  # the machine slept
    progress.load.records.append(record(1))
    monitor.refresh()
    assert [len(one.ttft_s) for one in monitor.bins] == [*[0] * (BIN_COUNT - 1), 1]


# Text.


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ""), ([0.0], "▁"), ([None, 1.0, 0.5, None, 0.0], " █▅ ▁"), ([None], " "), ([3.0, 3.0], "██")],
)
def test_a_sparkline_starts_at_zero_and_has_gaps(values: list[float | None], expected: str) -> None:
    assert bench_ui.sparkline(values) == expected


def test_the_panel_shows_the_state_of_the_run() -> None:
    text = "\n".join(
        bench_ui.panel_lines(
            _refreshed(_progress(record(0), broken(1, RequestOutcome.CUT, "gone"), skipped=7)), columns=100, rows=40
        )
    )
    for part in (
        "step 2 of 3, 0:10, m at http://127.0.0.1:8000/v1",
        "req/s   tokens/s",
        "warmup",
        "running         50          1",
        "0 in flight, 1 ok, 1 cut, 7 skipped",
        "first token (ttft)",
        "between tokens (itl)",
        "last failure          gone",
    ):
        assert part in text


@table("rows", [2, 8, 24, 60])
@table("columns", [20, 80, 200])
@table("error", HOSTILE)
def test_hostile_error_messages_do_not_break_the_panel(error: str, columns: int, rows: int) -> None:
    progress = _progress(broken(0, RequestOutcome.REFUSED, error))
    progress.steps *= 50
    lines = bench_ui.panel_lines(_refreshed(progress), columns=columns, rows=rows)
    assert len(lines) < rows
    assert all(len(line) < columns and line.isprintable() for line in lines)
    if rows >= 24:
        assert any("tokens/s  " in line for line in lines)
        assert any(line.startswith("throughput") for line in lines)


def test_before_the_first_step_the_view_shows_that_it_waits() -> None:
    monitor = _refreshed(BenchProgress())
    assert "waiting for the first answer" in bench_ui.panel_lines(monitor, columns=80, rows=24)
    assert bench_ui.running_line(monitor) == "waiting for the first answer"


# Log.


def test_a_log_gets_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        progress = BenchProgress()
        async with live_view(progress, is_quiet=False, every_s=0):
            progress.steps.append(step("warmup", [record(0)]))
            printed = ""
            while not printed:
                await asyncio.sleep(0)
                printed += capsys.readouterr().err
            assert re.fullmatch(r"warmup: done, 0 failed, [\d.]+ req/s, [\d.]+ tokens/s\n", printed)
            progress.steps.append(step("throughput", [record(0), broken(1, RequestOutcome.CUT, "gone")]))

    run(work())
    assert capsys.readouterr().err.startswith("throughput: done, 1 failed, ")


def test_a_log_gets_a_line_at_intervals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ui, "LOG_INTERVAL_S", 0.0)

    async def work() -> None:
        progress = _progress(record(0), broken(1, RequestOutcome.REFUSED, "\x1b[2J"), in_flight=4)
        progress.steps.clear()
        async with live_view(progress, is_quiet=True, every_s=0):
            printed = ""
            while printed.count("\n") < 3:
                await asyncio.sleep(0)
                printed += capsys.readouterr().err
        assert all(line.startswith("throughput: 0 %, 4 in flight, 1 ok, 1 refused, ") for line in printed.splitlines())
        assert "\x1b" not in printed

    run(work())


def test_a_short_run_without_steps_prints_nothing_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with live_view(BenchProgress(), is_quiet=False, every_s=0):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    run(work())
    assert capsys.readouterr().err == ""


# Terminal.


class Screen:
    """Our end of a pseudo-terminal whose other end is stderr."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.ours, self.theirs = ours, theirs
        self.seen = ""

    async def wait_for(self, condition: Callable[[str], bool]) -> None:
        """Read until the condition holds for the output so far."""
        loop = asyncio.get_running_loop()
        while not condition(self.seen):
            ready = asyncio.Event()
            loop.add_reader(self.ours, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self.ours)
            self.seen += os.read(self.ours, 65536).decode()

    async def wait_for_clear(self) -> None:
        """Read until the panel is cleared."""
        await self.wait_for(lambda seen: bool(re.search(r"\x1b\[\?7l\r\x1b\[\d+A\x1b\[J\x1b\[\?7h$", seen)))


@contextmanager
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(os.dup(theirs), "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        try:
            yield Screen(ours, theirs)
        finally:
            monkeypatch.undo()
            os.close(theirs)
            os.close(ours)


def test_a_terminal_shows_a_panel_that_is_cleared_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> None:
        progress = _progress(record(0))
        async with live_view(progress, is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            progress.load.records.append(broken(1, RequestOutcome.CUT, "gone"))
            await screen.wait_for(lambda seen: "1 cut" in seen)
        await screen.wait_for_clear()

    with _terminal(monkeypatch) as screen:
        termios.tcsetwinsize(screen.theirs, (24, 80))
        run(work(screen))
    frames = screen.seen.split(FRAME)[1:]
    heights = [frame.count("\n") for frame in frames]
    assert not re.match(r"\x1b\[\d+A", frames[0])
    for (_, height), (frame, _) in pairwise(zip(frames, heights, strict=True)):
        assert frame.startswith(f"\x1b[{height}A")  # exactly over the last one
    assert heights[-1] == 0
    assert all(len(line) < 80 for frame in frames for line in ESCAPES.sub("", frame).splitlines())


@pytest.mark.parametrize(("is_quiet", "term"), [(True, "xterm"), (False, "dumb")])
def test_the_panel_can_be_turned_off(is_quiet: bool, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> None:
        async with live_view(_progress(record(0)), is_quiet=is_quiet, every_s=0):
            await screen.wait_for(lambda seen: "\n" in seen)

    with _terminal(monkeypatch) as screen:
        monkeypatch.setenv("TERM", term)
        run(work(screen))
    assert screen.seen.startswith("warmup: done, 0 failed, ")


def test_a_stopped_terminal_does_not_block_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> None:
        progress = _progress(record(0))
        async with live_view(progress, is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            termios.tcflow(screen.theirs, termios.TCOOFF)  # like Ctrl-S
            for number in range(10):  # a few refreshes
                progress.load.records.append(record(number))
                await asyncio.sleep(0)
            termios.tcflow(screen.theirs, termios.TCOON)
            await screen.wait_for(lambda seen: "11 ok" in seen)
        await screen.wait_for_clear()

    with _terminal(monkeypatch) as screen, _released(screen) as is_late:
        run(work(screen))
        assert not is_late.is_set()


def test_a_terminal_that_stays_stopped_is_abandoned_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ui, "_FLUSH_TIMEOUT_S", 0.01)

    async def work(screen: Screen) -> None:
        async with live_view(_progress(record(0)), is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            termios.tcflow(screen.theirs, termios.TCOOFF)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with _terminal(monkeypatch) as screen, _released(screen) as is_late:
        run(work(screen))
        assert not is_late.is_set()
        termios.tcflow(screen.theirs, termios.TCOON)


@contextmanager
def _released(screen: Screen) -> Iterator[threading.Event]:
    """Restart the terminal if a write blocks, so that the test fails instead of hanging."""
    is_late = threading.Event()

    def release() -> None:
        is_late.set()
        termios.tcflow(screen.theirs, termios.TCOON)

    timer = threading.Timer(LIMIT_S, release)
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()
        timer.join()


def test_a_closed_terminal_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> str:
        async with live_view(_progress(record(0)), is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, screen.ours)
            os.close(null)
            for _ in range(5):
                await asyncio.sleep(0)
            return "the run continued"

    with _terminal(monkeypatch) as screen:
        assert run(work(screen)) == "the run continued"
