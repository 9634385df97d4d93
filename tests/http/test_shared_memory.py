"""Shared numbers: no update is lost, and a process that dies releases its lock."""

import subprocess
import sys

import pytest

from welldone.http.shared_memory import SharedNumbers

LIMIT_S = 60.0

# A separate program forks, since the test process may have threads.
PROGRAM = """
import os, signal, sys
from welldone.http.shared_memory import SharedNumbers

numbers = SharedNumbers(2)
pids = []
for _ in range({processes}):
    pid = os.fork()
    if pid == 0:
        {work}
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
print(*numbers.update(1, lambda *pair: pair))
"""


def _run(processes: int, work: str) -> str:
    program = PROGRAM.format(processes=processes, work=work)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return done.stdout.strip()


def test_concurrent_updates_are_not_lost() -> None:
    work = "for _ in range(2000): numbers.update(1, lambda one, other: (one + 1, other - 1))"
    assert _run(4, work) == "8000.0 -8000.0"


def test_a_process_killed_during_an_update_releases_its_lock() -> None:
    assert _run(1, "numbers.update(1, lambda *pair: os.kill(os.getpid(), signal.SIGKILL))") == "0.0 0.0"


def test_pairs_are_independent_and_initially_zero() -> None:
    numbers = SharedNumbers(3)
    assert numbers.update(1, lambda one, other: (one + 1.5, other + 2.5)) == (1.5, 2.5)
    assert [numbers.update(index, lambda *pair: pair) for index in range(3)] == [(0.0, 0.0), (1.5, 2.5), (0.0, 0.0)]
    numbers.close()


def test_a_failed_update_changes_nothing() -> None:
    def fail(one: float, other: float) -> tuple[float, float]:
        raise ValueError("no")

    numbers = SharedNumbers(1)
    with pytest.raises(ValueError, match="no"):
        numbers.update(0, fail)
    assert numbers.update(0, lambda *pair: pair) == (0.0, 0.0)
    numbers.close()


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_out_of_range_is_rejected(index: int) -> None:
    numbers = SharedNumbers(2)
    with pytest.raises(IndexError):
        numbers.update(index, lambda *pair: pair)
    numbers.close()
