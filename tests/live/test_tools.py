"""Tools: calls that are free, forced, named, many, forbidden; and the way back with a result."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from tests.live.raw import STREAM, Choice, ask, chat
from tests.live.server import Running

# Letters only: a character without its end, which a model of random weights may write, has no certain length.
Short = Annotated[str, msgspec.Meta(pattern="^[A-Za-z ]{1,20}$")]


class Place(msgspec.Struct, forbid_unknown_fields=True):
    """Where."""

    city: Short
    country: Short | None = None


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a tool, with what schemas often have: a reference, a choice of words, limits, a list."""

    place: Place
    unit: Literal["celsius", "fahrenheit"]
    days: Annotated[int, msgspec.Meta(ge=1, le=7)]
    tags: Annotated[list[Short], msgspec.Meta(max_length=2)]
    exact: bool


class Clock(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of another."""

    zone: Literal["UTC", "CET"]


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No arguments at all."""


ARGUMENTS: dict[str, type[msgspec.Struct]] = {"get_weather": Weather, "get_time": Clock, "end_chat": Nothing}


def function(name: str) -> dict[str, Any]:
    """A function, as clients describe it."""
    return {"name": name, "description": f"Use it to {name}.", "parameters": msgspec.json.schema(ARGUMENTS[name])}


def tools(*names: str) -> list[dict[str, Any]]:
    """Some tools, as clients offer them."""
    return [{"type": "function", "function": function(name)} for name in names or ARGUMENTS]


def check(choice: Choice) -> list[str]:
    """The names of the calls, each of which has arguments that fit."""
    for name, arguments in choice.calls:
        msgspec.json.decode(arguments, type=ARGUMENTS[name])
    return [name for name, _ in choice.calls]


@STREAM
@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_one_call_that_fits(tiny_server: Running, stream: bool, seed: int) -> None:
    said = chat(tiny_server, "Hello", stream=stream, tools=tools(), tool_choice="required", seed=seed)
    assert len(check(said.one)) == 1
    assert said.one.finish == "tool_calls"
    assert not said.text


@STREAM
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_tool_that_is_alone_is_called_when_required(tiny_server: Running, stream: bool, name: str) -> None:
    said = chat(tiny_server, "Hello", stream=stream, tools=tools(name), tool_choice="required")
    assert check(said.one) == [name]
    assert said.one.finish == "tool_calls"


@STREAM
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_named_tool_is_called_and_no_other(tiny_server: Running, stream: bool, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    said = chat(tiny_server, "Hello", stream=stream, tools=tools(), tool_choice=choice)
    assert check(said.one) == [name]
    assert said.one.finish == "stop"  # as OpenAI itself does where the tool was named


@STREAM
@pytest.mark.parametrize("seed", range(3))
def test_parallel_calls_each_have_an_id_and_fit(tiny_server: Running, stream: bool, seed: int) -> None:
    said = chat(
        tiny_server,
        "Hello",
        stream=stream,
        tools=tools(),
        tool_choice="required",
        parallel_tool_calls=True,
        seed=seed,
    )
    assert 1 <= len(check(said.one)) <= 8
    assert len(set(said.one.ids)) == len(said.one.ids)
    assert said.one.finish == "tool_calls"


@STREAM
def test_several_choices_may_each_be_made_to_call(tiny_server: Running, stream: bool) -> None:
    said = chat(tiny_server, "Hello", stream=stream, n=2, tools=tools("get_time", "end_chat"), tool_choice="required")
    assert [len(check(choice)) for choice in said.choices] == [1, 1]
    assert len({choice.ids[0] for choice in said.choices}) == 2


@STREAM
def test_of_allowed_tools_only_those_are_called(tiny_server: Running, stream: bool) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert check(chat(tiny_server, "Hello", stream=stream, tools=tools(), tool_choice=choice).one) == ["get_time"]


@STREAM
def test_a_forbidden_tool_is_not_called(zoo: Running, stream: bool) -> None:
    said = chat(zoo, "Hello", model="calling", stream=stream, tools=tools(), tool_choice="none", max_tokens=200)
    assert said.one.calls == []
    assert said.one.finish in ("stop", "length")


@pytest.mark.tier3
@STREAM
def test_a_model_that_calls_freely_is_heard(zoo: Running, stream: bool) -> None:
    fields: dict[str, Any] = {"model": "calling", "tools": tools(), "max_tokens": 1500}
    answers = [chat(zoo, "Hello", stream=stream, seed=seed, **fields) for seed in range(4)]
    called = [said.one for said in answers if said.one.finish == "tool_calls"]
    assert called
    assert all(check(choice) for choice in called)
    assert not any(said.one.calls for said in answers if said.one.finish == "stop")


@STREAM
def test_the_default_model_is_made_to_call(server: Running, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": schema}}
    said = chat(
        server,
        "What is the weather in Paris? Use the tool.",
        stream=stream,
        tools=[tool],
        tool_choice="required",
        temperature=0,
        max_tokens=60,
    )
    [(name, arguments)] = said.one.calls
    assert name == "get_weather"
    [(member, city)] = msgspec.json.decode(arguments).items()
    assert member == "city"
    assert len(city) <= 30


@pytest.mark.tier3
@STREAM
def test_the_default_model_with_tools_that_it_may_use_still_answers(server: Running, stream: bool) -> None:
    said = chat(server, "Hello!", stream=stream, tools=tools("get_time"), temperature=0, max_tokens=60)
    assert said.text or said.one.calls


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
    said = chat(server, messages, stream=stream, tools=offered, tool_choice="none", temperature=0, max_tokens=60)
    assert said.text
    assert said.one.finish in ("stop", "length")


@STREAM
def test_a_call_of_ours_is_taken_back(tiny_server: Running, stream: bool) -> None:
    first = chat(tiny_server, "Hello", tools=tools(), tool_choice="required")
    message = first.reply.json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": first.one.ids[0], "content": "done"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}, message, result]
    said = chat(tiny_server, messages, stream=stream, tools=tools(), max_tokens=8)
    assert said.counts[0] > first.counts[0]


@STREAM
@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_functions_of_old_are_called_in_the_old_form(tiny_server: Running, stream: bool, name: str) -> None:
    said = chat(
        tiny_server,
        "Hello",
        stream=stream,
        functions=[function("get_weather"), function("get_time")],
        function_call={"name": name},
    )
    assert check(said.one) == [name]
    assert b'"function_call":{' in said.reply.trace.body
    assert b'"tool_calls"' not in said.reply.trace.body


def test_a_tool_that_is_not_offered_cannot_be_demanded(tiny_server: Running) -> None:
    choice = {"type": "function", "function": {"name": "other"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools(), "tool_choice": choice}
    reply = ask(tiny_server, "/v1/chat/completions", {"model": "tiny", **body})
    assert reply.status == 400
    assert reply.error()["param"] == "tool_choice"
