"""Plots: numbers in, SVG out. What is no number is left out, so that nothing in a picture is none."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.reports.frames import WIDE, Frame, box, figure, missing, n, picture, swatch, upright
from welldone.bench.reports.scales import Axis, linear, logarithmic, share, short, span, spreads, usable
from welldone.drawing.elements import element

_BINS = 40
"""Bars of a histogram: each about ten units wide."""
_POINTS = 200
"""Points of a line: more than can be told apart."""
_SHAPES = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3-3h6v6h-6z",
    "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "m0-4l4 7h-8z",
)
"""A circle, a square, a diamond and a triangle: colour is never the only sign."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Points that belong together."""

    name: str
    look: int
    """Which colour and which shape."""
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False
    has_points: bool = True
    """A line without them is there only to compare with."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio, and between what it lies."""

    name: str
    ratio: float
    low: float
    high: float
    look: str
    """Its class: `right`, `wrong` or `quiet`."""
    words: str


def lines(title: str, series: Sequence[Line], *, x: Axis, y: str, words: Callable[[float], str] = short) -> Element:
    """Lines with points. Plots with the same axis `x` can be read side by side; `words` writes a value."""
    kept = [msgspec.structs.replace(line, points=_thin(_sound(line.points))) for line in series]
    kept = [line for line in kept if line.points]
    if not kept:
        return missing(title, "There are no numbers.")
    frame = Frame(x=x, y=linear([value for line in kept for _, value in line.points], is_time=words is span))
    drawn = [_line(frame, line, lambda point: f"{words(point[1])} at {short(point[0])} {x.unit}") for line in kept]
    legend = [
        (line.name, swatch(_look(line), f"M0 6h12{'M6 6' + _SHAPES[line.look % 4] if line.has_points else ''}"))
        for line in kept
    ]
    return figure(title, picture(frame, "", y, *drawn), legend=legend)


def histogram(title: str, samples: Iterable[float], marks: Sequence[tuple[str, float]], *, note: str = "") -> Element:
    """How often which time came, how many were no longer than it, and where the marked ones stand."""
    held = sorted(usable(samples))
    if not held:
        return missing(title, "There are no samples.")
    x = _times(held[0], held[-1])
    below = [0, *(bisect_left(held, x.value(number / _BINS)) for number in range(1, _BINS)), len(held)]
    counts = [later - sooner for sooner, later in pairwise(below)]
    frame = Frame(x=x, y=linear([max(counts) / len(held) * 100]), right=46.0)
    bars = [_bar(frame, number, count, len(held)) for number, count in enumerate(counts) if count]
    sound = [(name, place) for name, value in marks for place in usable([value])]
    marked = [
        part for row, (name, value) in enumerate(sound) for part in upright(frame, frame.x.place(value), name, row)
    ]
    legend = [("in this range", swatch("fill0")), ("up to here, of all (right)", swatch("line1", "M0 6h12"))]
    drawn = picture(frame, "", "%", element("g", *bars, class_="fill0"), *_summed(frame, held), *marked)
    return figure(title, drawn, legend=legend, note=f"{len(held):,} sample{'s' * (len(held) != 1)}{note}")


def levels(title: str, values: Sequence[float], x: Axis, *, each_s: float, ends_s: float, y: str) -> Element:
    """A number along the time `x`, one bar for each stretch of `each_s`; from `ends_s` on nothing new was begun."""
    if not any(usable(values)):
        return missing(title, "Nothing came.")
    frame = Frame(x=x, y=linear(values), width=WIDE, height=220.0)
    bars = []
    for number, value in enumerate(values):
        (left, top), (right, _) = frame.at(number * each_s, value), frame.at((number + 1) * each_s, value)
        told = element("title", f"{span(number * each_s)} to {span((number + 1) * each_s)}: {short(value)} {y}")
        bars.append(element("path", told, d=box(left, top, right - left - 0.5, frame.down(0) - top)))
    drawn = element("g", *bars, class_="fill0")
    return figure(
        title, picture(frame, "since the step began", y, drawn, *upright(frame, frame.x.place(ends_s), "end"))
    )


