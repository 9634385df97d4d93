"""Required members of published reply objects, and the JSON types that each may have.

Sources: OpenAI's OpenAPI document, from which the types of its client libraries are generated, and `ResponseResource`
of the Open Responses specification (2026-04-24). Where the two differ in a type, either is accepted; a member that one
of them requires is required. Members that another rule checks are not repeated here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from welldone.rules.view.choices import as_list, as_object

_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
MemberTypes: TypeAlias = Mapping[str, str]
"""Types by member, separated by `|`."""

_MEMBERS_BY_TYPE = {
    "boolean|null": ("background", "store"),
    "number|null": ("completed_at", "frequency_penalty", "presence_penalty", "temperature", "top_p"),
    "object|null": ("error", "incomplete_details", "metadata", "reasoning", "text"),
    "string|array|null": ("instructions",),
    "integer|null": ("max_output_tokens", "max_tool_calls", "top_logprobs"),
    "boolean": ("parallel_tool_calls",),
    "string|null": ("previous_response_id", "prompt_cache_key", "safety_identifier", "service_tier", "truncation"),
    "string|object": ("tool_choice",),
    "array": ("tools",),
    "any": ("usage",),
}
RESPONSE_MEMBERS: MemberTypes = dict(
    sorted((name, types) for types, names in _MEMBERS_BY_TYPE.items() for name in names)
)
"""A Response, without the members of `resp-created-full`. `resp-usage` checks the usage of a finished one."""
INCOMPLETE_DETAILS_MEMBERS: MemberTypes = {"reason": "string"}
FUNCTION_MEMBERS: MemberTypes = {
    "name": "string",
    "description": "string|null",
    "parameters": "object|null",
    "strict": "boolean|null",
}
"""A function among the tools of a Response."""
ITEM_MEMBERS: Mapping[str, MemberTypes] = {
    "message": {"id": "string", "role": "string", "content": "array"},
    "reasoning": {"id": "string", "summary": "array"},
}
"""Output items by type. `resp-function-ids` and `resp-item-status` check function calls."""
PART_MEMBERS: Mapping[str, MemberTypes] = {
    "output_text": {"text": "string", "annotations": "array"},
    "refusal": {"refusal": "string"},
    "reasoning_text": {"text": "string"},
    "summary_text": {"text": "string"},
}
"""Content parts by type."""

COMPLETION_MEMBERS: MemberTypes = {"id": "string", "created": "integer", "model": "string"}
"""A chat.completion or a text_completion."""
CHAT_CHOICE_MEMBERS: MemberTypes = {"index": "integer", "logprobs": "object|null|absent"}
TEXT_CHOICE_MEMBERS: MemberTypes = {"index": "integer", "text": "string", "logprobs": "object|null|absent"}
CHAT_MESSAGE_MEMBERS: MemberTypes = {"refusal": "string|null|absent"}
"""The schema requires `logprobs` and `refusal`, possibly null; most servers omit them; no known client needs them."""


def mismatches(value: object, shape: MemberTypes, path: str = "") -> list[str]:
    """List the members that are missing or have another type, each as `path.member (types)`."""
    members = as_object(value)
    return [
        f"{path}{name} ({types})" for name, types in shape.items() if not _has_any_type(members.get(name, ...), types)
    ]


def response_mismatches(response: dict[str, Any], *, has_ids: bool) -> list[str]:
    """List the mismatches in a Response, its items and their parts.

    With `has_ids` the ids of items are checked too; in a stream `resp-item-id-stable` does that.
    """
    has_ended = response.get("status") in ("completed", "incomplete")
    shape = {name: types for name, types in RESPONSE_MEMBERS.items() if name != "usage" or not has_ended}
    wrong = mismatches(response, shape)
    if response.get("status") == "incomplete":
        wrong += mismatches(response.get("incomplete_details"), INCOMPLETE_DETAILS_MEMBERS, "incomplete_details.")
    for index, tool in enumerate(as_list(response.get("tools"))):
        if as_object(tool).get("type") == "function":
            wrong += mismatches(tool, FUNCTION_MEMBERS, f"tools[{index}].")
    for index, item in enumerate(as_list(response.get("output"))):
        wrong += item_mismatches(item, f"output[{index}].", has_ids=has_ids)
    return wrong


def item_mismatches(item: object, path: str, *, has_ids: bool) -> list[str]:
    """List the mismatches in an output item and its parts; items of unlisted types have none."""
    members = as_object(item)
    shape = _members_for(ITEM_MEMBERS, members)
    wrong = mismatches(members, {name: types for name, types in shape.items() if name != "id" or has_ids}, path)
    for part_list in ("content", "summary"):
        for index, content_part in enumerate(as_list(members.get(part_list))):
            wrong += part_mismatches(content_part, f"{path}{part_list}[{index}].")
    return wrong


def part_mismatches(content_part: object, path: str) -> list[str]:
    """List the mismatches in a content part."""
    return mismatches(content_part, _members_for(PART_MEMBERS, as_object(content_part)), path)


def _members_for(shapes: Mapping[str, MemberTypes], value: dict[str, Any]) -> MemberTypes:
    value_type = value.get("type")
    return shapes.get(value_type, {}) if isinstance(value_type, str) else {}


def _has_any_type(value: object, types: str) -> bool:
    name = _TYPE_NAMES.get(type(value), "null" if value is None else "absent")
    allowed = types.split("|")
    return name in allowed or (name == "integer" and "number" in allowed) or (types == "any" and name != "absent")
