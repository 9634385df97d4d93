"""How a load test is doing, while it runs: a panel on a terminal that is written over, and lines anywhere else.

It is drawn in the same thread that times answers, so it is drawn by hand, with a few strings: a library for such
tables takes twenty milliseconds for each, which would be seen in the times.
"""

import asyncio
import os
import select
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from welldone.bench.run import BenchProgress
from welldone.cli import panel, show
from welldone.cli.gauge import BenchMonitor

REFRESH_S = 0.25
LOG_INTERVAL_S = 10.0
"""Between two lines of a log. Who waits for a minute without one wonders."""
_FLUSH_TIMEOUT_S = 1.0
"""What a terminal that takes nothing is waited for in the end, when nothing is measured any more."""
_DEFAULT_SIZE = (80, 24)  # of a terminal that does not know it


@asynccontextmanager
async def live_view(progress: BenchProgress, *, is_quiet: bool, every_s: float = REFRESH_S) -> AsyncIterator[None]:
    """Shows what `watch` is at. In the end nothing of it is left on a terminal."""
    gauge = BenchMonitor(progress)
    terminal = None if is_quiet else _open_terminal()
    view = _LogView(gauge) if terminal is None else _TerminalView(gauge, terminal)
    task = asyncio.create_task(_refresh_loop(gauge, view, every_s))
    try:
        yield
    finally:
        task.cancel()
        with suppress(OSError):
            view.close()


async def _refresh_loop(monitor: BenchMonitor, view: "_LogView | _TerminalView", every_s: float) -> None:
    with suppress(OSError):  # nobody looks any more, which does not stop the run
        while True:
            monitor.refresh()
            view.update()
            await asyncio.sleep(every_s)


def _open_terminal() -> int | None:
    """The terminal at standard error, opened anew so that our writes do not wait; None where there is none."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        return os.open(os.ttyname(sys.stderr.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:  # it belongs to another user, or to a container's host
        return None


class _LogView:
    """A line now and then, and one at the end of each step."""

    def __init__(self, monitor: BenchMonitor, clock: Callable[[], float] = time.monotonic) -> None:
        self._monitor = monitor
        self._clock = clock
        self._last_line_at = clock()
        self._reported_steps = 0

    def update(self) -> None:
        """Say what is new, if it is time."""
        self.close()
        if self._clock() - self._last_line_at >= LOG_INTERVAL_S:
            self._print(panel.running_line(self._monitor))

    def close(self) -> None:
        """Say how the last steps ended."""
        for row in self._monitor.finished_steps(since=self._reported_steps):
            self._reported_steps += 1
            self._print(panel.finished_line(row))

    def _print(self, text: str) -> None:
        self._last_line_at = self._clock()
        show.print_note(text)


class _TerminalView:
    """Lines that are written over those before. What the terminal does not take at once waits for the next look."""

    def __init__(self, monitor: BenchMonitor, terminal: int) -> None:
        self._monitor = monitor
        self._terminal = terminal
        self._height = 0
        self._pending = b""

    def update(self) -> None:
        """Draw the panel, if the last one is out."""
        if self._write():
            columns, rows = os.get_terminal_size(self._terminal)
            self._draw(
                panel.panel_lines(self._monitor, columns=columns or _DEFAULT_SIZE[0], rows=rows or _DEFAULT_SIZE[1])
            )
            self._write()

    def close(self) -> None:
        """Take it away."""
        try:
            until = time.monotonic() + _FLUSH_TIMEOUT_S
            while not self._write() and (left_s := until - time.monotonic()) > 0:
                select.select([], [self._terminal], [], left_s)
            if not self._pending:
                self._draw([])
                self._write()
        finally:
            os.close(self._terminal)

    def _draw(self, lines: Sequence[str]) -> None:
        """The lines over those before. None of them wraps, however wide its letters are."""
        up = f"\x1b[{self._height}A" if self._height else ""
        body = "".join(f"{line}\x1b[K\n" for line in lines)
        self._pending = f"\x1b[?7l\r{up}{body}\x1b[J\x1b[?7h".encode(sys.stderr.encoding, "replace")
        self._height = len(lines)

    def _write(self) -> bool:
        """Write what is left; whether all is out."""
        with suppress(BlockingIOError):
            while self._pending:
                self._pending = self._pending[os.write(self._terminal, self._pending) :]
        return not self._pending
