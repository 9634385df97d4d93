"""CPU time and memory of a process and its children, from /proc."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM, _RSS = 11, 12, 21  # fields of /proc/PID/stat, counted from the one after the name


@dataclass(frozen=True)
class Usage:
    """CPU time since the start, and memory now."""

    user_s: float
    system_s: float
    rss_bytes: int


def read_usage(pid: int) -> Usage:
    """Sum over the process and its descendants, threads included."""
    stats = [Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in _tree(pid)]
    return Usage(
        sum(int(stat[_USER]) for stat in stats) / _TICKS,
        sum(int(stat[_SYSTEM]) for stat in stats) / _TICKS,
        sum(int(stat[_RSS]) for stat in stats) * _PAGE,
    )


def _tree(pid: int) -> list[int]:
    children = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [pid, *(descendant for child in children for descendant in _tree(child))]
