"""How far a check is: one line that is written over on a terminal, and a line now and then anywhere else."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from welldone.check.run import CheckProgress, ProgressCallback
from welldone.cli import show

CHECK_LOG_INTERVAL_S = 10.0
"""Between two lines of a log. Who waits for a minute without one wonders; a short run has none."""


@asynccontextmanager
async def check_progress(every_s: float = CHECK_LOG_INTERVAL_S) -> AsyncIterator[ProgressCallback]:
    """What tells how far it is. In the end nothing of it is left on a terminal."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    async with _overwritten_line() if is_terminal else _periodic_lines(every_s) as tell:
        yield tell


@asynccontextmanager
async def _overwritten_line() -> AsyncIterator[ProgressCallback]:
    def tell(progress: CheckProgress) -> None:
        with suppress(OSError):  # nobody looks any more, which does not stop the check
            show.overwrite_line(_progress_line(progress))

    try:
        yield tell
    finally:
        with suppress(OSError):
            show.overwrite_line("")


@asynccontextmanager
async def _periodic_lines(every_s: float) -> AsyncIterator[ProgressCallback]:
    latest: list[CheckProgress] = []

    def tell(progress: CheckProgress) -> None:
        latest[:] = [progress]

    async def note() -> None:
        with suppress(OSError):
            while True:
                await asyncio.sleep(every_s)
                for progress in latest:
                    show.print_note(_progress_line(progress))

    task = asyncio.create_task(note())
    try:
        yield tell
    finally:
        task.cancel()


def _progress_line(progress: CheckProgress) -> str:
    return f"{progress.done} of {progress.total} probes  {', '.join(progress.running)}"
