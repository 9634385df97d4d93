"""Validation of `/v1/responses`, and translation into a chat request."""

from itertools import takewhile

import msgspec

from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.schemas import responses as schema
from welldone.schemas.errors import shorten_value
from welldone.schemas.fields import describe_fields
from welldone.schemas.messages import AllowedTools, NamedFunction
from welldone.server.requests import compaction, fields
from welldone.server.requests.response_items import ConvertedMessage, items_to_messages
from welldone.server.requests.tools import TOOL_CHOICE_MODES, unsupported_tool_type

_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_TOOL_KEYS = ("name", "description", "format")
_GRAMMAR_KEYS = ("definition", "syntax")


def _read_tools(
    request: schema.ResponseRequest, tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> tuple[Json, list[Json], dict[str, str]]:
    """Translate `tools`, `tool_choice` and `parallel_tool_calls`.

    Returns the fields of the chat request, the tools as the response repeats them, and the client's names for those of
    the chat request.
    """
    supported = _supported_tools(request, tool_types, ignores_unknown_tools)
    tools = [tool for tool, _ in supported]
    choice, allowed = _read_tool_choice(
        request.tool_choice, {tool["name"] for tool in tools}, tool_types, ignores_unknown_tools
    )
    callable_tools = [(tool, param) for tool, param in supported if allowed is None or tool["name"] in allowed]
    names = {f"tools[{index}].{tool['type']}": param for index, (tool, param) in enumerate(callable_tools)}
    if not callable_tools:  # servers reject a tool choice without tools
        return {}, tools, names
    chat = {"tools": [_chat_tool(tool) for tool, _ in callable_tools]}
    return chat | fields.given(tool_choice=choice, parallel_tool_calls=request.parallel_tool_calls), tools, names


def _supported_tools(
    request: schema.ResponseRequest, tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> list[tuple[Json, str]]:
    """Return the tools that a chat has, each with its parameter name."""
    out = []
    for index, tool in enumerate(request.tools or ()):
        param = f"tools[{index}]"
        kind = fields.read_fields(tool, schema.ResponseTool, f"{param}.").type
        if kind in tool_types:
            fields.read_fields(tool, NamedFunction, f"{param}.")
            filled = {"strict": False, "parameters": None, "description": None, **tool} if kind == "function" else tool
            out.append((filled, param))
        elif not ignores_unknown_tools:
            raise unsupported_tool_type(f"{param}.type", kind, "' and '".join(tool_types))
    return out


def _chat_tool(tool: Json) -> Json:
    """Convert a tool: Responses has the fields of a function in the tool, chat in an object `function`."""
    if tool["type"] == "custom":
        custom = {name: tool[name] for name in _CUSTOM_TOOL_KEYS if tool.get(name) is not None}
        if isinstance(syntax := custom.get("format"), dict) and syntax.get("type") == "grammar":
            custom["format"] = {"type": "grammar", "grammar": {name: syntax.get(name) for name in _GRAMMAR_KEYS}}
        return {"type": "custom", "custom": custom}
    function = {name: tool[name] for name in _FUNCTION_KEYS if tool.get(name) not in (None, False)}
    return {"type": "function", "function": function}


def _read_tool_choice(
    value: object, names: set[str], tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> tuple[str | Json | None, set[str] | None]:
    """Return the choice in chat form, and the names of the allowed tools (None: all)."""
    if value is None:
        return None, None
    if isinstance(value, str):
        if value not in TOOL_CHOICE_MODES:
            raise fields.wrong_value("tool_choice", value, TOOL_CHOICE_MODES)
        mode, allowed = value, None
    elif not isinstance(value, dict):
        raise fields.wrong_type("tool_choice", "a string or an object", value)
    elif (kind := fields.read_fields(value, schema.ResponseTool, "tool_choice.").type) in tool_types:
        return {"type": kind, kind: {"name": _known_tool_name(value, "tool_choice.", names)}}, None
    elif kind == "allowed_tools":
        found = fields.read_fields(value, AllowedTools, "tool_choice.")
        tools = enumerate(found.tools or ())
        mode = found.mode or "auto"
        names = allowed = {_known_tool_name(tool, f"tool_choice.tools[{index}].", names) for index, tool in tools}
    elif ignores_unknown_tools:  # the named tool was ignored too
        return "auto", None
    else:
        raise fields.wrong_value("tool_choice.type", kind, (*tool_types, "allowed_tools"))
    if mode == "required" and not names:
        message = "'tool_choice' is only allowed when 'tools' has functions."
        raise invalid_request(message, param="tool_choice", code="invalid_value")
    return mode, allowed


def _known_tool_name(table: Json, path: str, names: set[str]) -> str:
    name = fields.read_fields(table, NamedFunction, path).name
    if name not in names:
        raise fields.invalid(f"{path}name", f"there is no tool '{name}'.")
    return name


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
    ignores_unknown_tools: bool,
    allows_custom_tools: bool = False,
) -> ResponsesTranslation:
    """Translate a request into a chat request. `history` has the items before `items`.

    `allows_custom_tools`: custom tools are forwarded, instead of being unknown.

    Raises:
        ApiError: a field is invalid, or has no equivalent in a chat.
    """
    fields.check_supported(body, schema.ResponseRequest)
    request = fields.read_fields(body, schema.ResponseRequest)
    _check_metadata(request.metadata or {})
    chat = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    tool_types = ("function", "custom") if allows_custom_tools else ("function",)
    chat_tools, echoed_tools, tool_names = _read_tools(request, tool_types, ignores_unknown_tools)
    text: Json = body.get("text") or {}
    given = request.reasoning or schema.ReasoningOptions()
    reasoning = {"effort": given.effort, "summary": given.summary or given.generate_summary}
    has_logprobs = schema.INCLUDE_LOGPROBS in (request.include or ())
    chat |= chat_tools | fields.given(
        temperature=request.temperature,
        top_p=request.top_p,
        max_completion_tokens=request.max_output_tokens,
        logprobs=True if has_logprobs else None,
        top_logprobs=request.top_logprobs if has_logprobs else None,
        reasoning_effort=given.effort,
        verbosity=text.get("verbosity"),
        response_format=_response_format(text.get("format") or {}),
        stream=request.stream,
    )
    messages = _read_messages(request.instructions, history, items)
    chat["messages"] = [message.value for message in messages]
    echo = echoed_fields(body) | {"tools": echoed_tools, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _CLIENT_PARAM_NAMES | tool_names
    for index, message in enumerate(messages):
        names |= {f"messages[{index}]{suffix}": param for suffix, param in message.param_names.items()}
    return ResponsesTranslation(chat, echo, names, wants_summary=reasoning["summary"] is not None)


def compaction_chat(history: list[Json], items: list[Json], instructions: str | None) -> Json:
    """Return the chat request for a summary of a conversation."""
    messages = [message.value for message in _read_messages(None, history, items)]
    if not messages:
        raise fields.empty_array("input")
    summary = compaction.summary_messages(messages, instructions)
    return {"messages": summary, "max_completion_tokens": compaction.SUMMARY_TOKENS, "stream": False}


def _read_messages(instructions: str | None, history: list[Json], items: list[Json]) -> list[ConvertedMessage]:
    """Convert history and input. Leading system messages become one: chat templates allow no more."""
    all_items = [(item, "previous_response_id") for item in history]
    all_items += [(item, f"input[{index}]") for index, item in enumerate(items)]
    messages = items_to_messages(all_items)
    if instructions:
        messages.insert(0, ConvertedMessage({"role": "system", "content": instructions}, {".content": "instructions"}))
    system = list(takewhile(lambda message: message.value["role"] == "system", messages))
    if not system:
        return messages
    text = "\n\n".join(message.value["content"] for message in system)
    return [ConvertedMessage({"role": "system", "content": text}, system[0].param_names), *messages[len(system) :]]


def _response_format(text_format: Json) -> Json | None:
    """Translate a format that was validated. It may have unknown fields."""
    kind = text_format.get("type")
    if kind == "json_object":
        return {"type": kind}
    if kind != "json_schema":
        return None
    if text_format["name"] is None:
        raise fields.missing("text.format.name")
    return {"type": kind, kind: fields.given(**text_format | {"type": None})}


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
