"""Translation of a chat request into a request of Anthropic's Messages API, for an upstream that has only this one.

Fields that chat does not define are forwarded, so that clients can send `thinking` or `top_k`; the upstream validates
them. docs/dialects.md lists what is not carried.
"""

import re

from welldone.core.collect import REASONING_DETAILS
from welldone.core.events import Json
from welldone.core.lenient_json import as_list, as_object
from welldone.dialects.messages import objects
from welldone.dialects.messages.reader import THINKING_FORMAT
from welldone.server.requests import chat_input, fields
from welldone.server.requests.chat_input import ChatInput, Located

DEFAULT_MAX_TOKENS = 8_192
"""Of a request without a limit, which this API requires. All of Anthropic's current models accept it."""

_API = "Messages"
_INVALID_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}
_EFFORTS = {"minimal": "low"}  # the others have the same name
_PDF_URL = "data:application/pdf;base64,"
_NO_OPTION = "it has no such option."
REJECTED_FIELDS = {
    "logprobs": "it has no log probabilities.",
    "top_logprobs": "it has no log probabilities.",
    "audio": "it has no audio.",
    "web_search_options": "its search is a tool of its own.",
    **dict.fromkeys(("frequency_penalty", "logit_bias", "presence_penalty"), _NO_OPTION),
}
"""Fields that change the answer and have no equivalent, with the reason."""
IGNORED_FIELDS = (
    *("metadata", "prediction", "prompt_cache_key", "prompt_cache_retention", "seed", "service_tier", "store"),
    "verbosity",
)
"""Fields that are left out, and reported: hints and bookkeeping, without which the answer is as good."""
_TRANSLATED_FIELDS = (
    *("function_call", "functions", "max_completion_tokens", "max_tokens", "parallel_tool_calls", "reasoning_effort"),
    *("response_format", "safety_identifier", "stop", "temperature", "tool_choice", "tools", "user"),
)


def chat_to_messages(body: Json) -> Json:
    """Return the request without its model.

    Raises:
        ApiError: a field is invalid, or has no equivalent.
    """
    others = chat_input.forwarded_fields(body, (*_TRANSLATED_FIELDS, *IGNORED_FIELDS), REJECTED_FIELDS, _API)
    temperature, limit = body.get("temperature"), chat_input.max_tokens(body)
    if isinstance(temperature, int | float):
        fields.check_range(temperature, 0, 1, "temperature", "decimal")
    system, turns = chat_input.read_turns(
        body, _API, text=_text_block, user=_user_block, tool=_tool_result, assistant=_assistant_blocks
    )
    messages = [{"role": role, "content": _shortest(blocks)} for role, blocks in turns]
    stops = [stop for stop in chat_input.stop_strings(body) if stop.strip()]  # the gateway matches blank ones
    user = body.get("user") or body.get("safety_identifier")
    out: Json = {"max_tokens": DEFAULT_MAX_TOKENS if limit is None else limit, "messages": messages}
    out |= fields.given(system=_shortest(system) or None, temperature=temperature, stop_sequences=stops or None)
    out |= {} if user is None else {"metadata": {"user_id": user}}
    return out | _tool_fields(body) | _output_fields(body) | others


def _output_fields(body: Json) -> Json:
    """Translate `reasoning_effort` and `response_format`."""
    out: Json = {}
    config: Json = {}
    effort = body.get("reasoning_effort")
    if effort == "none":
        out["thinking"] = {"type": "disabled"}
    elif effort is not None:
        out["thinking"] = {"type": "adaptive"}
        config["effort"] = _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort
    response_format = as_object(body.get("response_format"))
    match response_format.get("type"):
        case None | "text":
            pass
        case "json_schema":
            definition = as_object(response_format.get("json_schema"))
            config["format"] = {"type": "json_schema", "schema": as_object(definition.get("schema"))}
        case format_type:
            reason = f"'{format_type}' cannot be sent to an upstream with the {_API} API: use json_schema."
            raise fields.unsupported("response_format.type", reason)
    return out | ({"output_config": config} if config else {})


