"""Tool calls: optional, required, named, parallel and forbidden; and tool results in later messages."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.support.raw import STREAM, Choice, chat, fetch
from tests.support.server import Running

# Letters only: an incomplete UTF-8 character, which random weights may produce, has no definite length.
Short = Annotated[str, msgspec.Meta(pattern="^[A-Za-z ]{1,20}$")]


class Location(msgspec.Struct, forbid_unknown_fields=True):
    """A nested object with an optional member."""

    city: Short
    country: Short | None = None


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments with common schema features: a reference, an enum, bounds, a list."""

    location: Location
    unit: Literal["celsius", "fahrenheit"]
    days: Annotated[int, msgspec.Meta(ge=1, le=7)]
    tags: Annotated[list[Short], msgspec.Meta(max_length=2)]
    exact: bool


class Clock(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments with one enum."""

    zone: Literal["UTC", "CET"]


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments."""


ARGUMENTS: dict[str, type[msgspec.Struct]] = {"get_weather": Weather, "get_time": Clock, "end_chat": Nothing}


def function(name: str) -> dict[str, Any]:
    """The definition of a function in a request."""
    return {"name": name, "description": f"Use it to {name}.", "parameters": msgspec.json.schema(ARGUMENTS[name])}


def tools(*names: str) -> list[dict[str, Any]]:
    """The `tools` field of a request; all tools without names."""
    return [{"type": "function", "function": function(name)} for name in names or ARGUMENTS]


def called_names(choice: Choice) -> list[str]:
    """The names of the tool calls, after a check of their arguments against the schema."""
    for name, arguments in choice.calls:
        msgspec.json.decode(arguments, type=ARGUMENTS[name])
    return [name for name, _ in choice.calls]


@STREAM
@pytest.mark.parametrize("seed", range(2))
def test_a_required_call_is_one_valid_call(tiny_server: Running, stream: bool, seed: int) -> None:
    answer = chat(tiny_server, "Hello", stream=stream, tools=tools(), tool_choice="required", seed=seed)
    assert len(called_names(answer.choice)) == 1
    assert answer.choice.finish == "tool_calls"
    assert not answer.text


@STREAM
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_only_tool_is_called_when_required(tiny_server: Running, stream: bool, name: str) -> None:
    answer = chat(tiny_server, "Hello", stream=stream, tools=tools(name), tool_choice="required")
    assert called_names(answer.choice) == [name]
    assert answer.choice.finish == "tool_calls"


@STREAM
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_named_tool_is_called_and_no_other(tiny_server: Running, stream: bool, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    answer = chat(tiny_server, "Hello", stream=stream, tools=tools(), tool_choice=choice)
    assert called_names(answer.choice) == [name]
    assert answer.choice.finish == "stop"  # as OpenAI does for a named tool


@STREAM
@pytest.mark.parametrize("seed", range(2))
def test_parallel_calls_are_valid_and_have_unique_ids(tiny_server: Running, stream: bool, seed: int) -> None:
    answer = chat(
        tiny_server,
        "Hello",
        stream=stream,
        tools=tools(),
        tool_choice="required",
        parallel_tool_calls=True,
        seed=seed,
    )
    assert 1 <= len(called_names(answer.choice)) <= 8
    assert len(set(answer.choice.ids)) == len(answer.choice.ids)
    assert answer.choice.finish == "tool_calls"


@STREAM
def test_each_of_several_choices_has_its_required_call(tiny_server: Running, stream: bool) -> None:
    answer = chat(tiny_server, "Hello", stream=stream, n=2, tools=tools("get_time", "end_chat"), tool_choice="required")
    assert [len(called_names(choice)) for choice in answer.choices] == [1, 1]
    assert len({choice.ids[0] for choice in answer.choices}) == 2


@STREAM
def test_only_allowed_tools_are_called(tiny_server: Running, stream: bool) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert called_names(chat(tiny_server, "Hello", stream=stream, tools=tools(), tool_choice=choice).choice) == [
        "get_time"
    ]


@STREAM
def test_tool_choice_none_prevents_calls(zoo: Running, stream: bool) -> None:
    answer = chat(zoo, "Hello", model="calling", stream=stream, tools=tools(), tool_choice="none", max_tokens=200)
    assert answer.choice.calls == []
    assert answer.choice.finish in ("stop", "length")


@pytest.mark.tier3
@STREAM
def test_optional_tool_calls_are_parsed(zoo: Running, stream: bool) -> None:
    fields: dict[str, Any] = {"model": "calling", "tools": tools(), "max_tokens": 1500}
    answers = [chat(zoo, "Hello", stream=stream, seed=seed, **fields) for seed in range(4)]
    called = [answer.choice for answer in answers if answer.choice.finish == "tool_calls"]
    assert called
    assert all(called_names(choice) for choice in called)
    assert not any(answer.choice.calls for answer in answers if answer.choice.finish == "stop")


@STREAM
def test_the_default_model_makes_a_required_call(server: Running, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": schema}}
    answer = chat(
        server,
        "What is the weather in Paris? Use the tool.",
        stream=stream,
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_tokens=60,
    )
    [(name, arguments)] = answer.choice.calls
    assert name == "get_weather"
    [(member, city)] = msgspec.json.decode(arguments).items()
    assert member == "city"
    assert len(city) <= 30


@pytest.mark.tier3
@STREAM
def test_the_default_model_answers_with_optional_tools(server: Running, stream: bool) -> None:
    answer = chat(server, "Hello!", stream=stream, tools=tools("get_time"), temperature=0, max_tokens=60)
    assert answer.text or answer.choice.calls


@pytest.mark.tier3
@STREAM
def test_the_result_of_a_call_leads_to_an_answer(server: Running, stream: bool) -> None:
    offered = tools("get_weather")
    question = {"role": "user", "content": "What is the weather in Paris?"}
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    messages: list[dict[str, Any]] = [
        question,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "sunny", "celsius": 21}'},
    ]
    answer = chat(server, messages, stream=stream, tools=offered, tool_choice="none", temperature=0, max_tokens=60)
    assert answer.text
    assert answer.choice.finish in ("stop", "length")


@STREAM
def test_a_returned_call_is_accepted_in_a_later_request(tiny_server: Running, stream: bool) -> None:
    first = chat(tiny_server, "Hello", tools=tools(), tool_choice="required")
    message = first.reply.json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first.choice.ids[0], "content": "done"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}, message, result]
    answer = chat(tiny_server, messages, stream=stream, tools=tools(), max_tokens=8)
    assert answer.counts[0] > first.counts[0]


