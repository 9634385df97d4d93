"""Tools: what the client offers, and how a call is brought about.

Where a call is demanded, llama.cpp lets free text come first and does not know names. So it is made to write JSON: the
tools are shown to the model by its chat template (or by a system message, where the template knows none) and a schema
leaves it no other answer. `wire/forced.py` turns the text into calls.
"""

import re

import msgspec

from welldone.engines.abilities import Abilities
from welldone.serve.errors import invalid
from welldone.serve.requests import fields
from welldone.serve.requests.schema import Budget, check_schema, reroot
from welldone.wire.events import Json
from welldone.wire.forced import Forced, Shape

TOOLS_LIMIT = 128
"""OpenAI's."""
CALLS_LIMIT = 8
"""Calls in one forced answer; a model that does not stop would call for ever."""
DESCRIPTION_LIMIT = 65_536
"""Characters; OpenAI's limit was 1,024 and is no longer held by clients."""

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
"""Anthropic's length; OpenAI's 64 are too few for the names that agents make of MCP servers and their tools."""
_NO_ARGUMENTS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
MODES = ("none", "auto", "required")
_LISTED = "You can call these functions, given as JSON:\n"
_ANSWER_BY_CALL = "\nAnswer with JSON only: the call of a function, or its arguments."
_ANSWER_BY_WORDS = "\nAnswer in plain words."


class Tools(msgspec.Struct, kw_only=True):
    """The tools of one request."""

    body: Json = msgspec.field(default_factory=dict)
    """What goes into the engine's body."""
    template: list[Json] | None = None
    """What the chat template is to show, where the engine must not know of it."""
    system: str | None = None
    """What the first message must say, where the chat template cannot."""
    schema: Json | None = None
    """What the answer must be, where a call is forced."""
    forced: Forced | None = None
    choice: str | Json = "none"
    """The choice in its plain form."""


class _Choice(msgspec.Struct, frozen=True):
    mode: str
    name: str | None = None
    allowed: frozenset[str] | None = None


def read_tools(body: Json, abilities: Abilities, budget: Budget) -> Tools:
    """What `tools`, `tool_choice` and their older forms ask for."""
    is_empty = body.get("tools") in (None, {})  # some clients send an empty object for none
    field = "tools" if not is_empty and fields.array(body, "tools", TOOLS_LIMIT) else "functions"
    tools = _read_list(body, field, budget)
    choice = _read_choice(body, field, {tool["function"]["name"] for tool in tools})
    is_parallel = fields.boolean(body, "parallel_tool_calls")
    if field == "functions":  # of old there was one call
        is_parallel = False
    if choice.allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in choice.allowed]
    if not tools or choice.mode == "none":
        return Tools()
    said: str | Json = choice.mode
    if choice.name is not None:
        said = {"type": "function", "function": {"name": choice.name}}
    if abilities.kind == "command":
        return Tools(body=_passed(tools, said, is_parallel), choice=said)
    listed = _LISTED + msgspec.json.encode(tools).decode()
    if choice.mode == "auto":
        system = None if abilities.tools else listed + _ANSWER_BY_WORDS
        return Tools(body=_passed(tools, said, is_parallel), system=system, choice=said)
    wanted = [tool for tool in tools if choice.name in (None, tool["function"]["name"])]
    return Tools(
        template=tools if abilities.tools else None,
        system=None if abilities.tools else listed + _ANSWER_BY_CALL,
        schema=_forced_schema(wanted, is_parallel is True and choice.name is None),
        forced=_forced(wanted, is_parallel is True and choice.name is None, choice.name is not None),
        choice=said,
    )


def check_name(value: object, param: str) -> str:
    """The name of a function."""
    if value is None:
        raise fields.missing(param)
    if not isinstance(value, str):
        raise fields.wrong_type(param, "a string", value)
    if not NAME.fullmatch(value):
        message = (
            f"Invalid '{param}': '{fields.shown(value)}' has other than 1 to 128 of letters, digits, '_', '.', '-'."
        )
        raise invalid(message, param=param, code="invalid_value")
    return value


def _passed(tools: list[Json], choice: str | Json, is_parallel: bool | None) -> Json:
    out: Json = {"tools": tools, "tool_choice": choice}
    if is_parallel is not None:
        out["parallel_tool_calls"] = is_parallel
    return out


