"""Threads of an engine: how many in a container or in a process that is bound to some CPUs, and how they wait.

llama.cpp counts the cores of the whole machine, and knows which of them are fast. In a container with two cores of
sixty-four, its threads would wait for each other most of the time.
"""

import math
import os
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

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
    try:
        found = _PRESSURE.match((root / "proc/pressure/cpu").read_text())
    except OSError:
        return False
    return found is not None and float(found[1]) >= CONTENDED_PERCENT


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
    siblings = set()
    for cpu in cpus:
        try:
            path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            siblings.add(path.read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)


def _container_limit(root: Path) -> float | None:
    """Return the CPU limit of the control group (version 2 or 1) in cores, if there is one."""
    for folder in control_groups("cpu", root):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            try:
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            except OSError:
                continue
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):  # else `max` or -1: no limit
            return int(quota) / int(period)
    return None


def control_groups(controller: str, root: Path) -> list[Path]:
    """Return the folders of this process's control group, the innermost first: any of them may have the limit."""
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        group = base / controllers if controllers else base
        relative = Path(path.lstrip("/"))
        found += [group / relative, *(group / parent for parent in relative.parents)]
    return found
