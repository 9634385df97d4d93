"""One step in pictures: how long its answers took, what became of each request, and how its tokens came."""

import math
from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from welldone.bench.record import End, Record
from welldone.bench.report import Step
from welldone.bench.reports.plots import histogram, levels
from welldone.bench.reports.scales import Axis, linear, nice
from welldone.bench.reports.timeline import timeline
from welldone.bench.stats import values
from welldone.drawing.elements import code, element

_STEPS = 40
"""Steps in pictures. A sweep of two servers has 24; who has more wants the table."""
_BARS = 6_000
"""Requests that are drawn in all: about two megabytes."""
_GAPS = 200_000
"""Gaps between chunks that are looked at: enough for p99.9, and done in a blink."""
_STRETCHES = 120
"""Bars of tokens over time, about."""
_OPEN = 3
"""So many steps are shown at once; if there are more, all but the last are folded."""
_PLOTS = {
    "ttft": "Time to the first token",
    "itl": "Time between tokens, of each request",
    "gap": "Time between chunks, of all requests",
    "e2e": "Time of the whole answer",
}
_MARKS = ("p50", "p90", "p99")


def sections(steps: Sequence[Step]) -> list[Element]:
    """The steps, each to be unfolded; and words for those that are left out."""
    shown = steps[:_STEPS]
    most = _BARS // max(len(shown), 1)
    folded = [
        _step(step, most, is_open=len(steps) <= _OPEN or number == len(shown) - 1) for number, step in enumerate(shown)
    ]
    left = [element("p", f"{len(steps) - _STEPS:,} more steps are in the table only.", class_="quiet")]
    return [*folded, *(left if len(steps) > _STEPS else [])]


def _step(step: Step, most: int, *, is_open: bool) -> Element:
    last_s = [record.ended_s for record in step.records]
    x = linear([step.seconds, *last_s], is_time=True, is_tight=True)
    wide = [timeline("Requests", step.records, x, ends_s=step.seconds, most=most), _tokens(step, x)]
    summary = element("summary", step.id, " ", element("span", step.target, class_="quiet small"))
    return element(
        "details",
        summary,
        *_counts("Did not end well", _without_ok(step.ends)),
        *_counts("Why", step.reasons),
        *_counts("Rules that were broken", step.rules),
        element("div", *(_histogram(step, name, title) for name, title in _PLOTS.items()), class_="plots"),
        *(element("div", part, class_="whole") for part in wide),
        **({"open": ""} if is_open else {}),
    )


def _without_ok(ends: Mapping[str, int]) -> Mapping[str, int]:
    return {end: count for end, count in ends.items() if end != End.OK and count}


def _counts(title: str, counts: Mapping[str, int]) -> list[Element]:
    if not counts:
        return []
    told = [element("li", code(words), f" {count:,}") for words, count in counts.items()]
    return [element("p", f"{title}:"), element("ul", *told)]


def _histogram(step: Step, name: str, title: str) -> Element:
    times = step.times.get(name)
    known = times.percentiles if times else {}
    marks = [(mark, known[mark]) for mark in _MARKS if mark in known]
    if name != "gap":
        return histogram(title, values(step.records, name), marks)
    gaps, each = _gaps(step.records)
    return histogram(title, gaps, marks, note=f", of one request in {each:,}" if each > 1 else "")


def _gaps(records: Sequence[Record]) -> tuple[list[float], int]:
    """The times between chunks of one request in so many."""
    good = [record for record in records if record.end is End.OK]
    each = max(1, -(-sum(len(record.times) for record in good) // _GAPS))
    return [
        later - sooner
        for record in good[::each]
        for sooner, later in zip(record.times[:_GAPS], record.times[1:_GAPS], strict=False)
    ], each


def _tokens(step: Step, x: Axis) -> Element:
    """The tokens of all answers, by when they came. A chunk holds its share of the tokens of its answer."""
    each_s = nice(x.high / _STRETCHES)
    rates = [0.0] * math.ceil(x.high / each_s)
    for record in step.records:
        if record.times and math.isfinite(sum(record.times)):
            tokens = len(record.times) if record.tokens is None else record.tokens
            share = tokens / len(record.times) / each_s
            for at in record.times:
                rates[min(int(min(max(at, 0.0), x.high) / each_s), len(rates) - 1)] += share
    return levels("Tokens as they came", rates, x, each_s=each_s, ends_s=step.seconds, y="tokens/s")
