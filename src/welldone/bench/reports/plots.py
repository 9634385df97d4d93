"""Plots as SVG. Values that are not finite are dropped, so that no NaN gets into a picture."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

import msgspec

from welldone.reporting import element

# Axes: range, ticks and tick labels. Values that are not finite are dropped; absurdly large ones are clipped.


_MAX_VALUE = 1e9
"""No time in seconds, rate or count of a run exceeds this: 30 years, or a billion."""
_MIN_VALUE = 1e-6
"""The smallest value on a logarithmic axis: the resolution of the clock is a microsecond."""
_TICK_COUNT = 5
"""Ticks that fit under a plot on a phone."""
_NO_VALUE = "-"
"""Shown for a missing value."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """Maps values to positions."""

    low: float
    high: float
    is_log: bool = False
    ticks: tuple[tuple[float, str], ...]
    """Values and their labels."""
    unit: str = ""
    """Unit of the labels."""

    def position(self, value: float) -> float:
        """Return the position of a value: 0 at the start of the axis, 1 at its end."""
        low, high = self._transform(self.low), self._transform(self.high)
        share = (self._transform(value) - low) / (high - low)
        return share if 0 <= share <= 1 else float(share > 1)

    def value_at(self, position: float) -> float:
        """Return the value at a position."""
        low, high = self._transform(self.low), self._transform(self.high)
        bent = low + position * (high - low)
        return math.exp(bent) if self.is_log else bent

    def _transform(self, value: float) -> float:
        return math.log(max(value, _MIN_VALUE)) if self.is_log else value


def finite_values(values: Iterable[float | None]) -> list[float]:
    """Return the finite values, clipped to the range of an axis."""
    return [min(max(value, 0.0), _MAX_VALUE) for value in values if value is not None and math.isfinite(value)]


def linear_axis(
    values: Iterable[float], *, is_time: bool = False, is_from_zero: bool = True, is_tight: bool = False
) -> Axis:
    """Return a linear axis for the values; a tight one ends at the largest value, not at a tick."""
    held = finite_values(values) or [0.0]
    low, high = 0.0 if is_from_zero else min(held), max(held)
    if high - low < max(_MIN_VALUE, high * _MIN_VALUE):  # practically one value
        low, high = 0.0, high if high >= _MIN_VALUE else 1.0
    factor, unit = _time_unit(high) if is_time else (1.0, "")
    step = round_up_step((high - low) * factor / _TICK_COUNT)
    first, last = math.floor(low * factor / step + 1e-9), math.ceil(high * factor / step - 1e-9)
    digits = max(0, -math.floor(math.log10(step)))
    ticks = tuple((number * step / factor, f"{number * step:,.{digits}f}") for number in range(first, last + 1))
    if is_tight:
        return Axis(low=low, high=high, ticks=tuple(tick for tick in ticks if low <= tick[0] <= high), unit=unit)
    return Axis(low=ticks[0][0], high=ticks[-1][0], ticks=ticks, unit=unit)


def log_axis(values: Iterable[float], *, is_time: bool = False) -> Axis:
    """Return a logarithmic axis for the values."""
    held = [max(value, _MIN_VALUE) for value in finite_values(values)] or [1.0]
    powers = range(math.floor(math.log10(min(held)) + 1e-9), math.ceil(math.log10(max(held)) - 1e-9) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    first = max((number for number, step in enumerate(steps) if step <= min(held) * (1 + 1e-9)), default=0)
    last = next((number for number, step in enumerate(steps) if step >= max(held) * (1 - 1e-9)), len(steps) - 1)
    shown = steps[first : max(last, first + 1) + 1]
    words = format_seconds if is_time else format_number
    ticks = tuple((step, words(step)) for step in _thin_ticks(shown))
    return Axis(low=shown[0], high=shown[-1], is_log=True, ticks=ticks)


def format_number(value: float | None) -> str:
    """Format a number with three significant digits."""
    if value is None or not math.isfinite(value):
        return _NO_VALUE
    size = abs(value)
    if size >= _MAX_VALUE * 1_000:
        return f"{value:.2e}"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_seconds(seconds: float | None) -> str:
    """Format a time in a suitable unit."""
    if seconds is None or not math.isfinite(seconds):
        return _NO_VALUE
    factor, unit = _time_unit(abs(seconds))
    return f"{format_number(seconds * factor)} {unit}"


def format_percent(value: float | None) -> str:
    """Format a share as a percentage."""
    return _NO_VALUE if value is None or not math.isfinite(value) else f"{format_number(value * 100)} %"


def _time_unit(seconds: float) -> tuple[float, str]:
    if 0 < seconds < 0.000_999_5:
        return 1e6, "µs"
    return (1e3, "ms") if seconds < 0.999_5 else (1.0, "s")


def round_up_step(step: float) -> float:
    """Round a step up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= step * (1 - 1e-9))