def _read_list(body: Json, field: str, budget: Budget) -> list[Json]:
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
            function = fields.table(item, "function", f"tools[{place}].")
        if function is None:
            raise fields.missing(param)
        tool = _read_function(function, param, budget)
        if tool["name"] in names:
            message = f"Invalid '{param}.name': there are two tools of the name '{tool['name']}'."
            raise invalid(message, param=f"{param}.name", code="invalid_value")
        names.add(tool["name"])
        tools.append({"type": "function", "function": tool})
    return tools


def _read_function(function: Json, param: str, budget: Budget) -> Json:
    """The function as engines read it: what is null is left out, and the parameters are always there."""
    out: Json = {"name": check_name(function.get("name"), f"{param}.name")}
    description = fields.string(function, "description", DESCRIPTION_LIMIT, f"{param}.")
    if description is not None:
        out["description"] = description
    fields.boolean(function, "strict", f"{param}.")
    schema = function.get("parameters")
    out["parameters"] = check_schema(schema, f"{param}.parameters", budget) if schema else _NO_ARGUMENTS
    return out


def _read_choice(body: Json, field: str, names: set[str]) -> _Choice:
    param = "tool_choice" if body.get("tool_choice") is not None or field == "tools" else "function_call"
    value = body.get(param)
    if value is None:
        return _Choice("auto")
    choice = _plain_choice(value, param)
    if choice.mode == "required" and not names:
        raise invalid(f"'{param}' is only allowed when '{field}' are specified.", param=param, code="invalid_value")
    for name in {choice.name} if choice.name else choice.allowed or ():
        if name not in names:
            raise invalid(f"Invalid '{param}': there is no tool '{name}'.", param=param, code="invalid_value")
    return choice


def _plain_choice(value: object, param: str) -> _Choice:
    if isinstance(value, str):
        if value not in MODES:
            raise fields.wrong_value(param, value, MODES)
        return _Choice(value)
    if not isinstance(value, dict):
        raise fields.wrong_type(param, "a string or an object", value)
    if param == "function_call":
        return _Choice("required", check_name(value.get("name"), "function_call.name"))
    if value.get("type") == "allowed_tools":
        return _allowed(fields.table(value, "allowed_tools", f"{param}.") or value, f"{param}.allowed_tools")
    if (value.get("type") or "function") != "function":
        raise fields.wrong_value(f"{param}.type", fields.word(value["type"]), ("function", "allowed_tools"))
    function = fields.table(value, "function", f"{param}.") or value
    return _Choice("required", check_name(function.get("name"), f"{param}.function.name"))


def _allowed(value: Json, param: str) -> _Choice:
    names = set()
    for place, item in enumerate(fields.array(value, "tools", TOOLS_LIMIT, f"{param}.") or ()):
        if not isinstance(item, dict):
            raise fields.wrong_type(f"{param}.tools[{place}]", "an object", item)
        function = fields.table(item, "function", f"{param}.tools[{place}].") or item
        names.add(check_name(function.get("name"), f"{param}.tools[{place}].function.name"))
    mode = fields.choice(value, "mode", ("auto", "required"), f"{param}.")
    return _Choice(mode or "auto", None, frozenset(names))


def _forced(wanted: list[Json], is_parallel: bool, is_named: bool) -> Forced:
    if len(wanted) == 1 and not is_parallel:
        return Forced(Shape.ARGUMENTS, wanted[0]["function"]["name"], is_named)
    return Forced(Shape.CALL)


def _forced_schema(wanted: list[Json], is_parallel: bool) -> Json:
    """What the answer must be: the arguments of the one tool, or calls with a name."""
    if len(wanted) == 1 and not is_parallel:
        parameters: Json = wanted[0]["function"]["parameters"]
        return parameters
    places: Json = {}
    calls = []
    for number, tool in enumerate(wanted):
        place = f"#/$defs/tool{number}"
        places[f"tool{number}"] = reroot(tool["function"]["parameters"], place)
        properties = {"name": {"const": tool["function"]["name"]}, "arguments": {"$ref": place}}
        required = ["name", "arguments"]
        call = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        calls.append(call)
    choice: Json = {"anyOf": calls}
    if is_parallel:
        choice = {"type": "array", "items": choice, "minItems": 1, "maxItems": CALLS_LIMIT}
    return {**choice, "$defs": places}
