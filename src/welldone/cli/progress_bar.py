"""Progress bar of a download, with bytes, rate and remaining time. Only this module imports rich."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from welldone.engines.models import install


@contextmanager
def progress_bar() -> Iterator[install.Progress]:
    """Show one line per file on stderr."""
    columns = (
        TextColumn("{task.description}", markup=False),  # file names from outside are not markup
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:  # bytes of an earlier attempt do not count towards the rate
                tasks[name] = progress.add_task(name, completed=done, total=total)
            else:
                progress.update(tasks[name], completed=done, total=total)

        yield report
