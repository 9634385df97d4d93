"""Detection of the end of JSON, compared with a character-by-character scan."""

from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.core.tool_calls import JsonEndDetector

PIECES = st.lists(st.text('{}[]"\\a ', max_size=8), max_size=6)


def slowly(text: str) -> tuple[bool, bool]:
    """Whether the text is complete, and whether it is open, character by character."""
    depth, is_in_string, is_escaped, is_whole = 0, False, False, False
    for sign in text:
        if is_escaped:
            is_escaped = False
        elif sign == '"':
            is_in_string = not is_in_string
            is_whole = depth == 0 and not is_in_string
        elif is_in_string:
            is_escaped = sign == "\\"
        elif sign in "{[":
            depth, is_whole = depth + 1, False
        elif sign in "}]":
            depth -= 1
            is_whole = depth == 0
    return is_whole, depth != 0 or is_in_string


@given(PIECES)
def test_the_result_equals_that_of_a_character_by_character_scan(pieces: list[str]) -> None:
    end = JsonEndDetector()
    for piece in pieces:
        end.feed(piece)
    assert (end.is_complete, end.is_open) == slowly("".join(pieces))


@table(
    ("text", "is_whole", "is_open"),
    [
        ("", False, False),
        ("\\", False, False),
        ("{}", True, False),
        ('{"a":"}\\"', False, True),
        ('"\\\\"', True, False),
        ("}{", False, False),
        ("[" * 2**20, False, True),
    ],
)
def test_complete_and_open_values_are_detected(text: str, is_whole: bool, is_open: bool) -> None:
    end = JsonEndDetector()
    end.feed(text)
    assert (end.is_complete, end.is_open) == (is_whole, is_open)
