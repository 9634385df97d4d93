"""What reports are drawn with: whatever a text holds, it stays one text in its place."""

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
def test_a_printable_text_is_one_line_and_not_too_long(text: str, longest: int) -> None:
    shown = sanitize_text(text, longest)
    assert shown.isprintable()
    assert len(shown) <= 10 * (longest + 1)
    assert shown == text or len(text) > longest or not text.isprintable()


def test_every_text_of_a_report_is_made_inert_and_all_else_is_kept() -> None:
    times = array("d", [1.5])
    part = Part("a\x1b[2Jb", facts={"x\ny": ["\u202e", 1, None, ("z\0",)]}, times=times)
    found = sanitize(part)
    assert found == Part(r"a\x1b[2Jb", facts={r"x\ny": [r"\u202e", 1, None, (r"z\x00",)]}, times=times)
    assert found.colour is Colour.RED
    assert sanitize(Part("long"), 2).text == "lo…"


def test_what_is_in_a_tree_as_text_stays_text() -> None:
    heard: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            heard.append(f"{tag} {dict(attrs)}")

        def handle_data(self, data: str) -> None:
            heard.append(data)

    Reader().feed(as_html(element("p", "<b>", code("</p>&amp;"), "a", "<i>", class_="x", data_y="1")))
    assert heard == ["p {'class': 'x', 'data-y': '1'}", "<b>", "code {}", "</p>&amp;", "a<i>"]
    assert as_xml(element("br")) == "<br />"


@pytest.mark.parametrize(("number", "words"), [(0, "0 rules"), (1, "1 rule"), (1234, "1,234 rules")])
def test_a_number_of_things(number: int, words: str) -> None:
    assert pluralize(number, "rule") == words


def test_text_is_wrapped_below_itself() -> None:
    assert wrap_text("a  ", "one two", None) == ["a  one two"]
    long = " ".join(["word"] * 20)
    lines = wrap_text("label  ", long, 40)
    assert lines[0].startswith("label  word")
    assert all(line.startswith("       word") and len(line) <= 40 for line in lines[1:])
    assert wrap_text("a", "   ", 2) == ["a"]
    assert max(map(len, wrap_text("", "x" * 100, 40))) == 40


def test_a_table_without_room_for_its_last_column_gives_its_first_one_lines_of_its_own() -> None:
    rows = [("name", "3", "said " * 10), ("n" * 30, "12", "")]
    wide = format_table(rows, None, right_aligned=frozenset({1}))
    assert [line[32:34] for line in wide] == [" 3", "12"]
    painted = format_table(rows, 50, paint=lambda row, column, cell: f"<{cell}>" if column == 1 else cell)
    assert painted[0] == "name"
    assert painted[1].startswith("  <3 >  said")
    assert painted[-2:] == ["n" * 30, "  <12>"]
