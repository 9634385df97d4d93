"""Validation of tools and tool choice, and forced calls."""

import pytest

from tests.server.requests.builders import HELLO, Body, capabilities_with, chat, engine, rejection
from tests.table import table
from welldone.core.text_tool_calls import ForcedToolCall

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, **members: object) -> Body:
    """Return a tool."""
    return {"type": "function", "function": {"name": name, **members}}


ONE = [tool("weather", description="of a city", parameters=CITY)]
TWO = [*ONE, tool("clock", parameters=NOTHING)]
NAMED = {"type": "function", "function": {"name": "clock"}}


def allowed(mode: str, *names: str) -> Body:
    """Return an `allowed_tools` choice."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool(name) for name in names]}}


def schema_of(part: Body) -> Body:
    """Return the schema of the engine's answer."""
    found: Body = part["response_format"]["json_schema"]["schema"]
    return found


def test_optional_tools_are_sent_to_the_engine() -> None:
    part = engine(tools=ONE)
    assert (part["tools"], part["tool_choice"]) == (ONE, "auto")
    assert "parallel_tool_calls" not in part
    assert engine(tools=ONE, parallel_tool_calls=False)["parallel_tool_calls"] is False


def test_null_and_unknown_fields_of_a_tool_are_dropped() -> None:
    odd = tool("f", description=None, strict=None, parameters=None, extra=1)
    assert engine(tools=[odd])["tools"] == [tool("f", parameters=NOTHING)]
    assert engine(tools=[tool("f", strict=True, parameters={})])["tools"] == [tool("f", parameters=NOTHING)]


def test_a_null_tool_type_means_function() -> None:
    assert engine(tools=[{"type": None, "function": {"name": "f"}}])["tools"] == [tool("f", parameters=NOTHING)]


