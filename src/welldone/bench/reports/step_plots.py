"""Plots of one step: timeline of its requests, histograms, tokens over time."""

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.report import StepResult
from welldone.bench.reports import plots
from welldone.bench.reports.plots import Axis, PlotFrame, format_seconds, histogram, legend_swatch, linear_axis
from welldone.bench.stats import metric_values
from welldone.reporting import code, element, sanitize_text

_MIN_BAR_WIDTH, _MIN_FAILURE_WIDTH = 0.05, 3.0  # of a visible part, and of a failed request
_MAX_REASON_CHARS = 120
"""Characters of an error in a tooltip: there are many bars."""


def timeline(title: str, records: Sequence[BenchRecord], x: Axis, *, ends_s: float, max_bars: int) -> Element:
    """Return a timeline of at most `max_bars` requests; no request was sent after `ends_s`."""
    ends = [(record, [record.due_s, record.sent_s, record.ended_s, *record.times[:1]]) for record in records]
    known = [record for record, times in ends if len(plots.finite_values(times)) == len(times)]
    if not known:
        return plots.empty_figure(title, "No requests.")
    shown, note = _sample_records(known, max_bars)
    rows = _assign_rows(shown)
    count = max(rows) + 1
    tall = min(max(360.0 / count, 0.5), 14.0)
    frame = PlotFrame(x=x, y=Axis(low=0, high=count, ticks=()), width=plots.WIDE_WIDTH, height=70 + count * tall)
    bars = [_request_bar(frame, record, row, tall) for record, row in zip(shown, rows, strict=True)]
    counts = Counter(record.outcome for record in known)
    legend = [
        (f"{end.value} {counts[end]:,}", legend_swatch(_outcome_class(end))) for end in RequestOutcome if counts[end]
    ]
    legend += [("pale: no token yet", legend_swatch("end-ok pale")), ("grey: due, not sent", legend_swatch("late"))]
    legend.append(("dashed: end of the step", legend_swatch("mark", "M6 0v12")))
    line = plots.vertical_marker(frame, x.position(ends_s), "")
    svg = plots.plot_svg(frame, "since the start of the step", "", *line, *bars)
    return plots.figure(title, svg, legend=legend, note=note)


