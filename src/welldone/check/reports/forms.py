"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from welldone.check.report import Report
from welldone.check.reports import badge, data, html, junit, markdown, sarif

FORMS: Mapping[str, Callable[[Report], str]] = {
    ".json": data.draw,
    ".xml": junit.draw,
    ".md": markdown.draw,
    ".html": html.draw,
    ".sarif": sarif.draw,
    ".svg": badge.draw,
}


def write(report: Report, path: Path) -> None:
    """Write the report in the form that the name of the file asks for.

    Raises:
        ValueError: there is no such form.
        OSError: the file cannot be written.
    """
    draw = FORMS.get(path.suffix.lower())
    if draw is None:
        raise ValueError(f"a report ends in one of {', '.join(FORMS)}")
    path.write_bytes(f"{draw(report)}\n".encode())
