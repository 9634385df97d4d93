"""Objects of the Responses dialect: Response, items, parts, usage and errors."""

from collections.abc import Callable
from types import NoneType
from typing import Any, TypeAlias

from welldone.core.envelope import Envelope
from welldone.core.events import Failure, Json, ToolCall, Usage
from welldone.core.fields import read_usage
from welldone.core.lenient_json import as_list, as_object
from welldone.core.repair_log import RepairLog

ID_PREFIX = "resp_"
_USAGE_FIELD_NAMES = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
"""Members of chat's usage and their names in this dialect."""
_USAGE_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}


def responses_usage_object(usage: Usage) -> Json:
    """Convert usage. Unknown members are kept; missing details are 0."""
    counts: Json = {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": _details(usage, "prompt_tokens_details", "cached_tokens", "cache_write_tokens"),
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": _details(usage, "completion_tokens_details", "reasoning_tokens"),
        "total_tokens": usage.total_tokens,
    }
    return {name: value for name, value in usage.extra_fields.items() if name not in _USAGE_FIELD_NAMES} | counts


def _details(usage: Usage, group: str, *names: str) -> Json:
    # Codex fails if one of these counts is missing or null.
    details = as_object(usage.extra_fields.get(group))
    return details | {name: details[name] if type(details.get(name)) is int else 0 for name in names}


def parse_responses_usage(usage: Json) -> Usage | None:
    """Parse a usage object with the names of either dialect; None if counts are missing."""
    renamed = {
        name: usage.get(ours, usage.get(name))
        for name, ours in _USAGE_FIELD_NAMES.items()
        if ours in usage or name in usage
    }
    return read_usage(renamed | {"total_tokens": usage.get("total_tokens")}, RepairLog())


def complete_usage(upstream_usage: Json, usage: Usage) -> Json:
    """Add the required members to a usage object."""
    if is_complete_usage(upstream_usage):
        return upstream_usage
    ours = responses_usage_object(usage)
    details = {name: as_object(upstream_usage.get(name)) | ours[name] for name in _USAGE_DETAILS}
    return {key: value for key, value in upstream_usage.items() if key not in _USAGE_FIELD_NAMES} | ours | details


def is_complete_usage(usage: Json) -> bool:
    """Whether a usage object has all required members."""
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens", "total_tokens")]
    counts += [as_object(usage.get(name)).get(detail) for name, detail in _USAGE_DETAILS.items()]
    return all(type(count) is int for count in counts)


Clock: TypeAlias = Callable[[], float]
"""Returns the Unix time in seconds."""

_REQUEST_MEMBERS: dict[tuple[type, ...], Json] = {
    (bool,): {"parallel_tool_calls": True},
    (bool, NoneType): {"background": False, "store": True},
    (dict, NoneType): {"metadata": {}, "reasoning": {"effort": None, "summary": None}}
    | {"text": {"format": {"type": "text"}}},
    (int, NoneType): {"max_output_tokens": None, "max_tool_calls": None, "top_logprobs": 0},
    (int, float, NoneType): {"frequency_penalty": 0.0, "presence_penalty": 0.0, "temperature": 1.0, "top_p": 1.0},
    (list,): {"tools": []},
    (str, NoneType): {"previous_response_id": None, "prompt_cache_key": None, "safety_identifier": None}
    | {"service_tier": "default", "truncation": "disabled"},
    (str, dict): {"tool_choice": "auto"},
    (str, list, NoneType): {"instructions": None},
}
"""Members that OpenAI's or Open Responses' schema requires and a Response repeats from its request: default by type."""
RESPONSE_MEMBER_TYPES = {name: types for types, members in _REQUEST_MEMBERS.items() for name in members}
_DEFAULTS = {name: default for members in _REQUEST_MEMBERS.values() for name, default in members.items()}
RESPONSE_DEFAULTS: Json = {name: _DEFAULTS[name] for name in sorted(_DEFAULTS)} | {"user": None}
"""Members that a Response repeats from its request, with the defaults for absent ones."""

