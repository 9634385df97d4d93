"""Parsers of replies in each dialect: text, reasoning, tool calls, finish reason and usage, as a client reads them.

They are tolerant: a field of the wrong type is read as if it were absent.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from welldone.rules.view.choices import ARGUMENTS_MEMBER, ChoiceView, as_list, as_object, as_text, call_type
from welldone.rules.view.view import ReplyKind, TraceView


class ParsedToolCall(msgspec.Struct, frozen=True):
    """A complete tool call."""

    id: str
    name: str
    arguments: str
    """JSON text, also where the server sent an object."""


class ParsedChoice(msgspec.Struct, frozen=True):
    """One choice of a reply."""

    index: int
    role: object
    text: str
    reasoning: str
    tool_calls: tuple[ParsedToolCall, ...]
    finish_reason: object
    """The dialect's own finish or stop reason."""
    logprobs: tuple[Any, ...] = ()
    """Every `logprobs` that is not null, one per chunk."""


class ParsedDelta(msgspec.Struct, frozen=True):
    """Content that one frame adds to a choice."""

    frame: int
    """Frame number, from 1."""
    index: int = 0
    text: str = ""
    reasoning: str = ""
    has_other: bool = False
    """Whether it adds something else, such as arguments of a tool call."""

    @property
    def is_generated(self) -> bool:
        """Whether the model generated tokens for it."""
        return bool(self.text or self.reasoning or self.has_other)


def arguments_text(value: object) -> str:
    """Arguments as JSON text: some servers send an object."""
    return value if isinstance(value, str) else json.dumps(value)


# ---- chat and completions


def read_chat_choices(view: TraceView) -> list[ParsedChoice]:
    """Choices by index."""
    if view.reply_kind is ReplyKind.STREAM:
        choices = [_streamed_chat_choice(choice) for choice in view.choices]
    else:
        entries = enumerate(as_list(view.reply_object.get("choices")))
        choices = [_buffered_chat_choice(as_object(entry), number, is_chat=view.is_chat) for number, entry in entries]
    return sorted(choices, key=lambda choice: choice.index)


def read_chat_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each choice of each chunk."""
    return [
        ParsedDelta(part.message.frame_number, choice.index, part.text, part.reasoning, has_other=any(part.all_text))
        for choice in view.choices
        for part in choice.deltas
    ]


def read_chat_usage(view: TraceView) -> object:
    """The last usage."""
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object.get("usage")
    usages = [chunk.json["usage"] for chunk in view.chunks if isinstance(chunk.json.get("usage"), dict)]
    return usages[-1] if usages else None


def _streamed_chat_choice(choice: ChoiceView) -> ParsedChoice:
    roles = [part.role for part in choice.deltas if part.role]
    calls = tuple(ParsedToolCall(call.id, call.name, arguments_text(call.arguments)) for call in choice.tool_calls)
    return ParsedChoice(
        choice.index,
        roles[0] if roles else None,
        choice.text,
        "".join(part.reasoning for part in choice.deltas),
        calls,
        None if choice.finish_delta is None else choice.finish_delta.finish_reason,
        tuple(part.choice["logprobs"] for part in choice.deltas if part.choice.get("logprobs") is not None),
    )


def _buffered_chat_choice(entry: dict[str, Any], position: int, *, is_chat: bool) -> ParsedChoice:
    message = as_object(entry.get("message"))
    calls = [as_object(call) for call in as_list(message.get("tool_calls"))]
    index = entry.get("index")
    return ParsedChoice(
        index if isinstance(index, int) else position,
        message.get("role"),
        as_text(message.get("content") if is_chat else entry.get("text")),
        as_text(message.get("reasoning_content")) or as_text(message.get("reasoning")),
        tuple(map(_chat_tool_call, calls)),
        entry.get("finish_reason"),
        () if entry.get("logprobs") is None else (entry["logprobs"],),
    )


def _chat_tool_call(call: dict[str, Any]) -> ParsedToolCall:
    kind = call_type(call)
    function = as_object(call.get(kind))
    arguments = arguments_text(function.get(ARGUMENTS_MEMBER[kind]))
    return ParsedToolCall(as_text(call.get("id")), as_text(function.get("name")), arguments)


# ---- /v1/messages


_BLOCK_START, _BLOCK_DELTA = "content_block_start", "content_block_delta"
_MESSAGE_START, _MESSAGE_DELTA = "message_start", "message_delta"


def read_messages_choices(view: TraceView) -> list[ParsedChoice]:
    """A single choice; none if the reply has no message."""
    if view.reply_kind is not ReplyKind.STREAM:
        return [_buffered_message(view.reply_object)] if view.reply_object else []
    deltas = read_messages_deltas(view)
    ends = [as_object(event.get("delta")) for event in _events_of_type(view, _MESSAGE_DELTA)]
    if not deltas and not ends and not list(_events_of_type(view, _MESSAGE_START)):
        return []
    text, reasoning = "".join(delta.text for delta in deltas), "".join(delta.reasoning for delta in deltas)
    finish = next((end["stop_reason"] for end in reversed(ends) if end.get("stop_reason")), None)
    return [ParsedChoice(0, "assistant", text, reasoning, _streamed_tool_uses(view), finish)]


def read_messages_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each content_block_delta."""
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
    """Usage of message_start, updated by the usage of message_delta."""
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object.get("usage")
    starts = (as_object(event.get("message")) for event in _events_of_type(view, _MESSAGE_START))
    usages = [as_object(event.get("usage")) for event in (*starts, *_events_of_type(view, _MESSAGE_DELTA))]
    return {name: value for usage in usages for name, value in usage.items()} if any(usages) else None


