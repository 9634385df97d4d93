"""Checks of texts that should be JSON."""

import pytest

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    Json,
    RepairedStream,
    call_start,
    content_chunks,
    delta_chunk,
    finish,
    pack,
    piece,
    role,
    stream,
)
from tests.table import table
from welldone.core import text_filters
from welldone.core.request_facts import RequestFacts
from welldone.core.text_filters import BufferedText, ByteBudget
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline

SCHEMA, OBJECT = RequestFacts(is_json_output=True), RequestFacts(is_json_output=True, is_json_object=True)


@table(
    ("text", "is_json", "is_object"),
    [
        ('{"a": 1}', True, True),
        (' {"a": "é"}\n', True, True),
        ("[1]", True, False),
        ("null", True, False),
        ("", False, False),
        ("```json\n{}\n```", False, False),
        ('{"a": 1', False, False),
        ("{} {}", False, False),
        ("[" * 20_000, False, False),
    ],
    ids=["object", "spaced", "list", "null", "nothing", "fenced", "cut", "two", "deep"],
)
def test_a_complete_text_is_checked(text: str, is_json: bool, is_object: bool) -> None:
    for wants_object, is_right in ((False, is_json), (True, is_object)):
        one = BufferedText(ByteBudget())
        for character in text:
            one.add(character)
        assert one.take_is_invalid(is_object=wants_object) is not is_right


def test_a_text_over_the_budget_is_not_checked_and_releases_its_bytes() -> None:
    room = ByteBudget(10)
    first, second = BufferedText(room), BufferedText(room)
    first.add("{12345")
    second.add("{23")
    second.add("é")
    assert room.remaining_bytes == 4
    second.add("4")
    assert not second.take_is_invalid(is_object=True)
    first.add("6789")
    assert room.remaining_bytes == 0
    assert first.take_is_invalid(is_object=True)
    assert room.remaining_bytes == 10
    assert not first.take_is_invalid(is_object=True)


@table(
    ("facts", "chunks", "broken"),
    [
        (SCHEMA, [*content_chunks('{"a"', ": 1}"), finish()], 0),
        (SCHEMA, [*content_chunks("Sure! ", "{}"), finish()], 1),
        (SCHEMA, [finish()], 1),
        (SCHEMA, [*content_chunks("[1]"), finish()], 0),
        (OBJECT, [*content_chunks("[1]"), finish()], 1),
        (SCHEMA, [*content_chunks('{"a"'), finish("length")], 0),
        (SCHEMA, [*content_chunks('{"a"'), finish("content_filter")], 0),
        (SCHEMA, [delta_chunk({"refusal": "no"}), finish()], 0),
        (SCHEMA, [delta_chunk(call_start()), delta_chunk(piece("{}")), finish("tool_calls")], 0),
        (SCHEMA, [*content_chunks("x"), delta_chunk(call_start()), delta_chunk(piece("{}")), finish()], 0),
        (
            RequestFacts(is_json_output=True, has_named_tool=True),
            [delta_chunk(call_start()), delta_chunk(piece("{}")), finish()],
            0,
        ),
        (SCHEMA, [delta_chunk({"reasoning_content": "hm"}), *content_chunks("{}"), finish()], 0),
        (SCHEMA, [role(1), *content_chunks("{}"), *content_chunks("no", index=1), finish(), finish(index=1)], 1),
        (SCHEMA, [*content_chunks("no"), {"error": {"message": "boom"}}], 0),
        (RequestFacts(), [*content_chunks("no"), finish()], 0),
    ],
)
def test_choices_with_invalid_json_output_are_counted(facts: RequestFacts, chunks: list[Json], broken: int) -> None:
    for size in (1, None):
        assert (
            RepairedStream(stream(role(), *chunks), facts=facts, size=size).pipeline.result.invalid_json_count == broken
        )


def test_a_text_that_is_too_long_to_buffer_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_filters.ByteBudget.__init__, "__defaults__", (100,))
    chunks = [role(), *content_chunks("{", *["x" * 10] * 10), finish()]
    assert RepairedStream(stream(*chunks), facts=SCHEMA).pipeline.result.invalid_json_count == 0
    assert RepairedStream(stream(*chunks[:-2], finish()), facts=SCHEMA).pipeline.result.invalid_json_count == 1


@table(
    ("arguments", "reason", "broken"),
    [
        (['{"x":', "1}"], "tool_calls", 0),
        (['{"x": tru}'], "tool_calls", 1),
        (['{"x":'], "tool_calls", 1),
        (["[1]"], "tool_calls", 1),
        ([" "], "tool_calls", 1),
        ([""], "tool_calls", 0),
        (['{"x":'], "length", 0),
    ],
)
def test_arguments_that_are_not_a_json_object_are_counted_and_recorded(
    arguments: list[str], reason: str, broken: int
) -> None:
    begun = [delta_chunk(call_start(number, f"call_{number}")) for number in (0, 1)]
    pieces = [[delta_chunk(piece(text, number)) for text in arguments] for number in (0, 1)]
    one = RepairedStream(stream(role(), begun[0], *pieces[0], finish(reason)))
    assert one.pipeline.result.invalid_arguments_count == broken
    assert ("tool-args-json-object" in one.rules) is bool(broken)
    two = RepairedStream(stream(role(), begun[0], *pieces[0], begun[1], *pieces[1], finish(reason)))
    assert two.pipeline.result.invalid_arguments_count == 2 * broken


def test_arguments_that_are_too_long_to_buffer_are_checked_by_their_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_filters.ByteBudget.__init__, "__defaults__", (100,))
    for end, broken in (('"}', 0), ('"', 1)):
        pieces = [delta_chunk(piece(text)) for text in ('{"x":"', "y" * 200, end)]
        assert (
            RepairedStream(
                stream(role(), delta_chunk(call_start()), *pieces, finish("tool_calls"))
            ).pipeline.result.invalid_arguments_count
            == broken
        )


def test_invalid_json_is_counted_over_all_parts() -> None:
    buffered = BufferedPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(is_json_output=True, choice_count=3), fan_out=FanOut(3)
    )
    for part, text in enumerate(("{}", "no", "no")):
        buffered.feed(stream(role(), *content_chunks(text), finish()), part)
        buffered.close(part)
    assert (buffered.result.invalid_json_count, buffered.result.invalid_arguments_count) == (2, 0)


def test_a_reply_is_checked_too() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get", "arguments": "{"}}
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": "no"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"},
    ]
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(is_json_output=True))
    buffered.feed_reply(pack({"choices": choices}))
    buffered.close()
    assert (buffered.result.invalid_json_count, buffered.result.invalid_arguments_count) == (1, 1)


def test_a_text_over_the_blocking_budget_is_not_checked() -> None:
    one = BufferedText(ByteBudget())
    one.add("[" + "[]," * 60_000)
    assert not one.take_is_invalid(is_object=True)
