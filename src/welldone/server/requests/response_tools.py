"""Tools of a Responses request, translated to those of a chat.

A Responses request may group tools in namespaces: `{"type": "namespace", "name": "crm", "tools": [...]}`. A chat has no
such groups: the function `find` of `crm` becomes `crm__find`, and its calls get their namespace back.
"""

import re
from hashlib import sha256
from typing import NamedTuple

import msgspec

from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.schemas import responses as schema
from welldone.schemas.messages import TOOLS_LIMIT, AllowedTools, NamedFunction
from welldone.server.requests import fields
from welldone.server.requests.tools import TOOL_CHOICE_MODES, unsupported_tool_type

_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_TOOL_KEYS = ("name", "description", "format")
_GRAMMAR_KEYS = ("definition", "syntax")
_NAMESPACE = "namespace"
_HOSTED_TOOL_TYPES = frozenset(
    (
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search"),
        *("code_interpreter", "image_generation", "mcp", "computer", "computer_use_preview", "local_shell", "shell"),
        *("apply_patch", "tool_search", "programmatic_tool_calling"),
    )
)
"""Types of tools that only OpenAI's servers run, or only its models know (`Tool` in openai-python 3.46.0)."""
_CHAT_NAME_LENGTH = 64
"""OpenAI's limit for the name of a function in a chat, which other servers have too."""
_DIGEST_LENGTH = 8  # hexadecimal digits: two of 128 tools have the same with a probability of 2e-6


class ResponseTools(msgspec.Struct, kw_only=True):
    """The tools of one request."""

    chat: Json = msgspec.field(default_factory=dict)
    """The fields of the chat request: `tools`, `tool_choice` and `parallel_tool_calls`."""
    echo: list[Json]
    """The tools as the response repeats them."""
    param_names: dict[str, str]
    """The client's names for the tools of the chat request."""
    chat_names: dict[tuple[str, str], str]
    """The names in the chat of the tools with a namespace, by namespace and name."""
    ignored: tuple[str, ...]
    """The tools that are left out, such as `tools[3].web_search`."""

    def chat_name(self, namespace: str, name: str) -> str:
        """Return the name in a chat of a tool that may no longer be given."""
        return self.chat_names.get((namespace, name)) or flat_name(namespace, name)

    def call_names(self) -> dict[str, Json]:
        """Return the members `name` and `namespace` of a call, by the name of the tool in the chat."""
        return {
            chat_name: {"name": name, _NAMESPACE: namespace} for (namespace, name), chat_name in self.chat_names.items()
        }


NO_TOOLS = ResponseTools(echo=[], param_names={}, chat_names={}, ignored=())


class _GivenTool(NamedTuple):
    value: Json
    """As the response repeats it."""
    param: str
    chat_name: str
    namespace: schema.NamespaceTool | None

    def matches(self, choice: schema.NamedTool) -> bool:
        own = None if self.namespace is None else self.namespace.name
        return self.value["name"] == choice.name and choice.namespace in (None, own)


def flat_name(namespace: str, name: str, *, is_hashed: bool = False) -> str:
    """Return a name for a tool of a namespace, within OpenAI's length and characters. The same tool always gets the
    same name; `is_hashed`: another tool has the plain one."""
    joined = f"{namespace.rstrip('_')}__{name}"  # Codex's namespaces of MCP servers end with `__`
    if not is_hashed and len(joined) <= _CHAT_NAME_LENGTH and re.fullmatch(r"[\w-]+", joined, re.ASCII):
        return joined
    digest = sha256(f"{namespace}\0{name}".encode()).hexdigest()[:_DIGEST_LENGTH]
    safe = re.sub(r"[^\w-]", "_", joined, flags=re.ASCII)[: _CHAT_NAME_LENGTH - _DIGEST_LENGTH - 1]
    return f"{safe}_{digest}"


