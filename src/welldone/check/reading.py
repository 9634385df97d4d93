"""What a reply says, in each dialect: text, thoughts, calls and the reason of its end, as a client would read them."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from welldone.rules.view.choices import ARGUMENTS_MEMBER, ChoiceView, as_list, as_object, as_text, call_type
from welldone.rules.view.view import ReplyKind, TraceView

# What every dialect says, put together.


class ParsedToolCall(msgspec.Struct, frozen=True):
    """A call, put together."""

    id: str
    name: str
    arguments: str
    """As text, whatever came."""


class ParsedChoice(msgspec.Struct, frozen=True):
    """One choice of a reply."""

    index: int
    role: object
    text: str
    reasoning: str
    tool_calls: tuple[ParsedToolCall, ...]
    finish_reason: object
    """Why it ended, in the dialect's own word."""
    logprobs: tuple[Any, ...] = ()
    """The `logprobs` that are not null, one for each chunk that had some."""


class ParsedDelta(msgspec.Struct, frozen=True):
    """What one frame adds to a choice."""

    frame: int
    """Its number, from 1."""
    index: int = 0
    text: str = ""
    reasoning: str = ""
    has_other: bool = False
    """Whether it adds something else, such as a piece of a call."""

    @property
    def is_generated(self) -> bool:
        """Whether it took a token to make."""
        return bool(self.text or self.reasoning or self.has_other)


def arguments_text(value: object) -> str:
    """Arguments as text: some servers send the object itself."""
    return value if isinstance(value, str) else json.dumps(value)


# What a reply of chat or completions says.


def read_chat_choices(view: TraceView) -> list[ParsedChoice]:
    """By their index."""
    if view.reply_kind is ReplyKind.STREAM:
        found = [_streamed_chat_choice(choice) for choice in view.choices]
    else:
        entries = enumerate(as_list(view.reply_object.get("choices")))
        found = [_buffered_chat_choice(as_object(entry), place, is_chat=view.is_chat) for place, entry in entries]
    return sorted(found, key=lambda said: said.index)


def read_chat_deltas(view: TraceView) -> list[ParsedDelta]:
    """One for each choice of each chunk."""
    return [
        ParsedDelta(part.message.frame_number, choice.index, part.text, part.reasoning, has_other=any(part.all_text))
        for choice in view.choices
        for part in choice.deltas
    ]


def read_chat_usage(view: TraceView) -> object:
    """The last that was sent."""
    if view.reply_kind is not ReplyKind.STREAM:
        return view.reply_object.get("usage")
    told = [chunk.json["usage"] for chunk in view.chunks if isinstance(chunk.json.get("usage"), dict)]
    return told[-1] if told else None


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


# What a reply of /v1/messages says.


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


# What a reply of /v1/responses says.


_TEXT_DELTA = "response.output_text.delta"
_REASONING_DELTAS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_OTHER_DELTAS = (
    *("response.refusal.delta", "response.function_call_arguments.delta"),
    "response.custom_tool_call_input.delta",
)
_ARGUMENT_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls, and the member that has their arguments."""
_ITEM_DONE = "response.output_item.done"
_TERMINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


def read_responses_choices(view: TraceView) -> list[ParsedChoice]:
    """There is one, if anything was said."""
    if view.reply_kind is not ReplyKind.STREAM:
        response = view.reply_object
        return [_buffered_response(response, as_list(response.get("output")))] if response else []
    told = read_responses_deltas(view)
    response = _terminal_response(view)
    if not told and not response:
        return []
    text, reasoning = "".join(piece.text for piece in told), "".join(piece.reasoning for piece in told)
    return [
        ParsedChoice(
            0, "assistant", text, reasoning, _item_tool_calls(_done_items(view)), _response_finish_reason(response)
        )
    ]


def read_responses_deltas(view: TraceView) -> list[ParsedDelta]:
    """One for each delta."""
    return [
        ParsedDelta(
            message.frame_number,
            text=_delta_text(message.json) if kind == _TEXT_DELTA else "",
            reasoning=_delta_text(message.json) if kind in _REASONING_DELTAS else "",
            has_other=kind in _OTHER_DELTAS,
        )
        for message in view.messages
        if (kind := message.json.get("type")) == _TEXT_DELTA or kind in _REASONING_DELTAS or kind in _OTHER_DELTAS
    ]


def read_responses_usage(view: TraceView) -> object:
    """As the whole Response has it."""
    return (_terminal_response(view) if view.reply_kind is ReplyKind.STREAM else view.reply_object).get("usage")


def _delta_text(event: dict[str, Any]) -> str:
    return as_text(event.get("delta"))


def _terminal_response(view: TraceView) -> dict[str, Any]:
    """The Response that ended the stream; an empty one where none did."""
    ends = [message.json for message in view.messages if message.json.get("type") in _TERMINAL_EVENTS]
    return as_object(ends[-1].get("response")) if ends else {}


def _done_items(view: TraceView) -> list[Any]:
    """The items that are whole: as Codex reads them."""
    return [message.json.get("item") for message in view.messages if message.json.get("type") == _ITEM_DONE]


def _buffered_response(response: dict[str, Any], output: list[Any]) -> ParsedChoice:
    items = [as_object(item) for item in output]
    text = "".join(_item_texts(items, "message", ("content",), "output_text"))
    reasoning = "".join(_item_texts(items, "reasoning", ("summary", "content"), None))
    return ParsedChoice(0, "assistant", text, reasoning, _item_tool_calls(items), _response_finish_reason(response))


def _item_texts(
    items: list[dict[str, Any]], kind: str, fields: tuple[str, ...], part_kind: str | None
) -> Iterator[str]:
    for item in items:
        parts = [as_object(part) for place in fields for part in as_list(item.get(place)) if item.get("type") == kind]
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
    """Why it ended: the reason where it is incomplete, else its status."""
    return as_object(response.get("incomplete_details")).get("reason") or response.get("status")


READ_CHOICES: Mapping[str, Callable[[TraceView], list[ParsedChoice]]] = {
    "chat": read_chat_choices,
    "completions": read_chat_choices,
    "responses": read_responses_choices,
    "messages": read_messages_choices,
}
"""By endpoint: the choices of a reply, by their index."""
READ_DELTAS: Mapping[str, Callable[[TraceView], list[ParsedDelta]]] = {
    "chat": read_chat_deltas,
    "completions": read_chat_deltas,
    "responses": read_responses_deltas,
    "messages": read_messages_deltas,
}
"""By endpoint: what the frames of a stream say of its choices, in the order in which they came."""
READ_USAGE: Mapping[str, Callable[[TraceView], object]] = {
    "chat": read_chat_usage,
    "completions": read_chat_usage,
    "responses": read_responses_usage,
    "messages": read_messages_usage,
}
"""By endpoint: the last usage that was sent, in the dialect's own names."""
