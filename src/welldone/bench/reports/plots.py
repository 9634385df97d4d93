"""Plots: numbers in, SVG out. No number that comes in can put something into the picture that is none."""

import math
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.reports.elements import element
from welldone.bench.reports.scales import Axis, linear, logarithmic, share, short, span, spreads, usable

NARROW, WIDE = 480.0, 960.0
"""Of a plot, in its own units. A narrow one is still readable on a phone; a wide one is scrolled there."""
_HIGH = 270.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 18.0, 12.0, 44.0  # room for what is written around a plot
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
    """A line without them is only there to compare with."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Two axes, and where they stand."""

    x: Axis
    y: Axis
    width: float = NARROW
    height: float = _HIGH
    left: float = _LEFT
    right: float = _RIGHT

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point with these numbers stands."""
        return self.across(self.x.place(x)), self.down(self.y.place(y))

    def across(self, place: float) -> float:
        return self.left + place * (self.width - self.left - self.right)

    def down(self, place: float) -> float:
        return self.height - _BOTTOM - place * (self.height - _TOP - _BOTTOM)


def lines(title: str, series: Sequence[Line], *, x: str, y: str, is_time: bool = False) -> Element:
    """Lines with points; `x` and `y` say what the numbers are."""
    kept = [msgspec.structs.replace(line, points=_thin(_sound(line.points))) for line in series]
    kept = [line for line in kept if line.points]
    if not kept:
        return missing(title, "there are no numbers")
    frame = Frame(
        x=linear([place for line in kept for place, _ in line.points]),
        y=linear([value for line in kept for _, value in line.points], is_time=is_time),
    )
    words = span if is_time else short
    drawn = [_line(frame, line, lambda value: f"{words(value)} {'' if is_time else y}".strip(), x) for line in kept]
    return figure(title, picture(frame, x, y, *drawn), legend=[(line.name, _swatch(line)) for line in kept])


def histogram(title: str, samples: Iterable[float], marks: Sequence[tuple[str, float]], *, note: str = "") -> Element:
    """How often which time came, how many were no longer than it, and where the marked ones stand."""
    held = sorted(usable(samples))
    if not held:
        return missing(title, "there are no samples")
    is_wide = spreads((held[0], held[-1]))
    x = logarithmic((held[0], held[-1]), is_time=True) if is_wide else linear(held, is_time=True, is_from_zero=False)
    counts = [0] * _BINS
    for sample in held:
        counts[min(int(x.place(sample) * _BINS), _BINS - 1)] += 1
    frame = Frame(x=x, y=linear([max(counts) / len(held) * 100]), right=42.0)
    bars = [_bin(frame, number, count, len(held)) for number, count in enumerate(counts) if count]
    drawn = element("g", *bars, class_="look0")
    more = [*_summed(frame, held), *(_mark(frame, row, *mark) for row, mark in enumerate(marks))]
    legend = [("share of all", _square("look0")), ("share up to here (right)", _stroke("look1"))]
    words = f"{len(held):,} samples{note}"
    return figure(title, picture(frame, "", "%", drawn, *more), legend=legend, note=words)


def levels(title: str, values: Sequence[float], width_s: float, ends_s: float, *, y: str) -> Element:
    """A number over time, one level for each `width_s`; after `ends_s` nothing new was begun."""
    held = usable(values)
    if not any(held) or len(held) != len(values):
        return missing(title, "nothing came")
    frame = Frame(x=linear([len(held) * width_s], is_time=True), y=linear(held), width=WIDE)
    corners = [
        f"{'M' if not number else 'L'}{_pair(frame.at(number * width_s, value))}H{_n(frame.x.place(0))}"
        for number, value in enumerate(held)
    ]
    del corners
    bars = []
    for number, value in enumerate(held):
        left, top = frame.at(number * width_s, value)
        right, _ = frame.at((number + 1) * width_s, value)
        title_ = element("title", f"{span(number * width_s)} to {span((number + 1) * width_s)}: {short(value)} {y}")
        bars.append(element("path", title_, d=_box(left, top, right - left, frame.down(0) - top)))
    drawn = element("g", *bars, class_="look0")
    return figure(title, picture(frame, "since the step began", y, drawn, *_finish(frame, ends_s)))
