"""Parsers of replies in each dialect: text, reasoning, tool calls, finish reason and usage, as a client reads them.

They are tolerant: a field of the wrong type is read as if it were absent.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from welldone.rules.view.anthropic import BLOCK_DELTA, MESSAGE_DELTA, MESSAGE_START, content_blocks
from welldone.rules.view.choices import ARGUMENTS_MEMBER, ChoiceView, as_list, as_object, as_text, call_type
from welldone.rules.view.responses import ITEM_DONE, TEXT_EVENTS, TOOL_INPUT_EVENTS
from welldone.rules.view.view import ReplyKind, TraceView, has_usage


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


class ReplyReader(msgspec.Struct, frozen=True):
    """Parsers of one endpoint."""

    choices: Callable[[TraceView], list[ParsedChoice]]
    deltas: Callable[[TraceView], list[ParsedDelta]]
    """Deltas of a stream, in order of arrival."""
    usage: Callable[[TraceView], object]
    """The last usage, with the dialect's field names."""


def _tool_call(call_id: object, name: object, arguments: object) -> ParsedToolCall:
    """Some servers send the arguments as an object."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ParsedToolCall(as_text(call_id), as_text(name), text)


def _streamed_choice(deltas: list[ParsedDelta], calls: tuple[ParsedToolCall, ...], finish: object) -> ParsedChoice:
    text, reasoning = "".join(delta.text for delta in deltas), "".join(delta.reasoning for delta in deltas)
    return ParsedChoice(0, "assistant", text, reasoning, calls, finish)


# ---- chat and completions


def _chat_choices(view: TraceView) -> list[ParsedChoice]:
    """Choices by index."""
    if view.reply_kind is ReplyKind.STREAM:
        choices = [_streamed_chat_choice(choice) for choice in view.choices]
    else:
        entries = enumerate(as_list(view.reply_object.get("choices")))
        choices = [_buffered_chat_choice(as_object(entry), number, is_chat=view.is_chat) for number, entry in entries]
    return sorted(choices, key=lambda choice: choice.index)


def _chat_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each choice of each chunk."""
    return [
        ParsedDelta(delta.frame_number, choice.index, delta.text, delta.reasoning, has_other=any(delta.all_text))
        for choice in view.choices
        for delta in choice.deltas
    ]


def _chat_usage(view: TraceView) -> object:
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object.get("usage")
    return next((chunk.json["usage"] for chunk in reversed(view.chunks) if has_usage(chunk)), None)


def _streamed_chat_choice(choice: ChoiceView) -> ParsedChoice:
    return ParsedChoice(
        choice.index,
        next((delta.role for delta in choice.deltas if delta.role), None),
        choice.text,
        "".join(delta.reasoning for delta in choice.deltas),
        tuple(_tool_call(tool_call.id, tool_call.name, tool_call.arguments) for tool_call in choice.tool_calls),
        None if choice.finish_delta is None else choice.finish_delta.finish_reason,
        tuple(delta.choice["logprobs"] for delta in choice.deltas if delta.choice.get("logprobs") is not None),
    )


def _buffered_chat_choice(entry: dict[str, Any], position: int, *, is_chat: bool) -> ParsedChoice:
    message = as_object(entry.get("message"))
    index = entry.get("index")
    return ParsedChoice(
        index if isinstance(index, int) else position,
        message.get("role"),
        as_text(message.get("content") if is_chat else entry.get("text")),
        as_text(message.get("reasoning_content")) or as_text(message.get("reasoning")),
        tuple(_chat_tool_call(as_object(tool_call)) for tool_call in as_list(message.get("tool_calls"))),
        entry.get("finish_reason"),
        () if entry.get("logprobs") is None else (entry["logprobs"],),
    )


def _chat_tool_call(tool_call: dict[str, Any]) -> ParsedToolCall:
    tool_type = call_type(tool_call)
    function = as_object(tool_call.get(tool_type))
    return _tool_call(tool_call.get("id"), function.get("name"), function.get(ARGUMENTS_MEMBER[tool_type]))


# ---- /v1/messages


def _messages_choices(view: TraceView) -> list[ParsedChoice]:
    """A single choice; none if the reply has no message."""
    if view.reply_kind is ReplyKind.STREAM:
        stream = view.anthropic_stream
        if not any(event.type in (MESSAGE_START, BLOCK_DELTA, MESSAGE_DELTA) for event in stream.all_events):
            return []
        blocks = [
            block.start_block | ({"input": block.input_json} if block.input_json else {}) for block in stream.blocks
        ]
        return [_streamed_choice(_messages_deltas(view), _block_tool_calls(blocks), stream.stop_reason or None)]
    message, blocks = view.reply_object, content_blocks(view.reply_object)
    text, thinking = (
        "".join(as_text(block.get(block_type)) for block in blocks if block.get("type") == block_type)
        for block_type in ("text", "thinking")
    )
    choice = ParsedChoice(0, message.get("role"), text, thinking, _block_tool_calls(blocks), message.get("stop_reason"))
    return [choice] if message else []


