"""Validation of chat messages."""

import pytest

from tests.server.requests.builders import Body, capabilities_with, chat, engine, rejection
from tests.table import table

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"  # the header of a 1 x 1 image
IMAGE = {"type": "image_url", "image_url": {"url": DOT}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


def sent(*messages: Body) -> list[Body]:
    """Return the messages for the engine."""
    found = engine(messages=list(messages))["messages"]
    assert isinstance(found, list)
    return found


@table(
    ("message", "form"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "user", "content": "a", "name": "bob"}, {"role": "user", "content": "a", "name": "bob"}),
        ({"role": "user", "content": "a", "cache_control": {}}, {"role": "user", "content": "a"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        ({"role": "assistant", "content": []}, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "hm"},
            {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "content": None, "reasoning": "hm"},
            {"role": "assistant", "content": "", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        ({"role": "assistant", "tool_calls": [CALL]}, {"role": "assistant", "content": "", "tool_calls": [CALL]}),
        (
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": ""}}],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ),
        ({"role": "user", "content": [IMAGE]}, {"role": "user", "content": [IMAGE]}),
        ({"role": "user", "content": [AUDIO]}, {"role": "user", "content": [AUDIO]}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": DOT}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]},
        ),
    ],
)
def test_a_message_is_converted_for_the_engine(message: Body, form: Body) -> None:
    assert sent(message) == [form]


def test_legacy_function_calls_get_ids() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    answer = {"role": "function", "name": "f", "content": "1"}
    found = sent({"role": "user", "content": "a"}, call, answer, call, answer)
    assert [item["tool_calls"][0]["id"] for item in found if "tool_calls" in item] == ["call_0", "call_1"]
    assert [(item["role"], item["tool_call_id"]) for item in found[2::2]] == [("tool", "call_0"), ("tool", "call_1")]


@table(
    ("messages", "param", "code"),
    [
        (None, "messages", "missing_required_parameter"),
        ("hello", "messages", "invalid_type"),
        ({}, "messages", "invalid_type"),
        ([], "messages", "empty_array"),
        ([{"role": "user", "content": "x"}] * 4097, "messages", "array_above_max_length"),
        (["x"], "messages[0]", "invalid_type"),
        ([None], "messages[0]", "invalid_type"),
        ([{"content": "x"}], "messages[0].role", "missing_required_parameter"),
        ([{"role": "robot", "content": "x"}], "messages[0].role", "invalid_value"),
        ([{"role": 1, "content": "x"}], "messages[0].role", "invalid_type"),
        ([{"role": "user"}], "messages[0].content", "missing_required_parameter"),
        ([{"role": "user", "content": None}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": 7}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": {}}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": []}], "messages[0].content", "empty_array"),
        ([{"role": "assistant", "content": None}], "messages[0].content", "invalid_type"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", "invalid_type"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type", "missing_required_parameter"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text", "invalid_type"),
        ([{"role": "user", "content": [{"type": "file"}]}], "messages[0].content[0].type", "invalid_value"),
        ([{"role": "user", "content": [{"type": {}}]}], "messages[0].content[0].type", "invalid_value"),
        ([{"role": "system", "content": [IMAGE]}], "messages[0].content[0].type", "invalid_value"),
        (
            [{"role": "user", "content": [{"type": "text", "text": ""}] * 4097}],
            "messages[0].content",
            "array_above_max_length",
        ),
        ([{"role": "user", "content": "x", "name": 1}], "messages[0].name", "invalid_type"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id", "missing_required_parameter"),
        ([{"role": "tool", "content": "x", "tool_call_id": 1}], "messages[0].tool_call_id", "invalid_type"),
        ([{"role": "assistant", "content": "", "tool_calls": {}}], "messages[0].tool_calls", "invalid_type"),
        ([{"role": "assistant", "content": "", "tool_calls": [1]}], "messages[0].tool_calls[0]", "invalid_type"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}],
            "messages[0].tool_calls[0].function",
            "missing_required_parameter",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [CALL | {"type": "custom"}]}],
            "messages[0].tool_calls[0].type",
            "invalid_value",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [CALL | {"id": None}]}],
            "messages[0].tool_calls[0].id",
            "missing_required_parameter",
        ),
        (
            [{"role": "assistant", "content": "", "function_call": {"name": "a b", "arguments": "{}"}}],
            "messages[0].function_call.name",
            "invalid_value",
        ),
        (
            [{"role": "assistant", "content": "a", "reasoning_content": 1}],
            "messages[0].reasoning_content",
            "invalid_type",
        ),
    ],
)
def test_an_invalid_message_is_named(messages: object, param: str, code: str) -> None:
    error = rejection(messages=messages)
    assert (error.param, error.code) == (param, code)


@table("arguments", ["{", "[1]", "5", "null", '{"a":NaN}', '{"a":' * 70 + "1" + "}" * 70, "{}x"])
def test_arguments_that_an_engine_cannot_parse_are_rejected(arguments: str) -> None:
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    error = rejection(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert error.param == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize(("part", "capability"), [(IMAGE, "images"), (AUDIO, "audio")])
def test_media_that_the_model_does_not_support_is_rejected(part: Body, capability: str) -> None:
    messages = [{"role": "user", "content": [part]}]
    assert chat(messages=messages).bodies
    error = rejection(capabilities=capabilities_with(**{capability: False}), messages=messages)
    assert (error.code, error.param) == ("unsupported_value", "messages[0].content[0]")


def test_twenty_images_are_accepted_and_one_more_is_not() -> None:
    assert sent({"role": "user", "content": [IMAGE] * 20})
    assert rejection(messages=[{"role": "user", "content": [IMAGE] * 21}]).code == "array_above_max_length"


WIDE = capabilities_with(context=262_144)
TEXT = {"type": "text", "text": "x"}


def message_with_calls(*arguments: str, count: int = 1) -> Body:
    """Return a message with `count` tool calls for each of these arguments."""
    calls = [{"id": "x", "function": {"name": "f", "arguments": text}} for text in arguments]
    return {"role": "assistant", "tool_calls": calls * count}


def test_content_parts_are_limited_per_message_and_in_total() -> None:
    full = {"role": "user", "content": [TEXT] * 1024}
    assert chat(WIDE, messages=[full] * 16).bodies
    assert rejection(WIDE, messages=[full] * 17).param == "messages"
    assert rejection(WIDE, messages=[{"role": "user", "content": [TEXT] * 1025}]).param == "messages[0].content"


def test_tool_calls_are_limited_per_message_and_in_total() -> None:
    assert chat(WIDE, messages=[message_with_calls("{}", count=128)] * 32).bodies
    assert rejection(WIDE, messages=[message_with_calls("{}", count=128)] * 33).param == "messages"
    assert rejection(WIDE, messages=[message_with_calls("{}", count=129)]).param == "messages[0].tool_calls"


def test_arguments_longer_than_the_context_are_rejected_before_parsing() -> None:
    assert rejection(messages=[message_with_calls("{" * 65_537)]).code == "context_length_exceeded"


def test_the_size_limits_of_arguments_are_shared() -> None:
    half = '{"a":[' + "[]," * 30_000 + "1]}"
    assert chat(WIDE, messages=[message_with_calls(half)]).bodies
    assert (
        rejection(WIDE, messages=[message_with_calls(half, half)]).param
        == "messages[0].tool_calls[1].function.arguments"
    )
    assert rejection(WIDE, messages=[message_with_calls('{"a":[' + '"",' * 150_000 + "1]}")]).code == "invalid_value"
