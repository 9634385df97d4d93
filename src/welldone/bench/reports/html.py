"""HTML report: one page with the JSON of the run, and scripts that draw it. It works offline and loads nothing.

The Content-Security-Policy allows exactly these scripts and this style, by their hashes.
"""

import html
import re
from base64 import b64encode
from hashlib import sha256
from math import ceil
from pkgutil import get_data
from string import Template

import msgspec

from welldone.bench.report import BenchRecord, BenchReport, RequestOutcome
from welldone.bench.reports.data import render_json
from welldone.bench.reports.text import report_lines

_MODULES = ("numbers.mjs", "plots.mjs", "figures.mjs", "report.mjs")
"""Scripts of the page, each after those that it imports."""
_IMPORT = re.compile(r"^import \{.*?\} from .*?;\n", re.DOTALL | re.MULTILINE)
_TEXT_WIDTH = 120
_MAX_STEPS = 40
"""Steps with plots. A sweep of two servers has 24."""
_MAX_RECORDS = 8_000
"""Requests in the page: about three megabytes."""
_MAX_CHUNK_TIMES = 200_000
"""Chunk times in the page: about two megabytes, and enough for p99.9 of the gaps."""


def render_html(report: BenchReport) -> str:
    """Return the page: the JSON of the run, the scripts, and the terminal's text for readers without scripts."""
    thinned, each = _thin(report)
    style = _file("vendor/uPlot.min.css") + _file("report.css")
    library = _file("vendor/uPlot.iife.min.js")
    # One script: an inline module cannot import another one.
    script = "".join(_IMPORT.sub("", _file(name)) for name in _MODULES)
    page = Template(_file("report.html").rstrip())
    return page.substitute(
        policy=f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(style)}; "
        f"script-src {_hash(library)} {_hash(script)}",
        style=style,
        text=html.escape("\n".join(report_lines(report, _TEXT_WIDTH))),
        each=each,
        report=render_json(thinned).replace("<", "\\u003c"),
        licence=_file("vendor/uPlot.LICENSE"),
        library=library,
        script=script,
    )


def _file(name: str) -> str:
    return (get_data("welldone.bench.reports", f"page/{name}") or b"").decode()


def _hash(text: str) -> str:
    """Return a source of a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _thin(report: BenchReport) -> tuple[BenchReport, int]:
    """Return the report with as many requests and times as a page can hold, and a number n: every n-th successful
    request of a step has all its chunk times, the others fewer."""
    shown = report.steps[:_MAX_STEPS]
    share = min(1.0, _MAX_RECORDS / max(1, sum(len(step.records) for step in shown)))
    fewest = _MAX_RECORDS // _MAX_STEPS
    kept = [_sample_records(step.records, max(int(share * len(step.records)), fewest)) for step in shown]
    times = sum(len(record.times) for records in kept for record in records)
    each = ceil(2 * times / _MAX_CHUNK_TIMES) if times > _MAX_CHUNK_TIMES else 1
    replace = msgspec.structs.replace
    steps = [replace(step, records=_thin_times(records, each)) for step, records in zip(shown, kept, strict=True)]
    steps += [replace(step, records=()) for step in report.steps[_MAX_STEPS:]]
    return replace(report, steps=tuple(steps)), each


def _sample_records(records: tuple[BenchRecord, ...], count: int) -> tuple[BenchRecord, ...]:
    """Return about `count` of the records, up to half of them not successful."""
    if len(records) <= count:
        return records
    bad = [record for record in records if record.outcome is not RequestOutcome.OK]
    bad = bad[:: max(1, ceil(len(bad) / (count // 2)))]
    good = [record for record in records if record.outcome is RequestOutcome.OK]
    return *good[:: max(1, ceil(len(good) / (count - len(bad))))], *bad


def _thin_times(records: tuple[BenchRecord, ...], each: int) -> tuple[BenchRecord, ...]:
    """Return records of which only every n-th successful one has all its times; the first and the last are kept."""
    thinned, successful = [], 0
    for record in records:
        is_whole = record.outcome is RequestOutcome.OK and successful % each == 0
        successful += record.outcome is RequestOutcome.OK
        if not is_whole and len(record.times) > 2:
            times = record.times[:-1:each] + record.times[-1:]
            record = msgspec.structs.replace(record, times=times)
        thinned.append(record)
    return tuple(thinned)
