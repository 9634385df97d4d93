"""Translation of Ollama's `/api/chat` and `/api/generate` into chat requests."""

from collections import deque
from itertools import count

import msgspec

from welldone.protocol.events import Json
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
UNSUPPORTED_FIELDS = {
    "suffix": "needs infill, which is not supported.",
    "template": "is not supported: the server uses the model's own template.",
    "context": "is not supported: send the messages to /api/chat.",
    "raw": "is not supported: use /v1/completions.",
}
MESSAGES_LIMIT = 4_096  # as for chat
_TEXT_LENGTH = 2**30  # no limit but that of the body
_IMAGES_LIMIT = 64
_IMAGE_TYPES = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}  # by magic number, in base64


def read_ollama_chat(body: Json) -> Json:
    """Translate the body of `/api/chat`."""
    ids = count(1)
    messages: list[Json] = []
    pending_calls: deque[str] = deque()  # calls without a result: Ollama has no ids and pairs them by order
    for index, message in enumerate(fields.array(body, "messages", MESSAGES_LIMIT) or ()):
        if not isinstance(message, dict):
            raise fields.wrong_type(f"messages[{index}]", "an object", message)
        messages.append(_chat_message(message, f"messages[{index}].", ids, pending_calls))
    tools = fields.array(body, "tools", MESSAGES_LIMIT)
    return {**_common_fields(body), "messages": messages, **({"tools": tools} if tools else {})}


def read_ollama_generate(body: Json) -> Json:
    """Translate the body of `/api/generate`."""
    for name, reason in UNSUPPORTED_FIELDS.items():
        if body.get(name):
            raise fields.unsupported(name, reason)
    system = fields.string(body, "system", _TEXT_LENGTH)
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    prompt = fields.string(body, "prompt", _TEXT_LENGTH) or ""
    messages.append({"role": "user", "content": _message_content(body, prompt)})
    return {**_common_fields(body), "messages": messages}


def _common_fields(body: Json) -> Json:
    """Translate the fields of both endpoints. Ollama streams by default."""
    stream = fields.boolean(body, "stream")
    chat: Json = {"model": body.get("model"), "stream": stream is not False}
    options = fields.json_object(body, "options") or {}
    chat |= {name: options[name] for name in CHAT_OPTIONS if options.get(name) is not None}
    if (max_tokens := options.get("num_predict")) is not None:
        chat["max_tokens"] = -1 if max_tokens == -2 else max_tokens  # -2: until the context is full
    if (think := body.get("think")) is False or isinstance(think, str):
        chat["reasoning_effort"] = think or "none"
    match body.get("format"):
        case None | "":
            pass
        case "json":
            chat["response_format"] = {"type": "json_object"}
        case dict(schema):
            chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        case other:
            raise fields.wrong_type("format", "'json' or a JSON schema", other)
    return chat


def _chat_message(message: Json, path: str, ids: "count[int]", pending_calls: deque[str]) -> Json:
    role = fields.string(message, "role", 64, path)
    out: Json = {
        "role": role,
        "content": _message_content(message, fields.string(message, "content", _TEXT_LENGTH, path) or ""),
    }
    if thinking := fields.string(message, "thinking", _TEXT_LENGTH, path):
        out["reasoning_content"] = thinking
    if role == "tool":
        out["tool_call_id"] = pending_calls.popleft() if pending_calls else "call_0"
    calls = fields.array(message, "tool_calls", MESSAGES_LIMIT, path) or []
    if calls:
        out["tool_calls"] = [_tool_call(call, f"{path}tool_calls[{index}]", ids) for index, call in enumerate(calls)]
        pending_calls.clear()
        pending_calls.extend(call["id"] for call in out["tool_calls"])
    return out


def _tool_call(call: object, param: str, ids: "count[int]") -> Json:
    match call:
        case {"function": {"name": str(name), "arguments": dict(arguments)}}:
            function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
            return {"id": f"call_{next(ids)}", "type": "function", "function": function}
        case _:
            raise fields.wrong_type(param, "a call with a function's name and arguments", call)


def _message_content(message: Json, text: str) -> str | list[Json]:
    images = fields.strings(message, "images", _IMAGES_LIMIT, _TEXT_LENGTH) or []
    if not images:
        return text
    urls = [f"data:image/{_IMAGE_TYPES.get(image[:4], 'png')};base64,{image}" for image in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]
