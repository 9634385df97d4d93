"""What a reply of /v1/messages says."""

from collections.abc import Iterator
from typing import Any

from welldone.check.reading.said import ParsedDelta, ParsedChoice, ParsedToolCall, arguments_text
from welldone.rules.choices import as_list, as_object, as_text
from welldone.rules.heard import ReplyKind, TraceView

_BLOCK_START, _BLOCK_DELTA = "content_block_start", "content_block_delta"
_MESSAGE_START, _MESSAGE_DELTA = "message_start", "message_delta"


def read_messages_choices(view: TraceView) -> list[ParsedChoice]:
    """There is one, if anything was said."""
    if view.reply_kind is not ReplyKind.STREAM:
        return [_buffered_message(view.reply_object)] if view.reply_object else []
    told = read_messages_deltas(view)
    ends = [as_object(event.get("delta")) for event in _events_of_type(view, _MESSAGE_DELTA)]
    if not told and not ends and not list(_events_of_type(view, _MESSAGE_START)):
        return []
    text, reasoning = "".join(piece.text for piece in told), "".join(piece.reasoning for piece in told)
    finish = next((end["stop_reason"] for end in reversed(ends) if end.get("stop_reason")), None)
    return [ParsedChoice(0, "assistant", text, reasoning, _streamed_tool_uses(view), finish)]


def read_messages_deltas(view: TraceView) -> list[ParsedDelta]:
    """One for each delta."""
    return [
        ParsedDelta(
            message.frame_number,
            text=as_text(delta.get("text")),
            reasoning=as_text(delta.get("thinking")),
            has_other=bool(delta.get("partial_json")),
        )
        for message in view.messages
        if message.json.get("type") == _BLOCK_DELTA
        for delta in (as_object(message.json.get("delta")),)
    ]


def read_messages_usage(view: TraceView) -> object:
    """What the beginning told, and what the end told anew."""
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object.get("usage")
    starts = (as_object(event.get("message")) for event in _events_of_type(view, _MESSAGE_START))
    told = [as_object(event.get("usage")) for event in (*starts, *_events_of_type(view, _MESSAGE_DELTA))]
    return {name: value for usage in told for name, value in usage.items()} if any(told) else None


def _events_of_type(view: TraceView, kind: str) -> Iterator[dict[str, Any]]:
    return (message.json for message in view.messages if message.json.get("type") == kind)


def _streamed_tool_uses(view: TraceView) -> tuple[ParsedToolCall, ...]:
    """By the index of their block."""
    arguments: dict[object, list[str]] = {}
    for event in _events_of_type(view, _BLOCK_DELTA):
        index = _block_key(event.get("index"))
        arguments.setdefault(index, []).append(as_text(as_object(event.get("delta")).get("partial_json")))
    blocks = [
        (_block_key(event.get("index")), as_object(event.get("content_block")))
        for event in _events_of_type(view, _BLOCK_START)
    ]
    return tuple(
        _tool_use_call(block, "".join(arguments.get(index, ())) or block.get("input"))
        for index, block in blocks
        if block.get("type") == "tool_use"
    )


def _block_key(index: object) -> object:
    """What a list or an object cannot be."""
    return index if isinstance(index, int | str) else None


def _tool_use_call(block: dict[str, Any], arguments: object) -> ParsedToolCall:
    return ParsedToolCall(as_text(block.get("id")), as_text(block.get("name")), arguments_text(arguments))


def _buffered_message(message: dict[str, Any]) -> ParsedChoice:
    blocks = [as_object(block) for block in as_list(message.get("content"))]
    by_kind = {
        kind: "".join(as_text(block.get(kind)) for block in blocks if block.get("type") == kind)
        for kind in ("text", "thinking")
    }
    calls = tuple(_tool_use_call(block, block.get("input")) for block in blocks if block.get("type") == "tool_use")
    stop = message.get("stop_reason")
    return ParsedChoice(0, message.get("role"), by_kind["text"], by_kind["thinking"], calls, stop)
