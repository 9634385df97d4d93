"""Peak memory of a server."""

from faults.case import Figure
from tests.support.faults import memory_of
from tests.support.server import Running

GROWTH_MB = 256
"""Eight bodies of the longest that is taken, as bytes, as text and as values; and two captures that are judged at once,
which are twenty times as large as their bytes."""


class Peak:
    """Peak memory of a server above its start."""

    def __init__(self, server: Running) -> None:
        self._pid = server.process.pid
        self._before = memory_of(self._pid)

    def growth(self) -> Figure:
        """Return the peak as a figure."""
        grown = memory_of(self._pid, "VmHWM") - self._before
        return Figure("peak memory growth", grown / 2**20, "MB", most=GROWTH_MB)
