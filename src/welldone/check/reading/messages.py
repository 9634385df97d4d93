"""What a reply of /v1/messages says."""

from collections.abc import Iterator
from typing import Any

from welldone.check.reading.said import Piece, Said, ToolCall, as_arguments
from welldone.rules.choices import as_list, as_object, as_text
from welldone.rules.heard import Form, Heard

_START, _DELTA = "content_block_start", "content_block_delta"
_FIRST, _LAST = "message_start", "message_delta"


def choices(heard: Heard) -> list[Said]:
    """There is one, if anything was said."""
    if heard.form is not Form.STREAM:
        return [_whole(heard.reply)] if heard.reply else []
    told = pieces(heard)
    ends = [as_object(event.get("delta")) for event in _events(heard, _LAST)]
    if not told and not ends and not list(_events(heard, _FIRST)):
        return []
    text, reasoning = "".join(piece.text for piece in told), "".join(piece.reasoning for piece in told)
    finish = next((end["stop_reason"] for end in reversed(ends) if end.get("stop_reason")), None)
    return [Said(0, "assistant", text, reasoning, _streamed_calls(heard), finish)]


def pieces(heard: Heard) -> list[Piece]:
    """One for each delta."""
    return [
        Piece(
            message.number,
            text=as_text(delta.get("text")),
            reasoning=as_text(delta.get("thinking")),
            has_more=bool(delta.get("partial_json")),
        )
        for message in heard.messages
        if message.json.get("type") == _DELTA
        for delta in (as_object(message.json.get("delta")),)
    ]


def usage(heard: Heard) -> object:
    """What the beginning told, and what the end told anew."""
    if heard.form is not Form.STREAM:
        return heard.reply.get("usage")
    starts = (as_object(event.get("message")) for event in _events(heard, _FIRST))
    told = [as_object(event.get("usage")) for event in (*starts, *_events(heard, _LAST))]
    return {name: value for usage in told for name, value in usage.items()} if any(told) else None


def _events(heard: Heard, kind: str) -> Iterator[dict[str, Any]]:
    return (message.json for message in heard.messages if message.json.get("type") == kind)


def _streamed_calls(heard: Heard) -> tuple[ToolCall, ...]:
    """By the index of their block."""
    arguments: dict[object, list[str]] = {}
    for event in _events(heard, _DELTA):
        index = _key(event.get("index"))
        arguments.setdefault(index, []).append(as_text(as_object(event.get("delta")).get("partial_json")))
    blocks = [(_key(event.get("index")), as_object(event.get("content_block"))) for event in _events(heard, _START)]
    return tuple(
        _call(block, "".join(arguments.get(index, ())) or block.get("input"))
        for index, block in blocks
        if block.get("type") == "tool_use"
    )


def _key(index: object) -> object:
    """What a list or an object cannot be."""
    return index if isinstance(index, int | str) else None


def _call(block: dict[str, Any], arguments: object) -> ToolCall:
    return ToolCall(as_text(block.get("id")), as_text(block.get("name")), as_arguments(arguments))


def _whole(message: dict[str, Any]) -> Said:
    blocks = [as_object(block) for block in as_list(message.get("content"))]
    by_kind = {
        kind: "".join(as_text(block.get(kind)) for block in blocks if block.get("type") == kind)
        for kind in ("text", "thinking")
    }
    calls = tuple(_call(block, block.get("input")) for block in blocks if block.get("type") == "tool_use")
    stop = message.get("stop_reason")
    return Said(0, message.get("role"), by_kind["text"], by_kind["thinking"], calls, stop)
