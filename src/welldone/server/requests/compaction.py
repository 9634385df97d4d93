"""Compaction of a conversation: the prompt for a summary, and the content of a compaction item.

The content of our items is the summary, encoded but not encrypted: the client has the whole conversation anyway.
"""

import base64
import binascii

from welldone.protocol.events import Json
from welldone.protocol.lenient_json import as_list, as_object

SUMMARY_TOKENS = 2_048
"""Limit of a summary, with the reasoning before it: a model that repeats itself would fill its context otherwise."""
COMPACTION = "compaction"
"""Type of the item."""
_PREFIX = "wdc1_"
_DEFAULT_INSTRUCTIONS = (
    "You summarize conversations so that another assistant can continue them from the summary alone. Keep goals, "
    "decisions, facts, names, numbers, results of tool calls and open tasks."
)
_REQUEST = "Write the summary of this conversation. Reply with the summary only."
_SUMMARY_HEADING = "Summary of the conversation so far:"


def summary_messages(messages: list[Json], instructions: str | None) -> list[Json]:
    """Return the chat that asks a model for the summary of these chat messages.

    The conversation is quoted in one message: every chat template accepts that, also without support for tools.
    """
    transcript = "\n\n".join(f"[{message['role']}]\n{_message_text(message)}" for message in messages)
    return [
        {"role": "system", "content": instructions or _DEFAULT_INSTRUCTIONS},
        {"role": "user", "content": f"<conversation>\n{transcript}\n</conversation>\n\n{_REQUEST}"},
    ]


def summary_text(response: Json) -> str:
    """Return the text of a Response."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts if part["type"] == "output_text").strip()


def encode_summary(summary: str) -> str:
    """Return the `encrypted_content` of a compaction item."""
    return _PREFIX + base64.urlsafe_b64encode(summary.encode()).decode()


def decode_summary(content: object) -> str | None:
    """Return what a compaction item of ours tells the model; None for the content of another server."""
    if not isinstance(content, str) or not content.startswith(_PREFIX):
        return None
    try:
        summary = base64.b64decode(content.removeprefix(_PREFIX), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None
    return f"{_SUMMARY_HEADING}\n{summary}"


def replace_own_summaries(body: Json) -> Json:
    """Return a body in which messages replace the compaction items of ours, for an upstream that cannot read them."""
    items = body.get("input")
    if not isinstance(items, list) or not any(_own_summary(item) for item in items):
        return body
    return {**body, "input": [_summary_item(text) if (text := _own_summary(item)) else item for item in items]}


def _own_summary(item: object) -> str | None:
    found = as_object(item)
    return decode_summary(found.get("encrypted_content")) if found.get("type") == COMPACTION else None


def _summary_item(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _message_text(message: Json) -> str:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [_part_text(as_object(part)) for part in as_list(content)]
    for call in message.get("tool_calls") or ():
        called = call[call["type"]]
        texts.append(f"called {called['name']} with {called.get('arguments', called.get('input'))}")
    return "\n".join([*texts, message["refusal"]] if message.get("refusal") else texts)


def _part_text(part: Json) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else f"({part.get('type')})"
