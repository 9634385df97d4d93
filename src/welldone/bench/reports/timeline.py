"""A timeline of requests: each is a bar from when it was due to its end, in the first row that is free."""

import heapq
from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.bench.reports.frames import (
    WIDE_WIDTH,
    PlotFrame,
    rectangle_path,
    figure,
    empty_figure,
    plot_svg,
    legend_swatch,
    vertical_marker,
)
from welldone.bench.reports.scales import Axis, format_seconds, finite_values
from welldone.drawing.elements import element
from welldone.drawing.texts import sanitize_text

_MIN_BAR_WIDTH, _MIN_FAILURE_WIDTH = (
    0.05,
    3.0,
)  # what is too narrow to be drawn; and what is wide enough to be seen among others
_MAX_REASON_CHARS = 120
"""Characters of a reason that are shown at a bar: there are many bars."""


def timeline(title: str, records: Sequence[BenchRecord], x: Axis, *, ends_s: float, max_bars: int) -> Element:
    """At most so many of the requests, along the time `x`; from `ends_s` on nothing new was begun."""
    known = [record for record in records if _is_drawable(record)]
    if not known:
        return empty_figure(title, "There are no requests.")
    drawn, note = _sample_records(known, max_bars)
    rows = _assign_rows(drawn)
    count = max(rows) + 1
    tall = min(max(360.0 / count, 0.5), 14.0)
    frame = PlotFrame(x=x, y=Axis(low=0, high=count, ticks=()), width=WIDE_WIDTH, height=70 + count * tall)
    bars = [_request_bar(frame, record, row, tall) for record, row in zip(drawn, rows, strict=True)]
    counts = Counter(record.outcome for record in known)
    legend = [
        (f"{end.value} {counts[end]:,}", legend_swatch(_outcome_class(end))) for end in RequestOutcome if counts[end]
    ]
    legend += [("pale: no token yet", legend_swatch("end-ok pale")), ("grey: due, not begun", legend_swatch("late"))]
    legend.append(("dashed: the step's end", legend_swatch("mark", "M6 0v12")))
    line = vertical_marker(frame, x.position(ends_s), "")
    return figure(title, plot_svg(frame, "since the step began", "", *line, *bars), legend=legend, note=note)


def _sample_records(records: Sequence[BenchRecord], max_bars: int) -> tuple[list[BenchRecord], str]:
    """A fair part of them, but as many as fit of those that did not end well, and words for what was left out."""
    if len(records) <= max_bars:
        return sorted(records, key=_start_s), ""
    bad = [record for record in records if record.outcome is not RequestOutcome.OK]
    good = [record for record in records if record.outcome is RequestOutcome.OK]
    bad_each = max(1, -(-len(bad) // (max_bars // 2)))
    good_each = max(1, -(-len(good) // (max_bars - len(bad[::bad_each]))))
    note = f"Of {len(records):,} requests {_fraction_label(good_each)} that ended well is drawn, and {_fraction_label(bad_each)} that did not."
    return sorted([*bad[::bad_each], *good[::good_each]], key=_start_s), note


def _fraction_label(each: int) -> str:
    return "each" if each == 1 else f"one in {each:,}"


def _assign_rows(records: Sequence[BenchRecord]) -> list[int]:
    """For each of them, in their order, the first row that is free from its beginning on."""
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
    due, begun, spoke, ended = (frame.x_at(frame.x.position(step)) for step in steps)
    parts = [("late", due, begun), ("pale", begun, spoke)]
    shapes = [
        element("path", d=rectangle_path(left, top, right - left, height), class_=kind)
        for kind, left, right in parts
        if right - left > _MIN_BAR_WIDTH
    ]
    # A bad end is seen, however soon it came.
    left = spoke if record.outcome is RequestOutcome.OK else min(spoke, ended - _MIN_FAILURE_WIDTH)
    shapes.append(element("path", d=rectangle_path(left, top, ended - left, height)))
    return element("g", element("title", _request_tooltip(record)), *shapes, class_=_outcome_class(record.outcome))


def _request_tooltip(record: BenchRecord) -> str:
    first = f"first token after {format_seconds(record.times[0] - record.due_s)}" if record.times else "no token"
    tokens = f", {record.tokens:,} tokens" if record.tokens is not None and record.times else ""
    late = (
        f", begun {format_seconds(record.sent_s - record.due_s)} later" if record.sent_s - record.due_s > 0.005 else ""
    )
    why = f": {sanitize_text(record.error, _MAX_REASON_CHARS)}" if record.error else ""
    took = format_seconds(record.ended_s - record.due_s)
    return f"{record.outcome.value}{why}; due at {format_seconds(record.due_s)}{late}, {first}{tokens}, {took} in all"


def _start_s(record: BenchRecord) -> float:
    return min(record.due_s, record.sent_s)


def _is_drawable(record: BenchRecord) -> bool:
    times = [record.due_s, record.sent_s, record.ended_s, *record.times[:1]]
    return len(finite_values(times)) == len(times)


def _outcome_class(end: RequestOutcome) -> str:
    return f"end-{end.value.replace(' ', '-')}"