_IDENTITY: Json = {"id": "", "object": "response", "created_at": 0, "completed_at": None, "status": "in_progress"}
_NO_ANSWER: Json = {"error": None, "incomplete_details": None, "model": "", "output": [], "usage": None}
_INITIAL_STATE = _IDENTITY | _NO_ANSWER
RESPONSE_STATE_MEMBERS = _INITIAL_STATE.keys()
"""Members of a Response that describe the answer, not the request."""
_REQUIRED_MEMBERS: dict[str, dict[str, type]] = {
    "message": {"role": str, "content": list},
    "reasoning": {"summary": list},
    "output_text": {"text": str, "annotations": list},
    "refusal": {"refusal": str},
    "reasoning_text": {"text": str},
    "summary_text": {"text": str},
}
"""Required members of an item, besides id and status, and of a part, by type."""
_FUNCTION_MEMBERS: dict[str, tuple[type, str | None]] = {
    "name": (str, ""),
    "description": (str, None),
    "parameters": (dict, None),
    "strict": (bool, None),
}
"""Required members of a function in `tools`, with type and default."""
_CALL_MEMBERS = frozenset({"id", "type", "status", "call_id", "name", "arguments", "input"})
_RATE_LIMIT = "rate_limit_exceeded"
_ERROR_CODES = {"invalid_request_error": "invalid_prompt", "rate_limit_error": _RATE_LIMIT, _RATE_LIMIT: _RATE_LIMIT}


def response_object(envelope: Envelope, echo: Json) -> Json:
    """Return a Response in progress; `echo` has the members of its request."""
    own = {"id": envelope.id, "created_at": envelope.created, "model": envelope.model, "output": []}
    members = {key: value for key, value in (RESPONSE_DEFAULTS | echo).items() if key not in RESPONSE_STATE_MEMBERS}
    return _INITIAL_STATE | own | members


def completed_at(status: str, clock: Clock | None) -> int | None:
    """Return the completion time; None for another status or without a clock."""
    return int(clock()) if status == "completed" and clock is not None else None


def has_member_type(name: str, value: object) -> bool:
    """Whether a member of a Response has one of its types (in Python a bool is an int too)."""
    kinds = RESPONSE_MEMBER_TYPES.get(name, (object,))
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds or object in kinds)


def complete_tools(tools: list[Any]) -> list[Any]:
    """Add the required members to each function."""
    return [
        tool | _complete_function(tool) if isinstance(tool, dict) and tool.get("type") == "function" else tool
        for tool in tools
    ]


def _complete_function(tool: Json) -> Json:
    members = ((name, tool.get(name), value_type, default) for name, (value_type, default) in _FUNCTION_MEMBERS.items())
    return {name: value if isinstance(value, value_type) else default for name, value, value_type, default in members}


def is_schema_item(item: Json) -> bool:
    """Whether an item and its parts have the required members; id and status are not checked."""
    parts = [content_part for name in ("content", "summary") for content_part in as_list(item.get(name))]
    return has_required_members(item) and all(has_required_members(as_object(content_part)) for content_part in parts)


def has_required_members(value: Json) -> bool:
    """Whether an item, apart from its parts, or a part has the required members."""
    object_type = value.get("type")
    members = _REQUIRED_MEMBERS.get(object_type, {}) if isinstance(object_type, str) else {}
    return all(isinstance(value.get(name), type) for name, type in members.items())


def text_item(id: str, item_type: str) -> Json:
    """Return an empty message or reasoning item."""
    members: Json = {"role": "assistant"} if item_type == "message" else {"summary": []}
    return {"id": id, "type": item_type, "status": "in_progress", **members, "content": []}


def call_item(id: str, event: ToolCall) -> Json:
    """Return a function or custom tool call without arguments."""
    item_type, member = ("custom_tool_call", "input") if event.is_custom else ("function_call", "arguments")
    item = {"id": id, "type": item_type, "status": "in_progress", "call_id": event.id, "name": event.name, member: ""}
    return item | extra_call_members(event.extra_fields)


def extra_call_members(more: Json) -> Json:
    """Return the unknown members of a call that do not collide with its own."""
    return {key: value for key, value in more.items() if key not in _CALL_MEMBERS}


def part_object(part_type: str) -> Json:
    """Return an empty part of this type."""
    if part_type == "output_text":
        return {"type": part_type, "annotations": [], "logprobs": [], "text": ""}
    return {"type": part_type, "refusal" if part_type == "refusal" else "text": ""}


def text_logprobs(value: Json) -> list[Json]:
    """Convert chat's log probabilities."""
    return [
        _logprob_entry(entry) | {"top_logprobs": list(map(_logprob_entry, entry["top_logprobs"]))}
        for entry in value.get("content") or []
    ]


def response_error_object(failure: Failure) -> Json:
    """Return the error of a failed Response. Clients depend on its code."""
    code = failure.code or _ERROR_CODES.get(failure.type, "server_error")
    error = {"code": code, "message": failure.message}
    return error if failure.param is None else error | {"param": failure.param}


def _logprob_entry(entry: Json) -> Json:
    raw = entry["bytes"]
    return entry | {"bytes": list(entry["token"].encode()) if raw is None else raw}
