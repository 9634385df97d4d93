"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping

from welldone.bench.report import BenchReport
from welldone.bench.reports import data, page, rows

FORMS: Mapping[str, Callable[[BenchReport], str]] = {
    ".json": data.draw,
    ".csv": rows.draw,
    ".html": page.draw,
}