@table(
    "body",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": ONE, "tool_choice": "none"},
        {"functions": [ONE[0]["function"]], "function_call": "none"},
        {"parallel_tool_calls": True},
    ],
)
def test_no_tools_are_sent_without_tools_or_with_tool_choice_none(body: Body) -> None:
    part = engine(**body)
    assert not part.keys() & {"tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "response_format"}


@table(
    ("body", "forced"),
    [
        ({"tools": ONE, "tool_choice": "required"}, ForcedToolCall("weather")),
        ({"tools": TWO, "tool_choice": NAMED}, ForcedToolCall("clock", is_named=True)),
        (
            {"tools": TWO, "tool_choice": NAMED, "parallel_tool_calls": True},
            ForcedToolCall("clock", is_named=True),
        ),
        ({"tools": TWO, "tool_choice": "required"}, ForcedToolCall()),
        ({"tools": ONE, "tool_choice": "required", "parallel_tool_calls": True}, ForcedToolCall()),
        (
            {"tools": TWO, "tool_choice": allowed("required", "clock")},
            ForcedToolCall("clock"),
        ),
        (
            {"functions": [item["function"] for item in TWO], "function_call": {"name": "clock"}},
            ForcedToolCall("clock", is_named=True),
        ),
    ],
)
def test_a_required_call_is_forced(body: Body, forced: ForcedToolCall) -> None:
    request = chat(**body)
    part = request.bodies[0]
    assert request.forced_call == forced
    assert request.facts.has_named_tool is forced.is_named
    assert "tools" not in part
    assert "response_format" in part
    assert part["chat_template_kwargs"]["tools"]


def test_one_forced_tool_has_the_schema_of_its_arguments() -> None:
    assert schema_of(engine(tools=ONE, tool_choice="required")) == CITY
    assert schema_of(engine(tools=TWO, tool_choice=NAMED)) == NOTHING


def test_several_forced_tools_have_a_schema_with_name_and_arguments() -> None:
    schema = schema_of(engine(tools=TWO, tool_choice="required"))
    assert schema["$defs"] == {"tool0": CITY, "tool1": NOTHING}
    assert [call["properties"]["name"] for call in schema["anyOf"]] == [{"const": "weather"}, {"const": "clock"}]
    assert schema["anyOf"][1] == {
        "type": "object",
        "properties": {"name": {"const": "clock"}, "arguments": {"$ref": "#/$defs/tool1"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def test_parallel_calls_are_a_bounded_array() -> None:
    schema = schema_of(engine(tools=TWO, tool_choice="required", parallel_tool_calls=True))
    assert (schema["type"], schema["minItems"], schema["maxItems"]) == ("array", 1, 8)
    assert len(schema["items"]["anyOf"]) == 2


def test_references_in_a_forced_schema_are_rewritten() -> None:
    own = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"anyOf": [{"items": {"$ref": "#/$defs/x"}}]}},
        "$defs": {"x": {"type": "null"}},
    }
    schema = schema_of(engine(tools=[tool("f", parameters=own), tool("g")], tool_choice="required"))
    led = schema["$defs"]["tool0"]["properties"]
    assert led["a"] == {"$ref": "#/$defs/tool0/$defs/x"}
    assert led["b"] == {"anyOf": [{"items": {"$ref": "#/$defs/tool0/$defs/x"}}]}


def test_a_forced_call_overrides_response_format() -> None:
    assert schema_of(engine(tools=ONE, tool_choice="required", response_format={"type": "json_object"})) == CITY


def test_only_allowed_tools_are_sent() -> None:
    part = engine(tools=TWO, tool_choice=allowed("auto", "clock"))
    assert [item["function"]["name"] for item in part["tools"]] == ["clock"]
    request = chat(tools=TWO, tool_choice=allowed("auto", "clock"))
    assert request.facts.has_named_tool is False


@pytest.mark.parametrize(("choice", "expected"), [("auto", "plain words"), ("required", "JSON only")])
def test_tools_are_listed_in_a_system_message_if_the_template_has_none(choice: str, expected: str) -> None:
    part = engine(capabilities_with(tools=False), tools=ONE, tool_choice=choice)
    first = part["messages"][0]
    assert first["role"] == "system"
    assert '"weather"' in first["content"]
    assert expected in first["content"]
    assert part["messages"][1:] == HELLO
    assert "tools" not in part.get("chat_template_kwargs", {})


def test_an_existing_system_message_is_kept() -> None:
    messages = [{"role": "developer", "content": "be kind"}, *HELLO]
    part = engine(capabilities_with(tools=False), tools=ONE, messages=messages)
    assert [item["role"] for item in part["messages"]] == ["system", "user"]
    assert part["messages"][0]["content"].endswith("\n\nbe kind")


def test_a_command_gets_tools_and_choice_unchanged() -> None:
    request = chat(
        capabilities_with(kind="command", tools=False), tools=TWO, tool_choice=NAMED, parallel_tool_calls=True
    )
    part = request.bodies[0]
    assert (part["tools"], part["tool_choice"], part["parallel_tool_calls"]) == (TWO, NAMED, True)
    assert (request.forced_call, part["messages"]) == (None, HELLO)
    assert request.facts.has_named_tool


def test_legacy_functions_become_tools() -> None:
    request = chat(functions=[item["function"] for item in TWO], function_call="auto")
    assert request.bodies[0]["tools"] == TWO
    assert request.facts.uses_legacy_functions


@table(
    ("body", "param"),
    [
        ({"tools": {}}, None),
        ({"tools": "x"}, "tools"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": []}]}, "tools[0].function"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a" * 129)]}, "tools[0].function.name"),
        ({"tools": [tool("a\n")]}, "tools[0].function.name"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name"),
        ({"tools": [tool("a"), tool("a")]}, "tools[1].function.name"),
        ({"tools": [tool("a", description=1)]}, "tools[0].function.description"),
        ({"tools": [tool("a", strict="x")]}, "tools[0].function.strict"),
        ({"tools": [tool("a", parameters=[1])]}, "tools[0].function.parameters"),
        ({"tools": [tool("a", parameters={"type": "x"})]}, "tools[0].function.parameters"),
        ({"tools": [tool(f"a{i}") for i in range(129)]}, "tools"),
        ({"tools": ONE, "tool_choice": "any"}, "tool_choice"),
        ({"tools": ONE, "tool_choice": 1}, "tool_choice"),
        ({"tools": ONE, "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": ONE, "tool_choice": {}}, "tool_choice.function.name"),
        ({"tools": ONE, "tool_choice": NAMED}, "tool_choice"),
        ({"tools": ONE, "tool_choice": allowed("auto", "clock")}, "tool_choice"),
        ({"tools": ONE, "tool_choice": allowed("none", "weather")}, "tool_choice.allowed_tools.mode"),
        (
            {"tools": ONE, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [1]}}},
            "tool_choice.allowed_tools.tools[0]",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"functions": [{"name": "f"}], "function_call": {}}, "function_call.name"),
        ({"functions": [1]}, "functions[0]"),
        ({"tools": ""}, "tools"),
        ({"tools": 0}, "tools"),
        ({"tools": [{"type": 0, "function": {"name": "f"}}]}, "tools[0].type"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
        ({"functions": [{"name": 1}]}, "functions[0].name"),
        ({"tools": ONE, "parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ],
)
def test_an_invalid_tool_or_choice_is_named(body: Body, param: str | None) -> None:
    if param is None:
        assert "tools" not in engine(**body)  # an empty object is as good as none
        return
    assert rejection(**body).param == param


def test_as_many_tools_as_allowed_can_be_forced() -> None:
    tools = [tool(f"a{i}", parameters=CITY) for i in range(128)]
    assert len(schema_of(engine(tools=tools, tool_choice="required"))["anyOf"]) == 128


def test_tools_count_towards_the_context() -> None:
    long = [tool(f"a{i}", description="x" * 65_000) for i in range(2)]
    assert rejection(tools=long).code == "context_length_exceeded"


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_stop_strings_are_dropped_for_a_forced_call(choice: object) -> None:
    request = chat(tools=TWO, tool_choice=choice, stop=["}"])
    assert request.facts.stop_strings == ()
    assert "stop" not in request.bodies[0]
    assert engine(capabilities_with(kind="command"), tools=TWO, tool_choice=choice, stop=["}"])["stop"] == ["}"]
    assert rejection(tools=TWO, tool_choice=choice, stop=[""]).param == "stop[0]"


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_stop_strings_are_kept_without_a_forced_call(choice: str) -> None:
    assert chat(tools=TWO, tool_choice=choice, stop="x").facts.stop_strings == ("x",)
