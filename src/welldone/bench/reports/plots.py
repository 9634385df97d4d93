"""Plots: numbers in, SVG out. What is no number is left out, so that nothing in a picture is none."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.reports.frames import (
    WIDE_WIDTH,
    PlotFrame,
    rectangle_path,
    figure,
    empty_figure,
    svg_number,
    plot_svg,
    legend_swatch,
    vertical_marker,
)
from welldone.bench.reports.scales import (
    Axis,
    linear_axis,
    log_axis,
    format_percent,
    format_number,
    format_seconds,
    needs_log_axis,
    finite_values,
)
from welldone.drawing.elements import element

_HISTOGRAM_BINS = 40
"""Bars of a histogram: each about ten units wide."""
_MAX_LINE_POINTS = 200
"""Points of a line: more than can be told apart."""
_MARKER_SHAPES = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3-3h6v6h-6z",
    "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "m0-4l4 7h-8z",
)
"""A circle, a square, a diamond and a triangle: colour is never the only sign."""


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """Points that belong together."""

    name: str
    style: int
    """Which colour and which shape."""
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False
    has_points: bool = True
    """A line without them is there only to compare with."""


class RatioBand(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio, and between what it lies."""

    name: str
    ratio: float
    low: float
    high: float
    css_class: str
    """Its class: `right`, `wrong` or `quiet`."""
    tooltip: str


def line_plot(
    title: str, series: Sequence[PlotLine], *, x: Axis, y: str, format_value: Callable[[float], str] = format_number
) -> Element:
    """Lines with points. Plots with the same axis `x` can be read side by side; `words` writes a value."""
    kept = [msgspec.structs.replace(line, points=_thin_points(_finite_points(line.points))) for line in series]
    kept = [line for line in kept if line.points]
    if not kept:
        return empty_figure(title, "There are no numbers.")
    frame = PlotFrame(
        x=x, y=linear_axis([value for line in kept for _, value in line.points], is_time=format_value is format_seconds)
    )
    drawn = [
        _draw_line(frame, line, lambda point: f"{format_value(point[1])} at {format_number(point[0])} {x.unit}")
        for line in kept
    ]
    legend = [
        (
            line.name,
            legend_swatch(
                _line_class(line), f"M0 6h12{'M6 6' + _MARKER_SHAPES[line.style % 4] if line.has_points else ''}"
            ),
        )
        for line in kept
    ]
    return figure(title, plot_svg(frame, "", y, *drawn), legend=legend)


def histogram(title: str, samples: Iterable[float], markers: Sequence[tuple[str, float]], *, note: str = "") -> Element:
    """How often which time came, how many were no longer than it, and where the marked ones stand."""
    held = sorted(finite_values(samples))
    if not held:
        return empty_figure(title, "There are no samples.")
    x = _time_axis(held[0], held[-1])
    below = [
        0,
        *(bisect_left(held, x.value_at(number / _HISTOGRAM_BINS)) for number in range(1, _HISTOGRAM_BINS)),
        len(held),
    ]
    counts = [later - sooner for sooner, later in pairwise(below)]
    frame = PlotFrame(x=x, y=linear_axis([max(counts) / len(held) * 100]), right=46.0)
    bars = [_histogram_bar(frame, number, count, len(held)) for number, count in enumerate(counts) if count]
    sound = [(name, place) for name, value in markers for place in finite_values([value])]
    marked = [
        part
        for row, (name, value) in enumerate(sound)
        for part in vertical_marker(frame, frame.x.position(value), name, row)
    ]
    legend = [
        ("in this range", legend_swatch("fill0")),
        ("up to here, of all (right)", legend_swatch("line1", "M0 6h12")),
    ]
    drawn = plot_svg(frame, "", "%", element("g", *bars, class_="fill0"), *_cumulative_line(frame, held), *marked)
    return figure(title, drawn, legend=legend, note=f"{len(held):,} sample{'s' * (len(held) != 1)}{note}")


def bar_plot(title: str, values: Sequence[float], x: Axis, *, bar_s: float, ends_s: float, y: str) -> Element:
    """A number along the time `x`, one bar for each stretch of `each_s`; from `ends_s` on nothing new was begun."""
    if not any(finite_values(values)):
        return empty_figure(title, "Nothing came.")
    frame = PlotFrame(x=x, y=linear_axis(values), width=WIDE_WIDTH, height=220.0)
    bars = []
    for number, value in enumerate(values):
        (left, top), (right, _) = frame.point(number * bar_s, value), frame.point((number + 1) * bar_s, value)
        told = element(
            "title",
            f"{format_seconds(number * bar_s)} to {format_seconds((number + 1) * bar_s)}: {format_number(value)} {y}",
        )
        bars.append(element("path", told, d=rectangle_path(left, top, right - left - 0.5, frame.y_at(0) - top)))
    drawn = element("g", *bars, class_="fill0")
    return figure(
        title,
        plot_svg(frame, "since the step began", y, drawn, *vertical_marker(frame, frame.x.position(ends_s), "end")),
    )


