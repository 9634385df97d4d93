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
_ONLY_TAGS = re.compile(rf"(?:{_TAG.pattern}|\s)+")
_CODE = re.compile(r"(```|~~~).*?(?:\1|\Z)|`[^`\n]*`|^(?: {4}|\t|>)[^\n]*", re.DOTALL | re.MULTILINE)
"""Code, and quoted lines, in Markdown."""
_NAMED_CALL = re.compile(
    r"(?:function<\uff5ctool\u2581sep\uff5c>|functions\.)?(?P<name>[\w-]++)(?:(?P<whole>"
    r">\s*<parameter=.*</parameter>\s*</function>(?:\s*</tool_call>)?"  # Qwen3 Coder
    r"|\s*<arg_key>.*</arg_value>\s*</tool_call>"  # GLM
    r"|\.call\([^()]+\)(?:<\|\w+\|>)?"  # Llama 3.1
    r")\s*\Z|(?::\d+)?\s*(?:<[|\uff5c][^<>]*>|\[[A-Z_]+\]|>|```json)?\s*)",
    re.DOTALL,
)
"""The name of a call and its arguments; of arguments that are JSON, only what comes before."""
_END_OF_CALL = re.compile(r"(?:\s|```(?=<)|</tool_call>|</function>|<[|\uff5c][^<>\s]+[|\uff5c]>|\[/TOOL_CALLS\])*+")
_DECODER = json.JSONDecoder()


def find_tool_markup(text: str, names: Collection[str]) -> str | None:
    """Any markup of a call in a text, or a JSON call of one of the tools `names`; None if there is none."""
    text = text[:_MAX_SCANNED_CHARS]
    if found := _TAG.search(text):
        return text[found.start() :]
    fenced = (piece.removeprefix("json") for piece in text.split("```")[1::2])
    return next((piece.strip() for piece in (text, *fenced) if names and _is_json_call(piece, names)), None)


def find_whole_call(text: str, names: Collection[str]) -> str | None:
    """Markup of a complete call of one of the tools `names` that a text ends in; None if there is none.

    Markup in code, in a quotation or within a line may be what the text is about.
    """
    # Of several calls, the last one ends the text.
    tags = list(_TAG.finditer(_CODE.sub(lambda code: " " * len(code[0]), text)))
    before = text[: tags[-1].start()].rstrip(" \t") if tags else ""
    if not tags or (before and before[-1] not in "\n>]"):
        return None
    return text[tags[-1].start() :] if _is_whole_call(text[tags[-1].end() :].lstrip(), names) else None


def find_answered_call(text: str, names: Collection[str]) -> str | None:
    """A call in a text that had to be one: as in `find_whole_call`, or all of the text is its JSON or its tags."""
    bare = text.strip()
    if len(fence := bare.split("```")) == 3 and not fence[0] and not fence[2]:
        bare = fence[1].removeprefix("json").strip()
    return bare if _ONLY_TAGS.fullmatch(bare) or _is_json_call(bare, names) else find_whole_call(text, names)


def _is_whole_call(text: str, names: Collection[str]) -> bool:
    """Whether the text after a tag is a call, to the end."""
    named = _NAMED_CALL.match(text)
    if named is not None and (named["whole"] or named["name"] not in names):
        return named["name"] in names
    try:
        value, end = _DECODER.raw_decode(text, named.end() if named else 0)
    except (ValueError, RecursionError):
        return False
    is_call = _is_call(value, names) if named is None else isinstance(value, dict)
    return is_call and _END_OF_CALL.fullmatch(text, end) is not None


def _is_json_call(text: str, names: Collection[str]) -> bool:
    try:
        return _is_call(json.loads(text), names)
    except (ValueError, RecursionError):
        return False


def _is_call(value: object, names: Collection[str]) -> bool:
    call = as_object(value[0] if isinstance(value, list) and value else value)
    # Llama writes `parameters` for arguments. A model that repeats the tool definition has a schema there.
    arguments = call.get("arguments", call.get("parameters"))
    is_schema = "properties" in as_object(arguments)
    return as_text(call.get("name")) in names and arguments is not None and not is_schema
