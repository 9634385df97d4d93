"""Characters that are split over pieces."""

import pytest

from tests.table import table
from welldone.core.lenient_json import CharacterJoiner, clean_unicode, scrub_json, scrub_object

EMOJI = "\udcf0\udc9f\udc98\udc80"  # the bytes of 😀 as surrogate escapes


def join(*pieces: str) -> list[str]:
    joiner = CharacterJoiner()
    return [*(joiner.feed(piece) for piece in pieces), joiner.close()]


@table(
    ("pieces", "joined"),
    [
        (["a", "b"], ["a", "b", ""]),
        (["a", ""], ["a", "", ""]),
        (["a\ud83d", "\ude00b"], ["a", "😀b", ""]),
        (["\ud83d", "", "\ude00"], ["", "", "😀", ""]),
        (["\ud83d", "x"], ["", "\ufffdx", ""]),
        (["\ude00", "x"], ["\ufffd", "x", ""]),
        (["a\ud83d"], ["a", "\ufffd"]),
        ([EMOJI[:1], EMOJI[1:]], ["", "😀", ""]),
        ([EMOJI[:2], EMOJI[2:]], ["", "😀", ""]),
        ([EMOJI[:3], EMOJI[3:]], ["", "😀", ""]),
        (list(EMOJI), ["", "", "", "😀", ""]),
        (["\udcc3", "\udca9!"], ["", "é!", ""]),
        (["x\udce2\udc82", "\udcac"], ["x", "€", ""]),
        (["\udcc3\udca9"], ["é", ""]),
        (["x\udcf0\udc9f"], ["x", "\ufffd"]),
        (["\udcff", "\udc80\udc80\udc80"], ["", "\ufffd\ufffd\ufffd\ufffd", ""]),
        (["\udc80\udc80\udc80\udc80"], ["\ufffd" * 4, ""]),
        (["\udcc1"], ["\ufffd", ""]),
    ],
)
def test_split_characters_are_joined_and_only_partial_ones_held(pieces: list[str], joined: list[str]) -> None:
    assert join(*pieces) == joined


def test_a_joiner_holds_at_most_three_code_points() -> None:
    joiner = CharacterJoiner()
    given = sum(len(joiner.feed("\udcf0\udc9f\udc98")) for _ in range(1000))
    assert given == 999
    assert joiner.close() == "\ufffd"


@table(
    ("text", "cleaned"),
    [
        ("", ""),
        ("plain é 😀", "plain é 😀"),
        ("\ud83d\ude00", "😀"),
        (EMOJI, "😀"),
        ("a\udcffb", "a\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d" + EMOJI, "\ud83d\udcf0".encode("utf-16", "surrogatepass").decode("utf-16") + "\ufffd" * 3),
    ],
)
def test_clean_text_has_no_partial_characters(text: str, cleaned: str) -> None:
    assert clean_unicode(text) == cleaned


def test_all_strings_of_a_value_are_cleaned() -> None:
    value = {"\udcc3\udca9": ["\ud83d", {"a": "\ud83d\ude00"}], "n": [1, 2.5, None, True]}
    cleaned = {"é": ["\ufffd", {"a": "😀"}], "n": [1, 2.5, None, True]}
    assert scrub_json(value) == cleaned
    assert scrub_object(value) == cleaned


@pytest.mark.parametrize("is_list", [True, False])
def test_values_beyond_the_nesting_limit_become_null(is_list: bool) -> None:
    value: object = "deep"
    for _ in range(100_000):
        value = [value] if is_list else {"a": value}
    depth = 0
    found = scrub_json(value)
    while isinstance(found, list | dict):
        found = found[0] if isinstance(found, list) else found["a"]
        depth += 1
    assert depth == 64
    assert found is None