def ratio_plot(title: str, rows: Sequence[RatioBand], *, note: str = "") -> Element:
    """Ratios with their bands, on an axis on which twice and half are as far from one."""
    kept = [row for row in rows if all(math.isfinite(value) and value > 0 for value in (row.ratio, row.low, row.high))]
    if not kept:
        return empty_figure(title, "There are no ratios.")
    x = log_axis([0.8, 1.25, *(value for row in kept for value in (row.low, row.high, row.ratio))])
    y = Axis(
        low=0, high=len(kept), ticks=tuple((len(kept) - number - 0.5, row.name) for number, row in enumerate(kept))
    )
    frame = PlotFrame(x=x, y=y, width=WIDE_WIDTH, height=80.0 + 28 * len(kept), left=150.0, right=40.0)
    drawn = [_draw_ratio(frame, number, row) for number, row in enumerate(kept)]
    return figure(title, plot_svg(frame, "ratio", "", *vertical_marker(frame, x.position(1), ""), *drawn), note=note)


def _draw_line(frame: PlotFrame, line: PlotLine, format_point: Callable[[tuple[float, float]], str]) -> Element:
    places = [frame.point(*point) for point in line.points]
    way = "L".join(f"{svg_number(x)} {svg_number(y)}" for x, y in places)
    shape = _MARKER_SHAPES[line.style % len(_MARKER_SHAPES)]
    points = [
        element(
            "path",
            element("title", f"{line.name}: {format_point(point)}"),
            d=f"M{svg_number(x)} {svg_number(y)}{shape}",
            class_="point",
        )
        for point, (x, y) in zip(line.points, places, strict=True)
        if line.has_points
    ]
    return element("g", element("path", d=f"M{way}"), *points, class_=_line_class(line))


def _line_class(line: PlotLine) -> str:
    return f"line{line.style % 4}{' dashed' if line.is_dashed else ''}"


def _histogram_bar(frame: PlotFrame, number: int, count: int, total: int) -> Element:
    low, high = number / _HISTOGRAM_BINS, (number + 1) / _HISTOGRAM_BINS
    left, top = frame.x_at(low), frame.y_at(frame.y.position(count / total * 100))
    words = f"{format_seconds(frame.x.value_at(low))} to {format_seconds(frame.x.value_at(high))}: {count:,}, {format_percent(count / total)}"
    path = rectangle_path(left, top, frame.x_at(high) - left - 0.5, frame.y_at(0) - top)
    return element("path", element("title", words), d=path)


def _cumulative_line(frame: PlotFrame, ordered: Sequence[float]) -> list[Element]:
    """The line of what was no longer than this, with its own axis at the right."""
    ranks = sorted({round(number * (len(ordered) - 1) / _MAX_LINE_POINTS) for number in range(_MAX_LINE_POINTS + 1)})
    places = [(frame.x_at(frame.x.position(ordered[rank])), frame.y_at((rank + 1) / len(ordered))) for rank in ranks]
    way = f"M{svg_number(places[0][0])} {svg_number(frame.y_at(0))}" + "".join(
        f"L{svg_number(x)} {svg_number(y)}" for x, y in places
    )
    names = [
        element(
            "text",
            f"{part * 50} %",
            x=svg_number(frame.width - frame.right + 5),
            y=svg_number(frame.y_at(part / 2) + 4),
        )
        for part in range(3)
    ]
    return [element("g", element("path", d=way), class_="line1"), *names]


def _draw_ratio(frame: PlotFrame, number: int, row: RatioBand) -> Element:
    low, middle, high = (frame.x_at(frame.x.position(value)) for value in (row.low, row.ratio, row.high))
    y = frame.y_at(frame.y.position(frame.y.high - number - 0.5))
    return element(
        "g",
        element("title", row.tooltip),
        element("path", d=rectangle_path(low, y - 5, high - low, 10), class_="band"),
        element("path", d=f"M{svg_number(middle)} {svg_number(y)}{_MARKER_SHAPES[0]}"),
        class_=row.css_class,
    )


def _time_axis(low: float, high: float) -> Axis:
    if needs_log_axis((low, high)):
        return log_axis((low, high), is_time=True)
    return linear_axis((low, high), is_time=True, is_from_zero=False)


def _finite_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return sorted(point for point in points if len(finite_values(point)) == len(point))


def _thin_points(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    return points[:: -(-len(points) // _MAX_LINE_POINTS) or 1]
