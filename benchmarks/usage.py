"""What a process and its children have taken so far, as Linux tells it under /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM, _RSS = 11, 12, 21  # places in /proc/PID/stat, counted from after the name


@dataclass(frozen=True)
class Used:
    """CPU since the start, and memory now."""

    user_s: float
    system_s: float
    rss_bytes: int


def used(pid: int) -> Used:
    """Of the process and of all below it, threads included."""
    stats = [_stat(process) for process in _tree(pid)]
    return Used(
        sum(int(stat[_USER]) for stat in stats) / _TICKS,
        sum(int(stat[_SYSTEM]) for stat in stats) / _TICKS,
        sum(int(stat[_RSS]) for stat in stats) * _PAGE,
    )


def _tree(pid: int) -> list[int]:
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _words(task / "children")]
    return [pid, *(below for child in children for below in _tree(child))]


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _words(path: Path) -> list[str]:
    return path.read_text().split()
