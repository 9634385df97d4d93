"""HTML report: one page without scripts, fonts, images or network access."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pkgutil import get_data
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.report import AssertionResult, BenchReport, MetricComparison, StepResult
from welldone.bench.reports import plots
from welldone.bench.reports.plots import PlotLine, format_number, format_percent, format_seconds, line_plot
from welldone.bench.reports.step_plots import step_sections
from welldone.bench.reports.text import format_metric, split_metric, without_records
from welldone.bench.stats import FIRST_IS_BETTER, NO_DIFFERENCE, SECOND_IS_BETTER, comparison_verdict
from welldone.reporting import code, element, html_document, html_section, html_table, pluralize, table_row

# Throughput and latency by load: the steps of a run as points of lines.


_LATENCY_TITLES = {"ttft": "Time to first token", "itl": "Time between tokens", "e2e": "Time of the complete answer"}
_STATISTICS = ("mean", "p50", "p90", "p99")


def load_curves(report: BenchReport) -> list[Element]:
    """Return the section with the curves; empty for fewer than two loads."""
    has_users = report.kind == "concurrency"
    name = "concurrent users" if has_users else "requests/s (target)"
    steps = [(float(step.max_vus) if has_users else step.rate, step) for step in report.steps if not step.is_warmup]
    loads = [(load, step) for load, step in steps if load is not None]
    if len({load for load, _ in loads}) < 2:
        return []
    targets = list(dict.fromkeys(step.target for _, step in loads))[:2]  # there are at most two
    several = [[point for point in loads if point[1].target == target] for target in targets]
    x = msgspec.structs.replace(plots.linear_axis([load for load, _ in loads]), unit=name)
    tokens = [*_target_lines(several, lambda step: step.token_rate), *_max_throughput_lines(report, loads)]
    requests = _target_lines(several, lambda step: step.request_rate)
    lost = _target_lines(several, lambda step: 100 * (step.failed + step.skipped) / step.due if step.due else 0.0)
    rates = [
        line_plot("Tokens", tokens, x=x, y="tokens/s"),
        line_plot("Successful requests", requests, x=x, y="requests/s"),
        line_plot("Failed or skipped requests", lost, x=x, y="% of those due"),
    ]
    times = [
        line_plot(title, _latency_lines(several, metric), x=x, y="", format_value=format_seconds)
        for metric, title in _LATENCY_TITLES.items()
    ]
    curves = [part for pair in zip(rates, times, strict=True) for part in pair]
    return [html_section("Results by load", element("div", *curves, class_="plots"))]


_LoadPoints = Sequence[tuple[float, StepResult]]


def _target_lines(several: Sequence[_LoadPoints], measure: Callable[[StepResult], float]) -> list[PlotLine]:
    names = ["first server", "second server"] if len(several) > 1 else ["measured"]
    return [
        PlotLine(name=name, style=look, points=[(load, measure(step)) for load, step in loads], is_dashed=look > 0)
        for look, (name, loads) in enumerate(zip(names, several, strict=True))
    ]


def _max_throughput_lines(report: BenchReport, loads: _LoadPoints) -> list[PlotLine]:
    """Return a reference line at the maximum throughput."""
    levels = [load for load, _ in loads]
    lines = []
    for step in report.steps:
        if step.id == "throughput" and step.target == report.url:
            name = f"maximum: {format_number(step.token_rate)}"
            points = [(end, step.token_rate) for end in (min(levels), max(levels))]
            lines.append(PlotLine(name=name, style=2, points=points, is_dashed=True, has_points=False))
    return lines


def _latency_lines(several: Sequence[_LoadPoints], metric: str) -> list[PlotLine]:
    lines = []
    for second, loads in enumerate(several):
        for look, statistic in enumerate(_STATISTICS):
            values = [(load, step.statistic(metric, statistic)) for load, step in loads]
            name = f"{statistic}, {'second' if second else 'first'}" if len(several) > 1 else statistic
            points = [(load, value) for load, value in values if value is not None]
            lines.append(PlotLine(name=name, style=look, points=points, is_dashed=bool(second)))
    return lines


_VERDICT_CLASSES = {FIRST_IS_BETTER: "pass", NO_DIFFERENCE: "quiet", SECOND_IS_BETTER: "fail"}
"""CSS classes from the point of view of the first server."""
_TIME_HEADINGS = {"ttft": "first token (TTFT)", "itl": "between tokens (ITL)", "e2e": "complete answer (E2E)"}


def render_html(report: BenchReport) -> str:
    """Return the page: assertions, warnings, comparison, steps as a table and as plots, settings."""
    report = _printable_report(report)
    body = element(
        "body",
        _header(report),
        *_warnings(report.steps),
        *_assertion_table(report.assertion_results),
        *_comparison_section(report),
        *_steps_table(report),
        *load_curves(report),
        *step_sections(report.steps),
        _settings_section(report),
    )
    style = (get_data("welldone.bench.reports", "report.css") or b"").decode()
    return html_document(f"welldone bench: {report.model}, {report.kind}", style, body)


def _printable_report(report: BenchReport) -> BenchReport:
    """Return the report with sanitized texts. Errors of requests are sanitized when they are drawn."""
    calm = without_records(report)
    pairs = zip(calm.steps, report.steps, strict=True)
    steps = tuple(msgspec.structs.replace(step, records=given.records) for step, given in pairs)
    return msgspec.structs.replace(calm, steps=steps)


def _header(report: BenchReport) -> Element:
    parts: list[str | Element] = [code(report.model), " at ", code(report.url)]
    if report.against is not None:
        parts += [", alternating with ", code(report.against)]
    parts.append(f", endpoint {report.endpoint}")
    paragraphs = [element("p", *parts)]
    if not report.is_complete:
        reason = report.incomplete_reason or "unknown reason"
        paragraphs.append(element("p", f"Ended early: {reason}.", class_="note"))
    explanation = (
        f"Tokens are counted by {report.tokenizer}. Metrics cover successful requests only. "
        "Percentiles need at least ten samples above them."
    )
    paragraphs.append(element("p", explanation))
    paragraphs.append(element("p", f"{report.began} to {report.ended}, welldone {report.tool}", class_="quiet"))
    title = element("h1", f"welldone bench: {report.kind}", *_assertion_summary(report.assertion_results))
    return element("header", title, *paragraphs)


def _assertion_summary(results: Sequence[AssertionResult]) -> list[str | Element]:
    if not results:
        return []
    count, failed = pluralize(len(results), "assertion"), sum(not result.passed for result in results)
    words = f"{failed} of {count} failed" if failed else f"{count} passed"
    return [", ", element("span", words, class_="fail" if failed else "pass")]


def _warnings(steps: Sequence[StepResult]) -> list[Element]:
    warnings = []
    for step in steps:
        client = step.client
        if client.is_bottleneck:
            warnings.append(
                f"{step.id}: this client was the bottleneck ({format_percent(client.cpu)} of a core, "
                f"{pluralize(client.late_starts, 'late start')}, the latest by {format_seconds(client.max_delay_s)}). "
                "Its numbers say more about the client than about the server."
            )
        if step.skipped:
            warnings.append(
                f"{step.id}: {step.skipped:,} of {pluralize(step.due, 'request')} were skipped, because "
                f"{step.max_vus:,} were in flight."
            )
        if not step.ok:
            warnings.append(f"{step.id}: no request succeeded.")
    return [element("p", words, class_="note") for words in warnings]


def _assertion_table(results: Sequence[AssertionResult]) -> list[Element]:
    rows = []
    for result in results:
        value = "too few samples" if result.value is None else _format_value(result.text, result.value)
        word, css_class = ("passed", "pass") if result.passed else ("failed", "fail")
        rows.append(table_row((code(result.text), result.step, value, element("span", word, class_=css_class))))
    return [html_section("Assertions", html_table(("assertion", "step", "value", ""), rows))] if rows else []


def _comparison_section(report: BenchReport) -> list[Element]:
    if not report.comparisons:
        return []
    rows = []
    for comparison in report.comparisons:
        metric = split_metric(comparison)[1]
        ratio, low, high = (format_number(value) for value in (comparison.ratio, comparison.low, comparison.high))
        values = [_format_value(metric, value) for value in (comparison.first, comparison.second)]
        verdict = comparison_verdict(comparison)
        rows.append(table_row((comparison.metric, *values, ratio, f"{low} to {high}", verdict)))
    figures = [
        ratio_plot(f"First / second: {step}", list(group))
        for step, group in groupby(report.comparisons, key=lambda comparison: split_metric(comparison)[0])
    ]
    table = html_table(("", "first", "second", "ratio", "interval", ""), rows)
    servers = element("p", code(report.url), " (first) and ", code(report.against or ""), " (second)")
    return [html_section("Comparison", servers, *figures, table)]


def ratio_plot(title: str, comparisons: Sequence[MetricComparison]) -> Element:
    """Return ratios with their intervals, on a logarithmic axis: 2 and 0.5 are equally far from 1."""
    rows = [(comparison, (comparison.ratio, comparison.low, comparison.high)) for comparison in comparisons]
    rows = [row for row in rows if all(math.isfinite(value) and value > 0 for value in row[1])]
    if not rows:
        return plots.empty_figure(title, "No data.")
    x = plots.log_axis([0.8, 1.25, *(value for _, values in rows for value in values)])
    names = [split_metric(comparison)[1][:20] for comparison, _ in rows]
    y = plots.Axis(low=0, high=len(rows), ticks=tuple((at + 0.5, name) for at, name in enumerate(reversed(names))))
    height = 80.0 + 28 * len(rows)
    frame = plots.PlotFrame(x=x, y=y, width=plots.WIDE_WIDTH, height=height, left=150.0, right=40.0)
    bands = []
    for (comparison, values), (level, _) in zip(rows, reversed(y.ticks), strict=True):
        (ratio, top), (low, _), (high, _) = (frame.point(value, level) for value in values)
        words = "{}, between {} and {}".format(*map(format_number, values))
        band = element("path", d=plots.rectangle_path(low, top - 5, high - low, 10), class_="band")
        marker = element("path", d=plots.svg_path("M", ratio, top, plots.MARKER_SHAPES[0]))
        css_class = _VERDICT_CLASSES[comparison_verdict(comparison)]
        bands.append(element("g", element("title", f"{comparison.metric}: {words}"), band, marker, class_=css_class))
    svg = plots.plot_svg(frame, "ratio", "", *plots.vertical_marker(frame, x.position(1), ""), *bands)
    return plots.figure(title, svg, note="An interval that contains 1 means no difference.")


def _steps_table(report: BenchReport) -> list[Element]:
    if not report.steps:
        return [html_section("Steps", element("p", "No step ran."))]
    rows = [_step_cells(report, step) for step in report.steps]
    before, _, after = rows[0]
    groups = [element("th", words, colspan=str(len(_STATISTICS))) for words in _TIME_HEADINGS.values()]
    names = (*before, *(_STATISTICS * len(_TIME_HEADINGS)), *after)
    body = [
        element("tr", *(element("th", "") for _ in before), *groups, *(element("th", "") for _ in after)),
        table_row(names, "th"),
        *(table_row((*first.values(), *times, *last.values())) for first, times, last in rows),
    ]
    return [html_section("Steps", element("div", element("table", *body), class_="scroll"))]


def _step_cells(report: BenchReport, step: StepResult) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Return the cells of a step by heading, and between them those of the times."""
    server = {} if report.against is None else {"server": "first" if step.target == report.url else "second"}
    before = {
        "step": step.id,
        **server,
        "load": _load_description(step),
        "requests/s": format_number(step.request_rate),
        "tokens/s": format_number(step.token_rate),
        "successful": f"{step.ok:,} of {step.requests:,}",
    }
    times = [format_seconds(step.statistic(metric, name)) for metric in _TIME_HEADINGS for name in _STATISTICS]
    after = {
        "skipped": f"{step.skipped:,}",
        "within limits": "-" if step.good is None else f"{step.good:,}",
        "broke a rule": f"{step.invalid_streams:,}",
        "prompt tokens": format_number(step.prompt_tokens),
        "tokens": format_number(step.decoded_tokens),
        "this client": f"{format_percent(step.client.cpu)} of a core",
    }
    return before, times, after


def _load_description(step: StepResult) -> str:
    if not step.is_open:
        return f"closed, {pluralize(step.max_vus, 'user')}"
    return "open" if step.rate is None else f"open, {format_number(step.rate)} requests/s"


def _settings_section(report: BenchReport) -> Element:
    tables = []
    for table in filter(None, (report.config, report.system)):
        rows = [table_row((name, _plain_text(value))) for name, value in table.items()]
        tables.append(element("div", html_table(("", ""), rows), class_="words"))
    return element("details", element("summary", "Settings, and the machine of this client"), *tables)


def _plain_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_plain_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain_text(item) for item in value)
    return "-" if value is None else str(value)


def _format_value(metric: str, number: float) -> str:
    return format_metric(metric, number) if math.isfinite(number) else "-"
