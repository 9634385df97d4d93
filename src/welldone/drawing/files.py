"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

ReportT = TypeVar("ReportT")


def write_report(report: ReportT, path: Path, renderers: Mapping[str, Callable[[ReportT], str]]) -> None:
    """Write the report in the form that the name of the file asks for.

    Raises:
        ValueError: there is no such form.
        OSError: the file cannot be written.
    """
    draw = renderers.get(path.suffix.lower())
    if draw is None:
        raise ValueError(f"a report ends in one of {', '.join(renderers)}")
    path.write_bytes(f"{draw(report)}\n".encode())
