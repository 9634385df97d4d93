"""Contention: other programs take the CPUs of an engine whose threads spin while they wait for each other.

Linux then lets two threads of the engine share a CPU, and each spins for its whole time slice while the other one could
compute. One busy program made an engine with a thread on each of 16 cores write less than 2 tokens/s instead of 169.
Threads that sleep are slower on an idle machine, and hardly mind: 54 tokens/s instead of 67.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from welldone.engines.cores import is_contended

CONTENTION_NOTE = (
    "other programs need the CPUs of the engine: restarting it with threads that sleep instead of spinning; "
    "its requests continue"
)
CALM_NOTE = "the engine has had no request for a while, and the CPUs are free: restarting it with threads that spin"

Pause = Callable[[float], Awaitable[None]]

CHECK_S = 2.0
CHECKS = 2
"""So many in a row: other programs need the CPUs for longer than a moment."""
WAIT_SHARE = 0.25
"""Share of the time that a thread waited for a CPU. It was 0.01 on an idle machine, and 0.5 with one busy program."""

CALM_S = 120.0
"""How long an engine with sleeping threads runs at least. It doubles with each time that contention is found again."""
CALM_DOUBLINGS = 6
CALM_CHECK_S = 15.0


async def wait_until_contended(
    pid: int, is_working: Callable[[], bool], is_replaceable: Callable[[], bool], pause: Pause = asyncio.sleep
) -> None:
    """Return when the engine should be replaced: its threads waited for CPUs while it had work.

    It then goes on until it is replaceable, unless its threads get their CPUs again.
    """
    found, before, began = 0, dict[str, float](), 0.0
    while found < CHECKS or not is_replaceable():
        await pause(CHECK_S)
        if is_working():
            times, now = await asyncio.to_thread(waiting_times, pid), time.monotonic()
            longest_s = max((times[thread] - before[thread] for thread in times.keys() & before.keys()), default=0.0)
            found = found + 1 if before and longest_s >= WAIT_SHARE * (now - began) else 0
            before, began = times, now
        elif found < CHECKS:
            found, before = 0, {}


async def wait_until_calm(contentions: int, is_unused: Callable[[], bool], pause: Pause = asyncio.sleep) -> None:
    """Return when the engine is not used and its threads may spin again, after they had to sleep so many times."""
    await pause(CALM_S * 2 ** min(max(contentions - 1, 0), CALM_DOUBLINGS))
    while not is_unused() or is_contended():
        await pause(CALM_CHECK_S)


def is_waiting_reported() -> bool:
    """Whether `waiting_times` works here."""
    return bool(waiting_times(os.getpid()))


def waiting_times(pid: int, *, with_running: bool = False, root: Path = Path("/")) -> dict[str, float]:
    """Return for how many seconds each thread of the process and its descendants was ready to run and had no CPU.

    Empty where Linux does not report it. With `with_running`, the seconds on a CPU are added.
    """
    found = {}
    for thread in _list(root / f"proc/{pid}/task"):
        if len(figures := _read(thread / "schedstat").split()) > 1:
            found[thread.name] = sum(map(int, figures[not with_running : 2])) / 1e9
        for child in _read(thread / "children").split():
            found |= waiting_times(int(child), with_running=with_running, root=root)
    return found


def _list(folder: Path) -> list[Path]:
    """Return the threads of a process; none if it has ended."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    """Return the text of the file; empty if the thread has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""
