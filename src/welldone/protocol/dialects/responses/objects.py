"""The objects of the Responses dialect: a Response, its items and parts, and its error."""

from collections.abc import Callable
from types import NoneType
from typing import Any, TypeAlias

from welldone.protocol.envelope import Envelope
from welldone.protocol.events import Failure, Json, ToolCall, Usage
from welldone.protocol.fields import read_usage
from welldone.protocol.lenient_json import as_list, as_object
from welldone.protocol.repair_log import RepairLog

# Usage in the words of the Responses dialect.


_USAGE_FIELD_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
"""Chat's words for the same things."""
_USAGE_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}


def responses_usage_object(usage: Usage) -> Json:
    """Usage as OpenAI writes it here, with its unknown members; details that the upstream did not send are 0."""
    read, written = (
        as_object(usage.extra_fields.get(name)) for name in ("prompt_tokens_details", "completion_tokens_details")
    )
    counts: Json = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": _complete_details(read, "cached_tokens", "cache_write_tokens"),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": _complete_details(written, "reasoning_tokens"),
        "total_tokens": usage.total_tokens,
    }
    return {name: value for name, value in usage.extra_fields.items() if name not in _USAGE_FIELD_NAMES} | counts


def _complete_details(details: Json, *names: str) -> Json:
    """Details with these counts as integers: Codex fails where one is missing or null."""
    return details | {name: details[name] if type(details.get(name)) is int else 0 for name in names}


def parse_responses_usage(usage: Json) -> Usage | None:
    """The counts of a usage object, in the words of either dialect; None where they cannot be known."""
    renamed = {
        name: usage.get(ours, usage.get(name))
        for name, ours in _USAGE_FIELD_NAMES.items()
        if ours in usage or name in usage
    }
    return read_usage(renamed | {"total_tokens": usage.get("total_tokens")}, RepairLog())


def complete_usage(upstream_usage: Json, usage: Usage) -> Json:
    """A usage object with all that it must have, and all else that was told."""
    if is_complete_usage(upstream_usage):
        return upstream_usage
    ours = responses_usage_object(usage)
    details = {name: as_object(upstream_usage.get(name)) | ours[name] for name in _USAGE_DETAILS}
    return {key: value for key, value in upstream_usage.items() if key not in _USAGE_FIELD_NAMES} | ours | details


def is_complete_usage(usage: Json) -> bool:
    """Whether a usage object has all that it must have."""
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
    counts += [as_object(usage.get(name)).get(detail) for name, detail in _USAGE_DETAILS.items()]
    return all(type(count) is int for count in counts)


Clock: TypeAlias = Callable[[], float]
"""Gives the time of day in seconds."""

RESPONSE_DEFAULTS: Json = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
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

RESPONSE_STATE_MEMBERS = frozenset(
    {
        *("id", "object", "created_at", "completed_at", "status"),
        *("error", "incomplete_details", "model", "output", "usage"),
    }
)
"""Members of a Response that tell of the answer, and not of its request."""
RESPONSE_MEMBER_TYPES: dict[str, tuple[type, ...]] = {
    "background": (bool, NoneType),
    "frequency_penalty": (int, float, NoneType),
    "instructions": (str, list, NoneType),
    "max_output_tokens": (int, NoneType),
    "max_tool_calls": (int, NoneType),
    "metadata": (dict, NoneType),
    "parallel_tool_calls": (bool,),
    "presence_penalty": (int, float, NoneType),
    "previous_response_id": (str, NoneType),
    "prompt_cache_key": (str, NoneType),
    "reasoning": (dict, NoneType),
    "safety_identifier": (str, NoneType),
    "service_tier": (str, NoneType),
    "store": (bool, NoneType),
    "temperature": (int, float, NoneType),
    "text": (dict, NoneType),
    "tool_choice": (str, dict),
    "tools": (list,),
    "top_logprobs": (int, NoneType),
    "top_p": (int, float, NoneType),
    "truncation": (str, NoneType),
}
"""Members of a Response that OpenAI's or Open Responses' schema requires besides those of `OURS`, with their types."""
_ITEM_MEMBER_TYPES: dict[str, dict[str, type]] = {
    "message": {"role": str, "content": list},
    "reasoning": {"summary": list},
}
"""Members that an item of these types has, beside its id and status."""
_PART_MEMBER_TYPES: dict[str, dict[str, type]] = {
    "output_text": {"text": str, "annotations": list},
    "refusal": {"refusal": str},
    "reasoning_text": {"text": str},
    "summary_text": {"text": str},
}
_FUNCTION_MEMBERS: dict[str, tuple[type, str | None]] = {
    "name": (str, ""),
    "description": (str, None),
    "parameters": (dict, None),
    "strict": (bool, None),
}
"""Members that a function among `tools` always has, with their types and what stands for a missing one."""
_CALL_MEMBERS = frozenset({"id", "type", "status", "call_id", "name", "arguments", "input"})
_ERROR_CODES = {
    "invalid_request_error": "invalid_prompt",
    "rate_limit_error": "rate_limit_exceeded",
    "rate_limit_exceeded": "rate_limit_exceeded",
}


