"""Report formats by file extension."""

from collections.abc import Callable, Mapping

from welldone.bench.report import BenchReport
from welldone.bench.reports import data, html, text

BENCH_REPORT_FORMATS: Mapping[str, Callable[[BenchReport], str]] = {
    ".json": data.render_json,
    ".csv": text.render_csv,
    ".html": html.render_html,
}
