"""Validation of `/v1/responses`, and translation into a chat request."""

from itertools import takewhile

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields
from welldone.server.requests.fields import GENERATION_FIELDS_BY_NAME, FieldHandling, RequestField
from welldone.server.requests.response_items import ConvertedMessage, items_to_messages
from welldone.server.requests.sampling import TOP_LOGPROBS_LIMIT
from welldone.server.requests.tools import TOOL_CHOICE_MODES, TOOLS_LIMIT, check_function_name, unsupported_tool_type

_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_TOOL_KEYS = ("name", "description", "format")
_GRAMMAR_KEYS = ("definition", "syntax")


class ResponsesTools(msgspec.Struct):
    """The tools of a request."""

    chat: Json
    """The fields of the chat request."""
    echoed: list[Json]
    """The tools as the response repeats them."""
    param_names: dict[str, str]
    """The client's names for the tools of the chat request."""


def read_responses_tools(body: Json, *, ignores_unknown_tools: bool, allows_custom_tools: bool) -> ResponsesTools:
    """Translate `tools`, `tool_choice` and `parallel_tool_calls`. `allows_custom_tools`: forward custom tools.

    Raises:
        ApiError: a tool has no equivalent in a chat, and unknown tools are not ignored; or the choice is invalid.
    """
    tool_types = ("function", "custom") if allows_custom_tools else ("function",)
    supported = _supported_tools(body, tool_types, ignores_unknown_tools)
    tools = [tool for tool, _ in supported]
    choice, allowed = _read_tool_choice(
        body.get("tool_choice"), {tool["name"] for tool in tools}, tool_types, ignores_unknown_tools
    )
    is_parallel = fields.boolean(body, "parallel_tool_calls")
    callable_tools = [(tool, param) for tool, param in supported if allowed is None or tool["name"] in allowed]
    names = {f"tools[{index}].{tool['type']}": param for index, (tool, param) in enumerate(callable_tools)}
    if not callable_tools:  # servers reject a tool choice without tools
        return ResponsesTools({}, tools, names)
    chat: Json = {"tools": [_chat_tool(tool) for tool, _ in callable_tools]}
    if choice is not None:
        chat["tool_choice"] = choice
    if is_parallel is not None:
        chat["parallel_tool_calls"] = is_parallel
    return ResponsesTools(chat, tools, names)


def _supported_tools(body: Json, tool_types: tuple[str, ...], ignores_unknown_tools: bool) -> list[tuple[Json, str]]:
    """Return the tools that a chat has, each with its parameter name."""
    out = []
    for index, tool in enumerate(fields.array(body, "tools", TOOLS_LIMIT) or ()):
        param = f"tools[{index}]"
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
    if isinstance(value, dict):
        return _read_tool_choice_object(value, names, tool_types, ignores_unknown_tools)
    if not isinstance(value, str):
        raise fields.wrong_type("tool_choice", "a string or an object", value)
    if value not in TOOL_CHOICE_MODES:
        raise fields.wrong_value("tool_choice", value, TOOL_CHOICE_MODES)
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
    if ignores_unknown_tools:  # the named tool was ignored too
        return "auto", None
    raise fields.wrong_value("tool_choice.type", kind, (*tool_types, "allowed_tools"))


def _read_allowed_tools(value: Json, names: set[str]) -> tuple[str, set[str]]:
    mode = fields.choice(value, "mode", ("auto", "required"), "tool_choice.") or "auto"
    allowed = set()
    for index, tool in enumerate(fields.array(value, "tools", TOOLS_LIMIT, "tool_choice.") or ()):
        param = f"tool_choice.tools[{index}]"
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


