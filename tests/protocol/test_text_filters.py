"""Filters of cumulative text and of `<think>` tags."""

import json

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    FALLBACK,
    FALLBACKS,
    content_chunks,
    delta_chunk,
    finish,
    role,
    rules,
    stream,
    text,
    text_end,
)
from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.events import Event, Reasoning, Text
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions
from welldone.core.text_filters import CumulativeTextDetector, CumulativeTextFilter, TextMode, ThinkTagFilter
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

INCREMENTAL = "delta-content-incremental"


@table(
    ("texts", "new", "recorded"),
    [
        (["Hello", "Hello world", "Hello world!"], ["Hello", " world", "!"], [INCREMENTAL]),
        (["a", "ab", "ab", "abc"], ["a", "b", "", "c"], [INCREMENTAL]),
        (["Hello"], ["Hello"], []),
        # A text that does not extend the previous one passes unchanged.
        (["Hello", "Bye", "Bye now"], ["Hello", "Bye", " now"], [INCREMENTAL]),
        (["Hello", "Hel"], ["Hello", "Hel"], []),
    ],
)
def test_only_the_new_part_of_cumulative_text_is_emitted(texts: list[str], new: list[str], recorded: list[str]) -> None:
    repair_log = RepairLog()
    cumulative = CumulativeTextFilter(repair_log)
    assert [cumulative.feed(text) for text in texts] == new
    assert rules(repair_log) == recorded


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
def test_text_that_looks_cumulative_is_recorded(texts: list[str], is_reported: bool) -> None:
    repair_log = RepairLog()
    detector = CumulativeTextDetector(repair_log)
    for piece in texts:
        detector.feed(piece)
    assert rules(repair_log) == [INCREMENTAL] * is_reported


def run_pipeline(endpoint: Endpoint, data: bytes, text_mode: TextMode) -> tuple[bytes, StreamPipeline]:
    pipeline = StreamPipeline(endpoint, fallback=FALLBACKS[endpoint], options=RepairOptions(text=text_mode))
    return pipeline.feed(data) + pipeline.close(), pipeline


REPEATED = [
    ["test", "testing"],
    ["0000", "00000000"],
    ["a", "ab", "abc", "abcd", "abcde"],
    ["Once", "Once upon", "Once upon a", "Once upon a time"],
    ["ha", "haha", "hahaha", "hahahaha"],
]


@table("texts", REPEATED)
def test_text_that_grows_passes_unchanged(texts: list[str]) -> None:
    data = stream(role(), *content_chunks(*texts), finish())
    assert run_pipeline(CHAT, data, "delta")[0] == data
    data = stream(*map(text, texts), text_end())
    assert run_pipeline(COMPLETIONS, data, "delta")[0] == data
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed(stream(role(), *content_chunks(*texts), finish()))
    buffered.close()
    assert json.loads(buffered.body())["choices"][0]["message"]["content"] == "".join(texts)


def test_cumulative_text_of_a_configured_upstream_becomes_increments() -> None:
    reasoning = [delta_chunk({"reasoning_content": text}) for text in ("w", "why", "why")]
    sent, pipeline = run_pipeline(
        CHAT, stream(role(), *reasoning, *content_chunks("a", "ab", "ab", "abc"), finish()), "cumulative"
    )
    new = [delta_chunk({"reasoning_content": "w"}), delta_chunk({"reasoning_content": "hy"})]
    assert sent == stream(role(), *new, *content_chunks("a", "b", "c"), finish())
    assert rules(pipeline.repair_log) == [INCREMENTAL]
    sent, _ = run_pipeline(COMPLETIONS, stream(text("a"), text("ab"), text_end()), "cumulative")
    assert sent == stream(text("a"), text("b"), text_end())


def test_think_tags_are_found_in_cumulative_text() -> None:
    pipeline = StreamPipeline(CHAT, fallback=FALLBACK, options=RepairOptions(think="tags", text="cumulative"))
    texts = ["<think>", "<think>why", "<think>why</think>", "<think>why</think>so"]
    sent = pipeline.feed(stream(role(), *content_chunks(*texts), finish())) + pipeline.close()
    assert sent == stream(role(), delta_chunk({"reasoning_content": "why"}), *content_chunks("so"), finish())


