"""Validation of `/v1/responses`, and translation into a chat request.

A request may group tools in namespaces: `{"type": "namespace", "name": "crm", "tools": [...]}`. A chat has no such
groups: the function `find` of `crm` becomes `crm__find`, and its calls get their namespace back.
"""

import re
from hashlib import sha256
from itertools import takewhile
from typing import NamedTuple

import msgspec

from welldone.core.events import Json
from welldone.gateway.errors import invalid_request
from welldone.schemas import responses as schema
from welldone.schemas.errors import shorten_value
from welldone.schemas.fields import describe_fields
from welldone.schemas.messages import TOOLS_LIMIT, AllowedTools, NamedFunction
from welldone.server.requests import fields, response_items
from welldone.server.requests.response_items import ConvertedMessage, ToolNaming, items_to_messages
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


def _is_left_out(tool_type: object, unknown_tools: str) -> bool:
    """Whether a tool that a chat has not is left out: the model need not call what is only offered."""
    return unknown_tools == "ignore" or (unknown_tools == "auto" and str(tool_type) in _HOSTED_TOOL_TYPES)


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
                numbered = enumerate(namespace.tools)
                inner = [self._read_tool(inner_tool, f"{param}.tools[{at}]", namespace) for at, inner_tool in numbered]
                kept = [echo for echo in inner if echo is not None]
                echoed = {**tool, "tools": kept} if kept else None
            else:
                echoed = self._read_tool(tool, param, None)
            out += [] if echoed is None else [echoed]
        if len(self.tools) > TOOLS_LIMIT:
            raise fields.too_many("tools", TOOLS_LIMIT, len(self.tools))
        return out

    def _read_tool(self, tool: Json, param: str, namespace: schema.NamespaceTool | None) -> Json | None:
        """Add a tool, and return it as the response repeats it; None if it is ignored."""
        tool_type = fields.read_fields(tool, schema.ResponseTool, f"{param}.").type
        if namespace is not None and tool_type == _NAMESPACE:
            raise fields.invalid(f"{param}.type", "a namespace cannot contain a namespace.")
        if tool_type not in self._tool_types:
            if not _is_left_out(tool_type, self._unknown_tools):
                raise unsupported_tool_type(f"{param}.type", tool_type, "' and '".join(self._tool_types))
            is_word = re.fullmatch(r"\w{1,40}", tool_type, re.ASCII)  # it becomes part of a header
            self.ignored.append(f"{param}.{tool_type}" if is_word else param)
            return None
        name = fields.read_fields(tool, NamedFunction, f"{param}.").name
        chat_name = name if namespace is None else self._new_chat_name(namespace.name, name, f"{param}.name")
        filled = {"strict": False, "parameters": None, "description": None, **tool} if tool_type == "function" else tool
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
    elif (choice_type := fields.read_fields(value, schema.ResponseTool, "tool_choice.").type) in tool_types:
        return {"type": choice_type, choice_type: {"name": _chosen_name(value, "tool_choice.", tools)}}, None
    elif choice_type == "allowed_tools":
        choice = fields.read_fields(value, AllowedTools, "tool_choice.")
        mode = choice.mode or "auto"
        allowed = {
            _chosen_name(tool, f"tool_choice.tools[{index}].", tools)
            for index, tool in enumerate(choice.tools or ())
            if tool.get("type") in tool_types or not _is_left_out(tool.get("type"), unknown_tools)
        }
    elif unknown_tools == "ignore":  # the named tool was ignored too
        return "auto", None
    else:
        raise fields.wrong_value("tool_choice.type", choice_type, (*tool_types, "allowed_tools"))
    if mode == "required" and not (tools if allowed is None else allowed):
        message = "'tool_choice' is only allowed when 'tools' has functions."
        raise invalid_request(message, param="tool_choice", code="invalid_value")
    return mode, allowed


def _chosen_name(table: Json, path: str, tools: list[_GivenTool]) -> str:
    """Return the name in the chat of the tool that a choice names."""
    chosen = fields.read_fields(table, schema.NamedTool, path)
    matches = [tool for tool in tools if tool.matches(chosen)]
    matches = [tool for tool in matches if tool.namespace is None] or matches  # OpenAI's choice has no namespace
    if not matches:
        place = f" in the namespace '{chosen.namespace}'" if chosen.namespace else ""
        raise fields.invalid(f"{path}name", f"there is no tool '{chosen.name}'{place}.")
    if len({tool.chat_name for tool in matches}) > 1:
        reason = f"several namespaces have a tool '{chosen.name}'. Add 'namespace'."
        raise fields.invalid(f"{path}name", reason)
    return matches[0].chat_name


