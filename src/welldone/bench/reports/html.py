"""HTML report: one page without scripts, fonts, images or network access."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.report import AssertionResult, BenchReport, Distribution, MetricComparison, StepResult
from welldone.bench.reports.plots import (
    PlotLine,
    RatioBand,
    format_number,
    format_percent,
    format_seconds,
    line_plot,
    linear_axis,
    ratio_plot,
)
from welldone.bench.reports.step_plots import step_sections
from welldone.bench.reports.text import failed_count, format_metric, split_metric, without_records
from welldone.bench.stats import FIRST_IS_BETTER, NO_DIFFERENCE, SECOND_IS_BETTER, comparison_verdict
from welldone.reporting import as_html, code, element, pluralize

# Throughput and latency by load: the steps of a run as points of lines.


_LATENCY_TITLES = {"ttft": "Time to first token", "itl": "Time between tokens", "e2e": "Time of the complete answer"}
_CURVE_STATISTICS = ("mean", "p50", "p90", "p99")


def load_curves(report: BenchReport) -> list[Element]:
    """Return the section with the curves; empty for fewer than two loads."""
    name = "concurrent users" if report.kind == "concurrency" else "requests/s (target)"
    loads = [(load, step) for step in report.steps if (load := _load_level(report.kind, step)) is not None]
    if len({load for load, _ in loads}) < 2:
        return []
    targets = list(dict.fromkeys(step.target for _, step in loads))[:2]  # there are at most two
    several = [[point for point in loads if point[1].target == target] for target in targets]
    x = msgspec.structs.replace(linear_axis([load for load, _ in loads]), unit=name)
    rates = [
        line_plot(
            "Tokens", [*_target_lines(several, _token_rate), *_max_throughput_lines(report, loads)], x=x, y="tokens/s"
        ),
        line_plot("Successful requests", _target_lines(several, _request_rate), x=x, y="requests/s"),
        line_plot("Failed or skipped requests", _target_lines(several, _lost_percent), x=x, y="% of those due"),
    ]
    times = [
        line_plot(title, _latency_lines(several, metric), x=x, y="", format_value=format_seconds)
        for metric, title in _LATENCY_TITLES.items()
    ]
    plots = [part for pair in zip(rates, times, strict=True) for part in pair]
    return [element("section", element("h2", "Results by load"), element("div", *plots, class_="plots"))]


_LoadPoints = Sequence[tuple[float, StepResult]]


def _load_level(kind: str, step: StepResult) -> float | None:
    if step.id == "warmup":
        return None
    return float(step.max_vus) if kind == "concurrency" else step.rate


def _token_rate(step: StepResult) -> float:
    return step.token_rate


def _request_rate(step: StepResult) -> float:
    return step.request_rate


def _lost_percent(step: StepResult) -> float:
    return 100 * (failed_count(step) + step.skipped) / step.due if step.due else 0.0


def _target_lines(several: Sequence[_LoadPoints], measure: Callable[[StepResult], float]) -> list[PlotLine]:
    names = ["first server", "second server"] if len(several) > 1 else ["measured"]
    return [
        PlotLine(name=name, style=look, points=[(load, measure(step)) for load, step in loads], is_dashed=look > 0)
        for look, (name, loads) in enumerate(zip(names, several, strict=True))
    ]


def _max_throughput_lines(report: BenchReport, loads: _LoadPoints) -> list[PlotLine]:
    """Return a reference line at the maximum throughput."""
    ends = sorted(load for load, _ in loads)
    return [
        PlotLine(
            name=f"maximum: {format_number(step.token_rate)}",
            style=2,
            points=[(ends[0], step.token_rate), (ends[-1], step.token_rate)],
            is_dashed=True,
            has_points=False,
        )
        for step in report.steps
        if step.id == "throughput" and step.target == report.url
    ]


def _latency_lines(several: Sequence[_LoadPoints], metric: str) -> list[PlotLine]:
    lines = []
    for second, loads in enumerate(several):
        for look, statistic in enumerate(_CURVE_STATISTICS):
            points = [
                (load, value)
                for load, step in loads
                if (value := _latency_statistic(step, metric, statistic)) is not None
            ]
            name = f"{statistic}, {'second' if second else 'first'}" if len(several) > 1 else statistic
            lines.append(PlotLine(name=name, style=look, points=points, is_dashed=bool(second)))
    return lines


def _latency_statistic(step: StepResult, metric: str, statistic: str) -> float | None:
    times = step.times.get(metric)
    if times is None:
        return None
    return times.mean if statistic == "mean" else times.percentiles.get(statistic)


_CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLESHEET = """
:root { color-scheme: light dark; --line: #8886; --card: #8881; --pass: #1b7f3b; --fail: #c0261f; --a: #2f6fb5;
  --b: #c2570c; --c: #7a3fa8; --d: #1d7f78; --refused: #e08a00; --failed: #c0261f; --cut: #d1489b; --broken: #7d1f4f;
  --timed: #a08600; --gone: #222; --left: #888 }
@media (prefers-color-scheme: dark) { :root { --pass: #5fd38a; --fail: #ff7b72; --a: #6aa9ec; --b: #f59a5a;
  --c: #c39af0; --d: #5cc8bf; --refused: #f5b041; --failed: #ff7b72; --cut: #f28ac4; --broken: #c76a9c;
  --timed: #d8c04a; --gone: #eee; --left: #999 } }
* { box-sizing: border-box }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere }
h1, h2 { line-height: 1.2; margin: 1.5rem 0 .5rem } h1 { font-size: 1.6rem } h2 { font-size: 1.25rem }
p, ul { margin: .25rem 0 } ul { padding-left: 1.2rem } code { font: .85rem/1.4 ui-monospace, monospace }
.pass { color: var(--pass) } .fail { color: var(--fail) } .quiet { opacity: .75 } .small { font-size: .8rem }
.verdict { font-weight: 600 } .note { border-left: .25rem solid var(--fail); padding-left: .75rem }
.plots { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)) }
figure { border: 1px solid var(--line); border-radius: .4rem; padding: .5rem .75rem; margin: 0; background: var(--card);
  min-width: 0 }
