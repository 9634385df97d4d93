"""Fold of events into a reply."""

import pytest

from welldone.core.collect import CollectedChoice, CollectedReply, CollectedToolCall, collect
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)


def test_no_events_give_an_empty_reply() -> None:
    assert collect([]) == CollectedReply({}, None, None, {})


def test_text_reasoning_and_refusal_are_joined_separately() -> None:
    events: list[Event] = [
        ChoiceStart(0),
        Reasoning(0, "so "),
        Reasoning(0, "what"),
        Text(0, "Hel"),
        KeepAlive(),
        Text(0, "lo"),
        Refusal(0, "n"),
        Refusal(0, "o"),
        Finish(0, "stop"),
    ]
    assert collect(events) == CollectedReply({0: CollectedChoice("Hello", "so what", "no", finish_reason="stop")})


def test_choices_are_collected_separately() -> None:
    events: list[Event] = [
        ChoiceStart(0),
        ChoiceStart(1),
        Text(1, "b"),
        Text(0, "a"),
        Finish(1, "length"),
        Finish(0, "stop"),
    ]
    assert collect(events) == CollectedReply(
        {0: CollectedChoice("a", finish_reason="stop"), 1: CollectedChoice("b", finish_reason="length")}
    )


def test_text_without_a_finish_gives_an_unfinished_choice() -> None:
    assert collect([Text(0, "a")]) == CollectedReply({0: CollectedChoice("a")})


def test_tool_calls_have_all_their_arguments_and_extra_fields() -> None:
    events: list[Event] = [
        ChoiceStart(0),
        ToolCall(0, 0, "a", "get", {"s": 1}),
        ToolArguments(0, 0, '{"x":'),
        ToolArguments(0, 0, "1}", {"t": 2}),
        ToolCall(0, 1, "b", "put"),
        ToolArguments(0, 1, "{}"),
        Finish(0, "tool_calls"),
    ]
    calls = [CollectedToolCall("a", "get", '{"x":1}', {"s": 1, "t": 2}), CollectedToolCall("b", "put", "{}")]
    assert collect(events) == CollectedReply({0: CollectedChoice(tool_calls=calls, finish_reason="tool_calls")})


def test_lists_of_logprobs_are_appended() -> None:
    events: list[Event] = [
        Logprobs(0, {"content": [1], "refusal": None}),
        Logprobs(0, {"content": [2, 3], "refusal": None}),
        Logprobs(0, {"content": None, "refusal": [4]}),
    ]
    assert collect(events) == CollectedReply({0: CollectedChoice(logprobs={"content": [1, 2, 3], "refusal": [4]})})


def test_unknown_fields_stay_at_their_location() -> None:
    events: list[Event] = [
        UnknownFields(0, FieldLocation.CHUNK, {"a": 1}),
        UnknownFields(0, FieldLocation.CHUNK, {"a": 2, "b": [1]}),
        UnknownFields(0, FieldLocation.CHOICE, {"c": [1]}),
        UnknownFields(0, FieldLocation.CHOICE, {"c": [2]}),
        UnknownFields(0, FieldLocation.DELTA, {"d": True}),
        UnknownFields(0, FieldLocation.DELTA, {"d": None}),
    ]
    assert collect(events) == CollectedReply(
        {0: CollectedChoice(choice_fields={"c": [1, 2]}, delta_fields={"d": True})}, unknown_fields={"a": 2, "b": [1]}
    )


def test_unknown_strings_of_deltas_are_joined_and_those_of_chunks_and_choices_replaced() -> None:
    events: list[Event] = [
        UnknownFields(0, location, fields)
        for location in FieldLocation
        for fields in ({"x": "a", "y": "a"}, {"x": "b", "y": None}, {"x": "c", "y": 7})
    ]
    last = {"x": "c", "y": 7}
    assert collect(events) == CollectedReply(
        {0: CollectedChoice(choice_fields=last, delta_fields={"x": "abc", "y": 7})}, unknown_fields=last
    )


def test_lists_of_events_are_not_modified() -> None:
    first = UnknownFields(0, FieldLocation.DELTA, {"x": [1]})
    assert collect([first, first, first]).choices[0].delta_fields == {"x": [1, 1, 1]}
    assert first.fields == {"x": [1]}


@pytest.mark.no_cover
def test_a_hundred_thousand_pieces_are_joined_in_linear_time() -> None:
    pieces: list[Event] = [ToolArguments(0, 0, "x")] * 100_000
    lists: list[Event] = [Logprobs(0, {"content": [1]})] * 100_000
    answer = collect([ToolCall(0, 0, "a", "get"), *pieces, *lists]).choices[0]
    assert answer.tool_calls == [CollectedToolCall("a", "get", "x" * 100_000)]
    assert answer.logprobs == {"content": [1] * 100_000}


def test_usage_and_failure_belong_to_the_reply() -> None:
    assert collect([Usage(0, 0, 0, {}), Usage(5, 3, 8, {})]) == CollectedReply(usage=Usage(5, 3, 8, {}))
    assert collect([Failure("boom")]) == CollectedReply(failure=Failure("boom"))
