"""What a reply of chat or completions says."""

from typing import Any

from welldone.check.reading.said import Piece, Said, ToolCall, as_arguments
from welldone.rules.choices import ARGUMENTS, Choice, as_list, as_object, as_text, call_kind
from welldone.rules.heard import Form, Heard


def choices(heard: Heard) -> list[Said]:
    """By their index."""
    if heard.form is Form.STREAM:
        found = [_streamed(choice) for choice in heard.choices]
    else:
        entries = enumerate(as_list(heard.reply.get("choices")))
        found = [_whole(as_object(entry), place, is_chat=heard.is_chat) for place, entry in entries]
    return sorted(found, key=lambda said: said.index)


def pieces(heard: Heard) -> list[Piece]:
    """One for each choice of each chunk."""
    return [
        Piece(part.message.number, choice.key, part.text, part.reasoning, has_more=any(part.texts))
        for choice in heard.choices
        for part in choice.parts
    ]


def usage(heard: Heard) -> object:
    """The last that was sent."""
    if heard.form is not Form.STREAM:
        return heard.reply.get("usage")
    told = [chunk.json["usage"] for chunk in heard.chunks if isinstance(chunk.json.get("usage"), dict)]
    return told[-1] if told else None


def _streamed(choice: Choice) -> Said:
    roles = [part.role for part in choice.parts if part.role]
    calls = tuple(ToolCall(call.id, call.name, as_arguments(call.arguments)) for call in choice.calls)
    return Said(
        choice.key,
        roles[0] if roles else None,
        choice.text,
        "".join(part.reasoning for part in choice.parts),
        calls,
        None if choice.finish is None else choice.finish.finish,
        tuple(part.choice["logprobs"] for part in choice.parts if part.choice.get("logprobs") is not None),
    )


def _whole(entry: dict[str, Any], place: int, *, is_chat: bool) -> Said:
    message = as_object(entry.get("message"))
    calls = [as_object(call) for call in as_list(message.get("tool_calls"))]
    index = entry.get("index")
    return Said(
        index if isinstance(index, int) else place,
        message.get("role"),
        as_text(message.get("content") if is_chat else entry.get("text")),
        as_text(message.get("reasoning_content")) or as_text(message.get("reasoning")),
        tuple(map(_call, calls)),
        entry.get("finish_reason"),
        () if entry.get("logprobs") is None else (entry["logprobs"],),
    )


def _call(call: dict[str, Any]) -> ToolCall:
    kind = call_kind(call)
    function = as_object(call.get(kind))
    arguments = as_arguments(function.get(ARGUMENTS[kind]))
    return ToolCall(as_text(call.get("id")), as_text(function.get("name")), arguments)
