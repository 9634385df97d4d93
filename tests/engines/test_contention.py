"""Contention: threads of an engine that wait for CPUs, and the engine that then takes its place."""

import asyncio
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engines.supervisors import LIMIT_S, run, running_supervisor, short_answer
from tests.engines.system_files import write
from welldone.config.model import ModelSettings
from welldone.engines import cores
from welldone.engines.cores import (
    CALM_CHECK_S,
    CALM_DOUBLINGS,
    CALM_NOTE,
    CALM_S,
    CHECKS,
    CONTENTION_NOTE,
    WAIT_SHARE,
    Waiting,
    wait_until_calm,
    wait_until_contended,
    waiting_times,
)

needs_linux = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
SPINNING = (sys.executable, "-c", "while True: pass")


def test_threads_of_a_process_and_its_children_are_read(tmp_path: Path) -> None:
    files = {
        "proc/7/task/7/schedstat": "1 2000000000 3",
        "proc/7/task/7/children": "9 10 ",
        "proc/7/task/8/schedstat": "1 500000000 3",
        "proc/9/task/9/schedstat": "1 0 3",
        "proc/9/task/11/schedstat": "",  # has ended
    }
    write(tmp_path, files)
    assert waiting_times(7, root=tmp_path) == {"7": 2.0, "8": 0.5, "9": 0.0}
    assert waiting_times(1, root=tmp_path) == {}


@needs_linux
def test_linux_reports_how_long_a_process_waits_for_its_cpu() -> None:
    if not cores.is_waiting_reported():
        pytest.skip("this kernel does not report it")
    cpu = min(os.sched_getaffinity(0))
    with subprocess.Popen(SPINNING) as first, subprocess.Popen(SPINNING) as other:
        try:
            for process in (first, other):
                os.sched_setaffinity(process.pid, {cpu})
            deadline = time.monotonic() + LIMIT_S
            while sum(waiting_times(first.pid).values()) < 0.1:
                assert time.monotonic() < deadline
        finally:
            first.kill()
            other.kill()


class EndOfChecksError(Exception):
    """The last check is over."""


class Checks:
    """Sleeps no time, and reports for each check what share of the time a thread waited; None: there was no work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *shares: float | None) -> None:
        self.slept: list[float] = []
        self._shares = shares
        self._waited_s = self._now = 0.0
        monkeypatch.setattr(cores, "waiting_times", lambda _: {"1": 0.0, "2": self._waited_s})
        monkeypatch.setattr(cores, "time", self)

    async def pause(self, seconds: float) -> None:
        if len(self.slept) == len(self._shares):
            raise EndOfChecksError
        self._now += seconds
        self._waited_s += seconds * (self._shares[len(self.slept)] or 0.0)
        self.slept.append(seconds)

    def monotonic(self) -> float:
        return self._now

    def is_working(self) -> bool:
        return self._shares[len(self.slept) - 1] is not None


LOW, HIGH = WAIT_SHARE - 0.05, WAIT_SHARE + 0.05


@pytest.mark.parametrize(
    ("shares", "checks"),
    [
        ((LOW, *[HIGH] * CHECKS, LOW), 1 + CHECKS),
        ((HIGH, *[HIGH] * CHECKS, LOW), 1 + CHECKS),  # the first check has nothing to compare with
        ((LOW, HIGH, LOW, HIGH, HIGH, LOW), 5),
        ((LOW, LOW, LOW, LOW), None),
        ((LOW, HIGH, None, HIGH, HIGH, LOW), None),  # without work, waiting says nothing
    ],
)
def test_contention_lasts_for_several_checks(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float | None, ...], checks: int | None
) -> None:
    found = Checks(monkeypatch, *shares)
    with suppress(EndOfChecksError) if checks is not None else pytest.raises(EndOfChecksError):
        asyncio.run(wait_until_contended(1, found.is_working, lambda: True, found.pause))
    assert checks in (None, len(found.slept))


@pytest.mark.parametrize(
    ("later", "checks"),
    [
        ((HIGH, HIGH, LOW), 5),
        ((HIGH, None, LOW), 5),  # the last answer has ended
        ((LOW, LOW, LOW, LOW), None),  # its threads have got their CPUs again
    ],
)
def test_an_engine_in_contention_goes_on_until_it_can_be_replaced(
    monkeypatch: pytest.MonkeyPatch, later: tuple[float | None, ...], checks: int | None
) -> None:
    found = Checks(monkeypatch, LOW, *[HIGH] * CHECKS, *later)
    with suppress(EndOfChecksError) if checks is not None else pytest.raises(EndOfChecksError):
        is_replaceable = iter([False, False, True, True, True])
        asyncio.run(wait_until_contended(1, found.is_working, lambda: next(is_replaceable), found.pause))
    assert checks in (None, len(found.slept))


def test_threads_spin_again_when_nobody_uses_the_engine_and_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    unused, contended = iter([False, True, True]), iter([True, False])
    monkeypatch.setattr(cores, "is_contended", lambda: next(contended))
    slept: list[float] = []

    async def pause(seconds: float) -> None:
        slept.append(seconds)

    asyncio.run(wait_until_calm(1, lambda: next(unused), pause))
    assert slept == [CALM_S, CALM_CHECK_S, CALM_CHECK_S]


def test_threads_that_had_to_sleep_again_and_again_sleep_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "is_contended", lambda: False)
    slept: list[float] = []

    async def pause(seconds: float) -> None:
        slept.append(seconds)

    for contentions in (0, 1, 2, 3, 100):
        asyncio.run(wait_until_calm(contentions, lambda: True, pause))
    assert slept == [CALM_S, CALM_S, 2 * CALM_S, 4 * CALM_S, 2**CALM_DOUBLINGS * CALM_S]


def test_an_engine_sleeps_during_contention_and_spins_afterwards(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def thread_waiting(*_: object, has_contention: bool, **__: object) -> Waiting:
        return Waiting.SLEEP if has_contention else Waiting.SPIN

    async def contended(*_: object) -> None:
        await is_contended.wait()

    async def calm(*_: object) -> None:
        await is_calm.wait()

    is_contended, is_calm, changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr("welldone.engines.plan.thread_waiting", thread_waiting)
    monkeypatch.setattr("welldone.engines.supervisor.wait_until_contended", contended)
    monkeypatch.setattr("welldone.engines.supervisor.wait_until_calm", calm)
    warnings: list[str] = []

    async def main() -> None:
        settings = ModelSettings(name="m", file=tiny_model, threads=1)
        async with running_supervisor(
            settings,
            on_change=lambda _: changed.set(),
            on_warning=lambda _, text: warnings.append(text),
        ) as supervisor:
            model = supervisor.models[0]

            async def runs(waiting: Waiting) -> None:
                while model.process is None or model.process.plan.waiting is not waiting:
                    changed.clear()
                    await changed.wait()
                assert await short_answer(await model.ensure_ready())

            await runs(Waiting.SPIN)
            is_contended.set()
            await runs(Waiting.SLEEP)
            is_contended.clear()
            is_calm.set()
            await runs(Waiting.SPIN)
        assert model.restarts == 0
        assert warnings == [CONTENTION_NOTE, CALM_NOTE]

    run(main())
