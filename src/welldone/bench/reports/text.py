"""The report for a person at a terminal: inference-benchmarker's two tables, and then what they do not say."""

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile

import msgspec

from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.report import AssertionResult, BenchReport, Distribution, MetricComparison, StepResult
from welldone.bench.settings import BenchSettings, LengthSpec
from welldone.bench.stats import METRICS, error_rate
from welldone.reporting import pluralize, sanitize, wrap_text

# The requests as CSV, a row for each: for a spreadsheet or a data frame. Times are seconds of the step.


CSV_COLUMNS = (
    *("step", "target", "end", "status", "finish", "ttft", "itl", "stall", "e2e", "rate", "due_s", "begun_s", "head_s"),
    *("role_s", "reasoning_s", "content_s", "tool_s", "first_s", "last_s", "ended_s", "chunks", "prompt_tokens"),
    *("limit_tokens", "tokens", "counted", "rules", "why"),
)
"""What is measured (of requests that ended well), then when everything came, then counts and reasons."""
_CSV_METRICS = ("ttft", "itl", "stall", "e2e", "rate")
_FORMULA_PREFIXES = ("=", "+", "-", "@")
_CSV_TIME_DIGITS = 6  # of a second, as in our JSON


def render_csv(report: BenchReport) -> str:
    """All requests, step by step."""
    report = sanitize(report)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for step in report.steps:
        table.writerows(
            [_csv_cell(value) for value in (step.id, step.target, *_csv_values(record))] for record in step.records
        )
    return text.getvalue().removesuffix("\n")


def _csv_values(record: BenchRecord) -> list[object]:
    measured = [METRICS[name](record) if record.outcome is RequestOutcome.OK else None for name in _CSV_METRICS]
    first, last = (record.times[0], record.times[-1]) if record.times else (None, None)
    sent = (record.due_s, record.sent_s, record.head_s, record.role_s)
    heard = (record.reasoning_s, record.content_s, record.tool_s, first, last, record.ended_s)
    tokens = (record.prompt_tokens, record.max_tokens, record.tokens, record.tokenizer_tokens)
    said = (" ".join(record.rules), record.error)
    came = (str(record.outcome), record.status, record.finish_reason)
    return [*came, *measured, *sent, *heard, len(record.times), *tokens, *said]


def _csv_cell(value: object) -> object:
    """The value, so that no spreadsheet takes a text of a server for a formula."""
    match value:
        case float():
            return round(value, _CSV_TIME_DIGITS)
        case str() if value.startswith(_FORMULA_PREFIXES):
            return f"'{value}"
        case _:
            return value


# What all forms of a report say in the same words: times, counts, who failed.
#
# What a server sent stands in a report as it came; `welldone.reporting` makes it fit to be drawn.


NEUTRAL_OUTCOMES = (RequestOutcome.OK, RequestOutcome.UNFINISHED)
"""Ends that are not held against a server."""
_RATE_METRICS = ("token_rate", "request_rate", "rate")
_SHARE_METRICS = ("error_rate", "success_rate", "goodput")


def without_records(report: BenchReport) -> BenchReport:
    """The report with every text printable, and without its requests, of which there may be very many."""
    steps = tuple(msgspec.structs.replace(step, records=()) for step in report.steps)
    return sanitize(msgspec.structs.replace(report, steps=steps))


def settings_of_report(report: BenchReport) -> BenchSettings:
    """The settings of the run, as far as the report has them."""
    return msgspec.convert(
        {"url": report.url, **report.config}, BenchSettings, dec_hook=lambda kind, value: kind(value)
    )


def split_metric(comparison: MetricComparison) -> tuple[str, str]:
    """The step that it is about, and the metric: `throughput ttft.p50` has both."""
    step, _, metric = comparison.metric.rpartition(" ")
    return step, metric


def failed_count(step: StepResult) -> int:
    """How many requests ended badly. Those that were left at the end of the step are none of them."""
    return sum(count for end, count in step.outcomes.items() if end not in NEUTRAL_OUTCOMES)


def finished_count(step: StepResult) -> int:
    """How many requests came to an end, good or bad."""
    return step.ok + failed_count(step)


