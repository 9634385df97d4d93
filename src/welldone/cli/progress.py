"""How far a download is: a bar on a terminal, a few lines anywhere else."""

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

from welldone.cli import show
from welldone.engines.arrival import Progress, format_size

_SILENT_S = 2.0  # what takes no longer needs no progress
_UNSIZED_INTERVAL_S = 10.0  # between two lines where nobody knows how much will come


def download_progress(*, is_terminal: bool | None = None) -> AbstractContextManager[Progress]:
    """What tells a person how far it is."""
    if is_terminal is None:
        is_terminal = show.is_interactive()
    if not is_terminal:
        return progress_lines()
    try:
        bar = importlib.import_module("welldone.cli.bar")  # its library is slow to load, and an extra
    except ModuleNotFoundError:
        return progress_lines()
    return cast("AbstractContextManager[Progress]", bar.bar())


@contextmanager
def progress_lines(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A line at most every tenth of the way, and none for what is quick."""
    begun = clock()
    told: dict[str, tuple[int, float]] = {}

    def tell(name: str, done: int, total: int | None) -> None:
        now = clock()
        tenth, last_s = told.setdefault(name, (10 * done // total if total else 0, begun))
        if now - begun < _SILENT_S:
            return
        if total:
            step = 10 * done // total
            if tenth < step < 10:
                told[name] = (step, now)
                show.print_note(f"{show.printable_name(name)}: {10 * step} % of {format_size(total)}")
        elif now - last_s >= _UNSIZED_INTERVAL_S:
            told[name] = (tenth, now)
            show.print_note(f"{show.printable_name(name)}: {format_size(done)}" if done else show.printable_name(name))

    yield tell
