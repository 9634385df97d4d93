"""The files of a report: what is wrong with one is said before a minute is spent on what it will hold."""

import os
from collections.abc import Iterable
from pathlib import Path

from welldone.cli import show
from welldone.cli.exits import UsageError


def check_report_path(path: Path, extensions: Iterable[str]) -> None:
    """Say why a report cannot be written there, if it cannot."""
    name = show.printable_name(str(path))
    if path.suffix.lower() not in extensions:
        raise UsageError(f"{name}: the name of a report ends in one of {', '.join(extensions)}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {name}: there is no folder {show.printable_name(str(path.parent))}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {name}: {'it is a folder' if path.is_dir() else 'permission denied'}")


def make_writable_folder(path: Path) -> None:
    """Make a folder for files to come, or say why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {show.printable_name(str(path))}: {show.error_text(error)}") from None
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write into {show.printable_name(str(path))}: permission denied")
