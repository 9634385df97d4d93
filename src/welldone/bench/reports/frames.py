"""What all plots have around them: axes with ticks, a title, a legend; and the letters of SVG."""

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.reports.scales import Axis
from welldone.drawing.elements import element

NARROW_WIDTH, WIDE_WIDTH = 480.0, 960.0
"""How wide a plot is, in its own units. A narrow one can be read on a phone; a wide one is scrolled there."""
_BOTTOM_MARGIN, _TOP_MARGIN = 44.0, 26.0


class PlotFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Two axes, and where they stand. What is written around them needs room on all sides."""

    x: Axis
    y: Axis
    width: float = NARROW_WIDTH
    height: float = 270.0
    left: float = 56.0
    right: float = 18.0

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Where a point with these numbers stands."""
        return self.x_at(self.x.position(x)), self.y_at(self.y.position(y))

    def x_at(self, position: float) -> float:
        return self.left + position * (self.width - self.left - self.right)

    def y_at(self, position: float) -> float:
        return self.height - _BOTTOM_MARGIN - position * (self.height - _TOP_MARGIN - _BOTTOM_MARGIN)


def figure(title: str, drawn: Element, *, legend: Sequence[tuple[str, Element]] = (), note: str = "") -> Element:
    """A picture with what is said about it."""
    keys = [element("span", swatch, name, class_="key") for name, swatch in legend]
    told = [element("div", *keys, class_="legend")] if keys else []
    noted = [element("p", note, class_="quiet small")] if note else []
    is_wide = "wide" in (drawn.get("class") or "")
    return element(
        "figure",
        element("figcaption", title),
        element("div", drawn, class_="scroll") if is_wide else drawn,
        *told,
        *noted,
    )


def empty_figure(title: str, reason: str) -> Element:
    """What stands where there is nothing to draw."""
    return element("figure", element("figcaption", title), element("p", reason, class_="quiet"))


def plot_svg(frame: PlotFrame, x: str, y: str, *drawn: Element) -> Element:
    """The plot itself: what was drawn, in its axes. `x` and `y` are what the numbers are."""
    x, y = _axis_title(x, frame.x.unit), _axis_title(y, frame.y.unit)
    middle = (frame.left + frame.width - frame.right) / 2
    names = [_svg_text(middle, frame.height - 6, x, "middle"), _svg_text(4, 14, y, "start")] if y else []
    return element(
        "svg",
        *_x_axis(frame),
        *_y_axis(frame),
        *(names or [_svg_text(middle, frame.height - 6, x, "middle")]),
        *drawn,
        viewBox=f"0 0 {svg_number(frame.width)} {svg_number(frame.height)}",
        class_="plot wide" if frame.width > NARROW_WIDTH else "plot",
        role="img",
    )


def vertical_marker(frame: PlotFrame, position: float, name: str, row: int = 0) -> list[Element]:
    """A dashed line from top to bottom with a name at its head; rows keep neighbours' names apart."""
    x, top = frame.x_at(position), frame.y_at(1)
    side, anchor = (4, "start") if position < 0.85 else (-4, "end")
    return [
        element("path", d=f"M{svg_number(x)} {svg_number(top)}V{svg_number(frame.y_at(0))}", class_="mark"),
        _svg_text(x + side, top + 11 + 13 * row, name, anchor),
    ]


def rectangle_path(left: float, top: float, width: float, height: float) -> str:
    """The path of a rectangle."""
    return f"M{svg_number(left)} {svg_number(top)}h{svg_number(max(width, 0.3))}v{svg_number(height)}h{svg_number(-max(width, 0.3))}z"


def svg_number(number: float) -> str:
    """A place in a picture. A hundredth of a unit is nothing that anybody sees."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if math.isfinite(number) else "0"


def legend_swatch(css_class: str, d: str = "M0 2h12v8h-12z") -> Element:
    """A piece of a picture in its legend."""
    return element("svg", element("path", d=d, class_=css_class), viewBox="0 0 12 12", class_="swatch")


def _x_axis(frame: PlotFrame) -> list[Element]:
    made = []
    for value, name in frame.x.ticks:
        x = frame.x_at(frame.x.position(value))
        made += [
            element("path", d=f"M{svg_number(x)} {svg_number(frame.y_at(0))}v5", class_="axis"),
            _svg_text(x, frame.y_at(0) + 18, name, "middle"),
        ]
    made.append(
        element(
            "path",
            d=f"M{svg_number(frame.x_at(0))} {svg_number(frame.y_at(0))}H{svg_number(frame.x_at(1))}",
            class_="axis",
        )
    )
    return made


def _y_axis(frame: PlotFrame) -> list[Element]:
    made = []
    for value, name in frame.y.ticks:
        y = frame.y_at(frame.y.position(value))
        made += [
            element(
                "path", d=f"M{svg_number(frame.x_at(0))} {svg_number(y)}H{svg_number(frame.x_at(1))}", class_="grid"
            ),
            _svg_text(frame.left - 6, y + 4, name, "end"),
        ]
    return made


def _svg_text(x: float, y: float, words: str, anchor: str) -> Element:
    return element("text", words, x=svg_number(x), y=svg_number(y), text_anchor=anchor)


def _axis_title(words: str, unit: str) -> str:
    return f"{words} ({unit})" if words and unit else words or unit
