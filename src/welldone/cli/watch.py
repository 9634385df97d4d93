"""How far a check is: one line that is written over on a terminal, and a line now and then anywhere else."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from welldone.check.run import Progress, Tell
from welldone.cli import show

EVERY_S = 10.0
"""Between two lines of a log. Who waits for a minute without one wonders; a short run has none."""


@asynccontextmanager
async def watching(every_s: float = EVERY_S) -> AsyncIterator[Tell]:
    """What tells how far it is. In the end nothing of it is left on a terminal."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    async with _written_over() if is_terminal else _now_and_then(every_s) as tell:
        yield tell


@asynccontextmanager
async def _written_over() -> AsyncIterator[Tell]:
    def tell(progress: Progress) -> None:
        with suppress(OSError):  # nobody looks any more, which does not stop the check
            show.over(_line(progress))

    try:
        yield tell
    finally:
        with suppress(OSError):
            show.over("")


@asynccontextmanager
async def _now_and_then(every_s: float) -> AsyncIterator[Tell]:
    latest: list[Progress] = []

    def tell(progress: Progress) -> None:
        latest[:] = [progress]

    async def note() -> None:
        with suppress(OSError):
            while True:
                await asyncio.sleep(every_s)
                for progress in latest:
                    show.note(_line(progress))

    task = asyncio.create_task(note())
    try:
        yield tell
    finally:
        task.cancel()


def _line(progress: Progress) -> str:
    return f"{progress.done} of {progress.total} probes  {', '.join(progress.running)}"
