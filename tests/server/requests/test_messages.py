"""Messages, in all forms that clients send them."""

import pytest

from tests.server.requests.build import Body, able, chat, engine, refusal
from tests.table import table

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
DOT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"  # the head of a picture of one dot
PICTURE = {"type": "image_url", "image_url": {"url": DOT}}
SOUND = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


def sent(*messages: Body) -> list[Body]:
    """The messages that the engine gets."""
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
        ({"role": "user", "content": [PICTURE]}, {"role": "user", "content": [PICTURE]}),
        ({"role": "user", "content": [SOUND]}, {"role": "user", "content": [SOUND]}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": DOT}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, PICTURE]},
        ),
    ],
)
def test_a_message_is_put_in_the_engines_form(message: Body, form: Body) -> None:
    assert sent(message) == [form]


def test_calls_of_the_older_form_get_numbers() -> None:
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
        ([{"role": "system", "content": [PICTURE]}], "messages[0].content[0].type", "invalid_value"),
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
def test_a_wrong_message_is_named(messages: object, param: str, code: str) -> None:
    error = refusal(messages=messages)
    assert (error.param, error.code) == (param, code)


@table("arguments", ["{", "[1]", "5", "null", '{"a":NaN}', '{"a":' * 70 + "1" + "}" * 70, "{}x"])
def test_arguments_that_an_engine_could_not_read_are_refused(arguments: str) -> None:
    call = {"id": "x", "function": {"name": "f", "arguments": arguments}}
    error = refusal(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert error.param == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize(("part", "lack"), [(PICTURE, "images"), (SOUND, "audio")])
def test_what_the_model_cannot_read_is_refused(part: Body, lack: str) -> None:
    messages = [{"role": "user", "content": [part]}]
    assert chat(messages=messages).bodies
    error = refusal(abilities=able(**{lack: False}), messages=messages)
    assert (error.code, error.param) == ("unsupported_value", "messages[0].content[0]")


def test_twenty_pictures_are_accepted_and_one_more_is_not() -> None:
    assert sent({"role": "user", "content": [PICTURE] * 20})
    assert refusal(messages=[{"role": "user", "content": [PICTURE] * 21}]).code == "array_above_max_length"


WIDE = able(context=262_144)
TEXT = {"type": "text", "text": "x"}


def called(*arguments: str, count: int = 1) -> Body:
    """A message with calls of these arguments, so many times."""
    calls = [{"id": "x", "function": {"name": "f", "arguments": text}} for text in arguments]
    return {"role": "assistant", "tool_calls": calls * count}


def test_parts_are_limited_in_one_message_and_in_all() -> None:
    full = {"role": "user", "content": [TEXT] * 1024}
    assert chat(WIDE, messages=[full] * 16).bodies
    assert refusal(WIDE, messages=[full] * 17).param == "messages"
    assert refusal(WIDE, messages=[{"role": "user", "content": [TEXT] * 1025}]).param == "messages[0].content"


def test_calls_are_limited_in_one_message_and_in_all() -> None:
    assert chat(WIDE, messages=[called("{}", count=128)] * 32).bodies
    assert refusal(WIDE, messages=[called("{}", count=128)] * 33).param == "messages"
    assert refusal(WIDE, messages=[called("{}", count=129)]).param == "messages[0].tool_calls"


def test_arguments_longer_than_the_context_are_refused_before_they_are_read() -> None:
    assert refusal(messages=[called("{" * 65_537)]).code == "context_length_exceeded"


def test_arguments_have_so_many_lists_and_texts_together() -> None:
    half = '{"a":[' + "[]," * 30_000 + "1]}"
    assert chat(WIDE, messages=[called(half)]).bodies
    assert refusal(WIDE, messages=[called(half, half)]).param == "messages[0].tool_calls[1].function.arguments"
    assert refusal(WIDE, messages=[called('{"a":[' + '"",' * 150_000 + "1]}")]).code == "invalid_value"