def read_tools(request: schema.ResponseRequest, tool_types: tuple[str, ...], *, unknown_tools: str) -> ResponseTools:
    """Translate `tools`, `tool_choice` and `parallel_tool_calls`; `unknown_tools` is the setting.

    Raises:
        ApiError: a tool is invalid, has no equivalent in a chat, or the choice names none of the tools.
    """
    reader = _ToolReader(tool_types, unknown_tools)
    echo = reader.read(request.tools or [])
    choice, allowed = _read_tool_choice(request.tool_choice, reader.tools, tool_types, unknown_tools)
    tools = [tool for tool in reader.tools if allowed is None or tool.chat_name in allowed]
    out = ResponseTools(
        echo=echo,
        param_names={f"tools[{index}].{tool.value['type']}": tool.param for index, tool in enumerate(tools)},
        chat_names=reader.chat_names,
        ignored=tuple(reader.ignored),
    )
    if tools:  # servers reject a tool choice without tools
        described: set[str] = set()
        out.chat = {"tools": [_chat_tool(tool, described) for tool in tools]}
        out.chat |= fields.given(tool_choice=choice, parallel_tool_calls=request.parallel_tool_calls)
    return out


def _is_left_out(kind: object, unknown_tools: str) -> bool:
    """Whether a tool that a chat has not is left out: the model need not call what is only offered."""
    return unknown_tools == "ignore" or (unknown_tools == "auto" and str(kind) in _HOSTED_TOOL_TYPES)


class _ToolReader:
    """Reads the tools that a chat has. Others are ignored, or an error."""

    def __init__(self, tool_types: tuple[str, ...], unknown_tools: str) -> None:
        self.tools: list[_GivenTool] = []
        self.chat_names: dict[tuple[str, str], str] = {}
        self.ignored: list[str] = []
        self._tool_types = tool_types
        self._unknown_tools = unknown_tools
        self._taken_names: set[str] = set()

    def read(self, tools: list[Json]) -> list[Json]:
        """Read the tools, and return them as the response repeats them."""
        self._taken_names = {str(tool.get("name")) for tool in tools if tool.get("type") != _NAMESPACE}
        out = []
        for index, tool in enumerate(tools):
            param = f"tools[{index}]"
            if fields.read_fields(tool, schema.ResponseTool, f"{param}.").type == _NAMESPACE:
                namespace = fields.read_fields(tool, schema.NamespaceTool, f"{param}.")
                inner = [
                    self._read_tool(one, f"{param}.tools[{at}]", namespace) for at, one in enumerate(namespace.tools)
                ]
                kept = [one for one in inner if one is not None]
                echoed = {**tool, "tools": kept} if kept else None
            else:
                echoed = self._read_tool(tool, param, None)
            out += [] if echoed is None else [echoed]
        if len(self.tools) > TOOLS_LIMIT:
            raise fields.too_many("tools", TOOLS_LIMIT, len(self.tools))
        return out

    def _read_tool(self, tool: Json, param: str, namespace: schema.NamespaceTool | None) -> Json | None:
        """Add a tool, and return it as the response repeats it; None if it is ignored."""
        kind = fields.read_fields(tool, schema.ResponseTool, f"{param}.").type
        if namespace is not None and kind == _NAMESPACE:
            raise fields.invalid(f"{param}.type", "a namespace cannot contain a namespace.")
        if kind not in self._tool_types:
            if not _is_left_out(kind, self._unknown_tools):
                raise unsupported_tool_type(f"{param}.type", kind, "' and '".join(self._tool_types))
            is_word = re.fullmatch(r"\w{1,40}", kind, re.ASCII)  # it becomes part of a header
            self.ignored.append(f"{param}.{kind}" if is_word else param)
            return None
        name = fields.read_fields(tool, NamedFunction, f"{param}.").name
        chat_name = name if namespace is None else self._new_chat_name(namespace.name, name, f"{param}.name")
        filled = {"strict": False, "parameters": None, "description": None, **tool} if kind == "function" else tool
        self.tools.append(_GivenTool(filled, param, chat_name, namespace))
        return filled

    def _new_chat_name(self, namespace: str, name: str, param: str) -> str:
        if (namespace, name) in self.chat_names:
            raise fields.invalid(param, f"there is another tool '{name}' in the namespace '{namespace}'.")
        chat_name = flat_name(namespace, name)
        if chat_name in self._taken_names:
            chat_name = flat_name(namespace, name, is_hashed=True)
            if chat_name in self._taken_names:
                raise fields.invalid(param, f"there is another tool with the name '{chat_name}'.")
        self._taken_names.add(chat_name)
        self.chat_names[namespace, name] = chat_name
        return chat_name


