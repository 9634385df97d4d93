"""`welldone bench compare`: two reports side by side, and whether they differ by more than chance."""

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from welldone.bench.compare import FIRST_IS_BETTER, NO_DIFFERENCE, SECOND_IS_BETTER, compare_reports, comparison_verdict
from welldone.bench.report import BenchReport, MetricComparison
from welldone.bench.reports import data
from welldone.bench.reports.words import split_metric, format_metric
from welldone.cli import show
from welldone.cli.exits import ExitCode, UsageError
from welldone.cli.options import CommandParser
from welldone.drawing.texts import sanitize_text

COMPARE_DESCRIPTION = """\
Compare two reports that welldone bench wrote (--report FILE.json), step by step: how many times B the number of A is,
the band in which that would lie in 95 of 100 such runs, and a word for B: faster, slower, or no difference.
What changed on the machine between two runs no band can know; for two servers, --against measures in turn."""
COMPARE_EXAMPLES = """
welldone bench compare before.json after.json
welldone bench compare before.json after.json --fail-on-slower
"""
COMPARE_VERSION = 1
"""Of the JSON form."""
_REPORT_LIMIT_BYTES = 512 * 1024 * 1024
"""The times of fifty million chunks: more than a run has, and a laptop can hold two of them."""
_VERDICT_WORDS = {FIRST_IS_BETTER: "slower", NO_DIFFERENCE: "no difference", SECOND_IS_BETTER: "faster"}
"""For the second of the two."""
_SHARE_METRIC = "success_rate"
_SHARE_VERDICT_WORDS = {"slower": "worse", "faster": "better"}
"""Of a share of requests."""
_VERDICT_COLORS = {FIRST_IS_BETTER: "wrong", NO_DIFFERENCE: "dim", SECOND_IS_BETTER: "right"}
_LOAD_SETTINGS = ("kind", "max_vus", "profile", "prompt", "decode", "dataset", "arrivals", "duration_s", "extra")
"""Settings that make another load."""


class _InferenceBenchmarkerReport(msgspec.Struct):
    """What shows a file to be inference-benchmarker's."""

    results: list[msgspec.Raw]
    start_time: str


def run_compare(arguments: list[str]) -> ExitCode:
    """Compare two reports."""
    options = _compare_parser().parse(arguments)
    paths = (options.first, options.second)
    first, second = (_read_report(path) for path in paths)
    found = compare_reports(first, second)
    for text in _comparison_warnings(first, second, paths):
        show.print_note(text)
    if not found:
        show.print_note(_why_no_comparison(first, second))
        return ExitCode.NOTHING_TO_DO
    if options.json:
        show.print_line(_comparison_json(found))
    else:
        for text in _comparison_table(found):
            show.print_line(text)
    is_slower = any(comparison_verdict(one) == FIRST_IS_BETTER for one in found)
    return ExitCode.FAILED if is_slower and options.fail_on_slower else ExitCode.OK


def _compare_parser() -> CommandParser:
    parser = CommandParser("bench compare", COMPARE_DESCRIPTION, COMPARE_EXAMPLES)
    parser.add_argument("first", metavar="A.json", type=Path, help="the report to compare with")
    parser.add_argument("second", metavar="B.json", type=Path, help="the report that is judged")
    parser.add_argument("--json", action="store_true", help="show the result as JSON")
    parser.add_argument("--fail-on-slower", action="store_true", help="exit 1 where B is slower, beyond chance")
    return parser


# ---- reading


def _read_report(path: Path) -> BenchReport:
    shown = show.printable_name(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(_REPORT_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {shown}: {show.error_text(error)}") from None
    if len(text) > _REPORT_LIMIT_BYTES:
        raise UsageError(f"{shown} is larger than {_REPORT_LIMIT_BYTES // 2**20} MB; no report is")
    try:
        return data.parse_report(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} {_why_not_a_report(text, error)}") from None


def _why_not_a_report(text: bytes, error: Exception) -> str:
    """What a file is that is no report of ours."""
    try:
        msgspec.json.decode(text, type=_InferenceBenchmarkerReport)
    except (ValueError, RecursionError):
        return f"is no report of welldone bench ({sanitize_text(show.error_text(error))}); write one with --report FILE.json"
    return (
        "has the form of inference-benchmarker, which keeps no single requests, so that chance cannot be told; "
        "write reports to compare with welldone bench --report FILE.json"
    )


# ---- what is said


def _comparison_warnings(first: BenchReport, second: BenchReport, paths: tuple[Path, Path]) -> list[str]:
    """Why the two may differ but for the servers."""
    cautions = [
        f"{show.printable_name(str(path))} ended early: {sanitize_text(report.incomplete_reason)}"
        for path, report in zip(paths, (first, second), strict=True)
        if not report.is_complete
    ]
    unlike = [name for name in _LOAD_SETTINGS if first.config.get(name) != second.config.get(name)]
    unlike += [name for name in ("endpoint", "model") if getattr(first, name) != getattr(second, name)]
    return cautions + ([f"the two were not asked alike; they differ in {', '.join(unlike)}"] if unlike else [])


def _why_no_comparison(first: BenchReport, second: BenchReport) -> str:
    names = [[step.id for step in report.steps if step.id != "warmup"] for report in (first, second)]
    if set(names[0]) & set(names[1]):
        return "there is nothing to compare: too few requests ended well"
    said = (sanitize_text(", ".join(some)) or "none" for some in names)
    return "there is nothing to compare: no step is in both ({}; and {})".format(*said)


def _comparison_table(found: list[MetricComparison]) -> list[str]:
    width = max(len(split_metric(one)[1]) for one in found) + 2
    drawn: list[str] = []
    for step, some in groupby(found, key=lambda one: split_metric(one)[0]):
        drawn += [sanitize_text(step), f"{'':<{width}}  {'A':>12}  {'B':>12}  {'A / B':>6}  band"]
        drawn += [_comparison_row(one, width) for one in some]
        drawn.append("")
    return [*drawn, _verdict_summary(found)]


def _comparison_row(one: MetricComparison, width: int) -> str:
    metric = split_metric(one)[1]
    numbers = f"{format_metric(metric, one.first):>12}  {format_metric(metric, one.second):>12}  {one.ratio:>6.2f}"
    word = show.colorize(_verdict_word(one), _VERDICT_COLORS[comparison_verdict(one)])
    return f"{'  ' + metric:<{width}}  {numbers}  {one.low:.2f} to {one.high:<6.2f}  {word}"


def _verdict_word(one: MetricComparison) -> str:
    """What is to be said of the second."""
    word = _VERDICT_WORDS[comparison_verdict(one)]
    return _SHARE_VERDICT_WORDS.get(word, word) if split_metric(one)[1] == _SHARE_METRIC else word


def _verdict_summary(found: list[MetricComparison]) -> str:
    return "B: " + ", ".join(f"{count} {word}" for word, count in Counter(_verdict_word(one) for one in found).items())


def _comparison_json(found: list[MetricComparison]) -> str:
    rows: list[dict[str, Any]] = []
    for one in found:
        step, metric = split_metric(one)
        numbers = {name: getattr(one, name) for name in ("first", "second", "ratio", "low", "high")}
        rows.append({"step": step, "metric": metric, **numbers, "verdict": _verdict_word(one)})
    return json.dumps({"version": COMPARE_VERSION, "compared": rows}, indent=2)
