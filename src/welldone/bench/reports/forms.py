"""Which form of report a file gets: its ending says it."""

from collections.abc import Callable, Mapping

from welldone.bench.report import BenchReport
from welldone.bench.reports import data, page, rows

BENCH_REPORT_FORMATS: Mapping[str, Callable[[BenchReport], str]] = {
    ".json": data.render_json,
    ".csv": rows.render_csv,
    ".html": page.render_html,
}
