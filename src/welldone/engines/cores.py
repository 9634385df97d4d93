"""Threads of an engine: how many, how they wait, and contention: other programs take their CPUs.

llama.cpp counts the cores of the whole machine, and knows which of them are fast. In a container with two cores of
sixty-four, its threads would wait for each other most of the time.

The threads of an engine spin while they wait for each other. When another program needs a CPU, Linux lets two of them
share one, and each spins for its whole time slice while the other one could compute. One busy program made an engine
with a thread on each of 16 cores write less than 2 tokens/s instead of 169. Threads that sleep are slower on an idle
machine, and hardly mind: 54 tokens/s instead of 67.
"""

import asyncio
import math
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path

from welldone.engines.cpu_features import read_system_file

_SYSTEM = Path("/")
_PRESSURE = re.compile(r"some avg10=([\d.]+)")
CONTENDED_PERCENT = 50.0
"""Share of the last ten seconds in which a program had to wait for a CPU: other programs need them all."""
CORES_PER_SPARE = 8
"""For a small model, one core in so many has no thread: the server and its clients take it from a thread that all
others wait for. On 16 cores, 14 threads wrote 1.12 times as fast as 16 with the built-in model, and 0.9 times as fast
with one of 550 MB."""
SMALL_MODEL_BYTES = 256 * 2**20
"""Weights of a small model. Nothing between 97 and 550 MB was measured."""


class Waiting(StrEnum):
    """How the threads of an engine wait for each other at the end of each operation."""

    SPIN = "spin"
    """For a long time, llama.cpp's default. That is the fastest, as long as no other program needs the CPUs."""
    SPIN_BRIEFLY = "spin briefly"
    """Up to 9 % slower on two cores. One busy program makes it 3 times slower there, and long spinning more than 40
    times."""
    SLEEP = "sleep"
    """2.5 times slower than spinning with 16 threads, and the fastest where other programs need the CPUs."""
    ENVIRONMENT = "environment"
    """The user has chosen."""

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the engine's environment."""
        return _WAITING_VARIABLES.get(self, {})


_WAITING_VARIABLES = {
    Waiting.SPIN_BRIEFLY: {"GOMP_SPINCOUNT": "3000"},  # about 0.1 ms
    Waiting.SLEEP: {"OMP_WAIT_POLICY": "passive"},
}


def thread_waiting(
    environment: Mapping[str, str],
    threads: int | None = None,
    *,
    is_watched: bool = True,
    has_contention: bool = False,
    root: Path = _SYSTEM,
) -> Waiting:
    """Return how the threads of an engine wait for each other.

    `threads`: None for llama.cpp's number. `is_watched`: contention would be noticed. `has_contention`: it was noticed.
    """
    if "OMP_WAIT_POLICY" in environment or "GOMP_SPINCOUNT" in environment:
        return Waiting.ENVIRONMENT
    if has_contention or is_contended(root):
        return Waiting.SLEEP
    cpus = _available_cpus()
    usable = _usable_cpus(cpus, root)
    threads = threads or _physical_cores(cpus, root)
    if threads == 1 or not is_watched:  # a single thread waits for no other
        return Waiting.SPIN_BRIEFLY
    return Waiting.SPIN if threads < usable or usable >= CORES_PER_SPARE else Waiting.SPIN_BRIEFLY


def is_contended(root: Path = _SYSTEM) -> bool:
    """Whether programs had to wait for a CPU; False where Linux does not report it."""
    match = _PRESSURE.match(read_system_file(root / "proc/pressure/cpu"))
    return match is not None and float(match[1]) >= CONTENDED_PERCENT


def default_threads(weights_bytes: int, *, root: Path = _SYSTEM) -> int | None:
    """Return the number of threads for a model with so many bytes of weights; None for llama.cpp's number.

    llama.cpp's is the number of cores, or of fast cores.
    """
    cpus, limit = _available_cpus(), thread_limit(root=root)
    if limit is None and (sys.platform != "linux" or (root / "sys/devices/cpu_atom").exists()):
        return None  # llama.cpp knows which cores of a Mac, or of an Intel CPU with two kinds of cores, are fast
    cores = limit or _physical_cores(cpus, root)
    is_small = weights_bytes < SMALL_MODEL_BYTES
    spare = cores // CORES_PER_SPARE if is_small and cores >= _usable_cpus(cpus, root) else 0
    return cores - spare if spare else limit


def thread_limit(*, root: Path = _SYSTEM) -> int | None:
    """Return the number of physical cores that this process may use; None if it may use the whole machine."""
    cpus, limit = _available_cpus(), _container_limit(root)
    if limit is None and len(cpus) == os.cpu_count():
        return None
    cores = _physical_cores(cpus, root)
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def _available_cpus() -> set[int]:
    """Return the CPUs that this process may use."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return set(range(os.cpu_count() or 1))


def _usable_cpus(cpus: set[int], root: Path) -> float:
    """Return how many of the CPUs the control group allows to be busy at once."""
    limit = _container_limit(root)
    return len(cpus) if limit is None else min(len(cpus), limit)


def _physical_cores(cpus: set[int], root: Path) -> int:
    """Count cores: two threads of one core are not faster than one."""
    folder = root / "sys/devices/system/cpu"
    return len({read_system_file(folder / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in cpus})


def _container_limit(root: Path) -> float | None:
    """Return the CPU limit of the control group (version 2 or 1) in cores, if there is one."""
    for folder in control_groups("cpu", root):
        files = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        texts = (" ".join(read_system_file(folder / name) for name in names).split() for names in files)
        quota, period = next((words for words in texts if len(words) == 2), ("", ""))
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):  # else `max` or -1: no limit
            return int(quota) / int(period)
    return None


def control_groups(controller: str, root: Path) -> list[Path]:
    """Return the folders of this process's control group, the innermost first: any of them may have the limit."""
    base = root / "sys/fs/cgroup"
    folders: list[Path] = []
    for line in read_system_file(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group = base / controllers if controllers else base
        relative = Path(path.lstrip("/"))
        folders += [group / relative, *(group / parent for parent in relative.parents)]
    return folders


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
    streak, before, began = 0, dict[str, float](), 0.0
    while streak < CHECKS or not is_replaceable():
        await pause(CHECK_S)
        if is_working():
            times, now = await asyncio.to_thread(waiting_times, pid), time.monotonic()
            longest_s = max((times[thread] - before[thread] for thread in times.keys() & before.keys()), default=0.0)
            streak = streak + 1 if before and longest_s >= WAIT_SHARE * (now - began) else 0
            before, began = times, now
        elif streak < CHECKS:
            streak, before = 0, {}


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
    seconds = {}
    for thread in _list(root / f"proc/{pid}/task"):
        if len(figures := read_system_file(thread / "schedstat").split()) > 1:
            seconds[thread.name] = sum(map(int, figures[not with_running : 2])) / 1e9
        for child in read_system_file(thread / "children").split():
            seconds |= waiting_times(int(child), with_running=with_running, root=root)
    return seconds


def _list(folder: Path) -> list[Path]:
    """Return the threads of a process; none if it has ended."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []
