"""The report for a person at a terminal: inference-benchmarker's two tables, and then what they do not say."""

import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate

from welldone.bench.record import End
from welldone.bench.report import BenchReport, Checked, Compared, Distribution, Step
from welldone.bench.reports.words import NO_FAULT, brief, duration, failed, over, parts, told, value
from welldone.bench.settings import Length
from welldone.bench.stats import error_rate
from welldone.drawing.columns import wrapped
from welldone.drawing.texts import count

_BORDERS = 7  # characters around two cells
_NARROWEST = 20  # of a cell that is wrapped
_CELL = 100  # characters of a cell: more than any that we know of, and a terminal takes no more
_REASONS = 3  # of what failed, that are named
_SHOWN = ("p50", "p90", "p99")
_TIMES = {
    "head": "headers (head)",
    "role": "role",
    "ttft": "first token (ttft)",
    "reasoning": "first thought (reasoning)",
    "content": "first content (content)",
    "tool": "first call (tool)",
    "itl": "between tokens (itl)",
    "gap": "between chunks (gap)",
    "stall": "longest gap (stall)",
    "e2e": "whole (e2e)",
    "rate": "tokens/s of each (rate)",
}
"""In words, and as the times are called where they are told to keep to something."""
_MAIN = ("ttft", "itl", "e2e")
_KINDS = ("reasoning", "content", "tool")
_LABEL = max(map(len, _TIMES.values()))


def lines(report: BenchReport, width: int | None = None) -> list[str]:
    """The report, line by line. Of one step all times are shown, of several the main ones, and what went wrong.

    It fits into `width` columns; None: it is as wide as it is.
    """
    report = brief(report)
    drawn = [*wrapped("", _heading(report), width), "", *_parameters(report, width), ""]
    if report.steps:
        drawn += [*_results(report, width), ""]
    measured = [step for step in report.steps if step.id != "warmup"]
    is_full = len(measured) <= (2 if report.against else 1)
    for step in measured:
        drawn += [*_step(step, _server(report, step), width, is_full=is_full), ""]
    for part in (compared_lines(report.compared), [_checked(one) for one in report.checked]):
        drawn += [*part, ""] if part else []
    return [*drawn, f"ended early: {report.why}"] if not report.is_whole else drawn[:-1]


def _heading(report: BenchReport) -> str:
    against = f", against {report.against}" if report.against else ""
    return f"{report.model} at {report.url}{against}, endpoint {report.endpoint}"


def _server(report: BenchReport, step: Step) -> str:
    """Which of two servers, or nothing where there is one."""
    return f" at {step.target}" if report.against else ""


# ---- the two tables


def _parameters(report: BenchReport, width: int | None) -> list[str]:
    settings = told(report)
    return _pairs(
        [
            ("Parameter", "Value"),
            ("Max VUs", str(settings.max_vus)),
            ("Duration", f"{settings.duration_s:g}"),
            ("Warmup Duration", f"{settings.warmup_s:g}"),
            ("Benchmark Kind", settings.kind.title()),
            ("Rates", f"[{', '.join(str(float(rate)) for rate in settings.rates)}]" if settings.rates else "N/A"),
            ("Num Rates", str(settings.num_rates)),
            ("Prompt Options", _length(settings.prompt)),
            ("Decode Options", _length(settings.decode)),
            ("Tokenizer", report.tokenizer),
            ("Extra Metadata", ", ".join(f"{name}={text}" for name, text in settings.meta.items()) or "N/A"),
        ],
        width,
    )


def _length(length: Length | None) -> str:
    if length is None:
        return "N/A"
    names = ("num_tokens", "min_tokens", "max_tokens", "variance")
    return ",".join(f"{name}={getattr(length, name)}" for name in names)