def _thin_ticks(steps: list[float]) -> list[float]:
    """Return as many steps as there is room for: on a long axis only powers of ten, and not all of them."""
    if len(steps) <= _TICK_COUNT + 1:
        return steps
    powers = [step for step in steps if math.isclose(math.log10(step), round(math.log10(step)))]
    return powers[:: -(-len(powers) // (_TICK_COUNT + 1))]


# Parts of all plots: axes with ticks, title, legend; and SVG paths.


NARROW_WIDTH, WIDE_WIDTH = 480.0, 960.0
"""Widths of plots, in user units. A narrow one is readable on a phone; a wide one is scrolled there."""
_BOTTOM_MARGIN, _TOP_MARGIN = 44.0, 26.0


class PlotFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Two axes and their position, with margins for labels."""

    x: Axis
    y: Axis
    width: float = NARROW_WIDTH
    height: float = 270.0
    left: float = 56.0
    right: float = 18.0

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return the coordinates of a point."""
        return self.x_at(self.x.position(x)), self.y_at(self.y.position(y))

    def x_at(self, position: float) -> float:
        return self.left + position * (self.width - self.left - self.right)

    def y_at(self, position: float) -> float:
        return self.height - _BOTTOM_MARGIN - position * (self.height - _TOP_MARGIN - _BOTTOM_MARGIN)


def figure(title: str, svg: Element, *, legend: Sequence[tuple[str, Element]] = (), note: str = "") -> Element:
    """Return a plot with its title, legend and note."""
    parts = [element("div", svg, class_="scroll") if "wide" in (svg.get("class") or "") else svg]
    if legend:
        keys = [element("span", swatch, name, class_="key") for name, swatch in legend]
        parts.append(element("div", *keys, class_="legend"))
    if note:
        parts.append(element("p", note, class_="quiet small"))
    return element("figure", element("figcaption", title), *parts)


def empty_figure(title: str, reason: str) -> Element:
    """Return a placeholder for a plot without data."""
    return element("figure", element("figcaption", title), element("p", reason, class_="quiet"))


def plot_svg(frame: PlotFrame, x: str, y: str, *content: Element) -> Element:
    """Return the SVG of a plot with its axes; `x` and `y` are their titles."""
    (left, bottom), right = (frame.left, frame.y_at(0)), frame.x_at(1)
    axes = [
        _svg_text((left + right) / 2, frame.height - 6, _axis_title(x, frame.x.unit), "middle"),
        _svg_text(4, 14, _axis_title(y, frame.y.unit), "start"),
        element("path", d=svg_path("M", left, bottom, "H", right), class_="axis"),
    ]
    for value, name in frame.x.ticks:
        at = frame.x_at(frame.x.position(value))
        axes.append(element("path", d=svg_path("M", at, bottom, "v5"), class_="axis"))
        axes.append(_svg_text(at, bottom + 18, name, "middle"))
    for value, name in frame.y.ticks:
        at = frame.y_at(frame.y.position(value))
        axes.append(element("path", d=svg_path("M", left, at, "H", right), class_="grid"))
        axes.append(_svg_text(left - 6, at + 4, name, "end"))
    css_class = "plot wide" if frame.width > NARROW_WIDTH else "plot"
    size = f"0 0 {svg_number(frame.width)} {svg_number(frame.height)}"
    return element("svg", *axes, *content, viewBox=size, class_=css_class, role="img")


def vertical_marker(frame: PlotFrame, position: float, name: str, row: int = 0) -> list[Element]:
    """Return a dashed vertical line with a label at its top; rows keep adjacent labels apart."""
    x, top = frame.x_at(position), frame.y_at(1)
    side, anchor = (4, "start") if position < 0.85 else (-4, "end")
    return [
        element("path", d=svg_path("M", x, top, "V", frame.y_at(0)), class_="mark"),
        _svg_text(x + side, top + 11 + 13 * row, name, anchor),
    ]


def rectangle_path(left: float, top: float, width: float, height: float) -> str:
    """Return the path of a rectangle."""
    width = max(width, 0.3)
    return svg_path("M", left, top, "h", width, "v", height, "h", -width, "z")


def svg_path(*parts: str | float) -> str:
    """Return a path from commands and coordinates."""
    return "".join(part if isinstance(part, str) else f"{svg_number(part)} " for part in parts)


def svg_number(number: float) -> str:
    """Format a coordinate, in hundredths of a unit."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if math.isfinite(number) else "0"


def legend_swatch(css_class: str, d: str = "M0 2h12v8h-12z") -> Element:
    """Return the sample of a style in a legend."""
    return element("svg", element("path", d=d, class_=css_class), viewBox="0 0 12 12", class_="swatch")


def _svg_text(x: float, y: float, words: str, anchor: str) -> Element:
    return element("text", words, x=svg_number(x), y=svg_number(y), text_anchor=anchor)


def _axis_title(words: str, unit: str) -> str:
    return f"{words} ({unit})" if words and unit else words or unit


_HISTOGRAM_BINS = 40
"""Bars of a histogram, each about ten units wide."""
_MAX_LINE_POINTS = 200
"""Points of a line: more cannot be distinguished."""
MARKER_SHAPES = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0z",
    "m-3-3h6v6h-6z",
    "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "m0-4l4 7h-8z",
)
"""Circle, square, diamond and triangle: colour is never the only distinction."""


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one series."""

    name: str
    style: int
    """Index of colour and marker shape."""
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False
    has_points: bool = True
    """A line without points is a reference line."""


def line_plot(
    title: str, series: Sequence[PlotLine], *, x: Axis, y: str, format_value: Callable[[float], str] = format_number
) -> Element:
    """Return a line plot. Plots with the same axis `x` can be compared; `format_value` formats a value."""
    lines, legend = [], []
    for line in series:
        if points := sorted(point for point in line.points if len(finite_values(point)) == len(point)):
            lines.append(msgspec.structs.replace(line, points=points[:: -(-len(points) // _MAX_LINE_POINTS)]))
            shape = f"M6 6{MARKER_SHAPES[line.style % 4]}" if line.has_points else ""
            legend.append((line.name, legend_swatch(_line_class(line), f"M0 6h12{shape}")))
    if not lines:
        return empty_figure(title, "No data.")
    values = [value for line in lines for _, value in line.points]
    frame = PlotFrame(x=x, y=linear_axis(values, is_time=format_value is format_seconds))
    paths = [_draw_line(frame, line, format_value) for line in lines]
    return figure(title, plot_svg(frame, "", y, *paths), legend=legend)


def _draw_line(frame: PlotFrame, line: PlotLine, format_value: Callable[[float], str]) -> Element:
    drawn = [element("path", d="M" + "L".join(svg_path(*frame.point(*point)) for point in line.points))]
    for x, y in line.points if line.has_points else ():
        tooltip = element("title", f"{line.name}: {format_value(y)} at {format_number(x)} {frame.x.unit}")
        path = svg_path("M", *frame.point(x, y), MARKER_SHAPES[line.style % 4])
        drawn.append(element("path", tooltip, d=path, class_="point"))
    return element("g", *drawn, class_=_line_class(line))


def _line_class(line: PlotLine) -> str:
    return f"line{line.style % 4}{' dashed' if line.is_dashed else ''}"


def histogram(title: str, samples: Iterable[float], markers: Sequence[tuple[str, float]], *, note: str = "") -> Element:
    """Return a histogram of times with the cumulative share and marked values."""
    held = sorted(finite_values(samples))
    if not held:
        return empty_figure(title, "No samples.")
    ends = held[0], held[-1]
    # If the values are far apart, a linear axis would hide most of them.
    is_log = ends[1] > 20 * max(ends[0], _MIN_VALUE)
    x = log_axis(ends, is_time=True) if is_log else linear_axis(ends, is_time=True, is_from_zero=False)
    edges = [x.value_at(number / _HISTOGRAM_BINS) for number in range(_HISTOGRAM_BINS + 1)]
    below = [0, *(bisect_left(held, edge) for edge in edges[1:-1]), len(held)]
    shares = [(later - sooner) / len(held) for sooner, later in pairwise(below)]
    frame = PlotFrame(x=x, y=linear_axis([max(shares) * 100]), right=46.0)
    bars = [
        _draw_bar(frame, begin, end, 100 * share, f"{round(share * len(held)):,}, {format_percent(share)}")
        for (begin, end), share in zip(pairwise(edges), shares, strict=True)
        if share
    ]
    sound = [(name, finite) for name, value in markers for finite in finite_values([value])]
    marked = [
        part for row, (name, at) in enumerate(sound) for part in vertical_marker(frame, x.position(at), name, row)
    ]
    cumulative = ("cumulative (right axis)", legend_swatch("line1", "M0 6h12"))
    svg = plot_svg(frame, "", "%", element("g", *bars, class_="fill0"), *_cumulative_line(frame, held), *marked)
    count = f"{len(held):,} sample{'s' * (len(held) != 1)}"
    return figure(title, svg, legend=[("in this range", legend_swatch("fill0")), cumulative], note=count + note)


def _cumulative_line(frame: PlotFrame, ordered: Sequence[float]) -> list[Element]:
    """Return the cumulative distribution, with its own axis at the right."""
    ranks = sorted({round(number * (len(ordered) - 1) / _MAX_LINE_POINTS) for number in range(_MAX_LINE_POINTS + 1)})
    path = svg_path("M", frame.x_at(frame.x.position(ordered[0])), frame.y_at(0))
    for rank in ranks:
        path += svg_path("L", frame.x_at(frame.x.position(ordered[rank])), frame.y_at((rank + 1) / len(ordered)))
    right = frame.width - frame.right + 5
    names = [_svg_text(right, frame.y_at(part / 2) + 4, f"{part * 50} %", "start") for part in range(3)]
    return [element("g", element("path", d=path), class_="line1"), *names]


def bar_plot(title: str, values: Sequence[float], x: Axis, *, bar_s: float, ends_s: float, y: str) -> Element:
    """Return bars over the time axis `x`, each for `bar_s` seconds; no request was sent after `ends_s`."""
    if not any(finite_values(values)):
        return empty_figure(title, "No data.")
    frame = PlotFrame(x=x, y=linear_axis(values), width=WIDE_WIDTH, height=220.0)
    bars = [
        _draw_bar(frame, number * bar_s, (number + 1) * bar_s, value, f"{format_number(value)} {y}")
        for number, value in enumerate(values)
    ]
    content = (element("g", *bars, class_="fill0"), *vertical_marker(frame, frame.x.position(ends_s), "end"))
    return figure(title, plot_svg(frame, "since the start of the step", y, *content))


def _draw_bar(frame: PlotFrame, begin_s: float, end_s: float, value: float, words: str) -> Element:
    (left, top), (right, _) = frame.point(begin_s, value), frame.point(end_s, value)
    tooltip = element("title", f"{format_seconds(begin_s)} to {format_seconds(end_s)}: {words}")
    return element("path", tooltip, d=rectangle_path(left, top, right - left - 0.5, frame.y_at(0) - top))
