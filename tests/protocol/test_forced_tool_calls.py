"""Conversion of forced JSON text to tool calls."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    choice,
    chunk,
    content_chunks,
    count,
    cuts,
    entry,
    finish,
    role,
    stream,
    usage_chunk,
)
from tests.table import table
from welldone.core.events import ChoiceStart, Event, Failure, Finish, Logprobs, Text, ToolArguments, ToolCall
from welldone.core.request_facts import RequestFacts
from welldone.core.text_tool_calls import ForcedCallConverter, ForcedToolCall
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

NAMED = ForcedToolCall("get_time", is_named=True)
ONLY = ForcedToolCall("get_time")
CALL = ForcedToolCall()


def calls_of(forced: ForcedToolCall, *texts: str, reason: str = "stop") -> list[Event]:
    ids = iter(f"call_{number}" for number in range(1, 100))
    calls = ForcedCallConverter(forced, ids.__next__)
    return calls.feed([ChoiceStart(0), *(Text(0, text) for text in texts), Finish(0, reason)])


def test_the_text_of_a_named_tool_becomes_its_arguments() -> None:
    assert calls_of(NAMED, '{"a"', ": 1}") == [
        ChoiceStart(0),
        ToolCall(0, 0, "call_1", "get_time"),
        ToolArguments(0, 0, '{"a"'),
        ToolArguments(0, 0, ": 1}"),
        Finish(0, "stop"),
    ]


def test_a_required_call_finishes_with_tool_calls() -> None:
    assert calls_of(ONLY, "{}")[-1] == Finish(0, "tool_calls")
    assert calls_of(ONLY, '{"a": 1', reason="length")[-1] == Finish(0, "length")


def test_a_choice_without_text_keeps_its_finish_reason() -> None:
    assert calls_of(ONLY) == [ChoiceStart(0), Finish(0, "stop")]


def test_logprobs_of_forced_json_are_dropped() -> None:
    calls = ForcedCallConverter(ONLY, lambda: "call_1")
    assert calls.feed([Logprobs(0, {"content": [entry("{")]})]) == []


ONE = '{"name": "get", "arguments": {"a": "}\\"{", "b": [1, {"c": {}}]}}'
TWO = '[\n  {"name": "get", "arguments": {"a": 1}},\n {\n"name"\n:\n"put \\u00e9", "arguments": {}} ]'


@table("size", [1, 2, 3, 7, 1000])
@table(
    ("text", "expected"),
    [
        (ONE, [("get", '{"a": "}\\"{", "b": [1, {"c": {}}]}')]),
        (TWO, [("get", '{"a": 1}'), ("put é", "{}")]),
        ('{"name": "get", "arguments": {"a": 1', [("get", '{"a": 1')]),
        ('{"name": "ge', []),
    ],
)
def test_forced_calls_do_not_depend_on_text_boundaries(text: str, expected: list[tuple[str, str]], size: int) -> None:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    events = calls_of(CALL, *pieces, reason="length")
    received: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCall):
            assert event.call_index == len(received)
            received.append([event.name, ""])
        elif isinstance(event, ToolArguments):
            assert event.call_index == len(received) - 1
            received[-1][1] += event.text
    assert [tuple(call) for call in received] == expected


def test_text_that_is_not_a_call_is_a_failure_and_not_buffered() -> None:
    events = calls_of(CALL, "x" * 9000)
    assert isinstance(events[1], Failure)
    assert isinstance(events[-1], Finish)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=8), st.dictionaries(st.text(), st.text())), max_size=4))
def test_every_list_of_calls_is_converted(calls: list[tuple[str, dict[str, str]]]) -> None:
    text = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    events = calls_of(CALL, *text) if calls else []
    names = [event.name for event in events if isinstance(event, ToolCall)]
    joined = "".join(event.text + "\n" * (event.text == "}") for event in events if isinstance(event, ToolArguments))
    assert names == [name for name, _ in calls]
    assert joined.replace("\n", "") == "".join(json.dumps(arguments) for _, arguments in calls)


@pytest.mark.parametrize("size", [1, 5, 100_000])
def test_a_forced_call_is_sent_as_a_correct_stream(size: int) -> None:
    received = stream(
        role(), *content_chunks('{"name": "get"', ', "arguments": {"a": 1}', "}"), finish(), usage_chunk(count())
    )
    pipeline = StreamPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=True, choice_count=1), forced=CALL
    )
    body = b"".join([*(pipeline.feed(part) for part in cuts(received, size)), pipeline.close()])
    request = {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
    assert judge(Trace(body=body, endpoint="chat", request=request)).findings == ()
    assert b'"name":"get"' in body
    assert b'"finish_reason":"tool_calls"' in body
    assert pipeline.repair_log.entries() == []


def test_a_forced_call_is_complete_in_a_reply() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1), forced=NAMED)
    buffered.feed(stream(role(), *content_chunks('{"a"', ": 1}"), chunk(choice({}, "stop")), usage_chunk(count())))
    buffered.close()
    message = json.loads(buffered.body())["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "get_time", "arguments": '{"a": 1}'}
