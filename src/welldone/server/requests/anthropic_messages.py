"""Messages of Anthropic's API, converted to chat messages: content blocks become text, images, calls and results.

Consecutive messages of one role are one turn, as in Anthropic's API. Blocks without an equivalent in a chat are
rejected; details without a field of their own (a document's title, a failed tool) become text.
"""

from itertools import groupby, takewhile
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.gateway.errors import invalid_request
from welldone.protocol.events import Json
from welldone.schemas import anthropic as schema
from welldone.server.requests import fields

_BILLING_PREFIX = "x-anthropic-billing-header:"
"""First line of Claude Code's system prompt. It is not for the model, and changes with each request, which would defeat
every prompt cache."""
_NO_FILE_REASON = "is an uploaded file, which is not supported: send its text, or an image as base64."
_NO_PDF_REASON = "is a PDF or a URL, which is not supported: send its text."
_IMAGE_FOLLOWS_TEXT = "The result is a picture. It follows in the next message."
_IMAGE_OF_CALL_TEXT = "The picture that the tool gave for the call {}:"

_NamedMessage: TypeAlias = tuple[schema.AnthropicMessage, str]
"""A message and its parameter name."""


class ChatTurns(NamedTuple):
    """Chat messages, and the client's name for each."""

    items: list[Json]
    params: list[str]
    is_prefilled: bool
    """The last message is the assistant's, to be continued."""


def read_chat_turns(request: schema.AnthropicTokensRequest, *, allows_system: bool) -> ChatTurns:
    """Convert `system` and `messages`.

    `allows_system`: the chat may have system messages in the middle. The templates of many models reject that; for them
    such a message becomes a part of the user's turn.
    """
    messages = [(message, f"messages[{index}]") for index, message in enumerate(request.messages)]
    leading = list(takewhile(lambda message: isinstance(message, schema.AnthropicSystemMessage), request.messages))
    system_texts = [_system_text(request), *map(_system_message_text, leading)]
    messages = messages[len(leading) :]
    if not messages:
        raise invalid_request("Invalid 'messages': expected at least 1 message.", param="messages", code="empty_array")
    if not allows_system:
        messages = [(_system_as_user(message), param) for message, param in messages]
    turns = ChatTurns([], [], isinstance(messages[-1][0], schema.AnthropicAssistantMessage))
    if text := "\n".join(filter(None, system_texts)):
        _add_turn(turns, "system", {"role": "system", "content": text})
    for kind, group in groupby(messages, key=lambda message: type(message[0])):
        turn = list(group)
        param = turn[0][1]
        if kind is schema.AnthropicUserMessage:
            _add_turn(turns, param, *_user_messages(turn))
        elif kind is schema.AnthropicAssistantMessage:
            _add_turn(turns, param, _assistant_message(turn))
        else:
            text = "\n".join(_system_message_text(message) for message, _ in turn)
            _add_turn(turns, param, {"role": "system", "content": text})
    if not turns.is_prefilled:
        return turns
    last = turns.items[-1]
    if last.get("tool_calls"):
        message = "Invalid 'messages': the last message has tool calls without results."
        raise invalid_request(message, param="messages", code="invalid_value")
    if last["content"] or "reasoning_content" in last:
        return turns
    return ChatTurns(turns.items[:-1], turns.params[:-1], is_prefilled=False)  # an empty prefill is none


def _add_turn(turns: ChatTurns, param: str, *items: Json) -> None:
    turns.items.extend(items)
    turns.params.extend([param] * len(items))


def _system_text(request: schema.AnthropicTokensRequest) -> str:
    blocks = [request.system] if isinstance(request.system, str) else [block.text for block in request.system or ()]
    texts = [text.partition("\n")[2] if text.startswith(_BILLING_PREFIX) else text for text in blocks]
    return "\n".join(filter(None, texts))