def _messages_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each content_block_delta."""
    return [
        ParsedDelta(
            event.frame_number,
            text=as_text(event.delta.get("text")),
            reasoning=as_text(event.delta.get("thinking")),
            has_other=bool(event.delta.get("partial_json")),
        )
        for event in view.anthropic_stream.all_events
        if event.type == BLOCK_DELTA
    ]


def _messages_usage(view: TraceView) -> object:
    """Usage of message_start, updated by the usage of message_delta."""
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object.get("usage")
    stream = view.anthropic_stream
    starts = [as_object(event.json.get("message")) for event in stream.of_type(MESSAGE_START)]
    usages = [
        as_object(holder.get("usage")) for holder in (*starts, *(event.json for event in stream.of_type(MESSAGE_DELTA)))
    ]
    return {name: value for usage in usages for name, value in usage.items()} or None


def _block_tool_calls(blocks: list[dict[str, Any]]) -> tuple[ParsedToolCall, ...]:
    calls = [block for block in blocks if block.get("type") == "tool_use"]
    return tuple(_tool_call(block.get("id"), block.get("name"), block.get("input")) for block in calls)


# ---- /v1/responses


_DELTA_KINDS = {f"{prefix}.delta": delta_kind for prefix, delta_kind in (TEXT_EVENTS | TOOL_INPUT_EVENTS).items()}
_ARGUMENT_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The field with the arguments, by item type."""


def _responses_choices(view: TraceView) -> list[ParsedChoice]:
    """A single choice; none if the reply has no Response."""
    response = _final_response(view)
    # The reason of an incomplete Response, else its status.
    finish = as_object(response.get("incomplete_details")).get("reason") or response.get("status")
    if view.reply_kind is ReplyKind.STREAM:
        deltas = _responses_deltas(view)
        # Tool calls are read from output_item.done, as Codex does.
        items = [event.item for event in view.responses_stream.events if event.type == ITEM_DONE]
        return [_streamed_choice(deltas, _item_tool_calls(items), finish)] if deltas or response else []
    items = [as_object(item) for item in as_list(response.get("output"))]
    text, reasoning = _item_text(items, "message"), _item_text(items, "reasoning")
    return [ParsedChoice(0, "assistant", text, reasoning, _item_tool_calls(items), finish)] if response else []


def _responses_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each delta event."""
    deltas = []
    for event in view.responses_stream.events:
        if delta_kind := _DELTA_KINDS.get(event.type):
            text, is_reasoning = as_text(event.json.get("delta")), delta_kind in ("reasoning_text", "summary_text")
            is_text = delta_kind == "output_text"
            texts = text if is_text else "", text if is_reasoning else ""
            deltas.append(ParsedDelta(event.frame_number, 0, *texts, has_other=not is_text and not is_reasoning))
    return deltas


def _final_response(view: TraceView) -> dict[str, Any]:
    """The Response of the terminal event, or the buffered one; empty if there is none."""
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object
    end = view.responses_stream.end_event
    return {} if end is None else end.response


def _item_text(items: list[dict[str, Any]], item_type: str) -> str:
    """The text of all items of a kind. Reasoning is text of any type, in a summary or in full."""
    lists = [item.get(field) for item in items if item.get("type") == item_type for field in ("summary", "content")]
    parts = (as_object(content_part) for value in lists for content_part in as_list(value))
    texts = [text_part for text_part in parts if item_type == "reasoning" or text_part.get("type") == "output_text"]
    return "".join(as_text(text_part.get("text")) for text_part in texts)


def _item_tool_calls(items: list[dict[str, Any]]) -> tuple[ParsedToolCall, ...]:
    return tuple(
        _tool_call(item.get("call_id"), item.get("name"), item.get(field))
        for item in items
        if (field := _ARGUMENT_FIELDS.get(as_text(item.get("type"))))
    )


# ---- Gemini


def _gemini_choices(view: TraceView) -> list[ParsedChoice]:
    """Candidates by index."""
    choices = []
    for index, group in sorted(view.gemini_reply.by_index.items()):
        parts = [content_part for candidate in group for content_part in candidate.parts]
        texts = [(bool(content_part.get("thought")), as_text(content_part.get("text"))) for content_part in parts]
        text, thoughts = ("".join(piece for is_thought, piece in texts if is_thought is flag) for flag in (False, True))
        calls = tuple(
            _tool_call(function_call.get("id"), function_call.get("name"), function_call.get("args") or {})
            for candidate in group
            for function_call in candidate.calls
        )
        role = next((candidate.content["role"] for candidate in group if candidate.content.get("role")), None)
        reasons = (candidate.finish_reason for candidate in reversed(group))
        finish = next((reason for reason in reasons if reason is not None), None)
        choices.append(ParsedChoice(index, role, text, thoughts, calls, finish))
    return choices


def _gemini_deltas(view: TraceView) -> list[ParsedDelta]:
    """One delta for each part."""
    deltas = []
    for candidate in view.gemini_reply.candidates:
        if (location := candidate.location) is None:
            continue
        for content_part in candidate.parts:
            text, is_thought = as_text(content_part.get("text")), bool(content_part.get("thought"))
            texts = ("", text) if is_thought else (text, "")
            has_call = content_part.get("functionCall") is not None
            deltas.append(ParsedDelta(location.frame_number, candidate.index, *texts, has_other=has_call))
    return deltas


def _gemini_usage(view: TraceView) -> object:
    return next((element.usage for element in reversed(view.gemini_reply.elements) if element.usage), None)


_CHAT_READER = ReplyReader(_chat_choices, _chat_deltas, _chat_usage)
READERS: Mapping[str, ReplyReader] = {
    "chat": _CHAT_READER,
    "completions": _CHAT_READER,
    "responses": ReplyReader(_responses_choices, _responses_deltas, lambda view: _final_response(view).get("usage")),
    "messages": ReplyReader(_messages_choices, _messages_deltas, _messages_usage),
    "gemini": ReplyReader(_gemini_choices, _gemini_deltas, _gemini_usage),
}
