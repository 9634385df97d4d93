"""What a person or a log sees of a load test that runs."""

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
from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.run import BenchProgress
from welldone.cli import bench_ui
from welldone.cli.bench_ui import BIN_COUNT, BIN_S, BenchMonitor, live_view

FRAME = "\x1b[?7l\r"
"""What each drawing begins with."""
ESCAPES = re.compile(r"\x1b\[\??\d*[A-Za-z]")


class Records(list[BenchRecord]):
    """Records that count how often one of them is handed out."""

    handed = 0

    @overload
    def __getitem__(self, key: SupportsIndex) -> BenchRecord: ...
    @overload
    def __getitem__(self, key: slice) -> list[BenchRecord]: ...
    def __getitem__(self, key: SupportsIndex | slice) -> BenchRecord | list[BenchRecord]:
        found = super().__getitem__(key)
        self.handed += len(found) if isinstance(found, list) else 1
        return found


class Standing(msgspec.Struct):
    """A load that stands still."""

    records: list[BenchRecord] = msgspec.field(default_factory=Records)
    counts: LoadCounters = msgspec.field(default_factory=LoadCounters)


class Clock:
    """A time that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def _watch(*records: BenchRecord, **counts: int) -> BenchProgress:
    """A run in its second step of three."""
    load = Standing(Records(records), LoadCounters(**counts))
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


def _looked(watch: BenchProgress, seconds: float = 10.0) -> BenchMonitor:
    clock = Clock()
    gauge = BenchMonitor(watch, clock)
    clock.now = seconds
    gauge.refresh()
    return gauge


# ---- the numbers


def test_the_numbers_of_a_step_are_those_of_its_records() -> None:
    records = [record(number) for number in range(4)]
    gauge = _looked(_watch(*records, broken(4, RequestOutcome.REFUSED, "429: later"), under_way=3, skipped=2))
    row = gauge.running_step()
    assert (row.name, row.state, row.progress, row.errors) == ("throughput", "running", 0.5, 1)
    assert (row.request_rate, row.token_rate) == (0.4, 8.0)
    assert (gauge.in_flight, gauge.skipped, gauge.last_error) == (3, 2, "429: later")
    assert gauge.outcomes == {RequestOutcome.OK: 4, RequestOutcome.REFUSED: 1}
    firsts = [one.times[0] - one.due_s for one in records]
    gaps = [(one.times[-1] - one.times[0]) / 19 for one in records]
    assert gauge.recent.mean_ttft_s == pytest.approx(sum(firsts) / 4)
    assert gauge.recent.mean_itl_s == pytest.approx(sum(gaps) / 4)
    assert gauge.recent_token_rate == pytest.approx(80 / 8)  # of four bins, and the one that begins


def test_tokens_that_nobody_has_counted_yet_are_chunks() -> None:
    gauge = _looked(_watch(record(0, tokens=None)))
    assert gauge.tokens == 20
    assert gauge.recent.itl_count == 1


def test_only_answers_that_are_whole_are_averaged() -> None:
    gauge = _looked(_watch(broken(0, RequestOutcome.CUT, "gone"), broken(1, RequestOutcome.UNFINISHED, "")))
    assert gauge.recent.mean_ttft_s is None
    assert gauge.recent.mean_itl_s is None
    assert gauge.running_step().errors == 1


def test_each_record_is_looked_at_once() -> None:
    watch = _watch()
    gauge, records = BenchMonitor(watch), watch.load.records
    for number in range(50):
        records.append(record(number))
        gauge.refresh()
        gauge.refresh()
    assert records.handed == 50
    assert gauge.outcomes[RequestOutcome.OK] == 50


def test_of_very_many_at_once_all_are_counted_and_the_last_are_averaged() -> None:
    slow = [record(number, content_s=number * 0.25 + 9.0) for number in range(1000)]
    fast = [record(number, content_s=number * 0.25 + 1.0) for number in range(100)]
    gauge = _looked(_watch(*slow, *fast))
    assert (gauge.outcomes[RequestOutcome.OK], gauge.tokens) == (1100, 22_000)
    assert gauge.recent.mean_ttft_s == pytest.approx(1.0)


def test_a_new_step_begins_from_nothing() -> None:
    watch = _watch(record(0), skipped=1)
    gauge = _looked(watch)
    watch.steps.append(step("throughput", [record(0)]))
    watch.step, watch.number, watch.load = "constant@1.00req/s", 3, Standing([broken(0, RequestOutcome.CUT, "gone")])
    gauge.refresh()
    assert (gauge.outcomes, gauge.skipped, gauge.elapsed_s) == ({RequestOutcome.CUT: 1}, 0, 0.0)
    assert [row.name for row in gauge.finished_steps()] == ["warmup", "throughput"]


def test_rounds_of_one_step_are_added_up() -> None:
    watch = _watch(record(0), skipped=1)
    gauge = _looked(watch)
    watch.load.records.append(record(1))  # it came after the last look
    watch.load = Standing([record(2)], LoadCounters(skipped=2))
    gauge.refresh()
    gauge.refresh()
    assert (gauge.outcomes[RequestOutcome.OK], gauge.skipped) == (3, 3)


def test_a_step_that_waits_for_its_last_answers_is_ending() -> None:
    row = _looked(_watch(record(0)), seconds=21.0).running_step()
    assert (row.state, row.progress) == ("ending", 1.0)


def test_the_second_of_two_servers_is_named_so() -> None:
    watch = _watch()
    watch.steps = [step("throughput", [record(0)]), step("throughput", [record(0)], target=OTHER)]
    assert [row.name for row in _looked(watch).finished_steps()] == ["throughput", "throughput (against)"]


def test_the_curve_holds_a_minute_and_no_more() -> None:
    watch, clock = _watch(record(0)), Clock()
    gauge = BenchMonitor(watch, clock)
    gauge.refresh()
    clock.now = BIN_S
    gauge.refresh()
    assert [one.ttft_count for one in gauge.bins] == [1, 0]
    clock.now = 1e9  # the machine slept
    watch.load.records.append(record(1))
    gauge.refresh()
    assert [one.ttft_count for one in gauge.bins] == [*[0] * (BIN_COUNT - 1), 1]


# ---- the words


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([0.0], "▁"), ([None, 1.0, 0.5, None, 0.0], " █▅ ▁"), ([None], " "), ([3.0, 3.0], "██")],
)
def test_a_curve_stands_over_zero_and_has_gaps(values: list[float | None], drawn: str) -> None:
    assert bench_ui.sparkline(values) == drawn


def test_the_panel_says_what_there_is() -> None:
    text = "\n".join(
        bench_ui.panel_lines(
            _looked(_watch(record(0), broken(1, RequestOutcome.CUT, "gone"), skipped=7)), columns=100, rows=40
        )
    )
    for said in (
        "step 2 of 3, 0:10, m at http://127.0.0.1:8000/v1",
        "req/s   tokens/s",
        "warmup",
        "running         50          1",
        "0 under way, 1 ok, 1 cut, 7 skipped",
        "first token (ttft)",
        "between tokens (itl)",
        "last failure          gone",
    ):
        assert said in text


@table("rows", [2, 8, 24, 60])
@table("columns", [20, 80, 200])
@table("why", HOSTILE)
def test_whatever_a_server_says_the_panel_keeps_to_its_place(why: str, columns: int, rows: int) -> None:
    watch = _watch(broken(0, RequestOutcome.REFUSED, why))
    watch.steps *= 50
    drawn = bench_ui.panel_lines(_looked(watch), columns=columns, rows=rows)
    assert len(drawn) < rows
    assert all(len(line) < columns and line.isprintable() for line in drawn)
    if rows >= 24:
        assert any("tokens/s  " in line for line in drawn)
        assert any(line.startswith("throughput") for line in drawn)


def test_before_the_first_step_it_waits() -> None:
    gauge = _looked(BenchProgress())
    assert "waiting for a first answer" in bench_ui.panel_lines(gauge, columns=80, rows=24)
    assert bench_ui.running_line(gauge) == "waiting for a first answer"


# ---- a log


def test_a_log_gets_a_line_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        watch = BenchProgress()
        async with live_view(watch, is_quiet=False, every_s=0):
            watch.steps.append(step("warmup", [record(0)]))
            noted = ""
            while not noted:
                await asyncio.sleep(0)
                noted += capsys.readouterr().err
            assert re.fullmatch(r"warmup: done, 0 failed, [\d.]+ req/s, [\d.]+ tokens/s\n", noted)
            watch.steps.append(step("throughput", [record(0), broken(1, RequestOutcome.CUT, "gone")]))

    run(work())
    assert capsys.readouterr().err.startswith("throughput: done, 1 failed, ")


def test_a_log_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ui, "LINE_S", 0.0)

    async def work() -> None:
        watch = _watch(record(0), broken(1, RequestOutcome.REFUSED, "\x1b[2J"), under_way=4)
        watch.steps.clear()
        async with live_view(watch, is_quiet=True, every_s=0):
            noted = ""
            while noted.count("\n") < 3:
                await asyncio.sleep(0)
                noted += capsys.readouterr().err
        assert all(line.startswith("throughput: 0 %, 4 under way, 1 ok, 1 refused, ") for line in noted.splitlines())
        assert "\x1b" not in noted

    run(work())


def test_a_short_run_without_steps_is_silent_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with live_view(BenchProgress(), is_quiet=False, every_s=0):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    run(work())
    assert capsys.readouterr().err == ""


# ---- a terminal


class Screen:
    """Our end of a terminal whose other end is standard error."""

    def __init__(self, ours: int, theirs: int) -> None:
        self.ours, self.theirs = ours, theirs
        self.seen = ""

    async def wait_for(self, is_there: Callable[[str], bool]) -> None:
        """Read on until that is seen."""
        loop = asyncio.get_running_loop()
        while not is_there(self.seen):
            ready = asyncio.Event()
            loop.add_reader(self.ours, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self.ours)
            self.seen += os.read(self.ours, 65536).decode()

    async def wait_for_the_end(self) -> None:
        """Read to the end of the last drawing: the panel is gone."""
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


def test_a_terminal_shows_a_panel_that_is_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> None:
        watch = _watch(record(0))
        async with live_view(watch, is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            watch.load.records.append(broken(1, RequestOutcome.CUT, "gone"))
            await screen.wait_for(lambda seen: "1 cut" in seen)
        await screen.wait_for_the_end()

    with _terminal(monkeypatch) as screen:
        termios.tcsetwinsize(screen.theirs, (24, 80))
        run(work(screen))
    frames = screen.seen.split(FRAME)[1:]
    heights = [frame.count("\n") for frame in frames]
    assert not re.match(r"\x1b\[\d+A", frames[0])
    for (_, height), (frame, _) in pairwise(zip(frames, heights, strict=True)):
        assert frame.startswith(f"\x1b[{height}A")  # over all of the one before, and no more
    assert heights[-1] == 0
    assert all(len(line) < 80 for frame in frames for line in ESCAPES.sub("", frame).splitlines())


@pytest.mark.parametrize(("is_quiet", "term"), [(True, "xterm"), (False, "dumb")])
def test_who_wants_no_panel_gets_none(is_quiet: bool, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> None:
        async with live_view(_watch(record(0)), is_quiet=is_quiet, every_s=0):
            await screen.wait_for(lambda seen: "\n" in seen)

    with _terminal(monkeypatch) as screen:
        monkeypatch.setenv("TERM", term)
        run(work(screen))
    assert screen.seen.startswith("warmup: done, 0 failed, ")


def test_a_terminal_that_takes_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> None:
        watch = _watch(record(0))
        async with live_view(watch, is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            termios.tcflow(screen.theirs, termios.TCOOFF)  # as Ctrl-S does
            for number in range(10):  # a few looks: what hangs can end when it is let go
                watch.load.records.append(record(number))
                await asyncio.sleep(0)
            termios.tcflow(screen.theirs, termios.TCOON)
            await screen.wait_for(lambda seen: "11 ok" in seen)
        await screen.wait_for_the_end()

    with _terminal(monkeypatch) as screen, _released(screen) as is_late:
        run(work(screen))
        assert not is_late.is_set()


def test_a_terminal_that_takes_nothing_in_the_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ui, "_LAST_S", 0.01)

    async def work(screen: Screen) -> None:
        async with live_view(_watch(record(0)), is_quiet=False, every_s=0):
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
    """Lets a terminal go on when a write to it hangs, so that the test can fail."""
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


def test_a_terminal_that_is_closed_ends_the_panel_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(screen: Screen) -> str:
        async with live_view(_watch(record(0)), is_quiet=False, every_s=0):
            await screen.wait_for(lambda seen: "1 ok" in seen)
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, screen.ours)
            os.close(nothing)
            for _ in range(5):
                await asyncio.sleep(0)
            return "the run went on"

    with _terminal(monkeypatch) as screen:
        assert run(work(screen)) == "the run went on"
