"""The tools of a response, in which a function stands flat, as those of a chat, in which it has a table of its own."""

import msgspec

from welldone.serve.errors import ApiError, invalid
from welldone.serve.requests import fields
from welldone.serve.requests.tools import TOOLS_LIMIT, check_name
from welldone.wire.events import Json

_MODES = ("none", "auto", "required")
_FUNCTION = ("name", "description", "parameters", "strict")
_CUSTOM = ("name", "description", "format")
_GRAMMAR = ("definition", "syntax")


class FlatTools(msgspec.Struct):
    """What is said of tools."""

    chat: Json
    """The fields of a chat."""
    listed: list[Json]
    """The tools as the response repeats them."""
    names: dict[str, str]
    """Where the tools of the chat stand in the request."""


def read_flat_tools(body: Json, *, ignores_unknown: bool, takes_custom: bool) -> FlatTools:
    """What `tools`, `tool_choice` and `parallel_tool_calls` ask for. `takes_custom`: custom tools are passed on.

    Raises:
        ApiError: a tool is none that a chat has, and such are not ignored here; or the choice is none.
    """
    kinds = ("function", "custom") if takes_custom else ("function",)
    named = _named(body, kinds, ignores_unknown)
    listed = [tool for tool, _ in named]
    choice, allowed = _choice(body.get("tool_choice"), {tool["name"] for tool in listed}, kinds, ignores_unknown)
    is_parallel = fields.boolean(body, "parallel_tool_calls")
    offered = [(tool, param) for tool, param in named if allowed is None or tool["name"] in allowed]
    names = {f"tools[{place}].{tool['type']}": param for place, (tool, param) in enumerate(offered)}
    if not offered:  # servers refuse a choice where there is nothing to choose
        return FlatTools({}, listed, names)
    chat: Json = {"tools": [_nested(tool) for tool, _ in offered]}
    if choice is not None:
        chat["tool_choice"] = choice
    if is_parallel is not None:
        chat["parallel_tool_calls"] = is_parallel
    return FlatTools(chat, listed, names)


def _named(body: Json, kinds: tuple[str, ...], ignores_unknown: bool) -> list[tuple[Json, str]]:
    """The tools that a chat has, each with what an error calls it."""
    out = []
    for place, tool in enumerate(fields.array(body, "tools", TOOLS_LIMIT) or ()):
        param = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        kind = fields.string(tool, "type", TOOLS_LIMIT, f"{param}.")
        if kind is None:
            raise fields.missing(f"{param}.type")
        if kind in kinds:
            check_name(tool.get("name"), f"{param}.name")
            filled = {"strict": False, "parameters": None, "description": None, **tool} if kind == "function" else tool
            out.append((filled, param))
        elif not ignores_unknown:
            raise unknown_tool(f"{param}.type", kind, "' and '".join(kinds))
    return out


def _nested(tool: Json) -> Json:
    if tool["type"] == "custom":
        custom = {name: tool[name] for name in _CUSTOM if tool.get(name) is not None}
        if isinstance(form := custom.get("format"), dict) and form.get("type") == "grammar":
            custom["format"] = {"type": "grammar", "grammar": {name: form.get(name) for name in _GRAMMAR}}
        return {"type": "custom", "custom": custom}
    function = {name: tool[name] for name in _FUNCTION if tool.get(name) not in (None, False)}
    return {"type": "function", "function": function}


def _choice(
    value: object, names: set[str], kinds: tuple[str, ...], ignores_unknown: bool
) -> tuple[str | Json | None, set[str] | None]:
    """The choice as a chat has it, and the tools that may be called, where not all of them may."""
    if value is None:
        return None, None
    if isinstance(value, dict):
        return _table(value, names, kinds, ignores_unknown)
    if not isinstance(value, str):
        raise fields.wrong_type("tool_choice", "a string or an object", value)
    if value not in _MODES:
        raise fields.wrong_value("tool_choice", value, _MODES)
    _check_any(value, names)
    return value, None


def _table(
    value: Json, names: set[str], kinds: tuple[str, ...], ignores_unknown: bool
) -> tuple[str | Json, set[str] | None]:
    kind = fields.string(value, "type", TOOLS_LIMIT, "tool_choice.")
    if kind in kinds:
        return {"type": kind, kind: {"name": _known(value, "tool_choice.name", names)}}, None
    if kind == "allowed_tools":
        return _allowed(value, names)
    if kind is None:
        raise fields.missing("tool_choice.type")
    if ignores_unknown:  # a tool that was left out cannot be called
        return "auto", None
    raise fields.wrong_value("tool_choice.type", kind, (*kinds, "allowed_tools"))


def _allowed(value: Json, names: set[str]) -> tuple[str, set[str]]:
    mode = fields.choice(value, "mode", ("auto", "required"), "tool_choice.") or "auto"
    allowed = set()
    for place, tool in enumerate(fields.array(value, "tools", TOOLS_LIMIT, "tool_choice.") or ()):
        param = f"tool_choice.tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        allowed.add(_known(tool, f"{param}.name", names))
    _check_any(mode, allowed)
    return mode, allowed


def _known(table: Json, param: str, names: set[str]) -> str:
    name = check_name(table.get("name"), param)
    if name not in names:
        raise invalid(f"Invalid '{param}': there is no tool '{name}'.", param=param, code="invalid_value")
    return name


def _check_any(mode: str, names: set[str]) -> None:
    if mode == "required" and not names:
        message = "'tool_choice' is only allowed when 'tools' has functions."
        raise invalid(message, param="tool_choice", code="invalid_value")


def unknown_tool(param: str, kind: str, known: str) -> ApiError:
    """A tool that its API's own server runs. `known`: what it calls those that clients run."""
    if kind == "namespace":  # Codex sends tools of MCP servers so
        message = (
            f"Invalid value for '{param}': 'namespace'. Functions in a namespace are not supported: send each as a "
            f"tool of type '{known}', or have them left out by the server (--unknown-tools ignore)."
        )
        return invalid(message, param=param, code="unsupported_value")
    message = (
        f"Invalid value for '{param}': '{fields.shown(kind)}'. This server calls no tools itself: it offers models "
        f"'{known}' only. Leave the tool out, or have such tools ignored by the server (--unknown-tools ignore)."
    )
    return invalid(message, param=param, code="unsupported_value")