_CLIENT_PARAM_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "tool_choice.function": "tool_choice",
}
"""The client's names for fields of the chat request."""
_CHAT_FIELDS = ("model", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
_OWN_FIELDS = {field.name for field in describe_fields(schema.ResponseRequest)}.difference(_CHAT_FIELDS)
"""Fields that are not also fields of the chat request."""
_ECHOED_FIELDS = (
    *("background", "frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("parallel_tool_calls", "presence_penalty", "previous_response_id", "prompt_cache_key"),
    *("prompt_cache_retention", "reasoning", "safety_identifier", "store"),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
)


class ResponsesTranslation(msgspec.Struct):
    """A Responses request as a chat request."""

    chat: Json
    echo: Json
    """The fields that the response repeats."""
    param_names: dict[str, str]
    """The client's names for the fields, messages and tools of the chat request."""
    tools: ResponseTools
    wants_summary: bool
    """ReasoningOptions is sent as a summary."""


def read_storage_options(body: Json) -> schema.ResponseStorage:
    """Read `previous_response_id`, `store`, `background` and `stream`, with their defaults."""
    options = fields.read_fields(body, schema.ResponseStorage)
    options.previous_response_id = options.previous_response_id or None
    options.store = options.store is not False
    if options.background and not options.store:
        raise fields.unsupported("background", "needs 'store': the response could not be retrieved otherwise.")
    return options


def echoed_fields(body: Json) -> Json:
    """Return the fields that the response repeats, unchanged."""
    return {name: body[name] for name in _ECHOED_FIELDS if body.get(name) not in (None, "")}


def responses_to_chat(
    body: Json,
    history: list[Json],
    items: list[Json],
    *,
    unknown_tools: str,
    allows_custom_tools: bool = False,
) -> ResponsesTranslation:
    """Translate a request into a chat request. `history` has the items before `items`.

    `unknown_tools`: the setting. `allows_custom_tools`: custom tools are forwarded, instead of being unknown.

    Raises:
        ApiError: a field is invalid, or has no equivalent in a chat.
    """
    fields.check_supported(body, schema.ResponseRequest)
    request = fields.read_fields(body, schema.ResponseRequest)
    _check_metadata(request.metadata or {})
    chat = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    tool_types = ("function", "custom") if allows_custom_tools else ("function",)
    tools = read_tools(request, tool_types, unknown_tools=unknown_tools)
    text: Json = body.get("text") or {}
    options = request.reasoning or schema.ReasoningOptions()
    reasoning = {"effort": options.effort, "summary": options.summary or options.generate_summary}
    has_logprobs = schema.INCLUDE_LOGPROBS in (request.include or ())
    chat |= tools.chat | fields.given(
        temperature=request.temperature,
        top_p=request.top_p,
        max_completion_tokens=request.max_output_tokens,
        logprobs=True if has_logprobs else None,
        top_logprobs=request.top_logprobs if has_logprobs else None,
        reasoning_effort=options.effort,
        verbosity=text.get("verbosity"),
        response_format=_response_format(text.get("format") or {}),
        stream=request.stream,
    )
    messages = _read_messages(request.instructions, history, items, tools.chat_name)
    chat["messages"] = [message.value for message in messages]
    echo = echoed_fields(body) | {"tools": tools.echo, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _CLIENT_PARAM_NAMES | tools.param_names
    for index, message in enumerate(messages):
        names |= {f"messages[{index}]{suffix}": param for suffix, param in message.param_names.items()}
    return ResponsesTranslation(chat, echo, names, tools, wants_summary=reasoning["summary"] is not None)


def compaction_chat(history: list[Json], items: list[Json], instructions: str | None) -> Json:
    """Return the chat request for a summary of a conversation."""
    messages = [message.value for message in _read_messages(None, history, items, flat_name)]
    if not messages:
        raise fields.empty_array("input")
    summary = response_items.summary_messages(messages, instructions)
    return {"messages": summary, "max_completion_tokens": response_items.SUMMARY_TOKENS, "stream": False}


def _read_messages(
    instructions: str | None, history: list[Json], items: list[Json], chat_name: ToolNaming
) -> list[ConvertedMessage]:
    """Convert history and input. Leading system messages become one: chat templates allow no more."""
    all_items = [(item, "previous_response_id") for item in history]
    all_items += [(item, f"input[{index}]") for index, item in enumerate(items)]
    messages = items_to_messages(all_items, chat_name)
    if instructions:
        messages.insert(0, ConvertedMessage({"role": "system", "content": instructions}, {".content": "instructions"}))
    system = list(takewhile(lambda message: message.value["role"] == "system", messages))
    if not system:
        return messages
    text = "\n\n".join(message.value["content"] for message in system)
    return [ConvertedMessage({"role": "system", "content": text}, system[0].param_names), *messages[len(system) :]]


def _response_format(text_format: Json) -> Json | None:
    """Translate a format that was validated. It may have unknown fields."""
    format_type = text_format.get("type")
    if format_type == "json_object":
        return {"type": format_type}
    if format_type != "json_schema":
        return None
    if text_format["name"] is None:
        raise fields.missing("text.format.name")
    return {"type": format_type, format_type: fields.given(**text_format | {"type": None})}


def _check_metadata(metadata: Json) -> None:
    """Validate a field that is only echoed: typed clients parse it in the response."""
    if len(metadata) > schema.METADATA_PAIRS_LIMIT:
        reason = f"expected at most {schema.METADATA_PAIRS_LIMIT} pairs, but got {len(metadata)}."
        raise fields.invalid("metadata", reason)
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise fields.wrong_type(f"metadata.{shorten_value(name)}", "a string", value)
        key_limit, value_limit = schema.METADATA_KEY_LENGTH, schema.METADATA_VALUE_LENGTH
        if len(name) > key_limit or len(value) > value_limit:
            reason = f"expected keys of at most {key_limit} characters and values of at most {value_limit}."
            raise fields.invalid("metadata", reason)
