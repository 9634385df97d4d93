"""Ollama's dialect: streams and replies."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.strategies import legal_events
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.dialects.ollama.writer import OllamaFormat

HEAD = Envelope("chatcmpl-1", 1, "m")
AT = "2026-01-01T00:00:00Z"


def lines(events: list[Event], *, is_chat: bool = True) -> list[dict[str, Any]]:
    writer = OllamaFormat(is_chat=is_chat, created_at=AT).make_writer(HEAD, lambda: None)
    written = b"".join([*(writer.send(event) for event in events), writer.end()])
    return [json.loads(line) for line in written.splitlines()]


def test_a_chat_has_one_line_per_delta_and_a_final_one() -> None:
    events: list[Event] = [ChoiceStart(0), Reasoning(0, "hm"), Text(0, "a"), Finish(0, "length"), Usage(3, 2, 5, {})]
    head = {"model": "m", "created_at": AT}
    assert lines(events) == [
        {**head, "message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False},
        {**head, "message": {"role": "assistant", "content": "a"}, "done": False},
        {
            **head,
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "length",
            "prompt_eval_count": 3,
            "eval_count": 2,
        },
    ]


@pytest.mark.parametrize("is_chat", [True, False])
def test_the_end_has_the_duration_in_nanoseconds(is_chat: bool) -> None:
    events: list[Event] = [ChoiceStart(0), Text(0, "a"), Finish(0, "stop")]
    dialect = OllamaFormat(is_chat=is_chat, created_at=AT, duration_ns=lambda: 1_500_000_000)
    writer = dialect.make_writer(HEAD, lambda: None)
    *others, end = b"".join([*(writer.send(event) for event in events), writer.end()]).splitlines()
    assert json.loads(end)["total_duration"] == 1_500_000_000
    assert not any(b"duration" in line for line in others)
    assert json.loads(dialect.encode_reply(HEAD, collect(events)))["total_duration"] == 1_500_000_000


@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ({"prompt_ms": 239.618, "predicted_ms": 2}, {"prompt_eval_duration": 239_618_000, "eval_duration": 2_000_000}),
        ({"prompt_ms": "1", "predicted_ms": -1}, {}),
        ({"predicted_ms": 1e300}, {}),
        ([], {}),
    ],
)
def test_the_end_has_the_durations_that_llama_cpp_measured(timings: object, expected: dict[str, int]) -> None:
    facts = UnknownFields(0, FieldLocation.CHUNK, {"timings": timings})
    events: list[Event] = [ChoiceStart(0), Text(0, "a"), facts, Finish(0, "stop")]
    dialect = OllamaFormat(is_chat=True, created_at=AT)
    writer = dialect.make_writer(HEAD, lambda: None)
    end = b"".join([*(writer.send(event) for event in events), writer.end()]).splitlines()[-1]
    for line in (end, dialect.encode_reply(HEAD, collect(events))):
        assert {name: value for name, value in json.loads(line).items() if "duration" in name} == expected


def test_calls_are_sent_when_complete() -> None:
    events: list[Event] = [
        ChoiceStart(0),
        ToolCall(0, 0, "c1", "f"),
        ToolArguments(0, 0, '{"a"'),
        ToolArguments(0, 0, ":1}"),
    ]
    events += [ToolCall(0, 1, "c2", "g"), Finish(0, "tool_calls")]
    result = [line["message"].get("tool_calls") for line in lines(events)]
    assert result == [
        [{"function": {"name": "f", "arguments": {"a": 1}}}],
        [{"function": {"name": "g", "arguments": {}}}],
        None,
    ]


def test_generate_sends_plain_text() -> None:
    events: list[Event] = [ChoiceStart(0), KeepAlive(), Reasoning(0, "hm"), Refusal(0, "no"), Finish(0, "stop")]
    result = lines(events, is_chat=False)
    assert [(line["response"], line.get("thinking"), line["done"]) for line in result] == [
        ("", "hm", False),
        ("no", None, False),
        ("", None, True),
    ]


def test_a_failure_is_the_last_line() -> None:
    assert lines([ChoiceStart(0), Text(0, "a"), Failure("gone")])[-1] == {"error": "gone"}


@pytest.mark.parametrize("is_chat", [True, False])
@given(events=legal_events(Endpoint.CHAT, choices=1), data=st.data())
def test_the_reply_has_the_content_of_the_stream(is_chat: bool, events: list[Event], data: st.DataObject) -> None:
    written = lines(events, is_chat=is_chat)
    if isinstance(events[-1], Failure):
        assert "error" in written[-1]
        return
    dialect = OllamaFormat(is_chat=is_chat, created_at=AT)
    whole = json.loads(dialect.encode_reply(HEAD, collect(events)))
    assert (whole["done"], whole["done_reason"]) == (True, written[-1]["done_reason"])
    assert whole.get("eval_count") == written[-1].get("eval_count")
    if is_chat:
        assert whole["message"]["content"] == "".join(line["message"]["content"] for line in written)
        assert whole["message"].get("tool_calls", []) == [
            call for line in written for call in line["message"].get("tool_calls", [])
        ]
    else:
        assert whole["response"] == "".join(line["response"] for line in written)


def test_text_is_accepted_while_a_choice_is_open() -> None:
    writer = OllamaFormat(is_chat=True, created_at=AT).make_writer(HEAD, lambda: None)
    assert not writer.accepts_text(0, Text)
    writer.send(ChoiceStart(0))
    assert writer.accepts_text(0, Text)
