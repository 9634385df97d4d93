"""One step in pictures: how long its answers took, what became of each request, and how its tokens came."""

import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.bench.report import StepResult
from welldone.bench.reports.plots import histogram, bar_plot
from welldone.bench.reports.scales import Axis, linear_axis, round_up_step
from welldone.bench.reports.timeline import timeline
from welldone.bench.stats import metric_values
from welldone.drawing.elements import code, element

_MAX_STEPS = 40
"""Steps in pictures. A sweep of two servers has 24; who has more wants the table."""
_MAX_TIMELINE_BARS = 6_000
"""Requests that are drawn in all: about two megabytes."""
_MAX_GAPS = 200_000
"""Gaps between chunks that are looked at: enough for p99.9, and done in a blink."""
_TOKEN_BARS = 120
"""Bars of tokens over time, about."""
_MAX_UNFOLDED = 3
"""So many steps are shown at once; if there are more, all but the last are folded."""
_HISTOGRAM_TITLES = {
    "ttft": "Time to the first token",
    "itl": "Time between tokens, of each request",
    "gap": "Time between chunks, of all requests",
    "e2e": "Time of the whole answer",
}
_MARKED_PERCENTILES = ("p50", "p90", "p99")


def step_sections(steps: Sequence[StepResult]) -> list[Element]:
    """The steps, each to be unfolded; and words for those that are left out."""
    shown = steps[:_MAX_STEPS]
    most = _MAX_TIMELINE_BARS // max(len(shown), 1)
    folded = [
        _step_section(step, most, is_open=len(steps) <= _MAX_UNFOLDED or number == len(shown) - 1)
        for number, step in enumerate(shown)
    ]
    left = [element("p", f"{len(steps) - _MAX_STEPS:,} more steps are in the table only.", class_="quiet")]
    return [*folded, *(left if len(steps) > _MAX_STEPS else [])]


def _step_section(step: StepResult, max_bars: int, *, is_open: bool) -> Element:
    last_s = [record.ended_s for record in step.records]
    x = linear_axis([step.seconds, *last_s], is_time=True, is_tight=True)
    wide = [timeline("Requests", step.records, x, ends_s=step.seconds, max_bars=max_bars), _tokens_plot(step, x)]
    summary = element("summary", step.id, " ", element("span", step.target, class_="quiet small"))
    return element(
        "details",
        summary,
        *_count_list("Did not end well", _failed_outcomes(step.outcomes)),
        *_count_list("Why", step.reasons),
        *_count_list("Rules that were broken", step.rules),
        element(
            "div", *(_metric_histogram(step, name, title) for name, title in _HISTOGRAM_TITLES.items()), class_="plots"
        ),
        *(element("div", part, class_="whole") for part in wide),
        **({"open": ""} if is_open else {}),
    )


def _failed_outcomes(outcomes: Mapping[str, int]) -> Mapping[str, int]:
    return {end: count for end, count in outcomes.items() if end != RequestOutcome.OK and count}


def _count_list(title: str, counts: Mapping[str, int]) -> list[Element]:
    if not counts:
        return []
    told = [element("li", code(words), f" {count:,}") for words, count in counts.items()]
    return [element("p", f"{title}:"), element("ul", *told)]


def _metric_histogram(step: StepResult, name: str, title: str) -> Element:
    times = step.times.get(name)
    known = times.percentiles if times else {}
    marks = [(mark, known[mark]) for mark in _MARKED_PERCENTILES if mark in known]
    if name != "gap":
        return histogram(title, metric_values(step.records, name), marks)
    gaps, each = _chunk_gaps(step.records)
    return histogram(title, gaps, marks, note=f", of one request in {each:,}" if each > 1 else "")


def _chunk_gaps(records: Sequence[BenchRecord]) -> tuple[list[float], int]:
    """The times between chunks of one request in so many."""
    good = [record for record in records if record.outcome is RequestOutcome.OK]
    each = max(1, -(-sum(len(record.times) for record in good) // _MAX_GAPS))
    return [
        later - sooner
        for record in good[::each]
        for sooner, later in zip(record.times[:_MAX_GAPS], record.times[1:_MAX_GAPS], strict=False)
    ], each


def _tokens_plot(step: StepResult, x: Axis) -> Element:
    """The tokens of all answers, by when they came. A chunk holds its share of the tokens of its answer."""
    each_s = round_up_step(x.high / _TOKEN_BARS)
    rates = [0.0] * math.ceil(x.high / each_s)
    for record in step.records:
        if record.times and math.isfinite(sum(record.times)):
            tokens = len(record.times) if record.tokens is None else record.tokens
            share = tokens / len(record.times) / each_s
            for at in record.times:
                rates[min(int(min(max(at, 0.0), x.high) / each_s), len(rates) - 1)] += share
    return bar_plot("Tokens as they came", rates, x, bar_s=each_s, ends_s=step.seconds, y="tokens/s")
