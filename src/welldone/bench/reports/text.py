"""Reports as text: the terminal output, with the two tables of inference-benchmarker, and the CSV of requests."""

import csv
import io
import textwrap
from collections.abc import Sequence
from itertools import accumulate, takewhile

import msgspec

from welldone.bench.report import (
    AssertionResult,
    BenchRecord,
    BenchReport,
    MetricComparison,
    RequestOutcome,
    StepResult,
)
from welldone.bench.settings import BenchSettings, LengthSpec
from welldone.bench.stats import MAIN_METRICS, METRICS
from welldone.reporting import format_table, pluralize, sanitize, wrap_text

# CSV: a row per request. Times are seconds from the start of the step.

CSV_COLUMNS = (
    *("step", "target", "outcome", "status", "finish_reason", "ttft", "itl", "stall", "e2e", "rate", "due_s", "sent_s"),
    *("head_s", "role_s", "reasoning_s", "content_s", "tool_s", "first_s", "last_s", "ended_s", "chunks"),
    *("prompt_tokens", "max_tokens", "tokens", "tokenizer_tokens", "rules", "error"),
)
"""Metrics (of successful requests), then timestamps, then counts and errors."""
_CSV_METRICS = ("ttft", "itl", "stall", "e2e", "rate")
_FORMULA_PREFIXES = ("=", "+", "-", "@")
_CSV_TIME_DIGITS = 6  # as in the JSON report


def render_csv(report: BenchReport) -> str:
    """Return all requests, step by step."""
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
    times: Sequence[float | None] = record.times or (None,)
    values: dict[str, object] = {"outcome": str(record.outcome), "rules": " ".join(record.rules)}
    values |= {"first_s": times[0], "last_s": times[-1], "chunks": len(record.times)}
    values |= {name: METRICS[name](record) if record.outcome is RequestOutcome.OK else None for name in _CSV_METRICS}
    return [values[name] if name in values else getattr(record, name) for name in CSV_COLUMNS[2:]]


def _csv_cell(value: object) -> object:
    """Quote text from a server that a spreadsheet would run as a formula."""
    if isinstance(value, float):
        return round(value, _CSV_TIME_DIGITS)
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_PREFIXES) else value


# Functions for all formats. Text from servers is sanitized with `welldone.reporting` before it is printed.

NEUTRAL_OUTCOMES = (RequestOutcome.OK, RequestOutcome.UNFINISHED)
"""Outcomes that do not count as failures."""
_RATE_METRICS = ("token_rate", "request_rate", "rate")
_SHARE_METRICS = ("error_rate", "success_rate", "goodput")


def without_records(report: BenchReport) -> BenchReport:
    """Return the sanitized report without its requests, of which there may be very many."""
    steps = tuple(msgspec.structs.replace(step, records=()) for step in report.steps)
    return sanitize(msgspec.structs.replace(report, steps=steps))


def settings_of_report(report: BenchReport) -> BenchSettings:
    """Return the settings of the run, as far as the report has them."""
    return msgspec.convert(
        {"url": report.url, **report.config}, BenchSettings, dec_hook=lambda value_type, value: value_type(value)
    )


def split_metric(comparison: MetricComparison) -> tuple[str, str]:
    """Split `throughput ttft.p50` into step and metric."""
    step, _, metric = comparison.metric.rpartition(" ")
    return step, metric


def format_duration(seconds: float) -> str:
    """Format a duration with three significant digits."""
    value, unit = (seconds * 1000, "ms") if seconds < 0.9995 else (seconds, "s")
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f} {unit}"


def format_metric(metric: str, number: float) -> str:
    """Format a value of a metric such as `ttft.p99`, or of an assertion about it, with its unit."""
    metric_name = "".join(takewhile(lambda char: char.isalnum() or char == "_", metric))
    if metric_name in _SHARE_METRICS:
        return f"{number:.1%}"
    return f"{number:,.2f}/s" if metric_name in _RATE_METRICS else format_duration(number)


_BORDER_WIDTH = 7  # characters around two cells
_MIN_CELL_WIDTH = 20  # of a wrapped cell
_MAX_CELL_WIDTH = 100
_MAX_REASONS_SHOWN = 3  # of failures
_TABLE_PERCENTILES = ("p50", "p90", "p99")
_TIME_LABELS = {
    "head": "headers (head)",
    "role": "role",
    "ttft": "first token (ttft)",
    "reasoning": "first reasoning (reasoning)",
    "content": "first content (content)",
    "tool": "first tool call (tool)",
    "itl": "between tokens (itl)",
    "gap": "between chunks (gap)",
    "stall": "longest gap (stall)",
    "e2e": "complete answer (e2e)",
    "rate": "tokens/s per request (rate)",
}
"""Labels, with the name that assertions use."""
_FIRST_TOKEN_METRICS = ("reasoning", "content", "tool")
_LABEL_WIDTH = max(map(len, _TIME_LABELS.values()))