.whole { margin-top: .75rem } figcaption { font-weight: 600 } .scroll { overflow-x: auto }
.plot { display: block; width: 100%; height: auto } .plot.wide { min-width: 40rem }
.plot text { font: 12px system-ui, sans-serif; fill: currentColor; stroke: Canvas; stroke-width: 3px;
  paint-order: stroke }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: .8rem }
.swatch { width: .8rem; height: .8rem; margin-right: .3rem; vertical-align: -.1rem }
.axis { stroke: currentColor; fill: none } .grid { stroke: var(--line); fill: none; stroke-width: .6 }
.mark { stroke: currentColor; fill: none; stroke-dasharray: 3 3; opacity: .7 }
.line0 { --ink: var(--a) } .line1 { --ink: var(--b) } .line2 { --ink: var(--c) } .line3 { --ink: var(--d) }
.line0, .line1, .line2, .line3 { stroke: var(--ink); fill: none; stroke-width: 2 }
.point { fill: var(--ink); stroke-width: 1 } .dashed { stroke-dasharray: 6 4 } .fill0 { fill: var(--a) }
.pale { opacity: .4 } .late { fill: var(--left); opacity: .5 } .band { opacity: .4 }
svg .pass { fill: var(--pass) } svg .fail { fill: var(--fail) } svg .quiet { fill: currentColor }
.end-ok { fill: var(--a) } .end-refused { fill: var(--refused) } .end-failed { fill: var(--failed) }
.end-cut { fill: var(--cut) } .end-broken { fill: var(--broken) } .end-timed-out { fill: var(--timed) }
.end-unreachable { fill: var(--gone) } .end-unfinished { fill: var(--left) }
table { border-collapse: collapse; font-size: .85rem }
td, th { padding: .2rem .5rem; text-align: right; white-space: nowrap }
td { border-top: 1px solid var(--line) } td:first-child, th:first-child, .words td, .words th { text-align: left }
.words td { white-space: normal; vertical-align: top } summary { cursor: pointer; padding: .4rem 0; font-weight: 600 }
"""
_TIME_HEADINGS = {"ttft": "first token (TTFT)", "itl": "between tokens (ITL)", "e2e": "complete answer (E2E)"}
_SUMMARY_STATISTICS = ("mean", "p50", "p90", "p99")


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
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_CONTENT_SECURITY_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"welldone bench: {report.model}, {report.kind}"),
        element("style", _STYLESHEET),
    )
    return f"<!doctype html>\n{as_html(element('html', head, body, lang='en'))}"


def _printable_report(report: BenchReport) -> BenchReport:
    """Return the report with sanitized texts. Errors of requests are sanitized when they are drawn."""
    calm = without_records(report)
    steps = [
        msgspec.structs.replace(step, records=given.records)
        for step, given in zip(calm.steps, report.steps, strict=True)
    ]
    return msgspec.structs.replace(calm, steps=tuple(steps))


def _header(report: BenchReport) -> Element:
    parts: list[str | Element] = [code(report.model), " at ", code(report.url)]
    if report.against is not None:
        parts += [", alternating with ", code(report.against)]
    parts.append(f", endpoint {report.endpoint}")
    ended = (
        []
        if report.is_complete
        else [element("p", f"Ended early: {report.incomplete_reason or 'unknown reason'}.", class_="note")]
    )
    return element(
        "header",
        element("h1", f"welldone bench: {report.kind}", *_assertion_summary(report.assertion_results)),
        element("p", *parts),
        *ended,
        element(
            "p",
            f"Tokens are counted by {report.tokenizer}. Metrics cover successful requests only. "
            "Percentiles need at least ten samples above them.",
        ),
        element("p", f"{report.began} to {report.ended}, welldone {report.tool}", class_="quiet"),
    )


def _assertion_summary(results: Sequence[AssertionResult]) -> list[str | Element]:
    if not results:
        return []
    failed = sum(not result.passed for result in results)
    words = (
        f"{failed} of {pluralize(len(results), 'assertion')} failed"
        if failed
        else f"{pluralize(len(results), 'assertion')} passed"
    )
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
    rows = [
        (
            code(result.text),
            result.step,
            "too few samples" if result.value is None else _format_value(result.text, result.value),
            element("span", "passed" if result.passed else "failed", class_="pass" if result.passed else "fail"),
        )
        for result in results
    ]
    return [_section("Assertions", _html_table(("assertion", "step", "value", ""), rows))] if rows else []


def _comparison_section(report: BenchReport) -> list[Element]:
    if not report.comparisons:
        return []
    rows = [
        (
            comparison.metric,
            _format_value(split_metric(comparison)[1], comparison.first),
            _format_value(split_metric(comparison)[1], comparison.second),
            format_number(comparison.ratio),
            f"{format_number(comparison.low)} to {format_number(comparison.high)}",
            _verdict_and_class(comparison)[0],
        )
        for comparison in report.comparisons
    ]
    note = "An interval that contains 1 means no difference."
    plots = [
        ratio_plot(f"First / second: {step}", [_ratio_band(comparison) for comparison in group], note=note)
        for step, group in groupby(report.comparisons, key=lambda comparison: split_metric(comparison)[0])
    ]
    table = _html_table(("", "first", "second", "ratio", "interval", ""), rows)
    servers = element("p", code(report.url), " (first) and ", code(report.against or ""), " (second)")
    return [_section("Comparison", servers, *plots, table)]


def _ratio_band(comparison: MetricComparison) -> RatioBand:
    ratio, low, high = (format_number(value) for value in (comparison.ratio, comparison.low, comparison.high))
    return RatioBand(
        name=split_metric(comparison)[1][:20],
        ratio=comparison.ratio,
        low=comparison.low,
        high=comparison.high,
        css_class=_verdict_and_class(comparison)[1],
        tooltip=f"{comparison.metric}: {ratio}, between {low} and {high}",
    )


def _verdict_and_class(comparison: MetricComparison) -> tuple[str, str]:
    """Return the verdict, and its CSS class from the point of view of the first server."""
    verdict = comparison_verdict(comparison)
    return verdict, {FIRST_IS_BETTER: "pass", NO_DIFFERENCE: "quiet", SECOND_IS_BETTER: "fail"}[verdict]


def _steps_table(report: BenchReport) -> list[Element]:
    if not report.steps:
        return [_section("Steps", element("p", "No step ran."))]
    before = (
        "step",
        *(("server",) if report.against is not None else ()),
        "load",
        "requests/s",
        "tokens/s",
        "successful",
    )
    after = ("skipped", "within limits", "broke a rule", "prompt tokens", "tokens", "this client")
    groups = element(
        "tr",
        *(element("th", "") for _ in before),
        *(element("th", words, colspan=str(len(_SUMMARY_STATISTICS))) for words in _TIME_HEADINGS.values()),
        *(element("th", "") for _ in after),
    )
    names = element(
        "tr", *(element("th", name) for name in (*before, *(_SUMMARY_STATISTICS * len(_TIME_HEADINGS)), *after))
    )
    rows = [_step_row(report, step) for step in report.steps]
    return [_section("Steps", element("div", element("table", groups, names, *rows), class_="scroll"))]


def _step_row(report: BenchReport, step: StepResult) -> Element:
    times = [
        _format_statistic(step.times.get(name), statistic)
        for name in _TIME_HEADINGS
        for statistic in _SUMMARY_STATISTICS
    ]
    cells = [
        step.id,
        *([_server_label(report, step)] if report.against is not None else []),
        _load_description(step),
        format_number(step.request_rate),
        format_number(step.token_rate),
        f"{step.ok:,} of {step.requests:,}",
        *times,
        f"{step.skipped:,}",
        "-" if step.good is None else f"{step.good:,}",
        f"{step.invalid_streams:,}",
        format_number(step.prompt_tokens),
        format_number(step.decoded_tokens),
        f"{format_percent(step.client.cpu)} of a core",
    ]
    return element("tr", *(element("td", cell) for cell in cells))


def _load_description(step: StepResult) -> str:
    if not step.is_open:
        return f"closed, {pluralize(step.max_vus, 'user')}"
    return "open" if step.rate is None else f"open, {format_number(step.rate)} requests/s"


def _format_statistic(times: Distribution | None, name: str) -> str:
    if times is None:
        return "-"
    return format_seconds(times.mean if name == "mean" else times.percentiles.get(name))


def _server_label(report: BenchReport, step: StepResult) -> str:
    return "first" if step.target == report.url else "second"


def _settings_section(report: BenchReport) -> Element:
    tables = [
        element(
            "div", _html_table(("", ""), [(name, _plain_text(value)) for name, value in table.items()]), class_="words"
        )
        for table in (report.config, report.system)
        if table
    ]
    return element("details", element("summary", "Settings, and the machine of this client"), *tables)


def _plain_text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_plain_text(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain_text(item) for item in value)
    return "-" if value is None else str(value)


def _format_value(metric: str, number: float) -> str:
    return format_metric(metric, number) if math.isfinite(number) else "-"


def _section(title: str, *inside: Element) -> Element:
    return element("section", element("h2", title), *inside)


def _html_table(names: Sequence[str], rows: Sequence[Sequence[str | Element]]) -> Element:
    heading = element("tr", *(element("th", name) for name in names))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element("div", element("table", heading, *body), class_="scroll")