def _results(report: BenchReport, width: int | None) -> list[str]:
    heads = (
        *("Benchmark", "QPS", "E2E Latency (avg)", "TTFT (avg)", "ITL (avg)", "Throughput", "Error Rate"),
        *("Successful Requests", "Prompt tokens per req (avg)", "Decoded tokens per req (avg)"),
    )
    return _fitted([heads, *(_result(step, is_second=step.target != report.url) for step in report.steps)], width)


def _result(step: Step, *, is_second: bool) -> tuple[str, ...]:
    share = error_rate(step)
    return (
        step.id + (" (against)" if is_second else ""),
        f"{step.request_rate:.2f} req/s",
        _mean(step, "e2e", 1, "sec"),
        _mean(step, "ttft", 1000, "ms"),
        _mean(step, "itl", 1000, "ms"),
        f"{step.token_rate:.2f} tokens/sec",
        "-" if share is None else f"{share:.2%}",
        f"{step.ok}/{over(step)}",
        "-" if step.prompt_tokens is None else f"{step.prompt_tokens:.2f}",
        "-" if step.decoded_tokens is None else f"{step.decoded_tokens:.2f}",
    )


def _mean(step: Step, name: str, times: int, unit: str) -> str:
    spread = step.times.get(name)
    return "-" if spread is None or spread.mean is None else f"{times * spread.mean:.2f} {unit}"