def filter_think_tags(*texts: str, is_open: bool = False) -> list[Event]:
    think_filter = ThinkTagFilter(0, is_open=is_open)
    events = [event for text in texts for event in think_filter.feed(text)]
    return events + think_filter.close()


def visible(text: str) -> Text:
    return Text(0, text)


def reasoning(text: str) -> Reasoning:
    return Reasoning(0, text)


@table(
    ("texts", "events"),
    [
        (["Hello", "<think>"], [visible("Hello"), visible("<think>")]),
        (["<think>why</think>so"], [reasoning("why"), visible("so")]),
        (["<thi", "nk>wh", "y</th", "ink>s", "o"], [reasoning("wh"), reasoning("y"), visible("s"), visible("o")]),
        ([" \n<think>why</think>so"], [reasoning("why"), visible("so")]),
        (["<think>why"], [reasoning("why")]),
        (["<think>why</thi"], [reasoning("why"), reasoning("</thi")]),
        (["<think>a</x</think>"], [reasoning("a</x")]),
        (["<think></think>so"], [visible("so")]),
        (["<think>a</think><think>b</think>so"], [reasoning("a"), reasoning("b"), visible("so")]),
        (["<think>a</think>so<think>b"], [reasoning("a"), visible("so<think>b")]),
        (["<thought>"], [visible("<thought>")]),
        (["<thi"], [visible("<thi")]),
        (["", ""], []),
        (["  ", "x"], [visible("  x")]),
    ],
)
def test_leading_think_tags_become_reasoning(texts: list[str], events: list[Event]) -> None:
    assert filter_think_tags(*texts) == events


@table(
    ("texts", "events"),
    [
        (["why</think>so"], [reasoning("why"), visible("so")]),
        (["w", "hy</th", "ink>s", "o"], [reasoning("w"), reasoning("hy"), visible("s"), visible("o")]),
        (["<think>why</think>so"], [reasoning("why"), visible("so")]),
        (["\n<th", "ink>why</think>so"], [reasoning("why"), visible("so")]),
        (["<thought>a</think>so"], [reasoning("<thought>a"), visible("so")]),
        ([" " * 300, "</think>so"], [reasoning(" " * 300), visible("so")]),
        (["</think>so</think>"], [visible("so</think>")]),
        (["a</think>", "<think>b</think>", "so"], [reasoning("a"), reasoning("b"), visible("so")]),
        (["a</think>\n\nso"], [reasoning("a"), visible("\n\nso")]),
        (["never closed"], [reasoning("never closed")]),
        (["<thi"], [visible("<thi")]),
        ([], []),
    ],
)
def test_a_text_may_start_inside_of_think_tags(texts: list[str], events: list[Event]) -> None:
    assert filter_think_tags(*texts, is_open=True) == events


def test_held_white_space_is_emitted_before_other_events() -> None:
    think_filter = ThinkTagFilter(0)
    assert think_filter.pause() == []
    assert [think_filter.feed("\n"), think_filter.pause(), think_filter.pause()] == [[], [visible("\n")], []]
    assert [think_filter.feed(" <th"), think_filter.pause()] == [[], []]
    assert [think_filter.feed("ink>a "), think_filter.pause()] == [[reasoning("a ")], []]
    assert [think_filter.feed("</think>\n\n"), think_filter.pause()] == [[], [visible("\n\n")]]
    assert think_filter.feed("<think>b</think>c") == [reasoning("b"), visible("c")]


def test_white_space_before_a_tag_is_held_up_to_a_limit() -> None:
    assert filter_think_tags(" " * 256, "<think>a</think>b") == [reasoning("a"), visible("b")]
    assert filter_think_tags(" " * 257, "<think>a") == [visible(" " * 257), visible("<think>a")]
    think_filter = ThinkTagFilter(0)
    assert think_filter.feed(" " * 256) == []
    assert think_filter.feed(" ") == [visible(" " * 257)]
    assert think_filter.is_past_thinking is True


def test_long_reasoning_is_not_held_back() -> None:
    think_filter = ThinkTagFilter(0)
    think_filter.feed("<think>")
    assert sum(len(think_filter.feed("</")) for _ in range(1000)) == 999
    assert think_filter.close() == [reasoning("</")]