@STREAM
@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_deprecated_functions_return_a_function_call(tiny_server: Running, stream: bool, name: str) -> None:
    answer = chat(
        tiny_server,
        "Hello",
        stream=stream,
        functions=[function("get_weather"), function("get_time")],
        function_call={"name": name},
    )
    assert called_names(answer.choice) == [name]
    assert b'"function_call":{' in answer.reply.trace.body
    assert b'"tool_calls"' not in answer.reply.trace.body


def test_an_unknown_tool_in_tool_choice_is_rejected(tiny_server: Running) -> None:
    choice = {"type": "function", "function": {"name": "other"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools(), "tool_choice": choice}
    reply = fetch(tiny_server, "/v1/chat/completions", {"model": "tiny", **body})
    assert reply.status == 400
    assert reply.error()["param"] == "tool_choice"


@STREAM
def test_a_tool_of_a_namespace_is_called_by_its_own_name(tiny_server: Running, stream: bool) -> None:
    inner = [{"type": "function", **function(name)} for name in ("get_time", "end_chat")]
    offered = {"tools": [{"type": "namespace", "name": "office", "description": "Hours.", "tools": inner}]}
    fields = {**offered, "input": "Hello", "tool_choice": {"type": "function", "name": "get_time"}, "stream": stream}
    reply = fetch(tiny_server, "/v1/responses", fields)
    response = reply.chunks()[-1]["response"] if stream else reply.ok()
    (call,) = response["output"]
    assert (call["name"], call["namespace"], response["tools"][0]["name"]) == ("get_time", "office", "office")
    msgspec.json.decode(call["arguments"], type=Clock)
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    # The call is part of the stored response, or sent by the client.
    ways: tuple[dict[str, Any], ...] = (
        {"previous_response_id": response["id"], "input": [output]},
        {"input": [{"role": "user", "content": "Hello"}, call, output]},
    )
    later = [fetch(tiny_server, "/v1/responses", {**offered, **way, "max_output_tokens": 4}).ok() for way in ways]
    counts = [one["usage"]["input_tokens"] for one in later]
    assert counts[0] == counts[1] > response["usage"]["input_tokens"]
