"""Pairs of numbers in memory that worker processes share.

The memory is created before the workers are forked, which inherit it. That of `SharedNumbers` is backed by an unlinked
file, so it is freed with the last process. A process that dies in the middle of an update releases its lock, since the
kernel holds it.
"""

import fcntl
import mmap
import struct
import tempfile
from collections.abc import Callable

_PAIR = struct.Struct("=dd")
_COUNTS = struct.Struct("=qq")


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


class WorkerLoads:
    """The load of each of `count` workers, and what was lost with those that died, in memory that forks share.

    A worker writes its own load; only the supervisor records deaths.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        # Of each worker its connections and requests; before them deaths, and requests that they cut.
        self._memory = mmap.mmap(-1, (count + 1) * _COUNTS.size)

    def publish(self, worker: int, connections: int, requests: int) -> None:
        """Set the open connections and running requests of a worker, from 1 to `count`."""
        _COUNTS.pack_into(self._memory, worker * _COUNTS.size, connections, requests)

    def is_ahead(self, worker: int, more: int = 0) -> bool:
        """Whether a worker has more connections than another, with `more` that it has not published yet."""
        return self._read(worker)[0] + more > min(self._read(number)[0] for number in range(1, self._count + 1))

    def record_death(self, worker: int) -> int:
        """Count a worker that died, and return how many requests it cut."""
        (deaths, cut), (_, requests) = self.deaths, self._read(worker)
        self.publish(worker, 0, 0)
        _COUNTS.pack_into(self._memory, 0, deaths + 1, cut + requests)
        return requests

    @property
    def deaths(self) -> tuple[int, int]:
        """Number of workers that died, and of requests that they cut."""
        return self._read(0)

    def _read(self, index: int) -> tuple[int, int]:
        first, second = _COUNTS.unpack_from(self._memory, index * _COUNTS.size)
        return first, second
