"""Translation of a chat request into a request of the Responses API, for an upstream that has only this one.

Fields that chat does not define are forwarded, so that clients can send `reasoning` or `include`; the upstream
validates them. docs/dialects.md lists what is not carried.
"""

from welldone.core.collect import REASONING_DETAILS
from welldone.core.events import Json
from welldone.core.lenient_json import as_list, as_object
from welldone.dialects.responses.reader import REASONING_FORMAT
from welldone.schemas.responses import INCLUDE_LOGPROBS
from welldone.server.requests import chat_input, fields
from welldone.server.requests.chat_input import ChatInput, Located

_API = "Responses"
REJECTED_FIELDS = {
    "audio": "it has no audio.",
    "logit_bias": "it has no such option.",
    "web_search_options": "its search is a tool of its own.",
}
"""Fields that change the answer and have no equivalent, with the reason."""
IGNORED_FIELDS = ("prediction", "seed")
"""Fields that are left out, and reported: hints, without which the answer is as good."""
_TRANSLATED_FIELDS = (
    *("function_call", "functions", "logprobs", "max_completion_tokens", "max_tokens"),
    *("parallel_tool_calls", "reasoning_effort", "response_format", "stop", "store", "tool_choice", "tools"),
    *("top_logprobs", "verbosity"),
)


def chat_to_responses(body: Json) -> Json:
    """Return the request without its model. Stop strings are left to the gateway: this API has none.

    Raises:
        ApiError: a field is invalid, or has no equivalent.
    """
    others = chat_input.forwarded_fields(body, (*_TRANSLATED_FIELDS, *IGNORED_FIELDS), REJECTED_FIELDS, _API)
    out: Json = {"input": _read_items(body), "store": body.get("store") is True}
    out |= fields.given(max_output_tokens=chat_input.max_tokens(body))
    if body.get("logprobs"):
        out["include"] = [INCLUDE_LOGPROBS]
        out |= fields.given(top_logprobs=body.get("top_logprobs"))
    if (effort := body.get("reasoning_effort")) is not None:
        out["reasoning"] = {"effort": effort}
    text = fields.given(format=_text_format(as_object(body.get("response_format"))), verbosity=body.get("verbosity"))
    return out | ({"text": text} if text else {}) | _tool_fields(body) | others


def _text_format(response_format: Json) -> Json | None:
    format_type = response_format.get("type")
    if format_type == "json_schema":
        return {"type": format_type, **as_object(response_format.get("json_schema"))}
    return response_format or None


def _tool_fields(body: Json) -> Json:
    tools = [_tool(tool) for tool in chat_input.read_tools(body)]
    if not tools:
        return {}
    choice = chat_input.read_tool_choice(body)
    is_parallel = False if body.get("functions") else body.get("parallel_tool_calls")
    value: str | Json | None = None
    if choice is not None:
        tool_type = "custom" if choice.is_custom else "function"
        value = {"type": tool_type, "name": choice.name} if choice.mode == "tool" else choice.mode
    return {"tools": tools} | fields.given(tool_choice=value, parallel_tool_calls=is_parallel)


def _tool(tool: Located) -> Json:
    match tool.value.get("type", "function"):
        case "function":
            # Here the default of `strict` is true, in chat it is false.
            return {"type": "function", "parameters": None, "strict": False, **as_object(tool.value.get("function"))}
        case "custom":
            custom = dict(as_object(tool.value.get("custom")))
            syntax = as_object(custom.get("format"))
            if syntax.get("type") == "grammar":
                custom["format"] = {"type": "grammar", **as_object(syntax.get("grammar"))}
            return {"type": "custom", **custom}
        case _:
            raise chat_input.unsupported_type(tool, _API)


def _read_items(body: Json) -> list[Json]:
    items: list[Json] = []
    for message in chat_input.read_messages(body, _API):
        match message.role:
            case "system" | "developer" | "user":
                items.append({"role": message.role, "content": _content(message)})
            case "tool":
                is_custom = message.call is not None and message.call.is_custom
                item_type = "custom_tool_call_output" if is_custom else "function_call_output"
                items.append({"type": item_type, "call_id": message.call_id, "output": _content(message)})
            case "assistant":
                items += _assistant_items(message)
            case _:
                raise chat_input.unsupported_role(message)
    return items


def _content(message: ChatInput) -> str | list[Json]:
    return [_part(content_part) for content_part in message.parts] if message.plain_text is None else message.plain_text


def _part(content_part: Located) -> Json:
    match content_part.value:
        case {"type": "text", "text": str(text)}:
            return {"type": "input_text", "text": text}
        case {"type": "image_url"}:
            detail = fields.given(detail=as_object(content_part.value.get("image_url")).get("detail"))
            return {"type": "input_image", "image_url": chat_input.image_url(content_part)} | detail
        case {"type": "input_audio", "input_audio": audio}:
            return {"type": "input_audio", "input_audio": audio}
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case _:
            raise chat_input.unsupported_type(content_part, _API)


def _assistant_items(message: ChatInput) -> list[Json]:
    """Return encrypted reasoning, a message and calls. Other reasoning is left out: it needs an id of the upstream."""
    items: list[Json] = []
    for detail in map(as_object, as_list(message.value.get(REASONING_DETAILS))):
        if detail.get("type") == "reasoning.encrypted" and detail.get("format") == REASONING_FORMAT:
            reasoning: Json = {"type": "reasoning", "summary": [], "encrypted_content": detail.get("data")}
            items.append(reasoning | fields.given(id=detail.get("id")))
    content = [_output_part(content_part) for content_part in message.parts]
    refusal = message.value.get("refusal")
    content += [{"type": "refusal", "refusal": refusal}] if isinstance(refusal, str) and refusal else []
    items += [{"type": "message", "role": "assistant", "content": content}] if content else []
    for tool_call in message.calls:
        item_type, member = ("custom_tool_call", "input") if tool_call.is_custom else ("function_call", "arguments")
        items.append({"type": item_type, "call_id": tool_call.id, "name": tool_call.name, member: tool_call.arguments})
    return items


def _output_part(content_part: Located) -> Json:
    match content_part.value:
        case {"type": "text", "text": str(text)}:
            return {"type": "output_text", "text": text}
        case {"type": "refusal", "refusal": str(refusal)}:
            return {"type": "refusal", "refusal": refusal}
        case _:
            raise chat_input.unsupported_type(content_part, _API)