def _chat_tool(tool: _GivenTool, described: set[str]) -> Json:
    """Convert a tool: Responses has the fields of a function in the tool, chat in an object `function`.

    The first tool of each namespace, whose name is added to `described`, also gets the description of the namespace.
    """
    value = tool.value | {"name": tool.chat_name}
    namespace = tool.namespace
    if namespace is not None and namespace.description and namespace.name not in described:
        described.add(namespace.name)
        texts = (f"{namespace.name}: {namespace.description}", value.get("description"))
        value["description"] = "\n\n".join(filter(None, texts))
    if value["type"] == "custom":
        custom = {name: value[name] for name in _CUSTOM_TOOL_KEYS if value.get(name) is not None}
        if isinstance(syntax := custom.get("format"), dict) and syntax.get("type") == "grammar":
            custom["format"] = {"type": "grammar", "grammar": {name: syntax.get(name) for name in _GRAMMAR_KEYS}}
        return {"type": "custom", "custom": custom}
    function = {name: value[name] for name in _FUNCTION_KEYS if value.get(name) not in (None, False)}
    return {"type": "function", "function": function}


def _read_tool_choice(
    value: object, tools: list[_GivenTool], tool_types: tuple[str, ...], unknown_tools: str
) -> tuple[str | Json | None, set[str] | None]:
    """Return the choice in chat form, and the names in the chat of the allowed tools (None: all)."""
    if value is None:
        return None, None
    if isinstance(value, str):
        if value not in TOOL_CHOICE_MODES:
            raise fields.wrong_value("tool_choice", value, TOOL_CHOICE_MODES)
        mode, allowed = value, None
    elif not isinstance(value, dict):
        raise fields.wrong_type("tool_choice", "a string or an object", value)
    elif (kind := fields.read_fields(value, schema.ResponseTool, "tool_choice.").type) in tool_types:
        return {"type": kind, kind: {"name": _chosen_name(value, "tool_choice.", tools)}}, None
    elif kind == "allowed_tools":
        found = fields.read_fields(value, AllowedTools, "tool_choice.")
        mode = found.mode or "auto"
        allowed = {
            _chosen_name(tool, f"tool_choice.tools[{index}].", tools)
            for index, tool in enumerate(found.tools or ())
            if tool.get("type") in tool_types or not _is_left_out(tool.get("type"), unknown_tools)
        }
    elif unknown_tools == "ignore":  # the named tool was ignored too
        return "auto", None
    else:
        raise fields.wrong_value("tool_choice.type", kind, (*tool_types, "allowed_tools"))
    if mode == "required" and not (tools if allowed is None else allowed):
        message = "'tool_choice' is only allowed when 'tools' has functions."
        raise invalid_request(message, param="tool_choice", code="invalid_value")
    return mode, allowed


def _chosen_name(table: Json, path: str, tools: list[_GivenTool]) -> str:
    """Return the name in the chat of the tool that a choice names."""
    chosen = fields.read_fields(table, schema.NamedTool, path)
    found = [tool for tool in tools if tool.matches(chosen)]
    found = [tool for tool in found if tool.namespace is None] or found  # OpenAI's choice has no namespace
    if not found:
        place = f" in the namespace '{chosen.namespace}'" if chosen.namespace else ""
        raise fields.invalid(f"{path}name", f"there is no tool '{chosen.name}'{place}.")
    if len({tool.chat_name for tool in found}) > 1:
        reason = f"several namespaces have a tool '{chosen.name}'. Add 'namespace'."
        raise fields.invalid(f"{path}name", reason)
    return found[0].chat_name
