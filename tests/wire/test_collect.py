"""The whole answer as a fold of its events."""

import pytest

from welldone.wire.collect import Answer, Call, Reply, collect
from welldone.wire.events import (
    Event,
    Extra,
    Failure,
    Finish,
    KeepAlive,
    Logprobs,
    Opening,
    Place,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)


def test_nothing_makes_an_empty_reply() -> None:
    assert collect([]) == Reply({}, None, None, {})


def test_texts_are_joined_each_in_its_place() -> None:
    events: list[Event] = [
        Opening(0),
        Reasoning(0, "so "),
        Reasoning(0, "what"),
        Text(0, "Hel"),
        KeepAlive(),
        Text(0, "lo"),
        Refusal(0, "n"),
        Refusal(0, "o"),
        Finish(0, "stop"),
    ]
    assert collect(events) == Reply({0: Answer("Hello", "so what", "no", reason="stop")})


def test_choices_are_kept_apart() -> None:
    events: list[Event] = [Opening(0), Opening(1), Text(1, "b"), Text(0, "a"), Finish(1, "length"), Finish(0, "stop")]
    assert collect(events) == Reply({0: Answer("a", reason="stop"), 1: Answer("b", reason="length")})


def test_text_alone_makes_an_answer_that_never_finished() -> None:
    assert collect([Text(0, "a")]) == Reply({0: Answer("a")})


def test_calls_get_all_their_arguments_and_members() -> None:
    events: list[Event] = [
        Opening(0),
        ToolCall(0, 0, "a", "get", {"s": 1}),
        ToolArguments(0, 0, '{"x":'),
        ToolArguments(0, 0, "1}", {"t": 2}),
        ToolCall(0, 1, "b", "put"),
        ToolArguments(0, 1, "{}"),
        Finish(0, "tool_calls"),
    ]
    calls = [Call("a", "get", '{"x":1}', {"s": 1, "t": 2}), Call("b", "put", "{}")]
    assert collect(events) == Reply({0: Answer(calls=calls, reason="tool_calls")})


def test_lists_of_logprobs_go_on() -> None:
    events: list[Event] = [
        Logprobs(0, {"content": [1], "refusal": None}),
        Logprobs(0, {"content": [2, 3], "refusal": None}),
        Logprobs(0, {"content": None, "refusal": [4]}),
    ]
    assert collect(events) == Reply({0: Answer(logprobs={"content": [1, 2, 3], "refusal": [4]})})


def test_unknown_fields_are_kept_where_they_stood() -> None:
    events: list[Event] = [
        Extra(0, Place.CHUNK, {"a": 1}),
        Extra(0, Place.CHUNK, {"a": 2, "b": [1]}),
        Extra(0, Place.CHOICE, {"c": [1]}),
        Extra(0, Place.CHOICE, {"c": [2]}),
        Extra(0, Place.DELTA, {"d": True}),
        Extra(0, Place.DELTA, {"d": None}),
    ]
    assert collect(events) == Reply(
        {0: Answer(choice_fields={"c": [1, 2]}, delta_fields={"d": True})}, fields={"a": 2, "b": [1]}
    )


def test_unknown_texts_of_deltas_are_joined_and_those_of_other_places_replaced() -> None:
    events: list[Event] = [
        Extra(0, place, fields)
        for place in Place
        for fields in ({"x": "a", "y": "a"}, {"x": "b", "y": None}, {"x": "c", "y": 7})
    ]
    last = {"x": "c", "y": 7}
    assert collect(events) == Reply({0: Answer(choice_fields=last, delta_fields={"x": "abc", "y": 7})}, fields=last)


def test_the_lists_of_events_are_not_added_to() -> None:
    first = Extra(0, Place.DELTA, {"x": [1]})
    assert collect([first, first, first]).answers[0].delta_fields == {"x": [1, 1, 1]}
    assert first.fields == {"x": [1]}


@pytest.mark.no_cover
def test_a_hundred_thousand_pieces_are_joined() -> None:
    pieces: list[Event] = [ToolArguments(0, 0, "x")] * 100_000
    lists: list[Event] = [Logprobs(0, {"content": [1]})] * 100_000
    answer = collect([ToolCall(0, 0, "a", "get"), *pieces, *lists]).answers[0]
    assert answer.calls == [Call("a", "get", "x" * 100_000)]
    assert answer.logprobs == {"content": [1] * 100_000}


def test_counts_and_failures_are_of_the_whole_reply() -> None:
    assert collect([Usage(0, 0, 0, {}), Usage(5, 3, 8, {})]) == Reply(usage=Usage(5, 3, 8, {}))
    assert collect([Failure("boom")]) == Reply(failure=Failure("boom"))
