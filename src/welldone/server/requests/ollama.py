"""Translation of Ollama's `/api/chat` and `/api/generate` into chat requests."""

from collections import deque
from itertools import count

import msgspec

from welldone.core.events import Json
from welldone.schemas.ollama import OllamaChatRequest, OllamaGenerateRequest, OllamaMessage, OllamaRequest
from welldone.server.requests import fields

CHAT_OPTIONS = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
)
"""Options with an equivalent in chat. Others (num_ctx, num_gpu …) are settings of the server, and are ignored."""
_RENAMED_FIELDS = {"max_tokens": "options.num_predict", "reasoning_effort": "think", "response_format": "format"}
OLLAMA_PARAM_NAMES = (
    {name: f"options.{name}" for name in CHAT_OPTIONS}
    | _RENAMED_FIELDS
    | {"response_format.json_schema.schema": "format"}
)
"""The client's names for fields of the chat request."""
_IMAGE_TYPES = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}  # by magic number, in base64


def read_ollama_chat(body: Json) -> Json:
    """Translate the body of `/api/chat`."""
    request = fields.read_fields(body, OllamaChatRequest)
    ids = count(1)
    pending_calls: deque[str] = deque()  # calls without a result: Ollama has no ids and pairs them by order
    messages = [
        _chat_message(message, f"messages[{index}].", ids, pending_calls)
        for index, message in enumerate(request.messages or ())
    ]
    chat = {**_common_fields(request), "messages": messages}
    return {**chat, "tools": request.tools} if request.tools else chat


def read_ollama_generate(body: Json) -> Json:
    """Translate the body of `/api/generate`."""
    fields.check_supported(body, OllamaGenerateRequest)
    request = fields.read_fields(body, OllamaGenerateRequest)
    messages: list[Json] = [{"role": "system", "content": request.system}] if request.system else []
    messages.append({"role": "user", "content": _message_content(request.prompt, request.images)})
    return {**_common_fields(request), "messages": messages}


def _common_fields(request: OllamaRequest) -> Json:
    """Translate the fields of both endpoints. Ollama streams by default."""
    chat: Json = {"model": request.model, "stream": request.stream is not False}
    options = request.options or {}
    chat |= {name: options[name] for name in CHAT_OPTIONS if options.get(name) is not None}
    if (max_tokens := options.get("num_predict")) is not None:
        chat["max_tokens"] = -1 if max_tokens == -2 else max_tokens  # -2: until the context is full
    if (think := request.think) is False or isinstance(think, str):
        chat["reasoning_effort"] = think or "none"
    match request.format:
        case None | "":
            pass
        case "json":
            chat["response_format"] = {"type": "json_object"}
        case dict(schema):
            chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        case unknown_format:
            raise fields.wrong_type("format", "'json' or a JSON schema", unknown_format)
    return chat


def _chat_message(message: OllamaMessage, path: str, ids: "count[int]", pending_calls: deque[str]) -> Json:
    out: Json = {"role": message.role, "content": _message_content(message.content, message.images)}
    if message.thinking:
        out["reasoning_content"] = message.thinking
    if message.role == "tool":
        out["tool_call_id"] = pending_calls.popleft() if pending_calls else "call_0"
    if message.tool_calls:
        out["tool_calls"] = [
            _tool_call(raw_call, f"{path}tool_calls[{index}]", ids) for index, raw_call in enumerate(message.tool_calls)
        ]
        pending_calls.clear()
        pending_calls.extend(tool_call["id"] for tool_call in out["tool_calls"])
    return out


def _tool_call(raw_call: object, param: str, ids: "count[int]") -> Json:
    match raw_call:
        case {"function": {"name": str(name), "arguments": dict(arguments)}}:
            function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
            return {"id": f"call_{next(ids)}", "type": "function", "function": function}
        case _:
            raise fields.wrong_type(param, "a call with a function's name and arguments", raw_call)


def _message_content(text: str | None, images: list[str] | None) -> str | list[Json]:
    if not images:
        return text or ""
    urls = [f"data:image/{_IMAGE_TYPES.get(image[:4], 'png')};base64,{image}" for image in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text or ""}]
