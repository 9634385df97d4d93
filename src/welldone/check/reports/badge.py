"""The report as a badge for a README: the name, and the verdict in its colour."""

from xml.etree.ElementTree import Element

from welldone.check.report import Report, Verdict
from welldone.check.reports.words import inert
from welldone.drawing.elements import as_xml, element
from welldone.drawing.texts import count

_NAME = "welldone"
_DARK, _GREY = "#555", "#757575"
_COLOURS = {Verdict.RIGHT: "#2e7d32", Verdict.LAX: "#b26a00", Verdict.WRONG: "#c62828"}
_HEIGHT = 20
_MARGIN = 6  # on each side of a text
_WIDE = dict.fromkeys("mwMW", 10) | dict.fromkeys("ijlftr.,: '|1I", 4)
_USUAL = 7  # of a letter in the sans-serif fonts of 11 px that badges are set in


def draw(report: Report) -> str:
    """Two boxes; the width is reckoned, so that no font need be loaded."""
    said, colour = _say(inert(report))
    left, right = _width(_NAME), _width(said)
    drawing = element(
        "svg",
        element("title", f"{_NAME}: {said}"),
        element("clipPath", _box(0, left + right, "#fff", rx="3"), id="round"),
        element(
            "g",
            _box(0, left, _DARK),
            _box(left, right, colour),
            clip_path="url(#round)",
        ),
        element(
            "g",
            _text(_NAME, 0, left),
            _text(said, left, right),
            fill="#fff",
            text_anchor="middle",
            font_family="Verdana,DejaVu Sans,sans-serif",
            font_size="11",
        ),
        xmlns="http://www.w3.org/2000/svg",
        width=str(left + right),
        height=str(_HEIGHT),
        role="img",
        aria_label=f"{_NAME}: {said}",
    )
    return as_xml(drawing)


def _say(report: Report) -> tuple[str, str]:
    """The words, and their colour."""
    if report.verdict is Verdict.WRONG:
        return f"{count(len(report.causes), 'rule')} broken", _COLOURS[Verdict.WRONG]
    if report.is_interrupted:
        return "interrupted", _GREY
    if any(probe.is_timed_out for probe in report.probes):
        return Verdict.TIMED_OUT, _GREY
    if any(probe.is_given_up for probe in report.probes):
        return "no whole reply", _GREY
    return report.verdict, _COLOURS.get(report.verdict, _GREY)


def _width(text: str) -> int:
    return sum(_WIDE.get(char, _USUAL) for char in text) + 2 * _MARGIN


def _box(begin: int, width: int, colour: str, **more: str) -> Element:
    return element("rect", x=str(begin), width=str(width), height=str(_HEIGHT), fill=colour, **more)


def _text(text: str, begin: int, width: int) -> Element:
    long = str(width - 2 * _MARGIN)  # a font that is wider or narrower is fitted in
    return element("text", text, x=f"{begin + width / 2:g}", y="14", textLength=long, lengthAdjust="spacingAndGlyphs")