def format_duration(seconds: float) -> str:
    """A time with three digits that count."""
    if seconds < 0.9995:
        value, unit = seconds * 1000, "ms"
    else:
        value, unit = seconds, "s"
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f} {unit}"


def format_metric(metric: str, number: float) -> str:
    """The number of a metric such as `ttft.p99`, or of what is said of it, in its unit."""
    kind = "".join(takewhile(lambda char: char.isalnum() or char == "_", metric))
    if kind in _SHARE_METRICS:
        return f"{number:.1%}"
    return f"{number:,.2f}/s" if kind in _RATE_METRICS else format_duration(number)


_BORDER_WIDTH = 7  # characters around two cells
_MIN_CELL_WIDTH = 20  # of a cell that is wrapped
_MAX_CELL_WIDTH = 100  # characters of a cell: more than any that we know of, and a terminal takes no more
_MAX_REASONS_SHOWN = 3  # of what failed, that are named
_TABLE_PERCENTILES = ("p50", "p90", "p99")
_TIME_LABELS = {
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
_MAIN_METRICS = ("ttft", "itl", "e2e")
_FIRST_TOKEN_METRICS = ("reasoning", "content", "tool")
_LABEL_WIDTH = max(map(len, _TIME_LABELS.values()))


def report_lines(report: BenchReport, width: int | None = None) -> list[str]:
    """The report, line by line. Of one step all times are shown, of several the main ones, and what went wrong.

    It fits into `width` columns; None: it is as wide as it is.
    """
    report = without_records(report)
    drawn = [*wrap_text("", _heading(report), width), "", *_parameters(report, width), ""]
    if report.steps:
        drawn += [*_results(report, width), ""]
    measured = [step for step in report.steps if step.id != "warmup"]
    is_full = len(measured) <= (2 if report.against else 1)
    for step in measured:
        drawn += [*_step_lines(step, _server_suffix(report, step), width, is_full=is_full), ""]
    for part in (comparison_lines(report.comparisons), [_assertion_line(one) for one in report.assertion_results]):
        drawn += [*part, ""] if part else []
    return [*drawn, f"ended early: {report.incomplete_reason}"] if not report.is_complete else drawn[:-1]


def _heading(report: BenchReport) -> str:
    against = f", against {report.against}" if report.against else ""
    return f"{report.model} at {report.url}{against}, endpoint {report.endpoint}"


def _server_suffix(report: BenchReport, step: StepResult) -> str:
    """Which of two servers, or nothing where there is one."""
    return f" at {step.target}" if report.against else ""


# ---- the two tables


def _parameters(report: BenchReport, width: int | None) -> list[str]:
    settings = settings_of_report(report)
    return _two_column_table(
        [
            ("Parameter", "Value"),
            ("Max VUs", str(settings.max_vus)),
            ("Duration", f"{settings.duration_s:g}"),
            ("Warmup Duration", f"{settings.warmup_s:g}"),
            ("Benchmark Kind", settings.kind.title()),
            ("Rates", f"[{', '.join(str(float(rate)) for rate in settings.rates)}]" if settings.rates else "N/A"),
            ("Num Rates", str(settings.num_rates)),
            ("Prompt Options", _format_length(settings.prompt)),
            ("Decode Options", _format_length(settings.decode)),
            ("Tokenizer", report.tokenizer),
            ("Extra Metadata", ", ".join(f"{name}={text}" for name, text in settings.meta.items()) or "N/A"),
        ],
        width,
    )


def _format_length(length: LengthSpec | None) -> str:
    if length is None:
        return "N/A"
    names = ("num_tokens", "min_tokens", "max_tokens", "variance")
    return ",".join(f"{name}={getattr(length, name)}" for name in names)


def _results(report: BenchReport, width: int | None) -> list[str]:
    heads = (
        *("Benchmark", "QPS", "E2E Latency (avg)", "TTFT (avg)", "ITL (avg)", "Throughput", "Error Rate"),
        *("Successful Requests", "Prompt tokens per req (avg)", "Decoded tokens per req (avg)"),
    )
    return _fitted_table(
        [heads, *(_result_row(step, is_second=step.target != report.url) for step in report.steps)], width
    )


def _result_row(step: StepResult, *, is_second: bool) -> tuple[str, ...]:
    share = error_rate(step)
    return (
        step.id + (" (against)" if is_second else ""),
        f"{step.request_rate:.2f} req/s",
        _format_mean(step, "e2e", 1, "sec"),
        _format_mean(step, "ttft", 1000, "ms"),
        _format_mean(step, "itl", 1000, "ms"),
        f"{step.token_rate:.2f} tokens/sec",
        "-" if share is None else f"{share:.2%}",
        f"{step.ok}/{finished_count(step)}",
        "-" if step.prompt_tokens is None else f"{step.prompt_tokens:.2f}",
        "-" if step.decoded_tokens is None else f"{step.decoded_tokens:.2f}",
    )


def _format_mean(step: StepResult, name: str, times: int, unit: str) -> str:
    spread = step.times.get(name)
    return "-" if spread is None or spread.mean is None else f"{times * spread.mean:.2f} {unit}"


def _two_column_table(rows: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """A table of two columns, the second of which is wrapped."""
    if width is None:
        return _boxed_table(rows)
    room = max(width - max(len(name) for name, _ in rows) - _BORDER_WIDTH, _MIN_CELL_WIDTH)
    parts = [(name, textwrap.wrap(text, room, break_on_hyphens=False) or [""]) for name, text in rows]
    return _boxed_table(
        [(name if number == 0 else "", line) for name, found in parts for number, line in enumerate(found)]
    )


def _fitted_table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """A table that fits: where it is too wide its columns become rows, and it is cut into as many as it takes."""
    drawn = _boxed_table(rows)
    if width is None or len(drawn[0]) <= width:
        return drawn
    heads, *columns = rows
    room = width - max(map(len, heads)) - 4
    lines: list[str] = []
    while columns:
        sizes = accumulate(max(map(len, column)) + 3 for column in columns)
        fitting = max(sum(size <= room for size in sizes), 1)
        lines += _boxed_table(list(zip(heads, *columns[:fitting], strict=True)))
        columns = columns[fitting:]
    return lines


def _boxed_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with lines around it; its first row is the head."""
    cells = [[cell if len(cell) <= _MAX_CELL_WIDTH else cell[:_MAX_CELL_WIDTH] + "…" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = (f"│ {' │ '.join(_padded(row, widths))} │" for row in cells)
    top, middle, bottom = (
        left + cross.join("─" * (width + 2) for width in widths) + right for left, cross, right in ("┌┬┐", "├┼┤", "└┴┘")
    )
    return [top, head, middle, *body, bottom]


def _padded(row: Iterable[str], widths: Iterable[int]) -> Iterable[str]:
    return (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))


# ---- what they do not say


def _step_lines(step: StepResult, server: str, width: int | None, *, is_full: bool) -> list[str]:
    found = {
        name: step.times[name]
        for name in (_metrics_shown(step) if is_full else _MAIN_METRICS)
        if _has_metric(step, name)
    }
    drawn = wrap_text("", f"{step.id}{server}: {_describe_load(step)}", width)
    if found:
        drawn.append(
            f"  {'':<{_LABEL_WIDTH}}  {'n':>7}" + "".join(f"  {name:>8}" for name in (*_TABLE_PERCENTILES, "max"))
        )
    drawn += [
        f"  {_TIME_LABELS[name]:<{_LABEL_WIDTH}}  {_distribution_cells(name, spread)}" for name, spread in found.items()
    ]
    for label, text in _step_remarks(step, is_full=is_full):
        drawn += wrap_text(f"  {label:<{_LABEL_WIDTH}}  ", text, width)
    return drawn


def _metrics_shown(step: StepResult) -> list[str]:
    """All, but where every first token is content there is no need to say it twice."""
    kinds = [name for name in _FIRST_TOKEN_METRICS if _has_metric(step, name)]
    return [name for name in _TIME_LABELS if kinds != ["content"] or name != "content"]


def _has_metric(step: StepResult, name: str) -> bool:
    return name in step.times and step.times[name].count > 0


def _describe_load(step: StepResult) -> str:
    """What load it was: who asks when."""
    if not step.is_open:
        return f"closed loop, {pluralize(step.max_vus, 'stream')} at once, {format_duration(step.seconds)}"
    rate = f"{step.rate:.2f} requests/s" if step.rate is not None else "at given times"
    return f"open loop, {rate}, at most {step.max_vus} at once, {format_duration(step.seconds)}"


def _distribution_cells(name: str, spread: Distribution) -> str:
    numbers = [spread.percentiles.get(percentile) for percentile in _TABLE_PERCENTILES]
    shown = [_format_number(number, is_time=name != "rate") for number in (*numbers, spread.maximum)]
    return f"{_format_count(spread.count):>7}" + "".join(f"  {text:>8}" for text in shown)


def _format_number(number: float | None, *, is_time: bool) -> str:
    if number is None:
        return "-"
    return format_duration(number) if is_time else f"{number:,.1f}"


def _format_count(number: int) -> str:
    return f"{number}" if number < 10_000 else f"{number / 1000:,.1f}k"


def _step_remarks(step: StepResult, *, is_full: bool) -> list[tuple[str, str]]:
    """What is worth a line: of one step all, of several only what is not as it should be."""
    facts = []
    if is_full:
        by = "" if step.tokens_by == "usage" else f", counted by {step.tokens_by}"
        facts.append(("tokens/s", f"{step.token_rate:,.1f}   of all answers{by}"))
    if step.good is not None:
        facts.append(("good", f"{step.good:,} of {step.due:,} that were due kept all bounds"))
    if failed_count(step) or is_full:
        facts.append(("failed", _describe_failures(step)))
    reasons = [(reason, number) for reason, number in step.reasons.items() if reason != RequestOutcome.UNFINISHED]
    facts += [("", f"{number:,} x {reason}") for reason, number in reasons[:_MAX_REASONS_SHOWN]]
    if step.outcomes.get(RequestOutcome.UNFINISHED):
        facts.append(
            ("unfinished", f"{step.outcomes[RequestOutcome.UNFINISHED]:,} still under way at the end, and left")
        )
    if step.skipped:
        facts.append(("skipped", f"{step.skipped:,} of {step.due:,}, since {step.max_vus:,} were under way"))
    if step.invalid_streams or is_full:
        facts.append(("wrong", _describe_violations(step)))
    if step.client.is_bottleneck or is_full:
        facts.append(("this tool", _describe_client(step)))
    return facts


def _describe_failures(step: StepResult) -> str:
    kinds = ", ".join(f"{number:,} {end}" for end, number in step.outcomes.items() if end not in NEUTRAL_OUTCOMES)
    return f"{failed_count(step):,} of {finished_count(step):,}" + (f"   {kinds}" if failed_count(step) else "")


def _describe_violations(step: StepResult) -> str:
    rules = ", ".join(f"{rule} ({number:,})" for rule, number in step.rules.items())
    return f"{pluralize(step.invalid_streams, 'stream')} broke a rule" + (f": {rules}" if step.invalid_streams else "")


def _describe_client(step: StepResult) -> str:
    own = step.client
    late = (
        f"{pluralize(own.late_starts, 'late start')}, by up to {format_duration(own.max_delay_s)}"
        if own.late_starts
        else ""
    )
    said = f"{own.cpu:.0%} of a core, {late or 'no late start'}"
    return f"{said}: it is the bottleneck, and the times are not the server's alone" if own.is_bottleneck else said


def comparison_lines(comparisons: Sequence[MetricComparison]) -> list[str]:
    """Two servers, or two runs, side by side."""
    width = max((len(one.metric) for one in comparisons), default=0)
    rows = [
        f"{one.metric:<{width}}  {format_metric(split_metric(one)[1], one.first):>10}  {format_metric(split_metric(one)[1], one.second):>10}"
        f"  {one.ratio:.2f} ({one.low:.2f} to {one.high:.2f}){', no difference' if one.low <= 1 <= one.high else ''}"
        for one in comparisons
    ]
    return [f"{'':<{width}}  {'first':>10}  {'second':>10}  ratio", *rows] if rows else []


def _assertion_line(one: AssertionResult) -> str:
    said = "too few samples to say" if one.value is None else format_metric(one.text, one.value)
    return f"{one.text}   {'kept' if one.passed else 'not kept'}   {one.step}: {said}"
