"""The objects of the Responses dialect: a Response, its items and parts, and its error."""

from welldone.wire.events import Failure, Json, ToolCall
from welldone.wire.head import Head

DEFAULTS: Json = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""What a Response repeats of its request, where the request does not say."""

OURS = frozenset({"id", "object", "created_at", "status", "error", "incomplete_details", "model", "output", "usage"})
"""Members of a Response that tell of the answer, and not of its request."""
_CALL = frozenset({"id", "type", "status", "call_id", "name", "arguments", "input"})
_CODES = {
    "invalid_request_error": "invalid_prompt",
    "rate_limit_error": "rate_limit_exceeded",
    "rate_limit_exceeded": "rate_limit_exceeded",
}


def response_object(head: Head, echo: Json) -> Json:
    """A Response that has just begun; `echo` is what it repeats of its request."""
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": [],
        "usage": None,
    } | {key: value for key, value in (DEFAULTS | echo).items() if key not in OURS}


def message_item(id: str) -> Json:
    """A message that has just begun."""
    return {"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def reasoning_item(id: str) -> Json:
    """Reasoning that has just begun."""
    return {"id": id, "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


def call_item(id: str, call: ToolCall) -> Json:
    """A call of a function, or of a custom tool, that has just begun."""
    return {
        "id": id,
        "type": "custom_tool_call" if call.is_custom else "function_call",
        "status": "in_progress",
        "call_id": call.id,
        "name": call.name,
        "input" if call.is_custom else "arguments": "",
        **call_members(call.more),
    }


def call_members(more: Json) -> Json:
    """Members of a call that OpenAI's does not have, less those that would be taken for its own."""
    return {key: value for key, value in more.items() if key not in _CALL}


def part_object(kind: str) -> Json:
    """A part of this kind that has just begun."""
    match kind:
        case "output_text":
            return {"type": kind, "annotations": [], "logprobs": [], "text": ""}
        case "refusal":
            return {"type": kind, "refusal": ""}
        case _:
            return {"type": kind, "text": ""}


def text_logprobs(value: Json) -> list[Json]:
    """Chat's log probabilities of text, in the shape of this dialect."""
    entries = value.get("content") or []
    return [_entry(entry) | {"top_logprobs": list(map(_entry, entry["top_logprobs"]))} for entry in entries]


def error_object(failure: Failure) -> Json:
    """Why a Response failed. Clients act by its code."""
    code = failure.code or _CODES.get(failure.type, "server_error")
    error = {"code": code, "message": failure.message}
    return error if failure.param is None else error | {"param": failure.param}


def _entry(entry: Json) -> Json:
    raw = entry["bytes"]
    return entry | {"bytes": list(entry["token"].encode()) if raw is None else raw}
