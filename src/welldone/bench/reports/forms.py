"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from welldone.bench.report import BenchReport
from welldone.bench.reports import data, page, rows

FORMS: Mapping[str, Callable[[BenchReport], str]] = {
    ".json": data.draw,
    ".csv": rows.draw,
    ".html": page.draw,
}


def write(report: BenchReport, path: Path) -> None:
    """Write the report in the form that the name of the file asks for.

    Raises:
        ValueError: there is no such form.
        OSError: the file cannot be written.
    """
    draw = FORMS.get(path.suffix.lower())
    if draw is None:
        raise ValueError(f"a report ends in one of {', '.join(FORMS)}")
    path.write_bytes(f"{draw(report)}\n".encode())