def response_object(envelope: Envelope, echo: Json) -> Json:
    """A Response that has just begun; `echo` is what it repeats of its request."""
    return {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": envelope.model,
        "output": [],
        "usage": None,
    } | {key: value for key, value in (RESPONSE_DEFAULTS | echo).items() if key not in RESPONSE_STATE_MEMBERS}


def completed_at(status: str, clock: Clock | None) -> int | None:
    """When a Response was completed; null for one that ended otherwise, or where there is no clock."""
    return int(clock()) if status == "completed" and clock is not None else None


def has_member_type(name: str, value: object) -> bool:
    """Whether a member of a Response has one of its types. To Python, but not to JSON, a bool is an integer."""
    kinds = RESPONSE_MEMBER_TYPES.get(name, (object,))
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds or object in kinds)


def complete_tools(tools: list[Any]) -> list[Any]:
    """Tools, each function with all members that it must have."""
    return [
        tool | _complete_function(tool) if isinstance(tool, dict) and tool.get("type") == "function" else tool
        for tool in tools
    ]


def _complete_function(tool: Json) -> Json:
    members = ((name, tool.get(name), kind, default) for name, (kind, default) in _FUNCTION_MEMBERS.items())
    return {name: value if isinstance(value, kind) else default for name, value, kind, default in members}


def is_schema_item(item: Json) -> bool:
    """Whether an item has what its schema requires beside its id and status, and its parts have it too."""
    parts = [part for place in ("content", "summary") for part in as_list(item.get(place))]
    return _has_required_members(item, _ITEM_MEMBER_TYPES) and all(is_schema_part(as_object(part)) for part in parts)


def is_schema_part(part: Json) -> bool:
    """Whether a part has what its schema requires."""
    return _has_required_members(part, _PART_MEMBER_TYPES)


def _has_required_members(value: Json, shapes: dict[str, dict[str, type]]) -> bool:
    kind = value.get("type")
    members = shapes.get(kind, {}) if isinstance(kind, str) else {}
    return all(isinstance(value.get(name), wanted) for name, wanted in members.items())


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
        **extra_call_members(call.extra_fields),
    }


def extra_call_members(more: Json) -> Json:
    """Members of a call that OpenAI's does not have, less those that would be taken for its own."""
    return {key: value for key, value in more.items() if key not in _CALL_MEMBERS}


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
    return [
        _logprob_entry(entry) | {"top_logprobs": list(map(_logprob_entry, entry["top_logprobs"]))} for entry in entries
    ]


def response_error_object(failure: Failure) -> Json:
    """Why a Response failed. Clients act by its code."""
    code = failure.code or _ERROR_CODES.get(failure.type, "server_error")
    error = {"code": code, "message": failure.message}
    return error if failure.param is None else error | {"param": failure.param}


def _logprob_entry(entry: Json) -> Json:
    raw = entry["bytes"]
    return entry | {"bytes": list(entry["token"].encode()) if raw is None else raw}
