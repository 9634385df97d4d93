"""Tool calls that a model wrote as text, because the server did not parse them."""

import json
import re
from collections.abc import Collection

from welldone.rules.view.choices import as_object, as_text

_TAGS = (
    "<tool_call>",  # Hermes, Qwen, GLM
    "<|tool_call|>",  # Granite, Phi
    "<|tool_call_begin|>",  # Kimi
    "<\uff5ctool\u2581call\u2581begin\uff5c>",  # DeepSeek
    "[TOOL_CALLS]",  # Mistral
    "<function=",  # Llama 3.1, Qwen3 Coder
    "<|python_tag|>",  # Llama 3.1
)
"""Markup that models write for a tool call."""
_MAX_SCANNED_CHARS = 10_000  # of a text; a call of a small tool is far shorter
_TAG = re.compile("|".join(map(re.escape, _TAGS)))
_NAME_CHARS = 64  # between a tag and the end of the name
_WORD = re.compile(r"[\w-]+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def find_tool_markup(text: str, names: Collection[str]) -> str | None:
    """Any markup of a call in a text, or a JSON call of one of the tools `names`; None if there is none."""
    text = text[:_MAX_SCANNED_CHARS]
    if found := _TAG.search(text):
        return text[found.start() :]
    fenced = (piece.removeprefix("json") for piece in text.split("```")[1::2])
    return next((piece.strip() for piece in (text, *fenced) if names and _is_json_call(piece, names)), None)


def find_named_markup(text: str, names: Collection[str]) -> str | None:
    """Markup of a call of one of the tools `names`, outside of quoted code; None if there is none."""
    text = _CODE.sub("", text[:_MAX_SCANNED_CHARS])
    for found in _TAG.finditer(text):
        if not set(names).isdisjoint(_WORD.findall(text, found.end(), found.end() + _NAME_CHARS)):
            return text[found.start() :]
    return None


def _is_json_call(text: str, names: Collection[str]) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    call = as_object(value[0] if isinstance(value, list) and value else value)
    # Llama writes `parameters` for arguments. A model that repeats the tool definition has a schema there.
    arguments = call.get("arguments", call.get("parameters"))
    is_schema = "properties" in as_object(arguments)
    return as_text(call.get("name")) in names and arguments is not None and not is_schema