def _tool_fields(body: Json) -> Json:
    tools = [_tool(tool) for tool in chat_input.read_tools(body)]
    if not tools:
        return {}
    out: Json = {"tools": tools}
    choice = chat_input.read_tool_choice(body)
    is_serial = body.get("parallel_tool_calls") is False or bool(body.get("functions"))
    if choice is not None or is_serial:
        choice = choice or chat_input.ToolChoice("auto")
        if choice.mode not in _TOOL_CHOICES:
            raise fields.wrong_value("tool_choice", choice.mode, ("none", "auto", "required"))
        out["tool_choice"] = {"type": _TOOL_CHOICES[choice.mode]} | ({"name": choice.name} if choice.name else {})
        if is_serial and choice.mode != "none":
            out["tool_choice"]["disable_parallel_tool_use"] = True
    return out


def _tool(tool: Located) -> Json:
    if tool.value.get("type", "function") != "function":
        raise chat_input.unsupported_type(tool, _API)
    function = as_object(tool.value.get("function"))
    out: Json = {"name": function.get("name"), "input_schema": function.get("parameters") or {"type": "object"}}
    out |= fields.given(description=function.get("description"), strict=function.get("strict") or None)
    return out | fields.given(cache_control=tool.value.get("cache_control"))


def _shortest(blocks: list[Json]) -> str | list[Json]:
    """Return one plain text block as a string."""
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks


def _text_block(content_part: Located) -> Json:
    match content_part.value:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return objects.text_block(text) | fields.given(cache_control=content_part.value.get("cache_control"))
        case _:
            raise chat_input.unsupported_type(content_part, _API)


def _user_block(content_part: Located) -> Json:
    match content_part.value:
        case {"type": "image_url"}:
            block: Json = {"type": "image", "source": _source(chat_input.image_url(content_part))}
            return block | fields.given(cache_control=content_part.value.get("cache_control"))
        case {"type": "file", "file": {"file_data": str(data), **more}} if data.startswith(_PDF_URL):
            return {"type": "document", "source": _source(data)} | fields.given(title=more.get("filename"))
        case _:
            return _text_block(content_part)


def _source(url: str) -> Json:
    data_url = chat_input.split_data_url(url)
    if data_url is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data_url[0], "data": data_url[1]}


def _tool_result(message: ChatInput) -> Json:
    blocks = [_user_block(content_part) for content_part in message.parts]
    return {"type": "tool_result", "tool_use_id": _call_id(message.call_id), "content": _shortest(blocks)}


def _assistant_blocks(message: ChatInput) -> list[Json]:
    """Return signed thinking, text and calls. Unsigned thinking is left out: Anthropic's servers reject it."""
    details = map(as_object, as_list(message.value.get(REASONING_DETAILS)))
    blocks = [block for detail in details for block in _thinking(detail)]
    refusal = message.value.get("refusal")
    blocks += [_text_block(content_part) for content_part in message.parts]
    blocks += [objects.text_block(refusal)] if isinstance(refusal, str) and refusal else []
    calls = [(_call_id(tool_call.id), tool_call.name, chat_input.call_input(tool_call)) for tool_call in message.calls]
    return blocks + [objects.tool_use_block(*tool_call, {}) for tool_call in calls]


def _thinking(detail: Json) -> list[Json]:
    match detail:
        case {"type": "reasoning.text", "text": str(text), "signature": str(signature)} if signature:
            return [objects.thinking_block(text, signature)]
        case {"type": "reasoning.encrypted", "data": str(data), "format": str(name)} if name == THINKING_FORMAT:
            return [{"type": "redacted_thinking", "data": data}]
        case _:
            return []


def _call_id(call_id: str) -> str:
    """Return an id that Anthropic's servers accept. It is used within the request only."""
    return _INVALID_ID_CHARACTER.sub("_", call_id) or "_"
