"""Rendering of reports: sanitized text, escaped trees, wrapped text and tables."""

from array import array
from enum import StrEnum
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from welldone.reporting import (
    as_html,
    as_xml,
    code,
    element,
    format_table,
    pluralize,
    sanitize,
    sanitize_text,
    wrap_text,
)


class Colour(StrEnum):
    RED = "red"


class Part(msgspec.Struct, frozen=True):
    text: str
    colour: Colour = Colour.RED
    facts: dict[str, object] = {}
    times: array = array("d")  # type: ignore[type-arg]  # msgspec has no array[float] on Python 3.11


@given(st.text(max_size=50), st.integers(1, 20))
def test_sanitized_text_is_printable_and_limited(text: str, max_chars: int) -> None:
    sanitized = sanitize_text(text, max_chars)
    assert sanitized.isprintable()
    assert len(sanitized) <= 10 * (max_chars + 1)
    assert sanitized == text or len(text) > max_chars or not text.isprintable()


def test_every_text_of_a_report_is_sanitized_and_other_values_are_unchanged() -> None:
    times = array("d", [1.5])
    part = Part("a\x1b[2Jb", facts={"x\ny": ["\u202e", 1, None, ("z\0",)]}, times=times)
    sanitized = sanitize(part)
    assert sanitized == Part(r"a\x1b[2Jb", facts={r"x\ny": [r"\u202e", 1, None, (r"z\x00",)]}, times=times)
    assert sanitized.colour is Colour.RED
    assert sanitize(Part("long"), 2).text == "lo…"


def test_text_in_a_tree_is_escaped() -> None:
    parsed: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            parsed.append(f"{tag} {dict(attrs)}")

        def handle_data(self, data: str) -> None:
            parsed.append(data)

    Reader().feed(as_html(element("p", "<b>", code("</p>&amp;"), "a", "<i>", class_="x", data_y="1")))
    assert parsed == ["p {'class': 'x', 'data-y': '1'}", "<b>", "code {}", "</p>&amp;", "a<i>"]
    assert as_xml(element("br")) == "<br />"


@pytest.mark.parametrize(("number", "words"), [(0, "0 rules"), (1, "1 rule"), (1234, "1,234 rules")])
def test_pluralize(number: int, words: str) -> None:
    assert pluralize(number, "rule") == words


def test_text_is_wrapped_with_a_hanging_indent() -> None:
    assert wrap_text("a  ", "one two", None) == ["a  one two"]
    long = " ".join(["word"] * 20)
    lines = wrap_text("label  ", long, 40)
    assert lines[0].startswith("label  word")
    assert all(line.startswith("       word") and len(line) <= 40 for line in lines[1:])
    assert wrap_text("a", "   ", 2) == ["a"]
    assert max(map(len, wrap_text("", "x" * 100, 40))) == 40


def test_a_narrow_table_puts_the_first_column_on_its_own_line() -> None:
    rows = [("name", "3", "said " * 10), ("n" * 30, "12", "")]
    wide = format_table(rows, None, right_aligned=frozenset({1}))
    assert [line[32:34] for line in wide] == [" 3", "12"]
    painted = format_table(rows, 50, paint=lambda row, column, cell: f"<{cell}>" if column == 1 else cell)
    assert painted[0] == "name"
    assert painted[1].startswith("  <3 >  said")
    assert painted[-2:] == ["n" * 30, "  <12>"]