def _joined_text(content: str | list[schema.OnlyTextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content if block.text)


def _system_message_text(message: schema.AnthropicMessage) -> str:
    assert isinstance(message, schema.AnthropicSystemMessage)
    return _joined_text(message.content)


def _system_as_user(message: schema.AnthropicMessage) -> schema.AnthropicMessage:
    if not isinstance(message, schema.AnthropicSystemMessage):
        return message
    return schema.AnthropicUserMessage(f"<system>\n{_joined_text(message.content)}\n</system>")


def _user_messages(turn: list[_NamedMessage]) -> list[Json]:
    """Return a message per tool result, then one with the rest and all images: tool messages have text only."""
    results: list[Json] = []
    images: list[Json] = []
    rest: list[Json] = []
    for message, param in turn:
        assert isinstance(message, schema.AnthropicUserMessage)
        content = [schema.TextBlock(message.content)] if isinstance(message.content, str) else message.content
        for index, block in enumerate(content):
            if isinstance(block, schema.ToolResultBlock):
                result, result_images = _tool_result(block, f"{param}.content[{index}]")
                results.append(result)
                images += result_images
            else:
                rest += _user_parts(block, f"{param}.content[{index}]")
    parts = images + rest
    if not results and not parts:
        param = f"{turn[0][1]}.content"
        raise invalid_request(f"Invalid '{param}': it is empty.", param=param, code="invalid_value")
    if not parts:
        return results
    combined: str | list[Json] = parts
    if all(part["type"] == "text" for part in parts):  # not every server accepts content parts
        combined = "\n".join(part["text"] for part in parts)
    return [*results, {"role": "user", "content": combined}]


def _tool_result(block: schema.ToolResultBlock, param: str) -> tuple[Json, list[Json]]:
    """Return the tool message, and the images of the result for the next user message."""
    parts: list[Json] = []
    if isinstance(block.content, str):
        parts = _text_parts(block.content)
    else:
        for index, inner in enumerate(block.content or ()):
            parts += _user_parts(inner, f"{param}.content[{index}]")
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    images = [part for part in parts if part["type"] != "text"]
    if images:
        text = text or _IMAGE_FOLLOWS_TEXT
        images.insert(0, {"type": "text", "text": _IMAGE_OF_CALL_TEXT.format(block.tool_use_id)})
    if block.is_error and "error" not in text.lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}, images


def _user_parts(block: schema.ResultBlock, param: str) -> list[Json]:
    match block:
        case schema.TextBlock():
            return _text_parts(block.text)
        case schema.ToolReferenceBlock():  # of a tool search: the model has all tools anyway
            return _text_parts(block.tool_name)
        case schema.ImageBlock():
            return [_image_part(block, param)]
        case schema.DocumentBlock():
            return _document_parts(block, param)
        case schema.SearchResultBlock():
            _check_no_citations(block, param)
            return _text_parts(block.title, block.source, _joined_text(block.content))


def _text_parts(*texts: str | None) -> list[Json]:
    text = "\n".join(filter(None, texts))
    return [{"type": "text", "text": text}] if text else []


def _image_part(block: schema.ImageBlock, param: str) -> Json:
    source = block.source
    if isinstance(source, schema.FileSource):
        raise fields.unsupported(f"{param}.source", _NO_FILE_REASON)
    url = source.url if isinstance(source, schema.UrlSource) else f"data:{source.media_type};base64,{source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document_parts(block: schema.DocumentBlock, param: str) -> list[Json]:
    _check_no_citations(block, param)
    source = block.source
    if isinstance(source, schema.TextSource):
        return _text_parts(block.title, block.context, source.data)
    if not isinstance(source, schema.ContentSource):
        raise fields.unsupported(
            f"{param}.source", _NO_FILE_REASON if isinstance(source, schema.FileSource) else _NO_PDF_REASON
        )
    parts = _text_parts(block.title, block.context)
    inner_blocks = [schema.TextBlock(source.content)] if isinstance(source.content, str) else source.content
    for index, inner in enumerate(inner_blocks):
        parts += _user_parts(inner, f"{param}.source.content[{index}]")
    return parts


def _check_no_citations(block: schema.DocumentBlock | schema.SearchResultBlock, param: str) -> None:
    """Reject citations: a chat cannot request them."""
    if block.citations is not None and block.citations.enabled:
        raise fields.unsupported(f"{param}.citations", "cannot be enabled: this model has no citations.")


def _assistant_message(turn: list[_NamedMessage]) -> Json:
    """Merge a turn into one message. Text blocks of one message are joined without a gap: the server split them."""
    texts, reasoning, calls = [], [], []
    for message, _ in turn:
        assert isinstance(message, schema.AnthropicAssistantMessage)
        text = message.content if isinstance(message.content, str) else ""
        for block in () if isinstance(message.content, str) else message.content:
            match block:
                case schema.TextBlock():
                    text += block.text
                case schema.ThinkingBlock():
                    reasoning.append(block.thinking)
                case schema.RedactedThinkingBlock():
                    pass
                case _:
                    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
                    calls.append({"id": block.id, "type": "function", "function": function})
        texts.append(text)
    out: Json = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if reasoning_text := "".join(reasoning):
        out["reasoning_content"] = reasoning_text
    if calls:
        out["tool_calls"] = calls
    return out
