"""Tools: what the client offers, and how a call is brought about.

Where a call is demanded, llama.cpp lets free text come first and does not know names. So it is made to write JSON: the
tools are shown to the model by its chat template (or by a system message, where the template knows none) and a schema
leaves it no other answer. `wire/forced.py` turns the text into calls.
"""

import re

import msgspec

from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.protocol.text_tool_calls import ForcedCallShape, ForcedToolCall
from welldone.server.requests import fields
from welldone.server.requests.json_schema import SchemaBudget, check_schema, reroot

TOOLS_LIMIT = 128
"""OpenAI's."""
FORCED_CALLS_LIMIT = 8
"""Calls in one forced answer; a model that does not stop would call for ever."""
DESCRIPTION_LIMIT = 65_536
"""Characters; OpenAI's limit was 1,024 and is no longer held by clients."""

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
"""Anthropic's length; OpenAI's 64 are too few for the names that agents make of MCP servers and their tools."""
_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL_CHOICE_MODES = ("none", "auto", "required")
_TOOL_LIST_PROMPT = "You can call these functions, given as JSON:\n"
_CALL_ONLY_PROMPT = "\nAnswer with JSON only: the call of a function, or its arguments."
_PLAIN_TEXT_PROMPT = "\nAnswer in plain words."


class EngineTools(msgspec.Struct, kw_only=True):
    """The tools of one request."""

    body: Json = msgspec.field(default_factory=dict)
    """What goes into the engine's body."""
    template_tools: list[Json] | None = None
    """What the chat template is to show, where the engine must not know of it."""
    system_text: str | None = None
    """What the first message must say, where the chat template cannot."""
    schema: Json | None = None
    """What the answer must be, where a call is forced."""
    forced_call: ForcedToolCall | None = None
    choice: str | Json = "none"
    """The choice in its plain form."""


class _ToolChoice(msgspec.Struct, frozen=True):
    mode: str
    name: str | None = None
    allowed: frozenset[str] | None = None


def read_tools(body: Json, abilities: ModelCapabilities, budget: SchemaBudget) -> EngineTools:
    """What `tools`, `tool_choice` and their older forms ask for."""
    is_empty = body.get("tools") in (None, {})  # some clients send an empty object for none
    field = "tools" if not is_empty and fields.array(body, "tools", TOOLS_LIMIT) else "functions"
    tools = _read_tool_list(body, field, budget)
    choice = _read_tool_choice(body, field, {tool["function"]["name"] for tool in tools})
    is_parallel = fields.boolean(body, "parallel_tool_calls")
    if field == "functions":  # of old there was one call
        is_parallel = False
    if choice.allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in choice.allowed]
    if not tools or choice.mode == "none":
        return EngineTools()
    said: str | Json = choice.mode
    if choice.name is not None:
        said = {"type": "function", "function": {"name": choice.name}}
    if abilities.kind == "command":
        return EngineTools(body=_engine_tool_fields(tools, said, is_parallel), choice=said)
    listed = _TOOL_LIST_PROMPT + msgspec.json.encode(tools).decode()
    if choice.mode == "auto":
        system = None if abilities.tools else listed + _PLAIN_TEXT_PROMPT
        return EngineTools(body=_engine_tool_fields(tools, said, is_parallel), system_text=system, choice=said)
    wanted = [tool for tool in tools if choice.name in (None, tool["function"]["name"])]
    return EngineTools(
        template_tools=tools if abilities.tools else None,
        system_text=None if abilities.tools else listed + _CALL_ONLY_PROMPT,
        schema=_forced_schema(wanted, is_parallel is True and choice.name is None),
        forced_call=_forced_call(wanted, is_parallel is True and choice.name is None, choice.name is not None),
        choice=said,
    )


def check_function_name(value: object, param: str) -> str:
    """The name of a function."""
    if value is None:
        raise fields.missing(param)
    if not isinstance(value, str):
        raise fields.wrong_type(param, "a string", value)
    if not FUNCTION_NAME.fullmatch(value):
        message = f"Invalid '{param}': '{fields.shorten_value(value)}' has other than 1 to 128 of letters, digits, '_', '.', '-'."
        raise invalid_request(message, param=param, code="invalid_value")
    return value


def _engine_tool_fields(tools: list[Json], choice: str | Json, is_parallel: bool | None) -> Json:
    out: Json = {"tools": tools, "tool_choice": choice}
    if is_parallel is not None:
        out["parallel_tool_calls"] = is_parallel
    return out