def _pairs(rows: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """A table of two columns, the second of which is wrapped."""
    if width is None:
        return _box(rows)
    room = max(width - max(len(name) for name, _ in rows) - _BORDERS, _NARROWEST)
    parts = [(name, textwrap.wrap(text, room, break_on_hyphens=False) or [""]) for name, text in rows]
    return _box([(name if number == 0 else "", line) for name, found in parts for number, line in enumerate(found)])


def _fitted(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """A table that fits: where it is too wide its columns become rows, and it is cut into as many as it takes."""
    drawn = _box(rows)
    if width is None or len(drawn[0]) <= width:
        return drawn
    heads, *columns = rows
    room = width - max(map(len, heads)) - 4
    lines: list[str] = []
    while columns:
        sizes = accumulate(max(map(len, column)) + 3 for column in columns)
        fitting = max(sum(size <= room for size in sizes), 1)
        lines += _box(list(zip(heads, *columns[:fitting], strict=True)))
        columns = columns[fitting:]
    return lines


def _box(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with lines around it; its first row is the head."""
    cells = [[cell if len(cell) <= _CELL else cell[:_CELL] + "…" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = (f"│ {' │ '.join(_padded(row, widths))} │" for row in cells)
    top, middle, bottom = (
        left + cross.join("─" * (width + 2) for width in widths) + right for left, cross, right in ("┌┬┐", "├┼┤", "└┴┘")
    )
    return [top, head, middle, *body, bottom]


def _padded(row: Iterable[str], widths: Iterable[int]) -> Iterable[str]:
    return (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))


# ---- what they do not say


def _step(step: Step, server: str, width: int | None, *, is_full: bool) -> list[str]:
    found = {name: step.times[name] for name in (_names(step) if is_full else _MAIN) if _has(step, name)}
    drawn = wrapped("", f"{step.id}{server}: {_load(step)}", width)
    if found:
        drawn.append(f"  {'':<{_LABEL}}  {'n':>7}" + "".join(f"  {name:>8}" for name in (*_SHOWN, "max")))
    drawn += [f"  {_TIMES[name]:<{_LABEL}}  {_spread(name, spread)}" for name, spread in found.items()]
    for label, text in _facts(step, is_full=is_full):
        drawn += wrapped(f"  {label:<{_LABEL}}  ", text, width)
    return drawn


def _names(step: Step) -> list[str]:
    """All, but where every first token is content there is no need to say it twice."""
    kinds = [name for name in _KINDS if _has(step, name)]
    return [name for name in _TIMES if kinds != ["content"] or name != "content"]


def _has(step: Step, name: str) -> bool:
    return name in step.times and step.times[name].count > 0


def _load(step: Step) -> str:
    """What load it was: who asks when."""
    if not step.is_open:
        return f"closed loop, {count(step.max_vus, 'stream')} at once, {duration(step.seconds)}"
    rate = f"{step.rate:.2f} requests/s" if step.rate is not None else "at given times"
    return f"open loop, {rate}, at most {step.max_vus} at once, {duration(step.seconds)}"


def _spread(name: str, spread: Distribution) -> str:
    numbers = [spread.percentiles.get(percentile) for percentile in _SHOWN]
    shown = [_number(number, is_time=name != "rate") for number in (*numbers, spread.maximum)]
    return f"{_short(spread.count):>7}" + "".join(f"  {text:>8}" for text in shown)


def _number(number: float | None, *, is_time: bool) -> str:
    if number is None:
        return "-"
    return duration(number) if is_time else f"{number:,.1f}"


def _short(number: int) -> str:
    return f"{number}" if number < 10_000 else f"{number / 1000:,.1f}k"


def _facts(step: Step, *, is_full: bool) -> list[tuple[str, str]]:
    """What is worth a line: of one step all, of several only what is not as it should be."""
    facts = []
    if is_full:
        by = "" if step.tokens_by == "usage" else f", counted by {step.tokens_by}"
        facts.append(("tokens/s", f"{step.token_rate:,.1f}   of all answers{by}"))
    if step.good is not None:
        facts.append(("good", f"{step.good:,} of {step.due:,} that were due kept all bounds"))
    if failed(step) or is_full:
        facts.append(("failed", _failed(step)))
    reasons = [(reason, number) for reason, number in step.reasons.items() if reason != End.UNFINISHED]
    facts += [("", f"{number:,} x {reason}") for reason, number in reasons[:_REASONS]]
    if step.ends.get(End.UNFINISHED):
        facts.append(("unfinished", f"{step.ends[End.UNFINISHED]:,} still under way at the end, and left"))
    if step.skipped:
        facts.append(("skipped", f"{step.skipped:,} of {step.due:,}, since {step.max_vus:,} were under way"))
    if step.wrong or is_full:
        facts.append(("wrong", _wrong(step)))
    if step.own.is_bottleneck or is_full:
        facts.append(("this tool", _own(step)))
    return facts


def _failed(step: Step) -> str:
    kinds = ", ".join(f"{number:,} {end}" for end, number in step.ends.items() if end not in NO_FAULT)
    return f"{failed(step):,} of {over(step):,}" + (f"   {kinds}" if failed(step) else "")


def _wrong(step: Step) -> str:
    rules = ", ".join(f"{rule} ({number:,})" for rule, number in step.rules.items())
    return f"{count(step.wrong, 'stream')} broke a rule" + (f": {rules}" if step.wrong else "")


def _own(step: Step) -> str:
    own = step.own
    late = f"{count(own.late_starts, 'late start')}, by up to {duration(own.latest_s)}" if own.late_starts else ""
    said = f"{own.cpu:.0%} of a core, {late or 'no late start'}"
    return f"{said}: it is the bottleneck, and the times are not the server's alone" if own.is_bottleneck else said


def compared_lines(compared: Sequence[Compared]) -> list[str]:
    """Two servers, or two runs, side by side."""
    width = max((len(one.metric) for one in compared), default=0)
    rows = [
        f"{one.metric:<{width}}  {value(parts(one)[1], one.first):>10}  {value(parts(one)[1], one.second):>10}"
        f"  {one.ratio:.2f} ({one.low:.2f} to {one.high:.2f}){', no difference' if one.low <= 1 <= one.high else ''}"
        for one in compared
    ]
    return [f"{'':<{width}}  {'first':>10}  {'second':>10}  ratio", *rows] if rows else []


def _checked(one: Checked) -> str:
    said = "too few samples to say" if one.value is None else value(one.text, one.value)
    return f"{one.text}   {'kept' if one.is_kept else 'not kept'}   {one.step}: {said}"
