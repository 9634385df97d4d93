"""What all plots have around them: axes with ticks, a title, a legend; and the letters of SVG."""

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.reports.scales import Axis
from welldone.drawing.elements import element

NARROW, WIDE = 480.0, 960.0
"""How wide a plot is, in its own units. A narrow one can be read on a phone; a wide one is scrolled there."""
_BELOW, _ABOVE = 44.0, 26.0


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Two axes, and where they stand. What is written around them needs room on all sides."""

    x: Axis
    y: Axis
    width: float = NARROW
    height: float = 270.0
    left: float = 56.0
    right: float = 18.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point with these numbers stands."""
        return self.across(self.x.place(x)), self.down(self.y.place(y))

    def across(self, place: float) -> float:
        return self.left + place * (self.width - self.left - self.right)

    def down(self, place: float) -> float:
        return self.height - _BELOW - place * (self.height - _ABOVE - _BELOW)


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


def missing(title: str, why: str) -> Element:
    """What stands where there is nothing to draw."""
    return element("figure", element("figcaption", title), element("p", why, class_="quiet"))


def picture(frame: Frame, x: str, y: str, *drawn: Element) -> Element:
    """The plot itself: what was drawn, in its axes. `x` and `y` are what the numbers are."""
    x, y = _named(x, frame.x.unit), _named(y, frame.y.unit)
    middle = (frame.left + frame.width - frame.right) / 2
    names = [_text(middle, frame.height - 6, x, "middle"), _text(4, 14, y, "start")] if y else []
    return element(
        "svg",
        *_across(frame),
        *_up(frame),
        *(names or [_text(middle, frame.height - 6, x, "middle")]),
        *drawn,
        viewBox=f"0 0 {n(frame.width)} {n(frame.height)}",
        class_="plot wide" if frame.width > NARROW else "plot",
        role="img",
    )


def upright(frame: Frame, place: float, name: str, row: int = 0) -> list[Element]:
    """A dashed line from top to bottom with a name at its head; rows keep neighbours' names apart."""
    x, top = frame.across(place), frame.down(1)
    side, anchor = (4, "start") if place < 0.85 else (-4, "end")
    return [
        element("path", d=f"M{n(x)} {n(top)}V{n(frame.down(0))}", class_="mark"),
        _text(x + side, top + 11 + 13 * row, name, anchor),
    ]


def box(left: float, top: float, width: float, height: float) -> str:
    """The path of a rectangle."""
    return f"M{n(left)} {n(top)}h{n(max(width, 0.3))}v{n(height)}h{n(-max(width, 0.3))}z"


def n(number: float) -> str:
    """A place in a picture. A hundredth of a unit is nothing that anybody sees."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if math.isfinite(number) else "0"


def swatch(look: str, d: str = "M0 2h12v8h-12z") -> Element:
    """A piece of a picture in its legend."""
    return element("svg", element("path", d=d, class_=look), viewBox="0 0 12 12", class_="swatch")


def _across(frame: Frame) -> list[Element]:
    made = []
    for value, name in frame.x.ticks:
        x = frame.across(frame.x.place(value))
        made += [
            element("path", d=f"M{n(x)} {n(frame.down(0))}v5", class_="axis"),
            _text(x, frame.down(0) + 18, name, "middle"),
        ]
    made.append(element("path", d=f"M{n(frame.across(0))} {n(frame.down(0))}H{n(frame.across(1))}", class_="axis"))
    return made


def _up(frame: Frame) -> list[Element]:
    made = []
    for value, name in frame.y.ticks:
        y = frame.down(frame.y.place(value))
        made += [
            element("path", d=f"M{n(frame.across(0))} {n(y)}H{n(frame.across(1))}", class_="grid"),
            _text(frame.left - 6, y + 4, name, "end"),
        ]
    return made


def _text(x: float, y: float, words: str, anchor: str) -> Element:
    return element("text", words, x=n(x), y=n(y), text_anchor=anchor)


def _named(words: str, unit: str) -> str:
    return f"{words} ({unit})" if words and unit else words or unit
