"""Pairs of numbers in memory that worker processes share.

The memory is created before the workers are forked, which inherit it. It is backed by an unlinked file, so it is freed
with the last process. A process that dies in the middle of an update releases its lock, since the kernel holds it.
"""

import fcntl
import mmap
import struct
import tempfile
from collections.abc import Callable

_PAIR = struct.Struct("=dd")


class SharedNumbers:
    """A fixed number of pairs, initially 0. The locks work between processes: use it from one thread of each only."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open for the life of the object
        self._file.truncate(max(1, count) * _PAIR.size)
        self._memory = mmap.mmap(self._file.fileno(), 0)

    def update(self, index: int, change: Callable[[float, float], tuple[float, float]]) -> tuple[float, float]:
        """Change a pair atomically and return the new one. `change` must be fast: other processes wait for it."""
        if not 0 <= index < self._count:
            raise IndexError(f"pair {index} does not exist: there are {self._count}")
        offset = index * _PAIR.size
        fcntl.lockf(self._file, fcntl.LOCK_EX, _PAIR.size, offset)
        try:
            first, second = change(*_PAIR.unpack_from(self._memory, offset))
            _PAIR.pack_into(self._memory, offset, first, second)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _PAIR.size, offset)
        return first, second

    def close(self) -> None:
        """Unmap the memory in this process."""
        self._memory.close()
        self._file.close()
