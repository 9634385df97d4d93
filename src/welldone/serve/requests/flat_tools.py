"""The tools of a response, in which a function stands flat, as those of a chat, in which it has a table of its own."""

import msgspec

from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.tools import TOOLS_LIMIT, check_function_name
from welldone.wire.events import Json

_TOOL_CHOICE_MODES = ("none", "auto", "required")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_TOOL_KEYS = ("name", "description", "format")
_GRAMMAR_KEYS = ("definition", "syntax")


class ResponsesTools(msgspec.Struct):
    """What is said of tools."""

    chat: Json
    """The fields of a chat."""
    echoed: list[Json]
    """The tools as the response repeats them."""
    param_names: dict[str, str]
    """Where the tools of the chat stand in the request."""


def read_responses_tools(body: Json, *, ignores_unknown_tools: bool, allows_custom_tools: bool) -> ResponsesTools:
    """What `tools`, `tool_choice` and `parallel_tool_calls` ask for. `takes_custom`: custom tools are passed on.

    Raises:
        ApiError: a tool is none that a chat has, and such are not ignored here; or the choice is none.
    """
    kinds = ("function", "custom") if allows_custom_tools else ("function",)
    named = _supported_tools(body, kinds, ignores_unknown_tools)
    listed = [tool for tool, _ in named]
    choice, allowed = _read_tool_choice(
        body.get("tool_choice"), {tool["name"] for tool in listed}, kinds, ignores_unknown_tools
    )
    is_parallel = fields.boolean(body, "parallel_tool_calls")
    offered = [(tool, param) for tool, param in named if allowed is None or tool["name"] in allowed]
    names = {f"tools[{place}].{tool['type']}": param for place, (tool, param) in enumerate(offered)}
    if not offered:  # servers refuse a choice where there is nothing to choose
        return ResponsesTools({}, listed, names)
    chat: Json = {"tools": [_chat_tool(tool) for tool, _ in offered]}
    if choice is not None:
        chat["tool_choice"] = choice
    if is_parallel is not None:
        chat["parallel_tool_calls"] = is_parallel
    return ResponsesTools(chat, listed, names)


def _supported_tools(body: Json, tool_types: tuple[str, ...], ignores_unknown_tools: bool) -> list[tuple[Json, str]]:
    """The tools that a chat has, each with what an error calls it."""
    out = []
    for place, tool in enumerate(fields.array(body, "tools", TOOLS_LIMIT) or ()):
        param = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        kind = fields.string(tool, "type", TOOLS_LIMIT, f"{param}.")
        if kind is None:
            raise fields.missing(f"{param}.type")
        if kind in tool_types:
            check_function_name(tool.get("name"), f"{param}.name")
            filled = {"strict": False, "parameters": None, "description": None, **tool} if kind == "function" else tool
            out.append((filled, param))
        elif not ignores_unknown_tools:
            raise unsupported_tool_type(f"{param}.type", kind, "' and '".join(tool_types))
    return out


def _chat_tool(tool: Json) -> Json:
    if tool["type"] == "custom":
        custom = {name: tool[name] for name in _CUSTOM_TOOL_KEYS if tool.get(name) is not None}
        if isinstance(form := custom.get("format"), dict) and form.get("type") == "grammar":
            custom["format"] = {"type": "grammar", "grammar": {name: form.get(name) for name in _GRAMMAR_KEYS}}
        return {"type": "custom", "custom": custom}
    function = {name: tool[name] for name in _FUNCTION_KEYS if tool.get(name) not in (None, False)}
    return {"type": "function", "function": function}


def _read_tool_choice(
    value: object, names: set[str], tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> tuple[str | Json | None, set[str] | None]:
    """The choice as a chat has it, and the tools that may be called, where not all of them may."""
    if value is None:
        return None, None
    if isinstance(value, dict):
        return _read_tool_choice_object(value, names, tool_types, ignores_unknown_tools)
    if not isinstance(value, str):
        raise fields.wrong_type("tool_choice", "a string or an object", value)
    if value not in _TOOL_CHOICE_MODES:
        raise fields.wrong_value("tool_choice", value, _TOOL_CHOICE_MODES)
    _check_tools_for_mode(value, names)
    return value, None


def _read_tool_choice_object(
    value: Json, names: set[str], tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> tuple[str | Json, set[str] | None]:
    kind = fields.string(value, "type", TOOLS_LIMIT, "tool_choice.")
    if kind in tool_types:
        return {"type": kind, kind: {"name": _known_tool_name(value, "tool_choice.name", names)}}, None
    if kind == "allowed_tools":
        return _read_allowed_tools(value, names)
    if kind is None:
        raise fields.missing("tool_choice.type")
    if ignores_unknown_tools:  # a tool that was left out cannot be called
        return "auto", None
    raise fields.wrong_value("tool_choice.type", kind, (*tool_types, "allowed_tools"))


def _read_allowed_tools(value: Json, names: set[str]) -> tuple[str, set[str]]:
    mode = fields.choice(value, "mode", ("auto", "required"), "tool_choice.") or "auto"
    allowed = set()
    for place, tool in enumerate(fields.array(value, "tools", TOOLS_LIMIT, "tool_choice.") or ()):
        param = f"tool_choice.tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        allowed.add(_known_tool_name(tool, f"{param}.name", names))
    _check_tools_for_mode(mode, allowed)
    return mode, allowed


def _known_tool_name(table: Json, param: str, names: set[str]) -> str:
    name = check_function_name(table.get("name"), param)
    if name not in names:
        raise invalid_request(f"Invalid '{param}': there is no tool '{name}'.", param=param, code="invalid_value")
    return name


def _check_tools_for_mode(mode: str, names: set[str]) -> None:
    if mode == "required" and not names:
        message = "'tool_choice' is only allowed when 'tools' has functions."
        raise invalid_request(message, param="tool_choice", code="invalid_value")


def unsupported_tool_type(param: str, kind: str, client_tool_type: str) -> ApiError:
    """A tool that its API's own server runs. `known`: what it calls those that clients run."""
    if kind == "namespace":  # Codex sends tools of MCP servers so
        message = (
            f"Invalid value for '{param}': 'namespace'. Functions in a namespace are not supported: send each as a "
            f"tool of type '{client_tool_type}', or have them left out by the server (--unknown-tools ignore)."
        )
        return invalid_request(message, param=param, code="unsupported_value")
    message = (
        f"Invalid value for '{param}': '{fields.shorten_value(kind)}'. This server calls no tools itself: it offers models "
        f"'{client_tool_type}' only. Leave the tool out, or have such tools ignored by the server (--unknown-tools ignore)."
    )
    return invalid_request(message, param=param, code="unsupported_value")
