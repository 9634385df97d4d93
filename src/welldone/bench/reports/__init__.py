"""Report formats of the load test."""

from collections.abc import Callable, Mapping

from welldone.bench.report import BenchReport
from welldone.bench.reports.data import render_json
from welldone.bench.reports.html import render_html
from welldone.bench.reports.text import render_csv

BENCH_REPORT_FORMATS: Mapping[str, Callable[[BenchReport], str]] = {
    ".json": render_json,
    ".csv": render_csv,
    ".html": render_html,
}
"""By file extension."""
