"""`/api/chat` and `/api/generate`: Ollama's requests in the words of chat."""

from collections import deque
from itertools import count

import msgspec

from welldone.protocol.events import Json
from welldone.server.requests import fields

CHAT_OPTIONS = (
    *("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
)
"""Options that chat knows; the others (num_ctx, num_gpu …) are of the server and not of a request."""
_RENAMED_FIELDS = {"max_tokens": "options.num_predict", "reasoning_effort": "think", "response_format": "format"}
OLLAMA_PARAM_NAMES = (
    {name: f"options.{name}" for name in CHAT_OPTIONS}
    | _RENAMED_FIELDS
    | {"response_format.json_schema.schema": "format"}
)
"""What the client calls fields of a chat."""
UNSUPPORTED_FIELDS = {
    "suffix": "needs infill, which is not offered here.",
    "template": "cannot be followed: the model's own template is used.",
    "context": "cannot be followed: send the messages to /api/chat.",
    "raw": "cannot be followed: use /v1/completions.",
}
MESSAGES_LIMIT = 4_096  # as for chat
_TEXT_LENGTH = 2**30  # characters: whatever a body may have
_IMAGES_LIMIT = 64
_IMAGE_TYPES = {"/9j/": "jpeg", "R0lG": "gif", "UklG": "webp"}  # by the first bytes of a file, as base64


def read_ollama_chat(body: Json) -> Json:
    """The body of /api/chat, as a chat's."""
    given = fields.array(body, "messages", MESSAGES_LIMIT) or []
    ids = count(1)
    messages: list[Json] = []
    waiting: deque[str] = deque()  # calls without a result yet: Ollama pairs them by their order
    for place, message in enumerate(given):
        if not isinstance(message, dict):
            raise fields.wrong_type(f"messages[{place}]", "an object", message)
        messages.append(_chat_message(message, f"messages[{place}].", ids, waiting))
    tools = fields.array(body, "tools", MESSAGES_LIMIT)
    return {**_common_fields(body), "messages": messages, **({"tools": tools} if tools else {})}


def read_ollama_generate(body: Json) -> Json:
    """The body of /api/generate, as a chat's."""
    for name, why in UNSUPPORTED_FIELDS.items():
        if body.get(name):
            raise fields.unsupported(name, why)
    system = fields.string(body, "system", _TEXT_LENGTH)
    first = [{"role": "system", "content": system}] if system else []
    asked = {"role": "user", "content": _message_content(body, fields.string(body, "prompt", _TEXT_LENGTH) or "")}
    return {**_common_fields(body), "messages": [*first, asked]}


def _common_fields(body: Json) -> Json:
    """What both paths share. Ollama streams unless told not to."""
    stream = fields.boolean(body, "stream")
    chat: Json = {"model": body.get("model"), "stream": stream is not False}
    options = fields.json_object(body, "options") or {}
    chat |= {name: options[name] for name in CHAT_OPTIONS if options.get(name) is not None}
    if (most := options.get("num_predict")) is not None:
        chat["max_tokens"] = -1 if most == -2 else most  # -2: as much as the context has room for
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
        out["tool_calls"] = [_tool_call(call, f"{path}tool_calls[{place}]", ids) for place, call in enumerate(calls)]
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
    """A text, with its images where it has some."""
    images = fields.strings(message, "images", _IMAGES_LIMIT, _TEXT_LENGTH) or []
    if not images:
        return text
    urls = [f"data:image/{_IMAGE_TYPES.get(image[:4], 'png')};base64,{image}" for image in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]