def ratios(title: str, rows: Sequence[Ratio], *, note: str = "") -> Element:
    """Ratios with their bands, on an axis on which twice and half are as far from one."""
    kept = [row for row in rows if all(math.isfinite(value) and value > 0 for value in (row.ratio, row.low, row.high))]
    if not kept:
        return missing(title, "There are no ratios.")
    x = logarithmic([0.8, 1.25, *(value for row in kept for value in (row.low, row.high, row.ratio))])
    y = Axis(
        low=0, high=len(kept), ticks=tuple((len(kept) - number - 0.5, row.name) for number, row in enumerate(kept))
    )
    frame = Frame(x=x, y=y, width=WIDE, height=80.0 + 28 * len(kept), left=150.0, right=40.0)
    drawn = [_ratio(frame, number, row) for number, row in enumerate(kept)]
    return figure(title, picture(frame, "ratio", "", *upright(frame, x.place(1), ""), *drawn), note=note)


def _line(frame: Frame, line: Line, words: Callable[[tuple[float, float]], str]) -> Element:
    places = [frame.at(*point) for point in line.points]
    way = "L".join(f"{n(x)} {n(y)}" for x, y in places)
    shape = _SHAPES[line.look % len(_SHAPES)]
    points = [
        element("path", element("title", f"{line.name}: {words(point)}"), d=f"M{n(x)} {n(y)}{shape}", class_="point")
        for point, (x, y) in zip(line.points, places, strict=True)
        if line.has_points
    ]
    return element("g", element("path", d=f"M{way}"), *points, class_=_look(line))


def _look(line: Line) -> str:
    return f"line{line.look % 4}{' dashed' if line.is_dashed else ''}"


def _bar(frame: Frame, number: int, count: int, all_: int) -> Element:
    low, high = number / _BINS, (number + 1) / _BINS
    left, top = frame.across(low), frame.down(frame.y.place(count / all_ * 100))
    words = f"{span(frame.x.value(low))} to {span(frame.x.value(high))}: {count:,}, {share(count / all_)}"
    path = box(left, top, frame.across(high) - left - 0.5, frame.down(0) - top)
    return element("path", element("title", words), d=path)


def _summed(frame: Frame, ordered: Sequence[float]) -> list[Element]:
    """The line of what was no longer than this, with its own axis at the right."""
    ranks = sorted({round(number * (len(ordered) - 1) / _POINTS) for number in range(_POINTS + 1)})
    places = [(frame.across(frame.x.place(ordered[rank])), frame.down((rank + 1) / len(ordered))) for rank in ranks]
    way = f"M{n(places[0][0])} {n(frame.down(0))}" + "".join(f"L{n(x)} {n(y)}" for x, y in places)
    names = [
        element("text", f"{part * 50} %", x=n(frame.width - frame.right + 5), y=n(frame.down(part / 2) + 4))
        for part in range(3)
    ]
    return [element("g", element("path", d=way), class_="line1"), *names]


def _ratio(frame: Frame, number: int, row: Ratio) -> Element:
    low, middle, high = (frame.across(frame.x.place(value)) for value in (row.low, row.ratio, row.high))
    y = frame.down(frame.y.place(frame.y.high - number - 0.5))
    return element(
        "g",
        element("title", row.words),
        element("path", d=box(low, y - 5, high - low, 10), class_="band"),
        element("path", d=f"M{n(middle)} {n(y)}{_SHAPES[0]}"),
        class_=row.look,
    )


def _times(low: float, high: float) -> Axis:
    if spreads((low, high)):
        return logarithmic((low, high), is_time=True)
    return linear((low, high), is_time=True, is_from_zero=False)


def _sound(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return sorted(point for point in points if len(usable(point)) == len(point))


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[:: -(-len(points) // _POINTS) or 1]