def report_lines(report: BenchReport, width: int | None = None) -> list[str]:
    """Return the report as lines. Of a single step all metrics are shown, of several the main ones and the problems.

    The lines fit into `width` columns; None: no limit.
    """
    report = without_records(report)
    against = f", against {report.against}" if report.against else ""
    heading = f"{report.model} at {report.url}{against}, endpoint {report.endpoint}"
    lines = [*wrap_text("", heading, width), "", *_parameters(report, width), ""]
    if report.steps:
        rows = [_result_row(step, is_second=step.target != report.url) for step in report.steps]
        lines += [*_fitted_table([list(rows[0]), *(list(row.values()) for row in rows)], width), ""]
    measured = [step for step in report.steps if not step.is_warmup]
    is_full = len(measured) <= (2 if report.against else 1)
    for step in measured:
        server = f" at {step.target}" if report.against else ""
        lines += [*_step_lines(step, server, width, is_full=is_full), ""]
    assertions = [line for result in report.assertion_results for line in wrap_text("", _assertion_line(result), width)]
    for section in (comparison_lines(report.comparisons, width), assertions):
        lines += [*section, ""] if section else []
    return [*lines, f"ended early: {report.incomplete_reason}"] if not report.is_complete else lines[:-1]


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
    return ",".join(f"{name}={number}" for name, number in msgspec.structs.asdict(length).items())


def _result_row(step: StepResult, *, is_second: bool) -> dict[str, str]:
    return {
        "Benchmark": step.id + (" (against)" if is_second else ""),
        "QPS": f"{step.request_rate:.2f} req/s",
        "E2E Latency (avg)": _format_mean(step, "e2e", 1, "sec"),
        "TTFT (avg)": _format_mean(step, "ttft", 1000, "ms"),
        "ITL (avg)": _format_mean(step, "itl", 1000, "ms"),
        "Throughput": f"{step.token_rate:.2f} tokens/sec",
        "Error Rate": "-" if step.error_rate is None else f"{step.error_rate:.2%}",
        "Successful Requests": f"{step.ok}/{step.finished}",
        "Prompt tokens per req (avg)": "-" if step.prompt_tokens is None else f"{step.prompt_tokens:.2f}",
        "Decoded tokens per req (avg)": "-" if step.decoded_tokens is None else f"{step.decoded_tokens:.2f}",
    }


def _format_mean(step: StepResult, name: str, factor: int, unit: str) -> str:
    mean = step.statistic(name, "mean")
    return "-" if mean is None else f"{factor * mean:.2f} {unit}"


