"""What a reply of chat or completions says."""

from typing import Any

from welldone.check.reading.said import ParsedDelta, ParsedChoice, ParsedToolCall, arguments_text
from welldone.rules.choices import ARGUMENTS_MEMBER, ChoiceView, as_list, as_object, as_text, call_type
from welldone.rules.heard import ReplyKind, TraceView


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
