"""Pairs of numbers that several processes read and change.

They are made before the processes are, which inherit them. The file has no name: when the last process that knows it is
gone, so is it. A process that dies while it changes a pair frees the pair, since the kernel holds the locks.
"""

import fcntl
import mmap
import struct
import tempfile
from collections.abc import Callable

_PAIR = struct.Struct("=dd")


class SharedNumbers:
    """So many pairs, all 0 at first. Of each process one thread may use them: the locks are between processes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open as long as the numbers are used
        self._file.truncate(max(1, count) * _PAIR.size)
        self._memory = mmap.mmap(self._file.fileno(), 0)

    def update(self, index: int, change: Callable[[float, float], tuple[float, float]]) -> tuple[float, float]:
        """Change a pair, with nobody in between, and give the new one. A change is quick: others wait for it."""
        if not 0 <= index < self._count:
            raise IndexError(f"there are {self._count} pairs, and none is number {index}")
        place = index * _PAIR.size
        fcntl.lockf(self._file, fcntl.LOCK_EX, _PAIR.size, place)
        try:
            first, second = change(*_PAIR.unpack_from(self._memory, place))
            _PAIR.pack_into(self._memory, place, first, second)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _PAIR.size, place)
        return first, second

    def close(self) -> None:
        """Forget them in this process."""
        self._memory.close()
        self._file.close()
