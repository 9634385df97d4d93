"""The report as a badge for a README: the name, and the verdict in its colour."""

from xml.etree.ElementTree import Element

from welldone.check.report import Report, Verdict
from welldone.check.reports.words import sanitize_report
from welldone.drawing.elements import as_xml, element
from welldone.drawing.texts import pluralize

_BADGE_NAME = "welldone"
_DARK, _GREY = "#555", "#757575"
_VERDICT_COLOURS = {Verdict.PASS: "#2e7d32", Verdict.WARN: "#b26a00", Verdict.FAIL: "#c62828"}
_BADGE_HEIGHT = 20
_BADGE_MARGIN = 6  # on each side of a text
_CHAR_WIDTHS = dict.fromkeys("mwMW", 10) | dict.fromkeys("ijlftr.,: '|1I", 4)
_DEFAULT_CHAR_WIDTH = 7  # of a letter in the sans-serif fonts of 11 px that badges are set in


def render_badge(report: Report) -> str:
    """Two boxes; the width is reckoned, so that no font need be loaded."""
    said, colour = _badge_text(sanitize_report(report))
    left, right = _text_width(_BADGE_NAME), _text_width(said)
    drawing = element(
        "svg",
        element("title", f"{_BADGE_NAME}: {said}"),
        element("clipPath", _badge_box(0, left + right, "#fff", rx="3"), id="round"),
        element(
            "g",
            _badge_box(0, left, _DARK),
            _badge_box(left, right, colour),
            clip_path="url(#round)",
        ),
        element(
            "g",
            _badge_label(_BADGE_NAME, 0, left),
            _badge_label(said, left, right),
            fill="#fff",
            text_anchor="middle",
            font_family="Verdana,DejaVu Sans,sans-serif",
            font_size="11",
        ),
        xmlns="http://www.w3.org/2000/svg",
        width=str(left + right),
        height=str(_BADGE_HEIGHT),
        role="img",
        aria_label=f"{_BADGE_NAME}: {said}",
    )
    return as_xml(drawing)


def _badge_text(report: Report) -> tuple[str, str]:
    """The words, and their colour."""
    if report.verdict is Verdict.FAIL:
        return f"{pluralize(len(report.root_causes), 'rule')} broken", _VERDICT_COLOURS[Verdict.FAIL]
    if report.is_interrupted:
        return "interrupted", _GREY
    if any(probe.is_timed_out for probe in report.probes):
        return Verdict.TIMED_OUT, _GREY
    if any(probe.is_incomplete for probe in report.probes):
        return "no whole reply", _GREY
    return report.verdict, _VERDICT_COLOURS.get(report.verdict, _GREY)


def _text_width(text: str) -> int:
    return sum(_CHAR_WIDTHS.get(char, _DEFAULT_CHAR_WIDTH) for char in text) + 2 * _BADGE_MARGIN


def _badge_box(begin: int, width: int, colour: str, **more: str) -> Element:
    return element("rect", x=str(begin), width=str(width), height=str(_BADGE_HEIGHT), fill=colour, **more)


def _badge_label(text: str, begin: int, width: int) -> Element:
    long = str(width - 2 * _BADGE_MARGIN)  # a font that is wider or narrower is fitted in
    return element("text", text, x=f"{begin + width / 2:g}", y="14", textLength=long, lengthAdjust="spacingAndGlyphs")
