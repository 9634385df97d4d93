"""Texts that should be JSON."""

import pytest

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    Fixed,
    Json,
    finish,
    named,
    pack,
    piece,
    role,
    say,
    stream,
    words,
)
from tests.table import table
from welldone.protocol import text_filters
from welldone.protocol.merger import FanOut
from welldone.protocol.pipeline import BufferedPipeline
from welldone.protocol.request_facts import RequestFacts
from welldone.protocol.text_filters import BufferedText, ByteBudget

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
def test_a_text_is_judged_when_it_is_whole(text: str, is_json: bool, is_object: bool) -> None:
    for wants_object, is_right in ((False, is_json), (True, is_object)):
        one = BufferedText(ByteBudget())
        for character in text:
            one.add(character)
        assert one.take_is_invalid(is_object=wants_object) is not is_right


def test_a_text_that_does_not_fit_is_not_judged_and_leaves_its_room() -> None:
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
    ("asked", "chunks", "broken"),
    [
        (SCHEMA, [*words('{"a"', ": 1}"), finish()], 0),
        (SCHEMA, [*words("Sure! ", "{}"), finish()], 1),
        (SCHEMA, [finish()], 1),
        (SCHEMA, [*words("[1]"), finish()], 0),
        (OBJECT, [*words("[1]"), finish()], 1),
        (SCHEMA, [*words('{"a"'), finish("length")], 0),
        (SCHEMA, [*words('{"a"'), finish("content_filter")], 0),
        (SCHEMA, [say({"refusal": "no"}), finish()], 0),
        (SCHEMA, [say(named()), say(piece("{}")), finish("tool_calls")], 0),
        (SCHEMA, [*words("x"), say(named()), say(piece("{}")), finish()], 0),
        (RequestFacts(is_json_output=True, has_named_tool=True), [say(named()), say(piece("{}")), finish()], 0),
        (SCHEMA, [say({"reasoning_content": "hm"}), *words("{}"), finish()], 0),
        (SCHEMA, [role(1), *words("{}"), *words("no", index=1), finish(), finish(index=1)], 1),
        (SCHEMA, [*words("no"), {"error": {"message": "boom"}}], 0),
        (RequestFacts(), [*words("no"), finish()], 0),
    ],
)
def test_choices_that_should_be_json_and_are_not_are_counted(
    asked: RequestFacts, chunks: list[Json], broken: int
) -> None:
    for size in (1, None):
        assert Fixed(stream(role(), *chunks), asked=asked, size=size).pipe.invalid_json_count == broken


def test_a_text_that_is_too_long_to_be_kept_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_filters.ByteBudget.__init__, "__defaults__", (100,))
    chunks = [role(), *words("{", *["x" * 10] * 10), finish()]
    assert Fixed(stream(*chunks), asked=SCHEMA).pipe.invalid_json_count == 0
    assert Fixed(stream(*chunks[:-2], finish()), asked=SCHEMA).pipe.invalid_json_count == 1


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
def test_arguments_that_are_no_json_object_are_counted_and_noted(
    arguments: list[str], reason: str, broken: int
) -> None:
    begun = [say(named(number, f"call_{number}")) for number in (0, 1)]
    pieces = [[say(piece(text, number)) for text in arguments] for number in (0, 1)]
    one = Fixed(stream(role(), begun[0], *pieces[0], finish(reason)))
    assert one.pipe.invalid_arguments_count == broken
    assert ("tool-args-json-object" in one.rules) is bool(broken)
    two = Fixed(stream(role(), begun[0], *pieces[0], begun[1], *pieces[1], finish(reason)))
    assert two.pipe.invalid_arguments_count == 2 * broken


def test_arguments_too_long_to_be_kept_are_judged_by_their_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_filters.ByteBudget.__init__, "__defaults__", (100,))
    for end, broken in (('"}', 0), ('"', 1)):
        pieces = [say(piece(text)) for text in ('{"x":"', "y" * 200, end)]
        assert Fixed(stream(role(), say(named()), *pieces, finish("tool_calls"))).pipe.invalid_arguments_count == broken


def test_all_parts_count() -> None:
    fold = BufferedPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(is_json_output=True, choice_count=3), fan_out=FanOut(3)
    )
    for part, text in enumerate(("{}", "no", "no")):
        fold.feed(stream(role(), *words(text), finish()), part)
        fold.close(part)
    assert (fold.invalid_json_count, fold.invalid_arguments_count) == (2, 0)


def test_a_whole_reply_is_judged_too() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get", "arguments": "{"}}
    choices = [
        {"index": 0, "message": {"role": "assistant", "content": "no"}, "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"},
    ]
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(is_json_output=True))
    fold.feed_reply(pack({"choices": choices}))
    fold.close()
    assert (fold.invalid_json_count, fold.invalid_arguments_count) == (1, 1)


def test_a_text_that_costs_too_much_is_not_judged() -> None:
    one = BufferedText(ByteBudget())
    one.add("[" + "[]," * 60_000)
    assert not one.take_is_invalid(is_object=True)
