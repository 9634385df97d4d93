"""A timeline of requests: each is a bar from when it was due to its end, in the first row that is free."""

import heapq
from collections import Counter
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from welldone.bench.record import End, Record
from welldone.bench.reports.frames import WIDE, Frame, box, figure, missing, picture, swatch, upright
from welldone.bench.reports.scales import Axis, span, usable
from welldone.drawing.elements import element
from welldone.drawing.texts import printable

_SEEN, _CAP = 0.05, 3.0  # what is too narrow to be drawn; and what is wide enough to be seen among others
_WHY = 120
"""Characters of a reason that are shown at a bar: there are many bars."""


def timeline(title: str, records: Sequence[Record], x: Axis, *, ends_s: float, most: int) -> Element:
    """At most so many of the requests, along the time `x`; from `ends_s` on nothing new was begun."""
    known = [record for record in records if _is_drawable(record)]
    if not known:
        return missing(title, "There are no requests.")
    drawn, note = _chosen(known, most)
    rows = _rows(drawn)
    count = max(rows) + 1
    tall = min(max(360.0 / count, 0.5), 14.0)
    frame = Frame(x=x, y=Axis(low=0, high=count, ticks=()), width=WIDE, height=70 + count * tall)
    bars = [_bar(frame, record, row, tall) for record, row in zip(drawn, rows, strict=True)]
    counts = Counter(record.end for record in known)
    legend = [(f"{end.value} {counts[end]:,}", swatch(_look(end))) for end in End if counts[end]]
    legend += [("pale: no token yet", swatch("end-ok pale")), ("grey: due, not begun", swatch("late"))]
    legend.append(("dashed: the step's end", swatch("mark", "M6 0v12")))
    line = upright(frame, x.place(ends_s), "")
    return figure(title, picture(frame, "since the step began", "", *line, *bars), legend=legend, note=note)


def _chosen(records: Sequence[Record], most: int) -> tuple[list[Record], str]:
    """A fair part of them, but as many as fit of those that did not end well, and words for what was left out."""
    if len(records) <= most:
        return sorted(records, key=_from), ""
    bad = [record for record in records if record.end is not End.OK]
    good = [record for record in records if record.end is End.OK]
    bad_each = max(1, -(-len(bad) // (most // 2)))
    good_each = max(1, -(-len(good) // (most - len(bad[::bad_each]))))
    note = (
        f"Of {len(records):,} requests {_part(good_each)} that ended well is drawn, and {_part(bad_each)} that did not."
    )
    return sorted([*bad[::bad_each], *good[::good_each]], key=_from), note


def _part(each: int) -> str:
    return "each" if each == 1 else f"one in {each:,}"


def _rows(records: Sequence[Record]) -> list[int]:
    """For each of them, in their order, the first row that is free from its beginning on."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    rows = []
    for record in records:
        while busy and busy[0][0] <= _from(record):
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (max(record.ended_s, _from(record)), row))
        rows.append(row)
    return rows


def _bar(frame: Frame, record: Record, row: int, tall: float) -> Element:
    top, height = frame.down(1) + row * tall, tall * 0.85
    first = record.times[0] if record.times else record.ended_s
    steps = [_from(record), record.begun_s, first, record.ended_s]
    due, begun, spoke, ended = (frame.across(frame.x.place(step)) for step in steps)
    parts = [("late", due, begun), ("pale", begun, spoke)]
    shapes = [
        element("path", d=box(left, top, right - left, height), class_=kind)
        for kind, left, right in parts
        if right - left > _SEEN
    ]
    # A bad end is seen, however soon it came.
    left = spoke if record.end is End.OK else min(spoke, ended - _CAP)
    shapes.append(element("path", d=box(left, top, ended - left, height)))
    return element("g", element("title", _words(record)), *shapes, class_=_look(record.end))


def _words(record: Record) -> str:
    first = f"first token after {span(record.times[0] - record.due_s)}" if record.times else "no token"
    tokens = f", {record.tokens:,} tokens" if record.tokens is not None and record.times else ""
    late = f", begun {span(record.begun_s - record.due_s)} later" if record.begun_s - record.due_s > 0.005 else ""
    why = f": {printable(record.why, _WHY)}" if record.why else ""
    took = span(record.ended_s - record.due_s)
    return f"{record.end.value}{why}; due at {span(record.due_s)}{late}, {first}{tokens}, {took} in all"


def _from(record: Record) -> float:
    return min(record.due_s, record.begun_s)


def _is_drawable(record: Record) -> bool:
    times = [record.due_s, record.begun_s, record.ended_s, *record.times[:1]]
    return len(usable(times)) == len(times)


def _look(end: End) -> str:
    return f"end-{end.value.replace(' ', '-')}"