def _sample_records(records: Sequence[BenchRecord], max_bars: int) -> tuple[list[BenchRecord], str]:
    """Return a sample of the records, with as many failed ones as fit, and a note on what was omitted."""
    if len(records) <= max_bars:
        return sorted(records, key=_start_s), ""
    bad = [record for record in records if record.outcome is not RequestOutcome.OK]
    good = [record for record in records if record.outcome is RequestOutcome.OK]
    bad_each = max(1, -(-len(bad) // (max_bars // 2)))
    good_each = max(1, -(-len(good) // (max_bars - len(bad[::bad_each]))))
    shares = f"{_fraction_label(good_each)} successful one and {_fraction_label(bad_each)} other one"
    note = f"Of {len(records):,} requests, {shares} is drawn."
    return sorted([*bad[::bad_each], *good[::good_each]], key=_start_s), note


def _fraction_label(each: int) -> str:
    return "each" if each == 1 else f"every {each:,}th"


def _assign_rows(records: Sequence[BenchRecord]) -> list[int]:
    """Return the first free row for each record, in order."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    rows = []
    for record in records:
        while busy and busy[0][0] <= _start_s(record):
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (max(record.ended_s, _start_s(record)), row))
        rows.append(row)
    return rows


def _request_bar(frame: PlotFrame, record: BenchRecord, row: int, tall: float) -> Element:
    top, height = frame.y_at(1) + row * tall, tall * 0.85
    first = record.times[0] if record.times else record.ended_s
    steps = [_start_s(record), record.sent_s, first, record.ended_s]
    due, sent, first_token, ended = (frame.x_at(frame.x.position(step)) for step in steps)
    parts = [("late", due, sent), ("pale", sent, first_token)]
    shapes = [
        element("path", d=plots.rectangle_path(left, top, right - left, height), class_=kind)
        for kind, left, right in parts
        if right - left > _MIN_BAR_WIDTH
    ]
    # A failed request is always visible, however soon it ended.
    left = first_token if record.outcome is RequestOutcome.OK else min(first_token, ended - _MIN_FAILURE_WIDTH)
    shapes.append(element("path", d=plots.rectangle_path(left, top, ended - left, height)))
    return element("g", element("title", _request_tooltip(record)), *shapes, class_=_outcome_class(record.outcome))


def _request_tooltip(record: BenchRecord) -> str:
    first = f"first token after {format_seconds(record.times[0] - record.due_s)}" if record.times else "no token"
    tokens = f", {record.tokens:,} tokens" if record.tokens is not None and record.times else ""
    late_s = record.sent_s - record.due_s
    late = f", sent {format_seconds(late_s)} later" if late_s > 0.005 else ""
    error = f": {sanitize_text(record.error, _MAX_REASON_CHARS)}" if record.error else ""
    took = format_seconds(record.ended_s - record.due_s)
    return f"{record.outcome.value}{error}; due at {format_seconds(record.due_s)}{late}, {first}{tokens}, {took} in all"


def _start_s(record: BenchRecord) -> float:
    return min(record.due_s, record.sent_s)


def _outcome_class(end: RequestOutcome) -> str:
    return f"end-{end.value.replace(' ', '-')}"


# The section of a step.


_MAX_STEPS = 40
"""Steps with plots. A sweep of two servers has 24."""
_MAX_TIMELINE_BARS = 6_000
"""Requests drawn in total: about two megabytes."""
_MAX_GAPS = 200_000
"""Gaps between chunks in a histogram: enough for p99.9, and fast."""
_TOKEN_BARS = 120
"""Approximate number of bars of tokens over time."""
_MAX_UNFOLDED = 3
"""With more steps, all but the last are collapsed."""
_HISTOGRAM_TITLES = {
    "ttft": "Time to first token",
    "itl": "Time between tokens, per request",
    "gap": "Time between chunks, over all requests",
    "e2e": "Time of the complete answer",
}
_MARKED_PERCENTILES = ("p50", "p90", "p99")


def step_sections(steps: Sequence[StepResult]) -> list[Element]:
    """Return the collapsible sections of the steps, and a note on those that are omitted."""
    shown = steps[:_MAX_STEPS]
    max_bars = _MAX_TIMELINE_BARS // max(len(shown), 1)
    folded = [
        _step_section(step, max_bars, is_open=len(steps) <= _MAX_UNFOLDED or number == len(shown) - 1)
        for number, step in enumerate(shown)
    ]
    omitted = [element("p", f"{len(steps) - _MAX_STEPS:,} more steps are in the table only.", class_="quiet")]
    return [*folded, *(omitted if len(steps) > _MAX_STEPS else [])]


def _step_section(step: StepResult, max_bars: int, *, is_open: bool) -> Element:
    last_s = [record.ended_s for record in step.records]
    x = linear_axis([step.seconds, *last_s], is_time=True, is_tight=True)
    wide = [timeline("Requests", step.records, x, ends_s=step.seconds, max_bars=max_bars), _tokens_plot(step, x)]
    failed = {end: count for end, count in step.outcomes.items() if end != RequestOutcome.OK and count}
    histograms = [_metric_histogram(step, name, title) for name, title in _HISTOGRAM_TITLES.items()]
    return element(
        "details",
        element("summary", step.id, " ", element("span", step.target, class_="quiet small")),
        *_count_list("Not successful", failed),
        *_count_list("Why", step.reasons),
        *_count_list("Broken rules", step.rules),
        element("div", *histograms, class_="plots"),
        *(element("div", part, class_="whole") for part in wide),
        **({"open": ""} if is_open else {}),
    )


def _count_list(title: str, counts: Mapping[str, int]) -> list[Element]:
    if not counts:
        return []
    items = [element("li", code(words), f" {count:,}") for words, count in counts.items()]
    return [element("p", f"{title}:"), element("ul", *items)]


def _metric_histogram(step: StepResult, name: str, title: str) -> Element:
    times = step.times.get(name)
    known = times.percentiles if times else {}
    marks = [(mark, known[mark]) for mark in _MARKED_PERCENTILES if mark in known]
    if name != "gap":
        return histogram(title, metric_values(step.records, name), marks)
    good = [record for record in step.records if record.outcome is RequestOutcome.OK]
    each = max(1, -(-sum(len(record.times) for record in good) // _MAX_GAPS))
    arrivals = [pairwise(record.times[:_MAX_GAPS]) for record in good[::each]]
    gaps = [later - sooner for pairs in arrivals for sooner, later in pairs]
    return histogram(title, gaps, marks, note=f", of one request in {each:,}" if each > 1 else "")


def _tokens_plot(step: StepResult, x: Axis) -> Element:
    """Plot the tokens of all answers over time. Tokens are distributed evenly over the chunks of an answer."""
    each_s = plots.round_up_step(x.high / _TOKEN_BARS)
    rates = [0.0] * math.ceil(x.high / each_s)
    for record in step.records:
        if record.times and math.isfinite(sum(record.times)):
            share = record.token_count / len(record.times) / each_s
            for at in record.times:
                rates[min(int(min(max(at, 0.0), x.high) / each_s), len(rates) - 1)] += share
    return plots.bar_plot("Tokens over time", rates, x, bar_s=each_s, ends_s=step.seconds, y="tokens/s")
