"""Text that repeats itself, and thoughts among the words."""

import pytest

from tests.wire.build import rules
from welldone.wire.events import Event, Reasoning, Text
from welldone.wire.notes import Notes
from welldone.wire.texts import Increments, Thoughts

INCREMENTAL, TAGS = "delta-content-incremental", "ext-no-think-tags"


def increments(*texts: str) -> tuple[list[list[str]], list[str]]:
    """What comes of each text and of the end, and what was noted."""
    notes = Notes()
    given = Increments(notes)
    said = [given.feed(text) for text in texts]
    return [*said, given.close()], rules(notes)


@pytest.mark.parametrize(
    ("texts", "said", "noted"),
    [
        (["Hello", " world"], [["Hello"], [" world"], []], []),
        (["a", "b", "bc"], [["a"], ["b"], ["bc"], []], []),
        (["Hello"], [["Hello"], []], []),
        ([], [[]], []),
        # two that grow: repeated if the first is long enough to tell
        (["Hello", "Hello world"], [["Hello"], [], [" ", "world"]], [INCREMENTAL]),
        (["Hell", "Hello"], [["Hell"], [], ["o"]], [INCREMENTAL]),
        (["ha", "haha"], [["ha"], [], ["h", "aha"]], []),
        (["Hello", "Hello"], [["Hello"], ["Hello"], []], []),
        # three or more that grow: repeated once they are long, or at the end
        (["a", "ab", "abc", "abcd"], [["a"], [], [], [], ["b", "cd"]], [INCREMENTAL]),
        (
            ["Hello", "Hello w", "Hello world", "Hello world!"],
            [["Hello"], [], [" ", "world"], ["!"], []],
            [INCREMENTAL],
        ),
        (
            ["a", "ab", "abcdefgh", "abcdefgh", "abcdefghi", "x"],
            [["a"], [], ["b", "cdefgh"], [], ["i"], ["x"], []],
            [INCREMENTAL],
        ),
        (["ha", "haha", "hahaha", " lol"], [["ha"], [], [], ["h", "aha", "hahaha", " lol"], []], []),
        (["a", "ab", "abc", "x", "xy"], [["a"], [], [], ["a", "b", "abc", "x"], ["xy"], []], []),
        # two that grow by chance
        (["a", "ab", "x", "xy"], [["a"], [], ["a", "b", "x"], ["xy"], []], []),
    ],
)
def test_only_new_text_goes_out(texts: list[str], said: list[list[str]], noted: list[str]) -> None:
    assert increments(*texts) == (said, noted)


def test_what_was_held_back_is_given_once() -> None:
    given = Increments(Notes())
    given.feed("Hello")
    given.feed("Hello you")
    assert given.close() == [" ", "you"]
    assert given.close() == []
    assert given.feed("Hello you there") == ["Hello you there"]


def test_a_server_that_is_known_to_repeat_holds_nothing_back_at_the_end() -> None:
    given = Increments(Notes())
    for text in ("a", "ab", "abcdefgh"):
        given.feed(text)
    assert given.close() == []


def test_only_as_much_as_one_text_is_held() -> None:
    given = Increments(Notes())
    said = [piece for length in range(1, 2001) for piece in given.feed("x" * length)]
    assert "".join(said) == "x" * 2000


def thoughts(*texts: str, is_open: bool = False) -> tuple[list[Event], list[str]]:
    notes = Notes()
    given = Thoughts(0, notes, is_open=is_open)
    events = [event for text in texts for event in given.feed(text)]
    return events + given.close(), rules(notes)


def words(text: str) -> Text:
    return Text(0, text)


def thought(text: str) -> Reasoning:
    return Reasoning(0, text)


@pytest.mark.parametrize(
    ("texts", "events", "noted"),
    [
        (["Hello", "<think>"], [words("Hello"), words("<think>")], []),
        (["<think>why</think>so"], [thought("why"), words("so")], [TAGS]),
        (["<thi", "nk>wh", "y</th", "ink>s", "o"], [thought("wh"), thought("y"), words("s"), words("o")], [TAGS]),
        ([" \n<think>why</think>so"], [thought("why"), words("so")], [TAGS]),
        (["<think>why"], [thought("why")], [TAGS]),
        (["<think>why</thi"], [thought("why"), thought("</thi")], [TAGS]),
        (["<think>a</x</think>"], [thought("a</x")], [TAGS]),
        (["<think></think>so"], [words("so")], [TAGS]),
        (["<think>a</think><think>b</think>so"], [thought("a"), thought("b"), words("so")], [TAGS]),
        (["<think>a</think>so<think>b"], [thought("a"), words("so<think>b")], [TAGS]),
        (["<thought>"], [words("<thought>")], []),
        (["<thi"], [words("<thi")], []),
        (["", ""], [], []),
        (["  ", "x"], [words("  x")], []),
    ],
)
def test_leading_thoughts_are_moved_to_where_they_belong(
    texts: list[str], events: list[Event], noted: list[str]
) -> None:
    assert thoughts(*texts) == (events, noted)


@pytest.mark.parametrize(
    ("texts", "events"),
    [
        (["why</think>so"], [thought("why"), words("so")]),
        (["w", "hy</th", "ink>s", "o"], [thought("w"), thought("hy"), words("s"), words("o")]),
        (["<think>why</think>so"], [thought("why"), words("so")]),
        (["\n<th", "ink>why</think>so"], [thought("why"), words("so")]),
        (["<thought>a</think>so"], [thought("<thought>a"), words("so")]),
        ([" " * 300, "</think>so"], [thought(" " * 300), words("so")]),
        (["</think>so</think>"], [words("so</think>")]),
        (["a</think>", "<think>b</think>", "so"], [thought("a"), thought("b"), words("so")]),
        (["a</think>\n\nso"], [thought("a"), words("\n\nso")]),
        (["never closed"], [thought("never closed")]),
        (["<thi"], [words("<thi")]),
        ([], []),
    ],
)
def test_a_text_may_begin_inside_of_thoughts(texts: list[str], events: list[Event]) -> None:
    assert thoughts(*texts, is_open=True)[0] == events


def test_only_white_space_comes_before_what_is_no_text() -> None:
    given = Thoughts(0, Notes())
    assert given.pause() == []
    assert [given.feed("\n"), given.pause(), given.pause()] == [[], [words("\n")], []]
    assert [given.feed(" <th"), given.pause()] == [[], []]
    assert [given.feed("ink>a "), given.pause()] == [[thought("a ")], []]
    assert [given.feed("</think>\n\n"), given.pause()] == [[], [words("\n\n")]]
    assert given.feed("<think>b</think>c") == [thought("b"), words("c")]


def test_white_space_before_a_tag_is_waited_for_only_so_long() -> None:
    assert thoughts(" " * 256, "<think>a</think>b") == ([thought("a"), words("b")], [TAGS])
    assert thoughts(" " * 257, "<think>a") == ([words(" " * 257), words("<think>a")], [])
    given = Thoughts(0, Notes())
    assert given.feed(" " * 256) == []
    assert given.feed(" ") == [words(" " * 257)]
    assert given.is_plain is True


def test_a_long_thought_is_not_held_back() -> None:
    given = Thoughts(0, Notes())
    given.feed("<think>")
    assert sum(len(given.feed("</")) for _ in range(1000)) == 999
    assert given.close() == [thought("</")]