METADATA_PAIRS_LIMIT, METADATA_KEY_LENGTH, METADATA_VALUE_LENGTH = 16, 64, 512  # OpenAI's limits
INT32_MAX = 2**31 - 1
_INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_VALUES = (
    _INCLUDE_LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
REASONING_SUMMARIES = ("auto", "concise", "detailed")
TEXT_FORMATS = ("text", "json_object", "json_schema")

RESPONSES_FIELDS: tuple[RequestField, ...] = (
    RequestField(
        "input",
        FieldHandling.TRANSLATED,
        "a string, or items: messages, function and custom tool calls and their outputs, reasoning, references",
    ),
    RequestField(
        "instructions",
        FieldHandling.TRANSLATED,
        "a string: the first system message; not carried over to the next response",
    ),
    RequestField(
        "previous_response_id",
        FieldHandling.TRANSLATED,
        "a stored response: its conversation precedes the input",
    ),
    RequestField(
        "store",
        FieldHandling.TRANSLATED,
        "true (default) or false: whether the response is stored, in memory, for a limited time",
    ),
    RequestField("background", FieldHandling.TRANSLATED, "true or false; true needs store, and excludes stream"),
    RequestField(
        "tools",
        FieldHandling.TRANSLATED,
        "up to 128 functions; custom tools for upstreams; others are rejected, or ignored: --unknown-tools ignore",
    ),
    RequestField(
        "tool_choice", FieldHandling.TRANSLATED, "none, auto, required, a function, a custom tool, allowed_tools"
    ),
    RequestField("parallel_tool_calls", FieldHandling.TRANSLATED, "true or false"),
    RequestField(
        "text", FieldHandling.TRANSLATED, "format: text, json_object, json_schema; verbosity is forwarded to upstreams"
    ),
    RequestField(
        "reasoning",
        FieldHandling.TRANSLATED,
        "effort: as reasoning_effort of chat; summary: reasoning is sent as a summary",
    ),
    RequestField("max_output_tokens", FieldHandling.TRANSLATED, "1 or more"),
    RequestField("temperature", FieldHandling.TRANSLATED, GENERATION_FIELDS_BY_NAME["temperature"].note),
    RequestField("top_p", FieldHandling.TRANSLATED, GENERATION_FIELDS_BY_NAME["top_p"].note),
    RequestField("top_logprobs", FieldHandling.TRANSLATED, f"0 to 20, with {_INCLUDE_LOGPROBS} in include"),
    RequestField("include", FieldHandling.TRANSLATED, f"{_INCLUDE_LOGPROBS}; OpenAI's others are ignored"),
    RequestField("stream", FieldHandling.TRANSLATED, "true or false"),
    RequestField("stream_options", FieldHandling.TRANSLATED, "include_obfuscation: true or false, ignored"),
    RequestField("metadata", FieldHandling.TRANSLATED, "up to 16 strings of 512 characters, with keys of 64; echoed"),
    RequestField("n", FieldHandling.TRANSLATED, "1"),
    RequestField(
        "truncation", FieldHandling.IGNORED, "auto or disabled: input that is too long is rejected either way"
    ),
    RequestField("max_tool_calls", FieldHandling.IGNORED, "applies only to tools that a server runs itself"),
    RequestField("context_management", FieldHandling.IGNORED),
    RequestField("client_metadata", FieldHandling.IGNORED),
    RequestField("access_programs", FieldHandling.IGNORED),
    RequestField("image", FieldHandling.IGNORED),
    RequestField("conversation", FieldHandling.REJECTED, "is not supported: use 'previous_response_id'."),
    RequestField(
        "prompt",
        FieldHandling.REJECTED,
        "is not supported: this server stores no prompts. Send 'instructions' and 'input'.",
    ),
    RequestField("moderation", FieldHandling.REJECTED, "is not supported."),
    RequestField("messages", FieldHandling.REJECTED, "is called 'input' in this API."),
    RequestField("response_format", FieldHandling.REJECTED, "is called 'text.format' in this API."),
    RequestField("max_tokens", FieldHandling.REJECTED, "is called 'max_output_tokens' in this API."),
    RequestField("max_completion_tokens", FieldHandling.REJECTED, "is called 'max_output_tokens' in this API."),
    RequestField("reasoning_effort", FieldHandling.REJECTED, "is called 'reasoning.effort' in this API."),
    RequestField("verbosity", FieldHandling.REJECTED, "is called 'text.verbosity' in this API."),
    RequestField("logprobs", FieldHandling.REJECTED, f"is '{_INCLUDE_LOGPROBS}' in 'include' in this API."),
    RequestField("functions", FieldHandling.REJECTED, "is called 'tools' in this API."),
    RequestField("function_call", FieldHandling.REJECTED, "is called 'tool_choice' in this API."),
)
"""The fields of Responses. All others are read as fields of chat."""

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
_OWN_FIELDS = frozenset(row.name for row in RESPONSES_FIELDS)
_ECHOED_FIELDS = (
    *("background", "frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *(
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "store",
    ),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
)


class ResponseStorageOptions(msgspec.Struct, frozen=True):
    """How the response is delivered and stored."""

    previous_response_id: str | None
    is_stored: bool
    is_background: bool
    is_stream: bool


class ResponsesTranslation(msgspec.Struct):
    """A Responses request as a chat request."""

    chat: Json
    echo: Json
    """The fields that the response repeats."""
    param_names: dict[str, str]
    """The client's names for the fields, messages and tools of the chat request."""
    wants_summary: bool
    """Reasoning is sent as a summary."""


def read_storage_options(body: Json) -> ResponseStorageOptions:
    """Read `previous_response_id`, `store`, `background` and `stream`."""
    options = ResponseStorageOptions(
        previous_response_id=fields.string(body, "previous_response_id", METADATA_VALUE_LENGTH) or None,
        is_stored=fields.boolean(body, "store") is not False,
        is_background=fields.boolean(body, "background") is True,
        is_stream=fields.boolean(body, "stream") is True,
    )
    if options.is_background and options.is_stream:
        raise fields.unsupported("background", "cannot be used together with 'stream': poll the response instead.")
    if options.is_background and not options.is_stored:
        raise fields.unsupported("background", "needs 'store': the response could not be retrieved otherwise.")
    return options


def echoed_fields(body: Json) -> Json:
    """Return the fields that the response repeats, unchanged."""
    return {name: body[name] for name in _ECHOED_FIELDS if body.get(name) not in (None, "")}


def check_responses_fields(body: Json) -> None:
    """Raise ApiError for a field that is not supported, or has another name in this API."""
    for row in RESPONSES_FIELDS:
        if row.handling is FieldHandling.REJECTED and body.get(row.name) not in (None, False, "", {}):
            raise fields.unsupported(row.name, row.note)


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
    check_responses_fields(body)
    _check_echoed_fields(body)
    chat = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    tools = read_responses_tools(
        body, ignores_unknown_tools=ignores_unknown_tools, allows_custom_tools=allows_custom_tools
    )
    reasoning = _read_reasoning(body)
    text = fields.json_object(body, "text") or {}
    chat |= {**tools.chat, **_sampling_fields(body), **_text_format_fields(text), **_logprobs_fields(body)}
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if fields.boolean(body, "stream") is not None:
        chat["stream"] = body["stream"]
    messages = _read_messages(body, history, items)
    chat["messages"] = [message.value for message in messages]
    echo = echoed_fields(body) | {"tools": tools.echoed, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _CLIENT_PARAM_NAMES | tools.param_names
    for index, message in enumerate(messages):
        names |= {f"messages[{index}]{suffix}": param for suffix, param in message.param_names.items()}
    return ResponsesTranslation(chat, echo, names, wants_summary=reasoning["summary"] is not None)


def _read_messages(body: Json, history: list[Json], items: list[Json]) -> list[ConvertedMessage]:
    """Convert history and input. Leading system messages become one: chat templates allow no more."""
    all_items = [(item, "previous_response_id") for item in history]
    all_items += [(item, f"input[{index}]") for index, item in enumerate(items)]
    messages = items_to_messages(all_items)
    instructions = fields.string(body, "instructions", INT32_MAX)
    if instructions:
        messages.insert(0, ConvertedMessage({"role": "system", "content": instructions}, {".content": "instructions"}))
    system = list(takewhile(lambda message: message.value["role"] == "system", messages))
    if not system:
        return messages
    text = "\n\n".join(message.value["content"] for message in system)
    return [ConvertedMessage({"role": "system", "content": text}, system[0].param_names), *messages[len(system) :]]


def _sampling_fields(body: Json) -> Json:
    out: Json = {}
    for name in ("temperature", "top_p"):
        value = fields.number(body, name, GENERATION_FIELDS_BY_NAME[name].low, GENERATION_FIELDS_BY_NAME[name].high)
        if value is not None:
            out[name] = value
    max_tokens = fields.integer(body, "max_output_tokens", 1, INT32_MAX)
    if max_tokens is not None:
        out["max_completion_tokens"] = max_tokens
    return out


def _logprobs_fields(body: Json) -> Json:
    top = fields.integer(body, "top_logprobs", 0, TOP_LOGPROBS_LIMIT)
    included = fields.strings(body, "include", len(INCLUDE_VALUES), METADATA_VALUE_LENGTH) or []
    for index, name in enumerate(included):
        if name not in INCLUDE_VALUES:
            raise fields.wrong_value(f"include[{index}]", name, INCLUDE_VALUES)
    if _INCLUDE_LOGPROBS not in included:
        return {}
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


def _text_format_fields(text: Json) -> Json:
    out: Json = {}
    if text.get("verbosity") is not None:
        out["verbosity"] = fields.string(text, "verbosity", METADATA_KEY_LENGTH, "text.")
    text_format = fields.json_object(text, "format", "text.")
    if text_format is None:
        return out
    kind = fields.choice(text_format, "type", TEXT_FORMATS, "text.format.")
    if kind is None:
        raise fields.missing("text.format.type")
    if kind == "json_object":
        out["response_format"] = {"type": kind}
    elif kind == "json_schema":
        if text_format.get("name") is None:
            raise fields.missing("text.format.name")
        if fields.json_object(text_format, "schema", "text.format.") is None:
            raise fields.missing("text.format.schema")
        json_schema = {name: value for name, value in text_format.items() if name != "type" and value is not None}
        out["response_format"] = {"type": kind, kind: json_schema}
    return out


def _read_reasoning(body: Json) -> Json:
    reasoning = fields.json_object(body, "reasoning") or {}
    summary = fields.choice(reasoning, "summary", REASONING_SUMMARIES, "reasoning.")
    legacy_summary = fields.choice(reasoning, "generate_summary", REASONING_SUMMARIES, "reasoning.")
    effort = fields.string(reasoning, "effort", METADATA_KEY_LENGTH, "reasoning.")
    return {"effort": effort, "summary": summary or legacy_summary}


def _check_echoed_fields(body: Json) -> None:
    """Validate fields that are only echoed: typed clients parse them in the response."""
    for name in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"):
        fields.string(body, name, METADATA_VALUE_LENGTH)
    fields.choice(body, "truncation", ("auto", "disabled"))
    fields.integer(body, "max_tool_calls", 0, INT32_MAX)
    fields.integer(body, "n", 1, 1)
    options = fields.json_object(body, "stream_options") or {}
    fields.boolean(options, "include_obfuscation", "stream_options.")
    metadata = fields.json_object(body, "metadata") or {}
    if len(metadata) > METADATA_PAIRS_LIMIT:
        raise _invalid_metadata(f"expected at most {METADATA_PAIRS_LIMIT} pairs, but got {len(metadata)}")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise fields.wrong_type(f"metadata.{fields.shorten_value(name)}", "a string", value)
        if len(name) > METADATA_KEY_LENGTH or len(value) > METADATA_VALUE_LENGTH:
            raise _invalid_metadata(
                f"expected keys of at most {METADATA_KEY_LENGTH} characters and values of at most "
                f"{METADATA_VALUE_LENGTH}"
            )


def _invalid_metadata(reason: str) -> ApiError:
    return invalid_request(f"Invalid 'metadata': {reason}.", param="metadata", code="invalid_value")
