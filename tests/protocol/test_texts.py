"""Text that repeats itself, and thoughts among the words."""

import json

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    finish,
    role,
    rules,
    say,
    stream,
    text,
    text_end,
)
from tests.protocol.build import (
    words as say_all,
)
from tests.table import table
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Event, Reasoning, Text
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.text_filters import CumulativeTextDetector, CumulativeTextFilter, TextMode, ThinkTagFilter

INCREMENTAL = "delta-content-incremental"


@table(
    ("texts", "new", "noted"),
    [
        (["Hello", "Hello world", "Hello world!"], ["Hello", " world", "!"], [INCREMENTAL]),
        (["a", "ab", "ab", "abc"], ["a", "b", "", "c"], [INCREMENTAL]),
        (["Hello"], ["Hello"], []),
        # what does not begin with the text before is no part of it: nothing is lost
        (["Hello", "Bye", "Bye now"], ["Hello", "Bye", " now"], [INCREMENTAL]),
        (["Hello", "Hel"], ["Hello", "Hel"], []),
    ],
)
def test_of_a_cumulative_text_only_the_new_part_goes_out(texts: list[str], new: list[str], noted: list[str]) -> None:
    notes = RepairLog()
    cumulative = CumulativeTextFilter(notes)
    assert [cumulative.feed(text) for text in texts] == new
    assert rules(notes) == noted


@table(
    ("texts", "is_reported"),
    [
        (["Once", "Once upon", "Once upon a", "Once upon a time"], True),
        (["a", "ab", "abc", "abcd", "abcde"], True),
        (["test", "testing"], False),
        (["a", "ab", "abc"], False),
        (["0" * 4, "0" * 8, "0" * 12, "0" * 16, "0" * 20], False),
        (["ha", "haha", "hahaha", "hahahaha", " lol"], False),
        (["a", "ab", "x", "xy", "xyz", "xyza", "xyzab"], False),
        (["a", "a", "a", "a", "a"], False),
    ],
)
def test_text_that_looks_cumulative_is_reported(texts: list[str], is_reported: bool) -> None:
    notes = RepairLog()
    watch = CumulativeTextDetector(notes)
    for piece in texts:
        watch.feed(piece)
    assert rules(notes) == [INCREMENTAL] * is_reported


def through(endpoint: Endpoint, data: bytes, form: TextMode) -> tuple[bytes, StreamPipeline]:
    """What comes of a stream whose texts are of this form."""
    pipe = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], text=form)
    return pipe.feed(data) + pipe.close(), pipe


REPEATED = [
    ["test", "testing"],
    ["0000", "00000000"],
    ["a", "ab", "abc", "abcd", "abcde"],
    ["Once", "Once upon", "Once upon a", "Once upon a time"],
    ["ha", "haha", "hahaha", "hahahaha"],
]


@table("texts", REPEATED)
def test_text_that_grows_passes_unchanged(texts: list[str]) -> None:
    data = stream(role(), *say_all(*texts), finish())
    assert through(CHAT, data, "delta")[0] == data
    data = stream(*map(text, texts), text_end())
    assert through(COMPLETIONS, data, "delta")[0] == data
    fold = BufferedPipeline(CHAT, fallback=FALLBACK)
    fold.feed(stream(role(), *say_all(*texts), finish()))
    fold.close()
    assert json.loads(fold.body())["choices"][0]["message"]["content"] == "".join(texts)


def test_an_upstream_that_is_set_as_cumulative_has_its_text_cut() -> None:
    thought = [say({"reasoning_content": text}) for text in ("w", "why", "why")]
    sent, pipe = through(CHAT, stream(role(), *thought, *say_all("a", "ab", "ab", "abc"), finish()), "cumulative")
    new = [say({"reasoning_content": "w"}), say({"reasoning_content": "hy"})]
    assert sent == stream(role(), *new, *say_all("a", "b", "c"), finish())
    assert rules(pipe.repair_log) == [INCREMENTAL]
    sent, _ = through(COMPLETIONS, stream(text("a"), text("ab"), text_end()), "cumulative")
    assert sent == stream(text("a"), text("b"), text_end())


def test_thoughts_in_tags_are_found_in_the_new_part_of_a_cumulative_text() -> None:
    pipe = StreamPipeline(CHAT, fallback=FALLBACK, think="tags", text="cumulative")
    texts = ["<think>", "<think>why", "<think>why</think>", "<think>why</think>so"]
    sent = pipe.feed(stream(role(), *say_all(*texts), finish())) + pipe.close()
    assert sent == stream(role(), say({"reasoning_content": "why"}), *say_all("so"), finish())


def thoughts(*texts: str, is_open: bool = False) -> list[Event]:
    given = ThinkTagFilter(0, is_open=is_open)
    events = [event for text in texts for event in given.feed(text)]
    return events + given.close()


def words(text: str) -> Text:
    return Text(0, text)


def thought(text: str) -> Reasoning:
    return Reasoning(0, text)


@table(
    ("texts", "events"),
    [
        (["Hello", "<think>"], [words("Hello"), words("<think>")]),
        (["<think>why</think>so"], [thought("why"), words("so")]),
        (["<thi", "nk>wh", "y</th", "ink>s", "o"], [thought("wh"), thought("y"), words("s"), words("o")]),
        ([" \n<think>why</think>so"], [thought("why"), words("so")]),
        (["<think>why"], [thought("why")]),
        (["<think>why</thi"], [thought("why"), thought("</thi")]),
        (["<think>a</x</think>"], [thought("a</x")]),
        (["<think></think>so"], [words("so")]),
        (["<think>a</think><think>b</think>so"], [thought("a"), thought("b"), words("so")]),
        (["<think>a</think>so<think>b"], [thought("a"), words("so<think>b")]),
        (["<thought>"], [words("<thought>")]),
        (["<thi"], [words("<thi")]),
        (["", ""], []),
        (["  ", "x"], [words("  x")]),
    ],
)
def test_leading_thoughts_are_moved_to_where_they_belong(texts: list[str], events: list[Event]) -> None:
    assert thoughts(*texts) == events


@table(
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
    assert thoughts(*texts, is_open=True) == events


def test_only_white_space_comes_before_what_is_no_text() -> None:
    given = ThinkTagFilter(0)
    assert given.pause() == []
    assert [given.feed("\n"), given.pause(), given.pause()] == [[], [words("\n")], []]
    assert [given.feed(" <th"), given.pause()] == [[], []]
    assert [given.feed("ink>a "), given.pause()] == [[thought("a ")], []]
    assert [given.feed("</think>\n\n"), given.pause()] == [[], [words("\n\n")]]
    assert given.feed("<think>b</think>c") == [thought("b"), words("c")]


def test_white_space_before_a_tag_is_waited_for_only_so_long() -> None:
    assert thoughts(" " * 256, "<think>a</think>b") == [thought("a"), words("b")]
    assert thoughts(" " * 257, "<think>a") == [words(" " * 257), words("<think>a")]
    given = ThinkTagFilter(0)
    assert given.feed(" " * 256) == []
    assert given.feed(" ") == [words(" " * 257)]
    assert given.is_past_thinking is True


def test_a_long_thought_is_not_held_back() -> None:
    given = ThinkTagFilter(0)
    given.feed("<think>")
    assert sum(len(given.feed("</")) for _ in range(1000)) == 999
    assert given.close() == [thought("</")]
