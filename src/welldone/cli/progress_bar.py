"""The bar of a download, with bytes, rate and time left. Only this file knows rich."""

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
    """One line for each file, on standard error."""
    columns = (
        TextColumn("{task.description}", markup=False),  # a name from outside is text and no more
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, done: int, total: int | None) -> None:
            if name not in tasks:  # what was there before counts as done, not as fast
                tasks[name] = progress.add_task(name, completed=done, total=total)
            else:
                progress.update(tasks[name], completed=done, total=total)

        yield tell