def _two_column_table(rows: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Format a table of two columns and wrap the second."""
    if width is None:
        return _boxed_table(rows)
    room = max(width - max(len(name) for name, _ in rows) - _BORDER_WIDTH, _MIN_CELL_WIDTH)
    parts = [(name, textwrap.wrap(text, room, break_on_hyphens=False) or [""]) for name, text in rows]
    return _boxed_table(
        [(name if number == 0 else "", line) for name, lines in parts for number, line in enumerate(lines)]
    )


def _fitted_table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Format a table. If it is too wide, it is transposed, and split into as many tables as needed."""
    table = _boxed_table(rows)
    if width is None or len(table[0]) <= width:
        return table
    headers, *columns = rows
    room = width - max(map(len, headers)) - 4
    lines: list[str] = []
    while columns:
        sizes = accumulate(max(map(len, column)) + 3 for column in columns)
        fitting = max(sum(size <= room for size in sizes), 1)
        lines += _boxed_table(list(zip(headers, *columns[:fitting], strict=True)))
        columns = columns[fitting:]
    return lines


def _boxed_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table with borders; its first row is the header."""
    cells = [[cell if len(cell) <= _MAX_CELL_WIDTH else cell[:_MAX_CELL_WIDTH] + "…" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = [[f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in cells]
    head, *body = (f"│ {' │ '.join(row)} │" for row in padded)
    top, middle, bottom = (
        left + cross.join("─" * (width + 2) for width in widths) + right for left, cross, right in ("┌┬┐", "├┼┤", "└┴┘")
    )
    return [top, head, middle, *body, bottom]


def _step_lines(step: StepResult, server: str, width: int | None, *, is_full: bool) -> list[str]:
    names = [name for name in (_metrics_shown(step) if is_full else MAIN_METRICS) if _has_metric(step, name)]
    lines = wrap_text("", f"{step.id}{server}: {_describe_load(step)}", width)
    if names:
        heads = (*_TABLE_PERCENTILES, "max")
        lines.append(f"  {'':<{_LABEL_WIDTH}}  {'n':>7}" + "".join(f"  {head:>8}" for head in heads))
    lines += [f"  {_TIME_LABELS[name]:<{_LABEL_WIDTH}}  {_distribution_cells(step, name)}" for name in names]
    for label, text in _step_remarks(step, is_full=is_full):
        lines += wrap_text(f"  {label:<{_LABEL_WIDTH}}  ", text, width)
    return lines


def _metrics_shown(step: StepResult) -> list[str]:
    """Return all metrics, but not `content` if every first token is content: it equals `ttft`."""
    kinds = [name for name in _FIRST_TOKEN_METRICS if _has_metric(step, name)]
    return [name for name in _TIME_LABELS if kinds != ["content"] or name != "content"]


def _has_metric(step: StepResult, name: str) -> bool:
    return name in step.times and step.times[name].count > 0


def _describe_load(step: StepResult) -> str:
    """Describe the load of a step."""
    if not step.is_open:
        return f"closed loop, {pluralize(step.max_vus, 'concurrent stream')}, {format_duration(step.seconds)}"
    rate = f"{step.rate:.2f} requests/s" if step.rate is not None else "at given times"
    return f"open loop, {rate}, at most {step.max_vus} in flight, {format_duration(step.seconds)}"


def _distribution_cells(step: StepResult, name: str) -> str:
    count = step.times[name].count
    cells = [f"{count if count < 10_000 else f'{count / 1000:,.1f}k':>7}"]
    for number in (step.statistic(name, statistic) for statistic in (*_TABLE_PERCENTILES, "max")):
        text = "-" if number is None else f"{number:,.1f}" if name == "rate" else format_duration(number)
        cells.append(f"{text:>8}")
    return "  ".join(cells)


def _step_remarks(step: StepResult, *, is_full: bool) -> list[tuple[str, str]]:
    """Return labelled remarks: of a single step all of them, of several only the problems."""
    remarks = []
    if is_full:
        source = "" if step.tokens_by == "usage" else f", counted by {step.tokens_by}"
        remarks.append(("tokens/s", f"{step.token_rate:,.1f}   of all answers{source}"))
    if step.good is not None:
        remarks.append(("good", f"{step.good:,} of {step.due:,} due requests within all limits"))
    if step.failed or is_full:
        kinds = [f"{number:,} {name}" for name, number in step.outcomes.items() if name not in NEUTRAL_OUTCOMES]
        remarks.append(
            ("failed", "   ".join(filter(None, (f"{step.failed:,} of {step.finished:,}", ", ".join(kinds)))))
        )
    reasons = [(reason, number) for reason, number in step.reasons.items() if reason != RequestOutcome.UNFINISHED]
    remarks += [("", f"{number:,} x {reason}") for reason, number in reasons[:_MAX_REASONS_SHOWN]]
    if step.outcomes.get(RequestOutcome.UNFINISHED):
        remarks.append(("unfinished", f"{step.outcomes[RequestOutcome.UNFINISHED]:,} in flight at the end, abandoned"))
    if step.skipped:
        remarks.append(("skipped", f"{step.skipped:,} of {step.due:,}, because {step.max_vus:,} were in flight"))
    if step.invalid_streams or is_full:
        rules = ", ".join(f"{rule} ({number:,})" for rule, number in step.rules.items())
        broken = f"{pluralize(step.invalid_streams, 'stream')} broke a rule"
        remarks.append(("invalid", f"{broken}: {rules}" if step.invalid_streams else broken))
    if step.client.is_bottleneck or is_full:
        remarks.append(("this client", _describe_client(step)))
    return remarks


def _describe_client(step: StepResult) -> str:
    client = step.client
    late = "no late start"
    if client.late_starts:
        late = f"{pluralize(client.late_starts, 'late start')}, by up to {format_duration(client.max_delay_s)}"
    text = f"{client.cpu:.0%} of a core, {late}"
    return f"{text}: it is the bottleneck, and distorts the times" if client.is_bottleneck else text


def comparison_lines(comparisons: Sequence[MetricComparison], width: int | None = None) -> list[str]:
    """Return a table of two servers or two runs."""
    rows: list[tuple[str, ...]] = [("", "first", "second", "ratio")]
    for comparison in comparisons:
        metric = split_metric(comparison)[1]
        values = [f"{format_metric(metric, value):>10}" for value in (comparison.first, comparison.second)]
        interval = f"{comparison.ratio:.2f} ({comparison.low:.2f} to {comparison.high:.2f})"
        verdict = ", no difference" if comparison.low <= 1 <= comparison.high else ""
        rows.append((comparison.metric, *values, interval + verdict))
    return format_table(rows, width, right_aligned=frozenset({1, 2})) if comparisons else []


def _assertion_line(result: AssertionResult) -> str:
    value = "too few samples" if result.value is None else format_metric(result.text, result.value)
    return f"{result.text}   {'passed' if result.passed else 'failed'}   {result.step}: {value}"
