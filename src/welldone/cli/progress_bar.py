"""Progress bar of a download, with bytes, rate and remaining time. Only this module imports rich."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich import progress as rich_progress
from rich.console import Console

from welldone.engines.models import install


@contextmanager
def progress_bar() -> Iterator[install.Progress]:
    """Show one line per file on stderr."""
    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),  # file names from outside are not markup
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(compact=True),
    )
    with rich_progress.Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, rich_progress.TaskID] = {}

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:  # bytes of an earlier attempt do not count towards the rate
                tasks[name] = progress.add_task(name, completed=done, total=total)
            else:
                progress.update(tasks[name], completed=done, total=total)

        yield report
