"""Validation of `/v1/responses`, and translation into a chat request."""

from itertools import takewhile

import msgspec

from welldone.protocol.events import Json
from welldone.schemas import responses as schema
from welldone.schemas.errors import shorten_value
from welldone.schemas.fields import describe_fields
from welldone.server.requests import compaction, fields
from welldone.server.requests.response_items import ConvertedMessage, items_to_messages
from welldone.server.requests.response_tools import NO_TOOLS, ResponseTools, read_tools

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
    given = request.reasoning or schema.ReasoningOptions()
    reasoning = {"effort": given.effort, "summary": given.summary or given.generate_summary}
    has_logprobs = schema.INCLUDE_LOGPROBS in (request.include or ())
    chat |= tools.chat | fields.given(
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
    messages = _read_messages(request.instructions, history, items, tools)
    chat["messages"] = [message.value for message in messages]
    echo = echoed_fields(body) | {"tools": tools.echo, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _CLIENT_PARAM_NAMES | tools.param_names
    for index, message in enumerate(messages):
        names |= {f"messages[{index}]{suffix}": param for suffix, param in message.param_names.items()}
    return ResponsesTranslation(chat, echo, names, tools, wants_summary=reasoning["summary"] is not None)


def compaction_chat(history: list[Json], items: list[Json], instructions: str | None) -> Json:
    """Return the chat request for a summary of a conversation."""
    messages = [message.value for message in _read_messages(None, history, items, NO_TOOLS)]
    if not messages:
        raise fields.empty_array("input")
    summary = compaction.summary_messages(messages, instructions)
    return {"messages": summary, "max_completion_tokens": compaction.SUMMARY_TOKENS, "stream": False}


def _read_messages(
    instructions: str | None, history: list[Json], items: list[Json], tools: ResponseTools
) -> list[ConvertedMessage]:
    """Convert history and input. Leading system messages become one: chat templates allow no more."""
    all_items = [(item, "previous_response_id") for item in history]
    all_items += [(item, f"input[{index}]") for index, item in enumerate(items)]
    messages = items_to_messages(all_items, tools.chat_name)
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