def _events_of_type(view: TraceView, kind: str) -> Iterator[dict[str, Any]]:
    return (message.json for message in view.messages if message.json.get("type") == kind)


def _streamed_tool_uses(view: TraceView) -> tuple[ParsedToolCall, ...]:
    """Tool calls in the order of their blocks."""
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
    """The index if it is hashable."""
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


# ---- /v1/responses


_TEXT_DELTA = "response.output_text.delta"
_REASONING_DELTAS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_OTHER_DELTAS = (
    *("response.refusal.delta", "response.function_call_arguments.delta"),
    "response.custom_tool_call_input.delta",
)
_ARGUMENT_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field with the arguments, by item type."""
_ITEM_DONE = "response.output_item.done"
_TERMINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def read_responses_choices(view: TraceView) -> list[ParsedChoice]:
    """A single choice; none if the reply has no Response."""
    if view.reply_kind is not ReplyKind.STREAM:
        response = view.reply_object
        return [_buffered_response(response, as_list(response.get("output")))] if response else []
    deltas = read_responses_deltas(view)
    response = _terminal_response(view)
    if not deltas and not response:
        return []
    text, reasoning = "".join(delta.text for delta in deltas), "".join(delta.reasoning for delta in deltas)
    # Tool calls are read from output_item.done, as Codex does.
    items = [message.json.get("item") for message in view.messages if message.json.get("type") == _ITEM_DONE]
    return [ParsedChoice(0, "assistant", text, reasoning, _item_tool_calls(items), _response_finish_reason(response))]


def read_responses_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each delta event."""
    return [
        ParsedDelta(
            message.frame_number,
            text=as_text(message.json.get("delta")) if kind == _TEXT_DELTA else "",
            reasoning=as_text(message.json.get("delta")) if kind in _REASONING_DELTAS else "",
            has_other=kind in _OTHER_DELTAS,
        )
        for message in view.messages
        if (kind := message.json.get("type")) == _TEXT_DELTA or kind in _REASONING_DELTAS or kind in _OTHER_DELTAS
    ]


def read_responses_usage(view: TraceView) -> object:
    """Usage of the final Response."""
    return (_terminal_response(view) if view.reply_kind is ReplyKind.STREAM else view.reply_object).get("usage")


def _terminal_response(view: TraceView) -> dict[str, Any]:
    """The Response of the terminal event, or an empty object."""
    ends = [message.json for message in view.messages if message.json.get("type") in _TERMINAL_EVENTS]
    return as_object(ends[-1].get("response")) if ends else {}


def _buffered_response(response: dict[str, Any], output: list[Any]) -> ParsedChoice:
    items = [as_object(item) for item in output]
    text = "".join(_item_texts(items, "message", ("content",), "output_text"))
    reasoning = "".join(_item_texts(items, "reasoning", ("summary", "content"), None))
    return ParsedChoice(0, "assistant", text, reasoning, _item_tool_calls(items), _response_finish_reason(response))


def _item_texts(
    items: list[dict[str, Any]], kind: str, fields: tuple[str, ...], part_kind: str | None
) -> Iterator[str]:
    for item in items:
        parts = [as_object(part) for field in fields for part in as_list(item.get(field)) if item.get("type") == kind]
        yield from (as_text(part.get("text")) for part in parts if part_kind in (None, part.get("type")))


def _item_tool_calls(items: list[Any]) -> tuple[ParsedToolCall, ...]:
    calls = [item for item in map(as_object, items) if item.get("type") in _ARGUMENT_FIELDS]
    return tuple(
        ParsedToolCall(
            as_text(call.get("call_id")),
            as_text(call.get("name")),
            arguments_text(call.get(_ARGUMENT_FIELDS[call["type"]])),
        )
        for call in calls
    )


def _response_finish_reason(response: dict[str, Any]) -> object:
    """The reason of an incomplete Response, else its status."""
    return as_object(response.get("incomplete_details")).get("reason") or response.get("status")


READ_CHOICES: Mapping[str, Callable[[TraceView], list[ParsedChoice]]] = {
    "chat": read_chat_choices,
    "completions": read_chat_choices,
    "responses": read_responses_choices,
    "messages": read_messages_choices,
}
"""Parsers of choices, by endpoint."""
READ_DELTAS: Mapping[str, Callable[[TraceView], list[ParsedDelta]]] = {
    "chat": read_chat_deltas,
    "completions": read_chat_deltas,
    "responses": read_responses_deltas,
    "messages": read_messages_deltas,
}
"""Parsers of stream deltas in order of arrival, by endpoint."""
READ_USAGE: Mapping[str, Callable[[TraceView], object]] = {
    "chat": read_chat_usage,
    "completions": read_chat_usage,
    "responses": read_responses_usage,
    "messages": read_messages_usage,
}
"""Parsers of the last usage, with the dialect's field names, by endpoint."""
