"""Number of threads of an engine in a container, or in a process that is bound to some CPUs.

llama.cpp counts the cores of the whole machine, and knows which of them are fast. In a container with two cores of
sixty-four, its threads would wait for each other most of the time.
"""

import math
import os
from pathlib import Path

_SYSTEM = Path("/")


def thread_limit(*, root: Path = _SYSTEM) -> int | None:
    """Return the number of physical cores that this process may use; None if it may use the whole machine."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return None
    limit = _container_limit(root)
    if limit is None and len(cpus) == os.cpu_count():
        return None
    cores = _physical_cores(cpus, root)
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


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
