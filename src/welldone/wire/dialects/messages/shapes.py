"""The shapes of blocks and deltas, as servers send them and as they should be."""

import msgspec

from welldone.wire.events import Json
from welldone.wire.lenient import as_list, as_object, parse_strict

TOOL_USE_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
"""Blocks whose input comes as JSON, in pieces."""
STREAMED_INPUT_BLOCKS = TOOL_USE_BLOCKS - {"mcp_tool_use"}
"""Those whose input all clients read in pieces; of the others some read only what the start tells."""
DELTA_MEMBERS = {
    "text_delta": "text",
    "citations_delta": "citation",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""What a delta adds, by its type."""
_TYPE_DEFINING_MEMBERS = {"text": "text", "thinking": "thinking", "tool_use": "name"}
"""The member that tells the type of a block which does not say it."""
_STRING_MEMBERS = {"text": ("text",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


def complete_block(block: Json) -> Json | None:
    """A block with its type and that type's members; None where its type cannot be told."""
    kind = block.get("type")
    if not isinstance(kind, str) or not kind:
        found = [name for name, member in _TYPE_DEFINING_MEMBERS.items() if member in block]
        if not found:
            return None
        kind = found[0]
    full = {**block, "type": kind}
    if kind in TOOL_USE_BLOCKS:
        name = block.get("name")
        return full | {"name": name if isinstance(name, str) else "", "input": _initial_input(block.get("input"), kind)}
    for member in _STRING_MEMBERS.get(kind, ()):
        if not isinstance(block.get(member), str):
            full[member] = ""
    return full


def _initial_input(given: object, kind: str) -> Json | str:
    """The input that a start tells. As a text it may be cut: then it is kept as text, where deltas can say it."""
    text = bytes(given).decode() if isinstance(given, msgspec.Raw) else given
    if not isinstance(text, str):
        return as_object(text)
    value = parse_strict(text.encode())
    is_text = kind in STREAMED_INPUT_BLOCKS and not isinstance(value, dict)
    return text.strip() if is_text else as_object(value)


def initial_deltas(block: Json) -> list[tuple[Json, Json]]:
    """What a start says already, as deltas: some clients read nothing else."""
    found: list[Json] = []
    if block["type"] == "text":
        cited = [one for one in as_list(block.get("citations")) if isinstance(one, dict)]
        found = [{"type": "text_delta", "text": block["text"]}] if block["text"] else []
        found += [{"type": "citations_delta", "citation": one} for one in cited]
    elif block["type"] == "thinking":
        found = [{"type": f"{name}_delta", name: block[name]} for name in ("thinking", "signature") if block[name]]
    return [(delta, {}) for delta in found]


def without_content(block: Json) -> Json:
    """A start that says nothing yet; a call keeps its input until it is known whether deltas say it again."""
    if block["type"] == "text":
        return block | {"text": ""} | ({"citations": []} if isinstance(block.get("citations"), list) else {})
    return block | {"thinking": "", "signature": ""} if block["type"] == "thinking" else block


def normalise_delta(delta: Json) -> Json | None:
    """A delta with its type, and what it adds in the right form; None where it adds nothing that can be read."""
    kind = delta.get("type")
    if not isinstance(kind, str):
        found = [kind for kind, member in DELTA_MEMBERS.items() if member in delta]
        if not found:
            return None
        kind = found[0]
    member = DELTA_MEMBERS.get(kind)
    if member is None:
        return delta
    value = delta.get(member)
    if kind == "input_json_delta" and isinstance(value, dict):
        value = msgspec.json.encode(value).decode()
    is_right = isinstance(value, dict if kind == "citations_delta" else str)
    return {**delta, "type": kind, member: value} if is_right else None
