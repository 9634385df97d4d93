"""`welldone bench compare`: two reports side by side, and whether they differ by more than chance."""

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from welldone.bench.compare import FIRST, SAME, SECOND, compare, verdict
from welldone.bench.report import BenchReport, Compared
from welldone.bench.reports import data
from welldone.bench.reports.words import parts, value
from welldone.cli import show
from welldone.cli.exits import Exit, UsageError
from welldone.cli.options import Parser
from welldone.drawing.texts import printable

DESCRIPTION = """\
Compare two reports that welldone bench wrote (--report FILE.json), step by step: how many times B the number of A is,
the band in which that would lie in 95 of 100 such runs, and a word for B: faster, slower, or no difference.
What changed on the machine between two runs no band can know; for two servers, --against measures in turn."""
EXAMPLES = """
welldone bench compare before.json after.json
welldone bench compare before.json after.json --fail-on-slower
"""
VERSION = 1
"""Of the JSON form."""
_LIMIT_BYTES = 512 * 1024 * 1024
"""The times of fifty million chunks: more than a run has, and a laptop can hold two of them."""
_WORDS = {FIRST: "slower", SAME: "no difference", SECOND: "faster"}
"""For the second of the two."""
_SHARE = "success_rate"
_OF_SHARES = {"slower": "worse", "faster": "better"}
"""Of a share of requests."""
_COLOURS = {FIRST: "wrong", SAME: "dim", SECOND: "right"}
_UNLIKE = ("kind", "max_vus", "profile", "prompt", "decode", "dataset", "arrivals", "duration_s", "extra")
"""Settings that make another load."""


class _Peer(msgspec.Struct):
    """What shows a file to be inference-benchmarker's."""

    results: list[msgspec.Raw]
    start_time: str


def run(arguments: list[str]) -> Exit:
    """Compare two reports."""
    options = _parser().read(arguments)
    paths = (options.first, options.second)
    first, second = (_read(path) for path in paths)
    found = compare(first, second)
    for text in _cautions(first, second, paths):
        show.note(text)
    if not found:
        show.note(_why_nothing(first, second))
        return Exit.NOTHING
    if options.json:
        show.line(_drawn(found))
    else:
        for text in _table(found):
            show.line(text)
    is_slower = any(verdict(one) == FIRST for one in found)
    return Exit.FOUND if is_slower and options.fail_on_slower else Exit.RIGHT


def _parser() -> Parser:
    parser = Parser("bench compare", DESCRIPTION, EXAMPLES)
    parser.add_argument("first", metavar="A.json", type=Path, help="the report to compare with")
    parser.add_argument("second", metavar="B.json", type=Path, help="the report that is judged")
    parser.add_argument("--json", action="store_true", help="show the result as JSON")
    parser.add_argument("--fail-on-slower", action="store_true", help="exit 1 where B is slower, beyond chance")
    return parser


# ---- reading


def _read(path: Path) -> BenchReport:
    shown = show.name(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {shown}: {show.why(error)}") from None
    if len(text) > _LIMIT_BYTES:
        raise UsageError(f"{shown} is larger than {_LIMIT_BYTES // 2**20} MB; no report is")
    try:
        return data.read(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} {_what_else(text, error)}") from None


def _what_else(text: bytes, error: Exception) -> str:
    """What a file is that is no report of ours."""
    try:
        msgspec.json.decode(text, type=_Peer)
    except (ValueError, RecursionError):
        return f"is no report of welldone bench ({printable(show.why(error))}); write one with --report FILE.json"
    return (
        "has the form of inference-benchmarker, which keeps no single requests, so that chance cannot be told; "
        "write reports to compare with welldone bench --report FILE.json"
    )


# ---- what is said


def _cautions(first: BenchReport, second: BenchReport, paths: tuple[Path, Path]) -> list[str]:
    """Why the two may differ but for the servers."""
    cautions = [
        f"{show.name(str(path))} ended early: {printable(report.why)}"
        for path, report in zip(paths, (first, second), strict=True)
        if not report.is_whole
    ]
    unlike = [name for name in _UNLIKE if first.config.get(name) != second.config.get(name)]
    unlike += [name for name in ("endpoint", "model") if getattr(first, name) != getattr(second, name)]
    return cautions + ([f"the two were not asked alike; they differ in {', '.join(unlike)}"] if unlike else [])


def _why_nothing(first: BenchReport, second: BenchReport) -> str:
    names = [[step.id for step in report.steps if step.id != "warmup"] for report in (first, second)]
    if set(names[0]) & set(names[1]):
        return "there is nothing to compare: too few requests ended well"
    said = (printable(", ".join(some)) or "none" for some in names)
    return "there is nothing to compare: no step is in both ({}; and {})".format(*said)


def _table(found: list[Compared]) -> list[str]:
    width = max(len(parts(one)[1]) for one in found) + 2
    drawn: list[str] = []
    for step, some in groupby(found, key=lambda one: parts(one)[0]):
        drawn += [printable(step), f"{'':<{width}}  {'A':>12}  {'B':>12}  {'A / B':>6}  band"]
        drawn += [_row(one, width) for one in some]
        drawn.append("")
    return [*drawn, _sum(found)]


def _row(one: Compared, width: int) -> str:
    metric = parts(one)[1]
    numbers = f"{value(metric, one.first):>12}  {value(metric, one.second):>12}  {one.ratio:>6.2f}"
    word = show.paint(_word(one), _COLOURS[verdict(one)])
    return f"{'  ' + metric:<{width}}  {numbers}  {one.low:.2f} to {one.high:<6.2f}  {word}"


def _word(one: Compared) -> str:
    """What is to be said of the second."""
    word = _WORDS[verdict(one)]
    return _OF_SHARES.get(word, word) if parts(one)[1] == _SHARE else word


def _sum(found: list[Compared]) -> str:
    return "B: " + ", ".join(f"{count} {word}" for word, count in Counter(_word(one) for one in found).items())


def _drawn(found: list[Compared]) -> str:
    rows: list[dict[str, Any]] = []
    for one in found:
        step, metric = parts(one)
        numbers = {name: getattr(one, name) for name in ("first", "second", "ratio", "low", "high")}
        rows.append({"step": step, "metric": metric, **numbers, "verdict": _word(one)})
    return json.dumps({"version": VERSION, "compared": rows}, indent=2)
