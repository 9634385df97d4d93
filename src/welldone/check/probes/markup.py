"""What models write to call a tool, where it stands in a text: a server should have made a call of it."""

import json

from welldone.rules.choices import as_object

_TOOL_CALL_TAGS = (
    "<tool_call>",  # Hermes, Qwen
    "<|tool_call|>",  # Granite, Phi
    "<|tool_call_begin|>",  # Kimi
    "<\uff5ctool\u2581call\u2581begin\uff5c>",  # DeepSeek
    "[TOOL_CALLS]",  # Mistral
    "<function=",  # Llama 3.1, Qwen3 Coder
    "<|python_tag|>",  # Llama 3.1
)
"""They mean a call and nothing else."""
_MAX_SCANNED_CHARS = 10_000  # characters of a text that are looked at: a call of a small tool is far shorter


def find_tool_markup(text: str, name: str | None) -> str | None:
    """The markup of a call in a text; None where there is none. JSON counts where it calls `name`, if that is given."""
    text = text[:_MAX_SCANNED_CHARS]
    for tag in _TOOL_CALL_TAGS:
        if tag in text:
            return text[text.index(tag) :]
    if name is None:
        return None
    fenced = (piece.removeprefix("json") for piece in text.split("```")[1::2])
    return next((piece.strip() for piece in (text, *fenced) if _is_json_tool_call(piece, name)), None)


def _is_json_tool_call(text: str, name: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    call = as_object(value[0] if isinstance(value, list) and value else value)
    # Llama says `parameters` for arguments. A model that recites the tool itself has a schema there.
    arguments = call.get("arguments", call.get("parameters"))
    is_schema = "properties" in as_object(arguments)
    return call.get("name") == name and arguments is not None and not is_schema