def _read_tool_list(body: Json, field: str, budget: SchemaBudget) -> list[Json]:
    tools: list[Json] = []
    names: set[str] = set()
    for place, item in enumerate(fields.array(body, field, TOOLS_LIMIT) or ()):
        param = f"{field}[{place}]"
        if not isinstance(item, dict):
            raise fields.wrong_type(param, "an object", item)
        function: Json | None = item
        if field == "tools":
            fields.choice(item, "type", ("function",), f"{param}.")
            param += ".function"
            function = fields.json_object(item, "function", f"tools[{place}].")
        if function is None:
            raise fields.missing(param)
        tool = _read_function(function, param, budget)
        if tool["name"] in names:
            message = f"Invalid '{param}.name': there are two tools of the name '{tool['name']}'."
            raise invalid_request(message, param=f"{param}.name", code="invalid_value")
        names.add(tool["name"])
        tools.append({"type": "function", "function": tool})
    return tools


def _read_function(function: Json, param: str, budget: SchemaBudget) -> Json:
    """The function as engines read it: what is null is left out, and the parameters are always there."""
    out: Json = {"name": check_function_name(function.get("name"), f"{param}.name")}
    description = fields.string(function, "description", DESCRIPTION_LIMIT, f"{param}.")
    if description is not None:
        out["description"] = description
    fields.boolean(function, "strict", f"{param}.")
    schema = function.get("parameters")
    out["parameters"] = check_schema(schema, f"{param}.parameters", budget) if schema else _NO_PARAMETERS
    return out


def _read_tool_choice(body: Json, field: str, names: set[str]) -> _ToolChoice:
    param = "tool_choice" if body.get("tool_choice") is not None or field == "tools" else "function_call"
    value = body.get(param)
    if value is None:
        return _ToolChoice("auto")
    choice = _parse_tool_choice(value, param)
    if choice.mode == "required" and not names:
        raise invalid_request(
            f"'{param}' is only allowed when '{field}' are specified.", param=param, code="invalid_value"
        )
    for name in {choice.name} if choice.name else choice.allowed or ():
        if name not in names:
            raise invalid_request(f"Invalid '{param}': there is no tool '{name}'.", param=param, code="invalid_value")
    return choice


def _parse_tool_choice(value: object, param: str) -> _ToolChoice:
    if isinstance(value, str):
        if value not in TOOL_CHOICE_MODES:
            raise fields.wrong_value(param, value, TOOL_CHOICE_MODES)
        return _ToolChoice(value)
    if not isinstance(value, dict):
        raise fields.wrong_type(param, "a string or an object", value)
    if param == "function_call":
        return _ToolChoice("required", check_function_name(value.get("name"), "function_call.name"))
    if value.get("type") == "allowed_tools":
        return _read_allowed_tools(
            fields.json_object(value, "allowed_tools", f"{param}.") or value, f"{param}.allowed_tools"
        )
    if (value.get("type") or "function") != "function":
        raise fields.wrong_value(
            f"{param}.type", fields.string_or_type_name(value["type"]), ("function", "allowed_tools")
        )
    function = fields.json_object(value, "function", f"{param}.") or value
    return _ToolChoice("required", check_function_name(function.get("name"), f"{param}.function.name"))


def _read_allowed_tools(value: Json, param: str) -> _ToolChoice:
    names = set()
    for place, item in enumerate(fields.array(value, "tools", TOOLS_LIMIT, f"{param}.") or ()):
        if not isinstance(item, dict):
            raise fields.wrong_type(f"{param}.tools[{place}]", "an object", item)
        function = fields.json_object(item, "function", f"{param}.tools[{place}].") or item
        names.add(check_function_name(function.get("name"), f"{param}.tools[{place}].function.name"))
    mode = fields.choice(value, "mode", ("auto", "required"), f"{param}.")
    return _ToolChoice(mode or "auto", None, frozenset(names))


def _forced_call(candidates: list[Json], is_parallel: bool, is_named: bool) -> ForcedToolCall:
    if len(candidates) == 1 and not is_parallel:
        return ForcedToolCall(ForcedCallShape.ARGUMENTS, candidates[0]["function"]["name"], is_named)
    return ForcedToolCall(ForcedCallShape.CALL)


def _forced_schema(candidates: list[Json], is_parallel: bool) -> Json:
    """What the answer must be: the arguments of the one tool, or calls with a name."""
    if len(candidates) == 1 and not is_parallel:
        parameters: Json = candidates[0]["function"]["parameters"]
        return parameters
    places: Json = {}
    calls = []
    for number, tool in enumerate(candidates):
        place = f"#/$defs/tool{number}"
        places[f"tool{number}"] = reroot(tool["function"]["parameters"], place)
        properties = {"name": {"const": tool["function"]["name"]}, "arguments": {"$ref": place}}
        required = ["name", "arguments"]
        call = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        calls.append(call)
    choice: Json = {"anyOf": calls}
    if is_parallel:
        choice = {"type": "array", "items": choice, "minItems": 1, "maxItems": FORCED_CALLS_LIMIT}
    return {**choice, "$defs": places}
