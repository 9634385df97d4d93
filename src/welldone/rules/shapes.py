"""Required members of published reply objects, and the JSON types that each may have.

A table per object. Sources: OpenAI's OpenAPI document, from which the types of its client libraries are generated, and
`ResponseResource` of the Open Responses specification (2026-04-24). Where the two differ in a type, either is accepted;
a member that one of them requires is required. Members that another rule checks are not repeated here.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from welldone.rules.choices import as_list, as_object, is_int

Shape: TypeAlias = Mapping[str, str]
"""Members, each with its types, separated by `|`."""

RESPONSE: Shape = {
    "background": "boolean|null",
    "completed_at": "number|null",
    "error": "object|null",
    "frequency_penalty": "number|null",
    "incomplete_details": "object|null",
    "instructions": "string|array|null",
    "max_output_tokens": "integer|null",
    "max_tool_calls": "integer|null",
    "metadata": "object|null",
    "parallel_tool_calls": "boolean",
    "presence_penalty": "number|null",
    "previous_response_id": "string|null",
    "prompt_cache_key": "string|null",
    "reasoning": "object|null",
    "safety_identifier": "string|null",
    "service_tier": "string|null",
    "store": "boolean|null",
    "temperature": "number|null",
    "text": "object|null",
    "tool_choice": "string|object",
    "tools": "array",
    "top_logprobs": "integer|null",
    "top_p": "number|null",
    "truncation": "string|null",
    "usage": "any",
}
"""A Response, without what `resp-created-full` requires. The usage of one that has ended has `resp-usage`."""
INCOMPLETE: Shape = {"reason": "string"}
FUNCTION: Shape = {
    "name": "string",
    "description": "string|null",
    "parameters": "object|null",
    "strict": "boolean|null",
}
"""A function among the tools of a Response."""
ITEMS: Mapping[str, Shape] = {
    "message": {"id": "string", "role": "string", "content": "array"},
    "reasoning": {"id": "string", "summary": "array"},
}
"""Output items by type. A function_call has `resp-function-ids` and `resp-item-status`."""
PARTS: Mapping[str, Shape] = {
    "output_text": {"text": "string", "annotations": "array"},
    "refusal": {"refusal": "string"},
    "reasoning_text": {"text": "string"},
    "summary_text": {"text": "string"},
}
"""Content parts by type."""

COMPLETION: Shape = {"id": "string", "created": "integer", "model": "string"}
"""A chat.completion or a text_completion."""
CHAT_CHOICE: Shape = {"index": "integer", "logprobs": "object|null|absent"}
TEXT_CHOICE: Shape = {"index": "integer", "text": "string", "logprobs": "object|null|absent"}
CHAT_MESSAGE: Shape = {"refusal": "string|null|absent"}
"""Choices and their message. The schema requires `logprobs` and `refusal`, perhaps as null; most servers leave them
out, and no client is known to miss them."""


def mismatches(value: object, shape: Shape, path: str = "") -> list[str]:
    """The members that are missing or of another type, each as `path.member (types)`."""
    told = as_object(value)
    return [f"{path}{name} ({kinds})" for name, kinds in shape.items() if not _fits(told.get(name, ...), kinds)]


def response_mismatches(response: dict[str, Any], *, has_ids: bool) -> list[str]:
    """What is missing or of another type in a Response, its items and their parts.

    `has_ids`: the ids of items are checked too; in a stream `resp-item-id-stable` does it.
    """
    has_ended = response.get("status") in ("completed", "incomplete")
    wrong = mismatches(response, {k: v for k, v in RESPONSE.items() if k != "usage"} if has_ended else RESPONSE)
    if response.get("status") == "incomplete":
        wrong += mismatches(response.get("incomplete_details"), INCOMPLETE, "incomplete_details.")
    for place, tool in enumerate(as_list(response.get("tools"))):
        if as_object(tool).get("type") == "function":
            wrong += mismatches(tool, FUNCTION, f"tools[{place}].")
    for place, item in enumerate(as_list(response.get("output"))):
        wrong += item_mismatches(item, f"output[{place}].", has_ids=has_ids)
    return wrong


def item_mismatches(item: object, path: str, *, has_ids: bool) -> list[str]:
    """What is missing or of another type in an output item and its parts; nothing of a type that is not listed."""
    told = as_object(item)
    shape = _listed(ITEMS, told)
    wrong = mismatches(told, shape if has_ids else {k: v for k, v in shape.items() if k != "id"}, path)
    for slot in ("content", "summary"):
        for place, part in enumerate(as_list(told.get(slot))):
            wrong += part_mismatches(part, f"{path}{slot}[{place}].")
    return wrong


def part_mismatches(part: object, path: str) -> list[str]:
    """What is missing or of another type in a content part."""
    return mismatches(part, _listed(PARTS, as_object(part)), path)


def _listed(shapes: Mapping[str, Shape], value: dict[str, Any]) -> Shape:
    kind = value.get("type")
    return shapes.get(kind, {}) if isinstance(kind, str) else {}


def _fits(value: object, kinds: str) -> bool:
    return any(_is_kind(value, kind) for kind in kinds.split("|"))


def _is_kind(value: object, kind: str) -> bool:
    match kind:
        case "null":
            return value is None
        case "absent":
            return value is ...
        case "any":
            return value is not ...
        case "integer":
            return is_int(value)
        case "number":
            return is_int(value) or isinstance(value, float)
        case _:
            return isinstance(value, {"string": str, "boolean": bool, "array": list, "object": dict}[kind])
