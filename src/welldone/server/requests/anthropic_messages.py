"""Messages of Anthropic's API, converted to chat messages: content blocks become text, images, calls and results.

Consecutive messages of one role are one turn, as in Anthropic's API. Blocks without an equivalent in a chat are
rejected; details without a field of their own (a document's title, a failed tool) become text.
"""

from itertools import groupby, takewhile
from typing import NamedTuple

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields

MESSAGES_LIMIT = 8_192
"""Anthropic's limit is 100,000. Reading one blocks the event loop for 4 us."""

ROLES = ("user", "assistant", "system")
_IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_USER_BLOCK_TYPES = ("text", "image", "document", "search_result")
_RESULT_BLOCK_TYPES = (*_USER_BLOCK_TYPES, "tool_reference")
_BILLING_PREFIX = "x-anthropic-billing-header:"
"""First line of Claude Code's system prompt. It is not for the model, and changes with each request, which would defeat
every prompt cache."""
_NO_FILE_REASON = "is an uploaded file, which is not supported: send its text, or an image as base64."
_NO_PDF_REASON = "is a PDF or a URL, which is not supported: send its text."
_IMAGE_FOLLOWS_TEXT = "The result is a picture. It follows in the next message."
_IMAGE_OF_CALL_TEXT = "The picture that the tool gave for the call {}:"


class RequestContentBlock(NamedTuple):
    """A content block and its parameter name."""

    value: Json
    param: str


class ChatTurns(NamedTuple):
    """Chat messages, and the client's name for each."""

    items: list[Json]
    params: list[str]
    is_prefilled: bool
    """The last message is the assistant's, to be continued."""


class _AnthropicMessage(NamedTuple):
    role: str
    param: str
    blocks: list[RequestContentBlock]


def read_chat_turns(body: Json, *, allows_system: bool) -> ChatTurns:
    """Convert `system` and `messages`.

    `allows_system`: the chat may have system messages in the middle. The templates of many models reject that; for them
    such a message becomes a part of the user's turn.
    """
    messages = _read_messages(body)
    leading = list(takewhile(lambda message: message.role == "system", messages))
    system_texts = [_system_text(body), *map(_joined_text, leading)]
    messages = messages[len(leading) :]
    if not messages:
        raise invalid_request("Invalid 'messages': expected at least 1 message.", param="messages", code="empty_array")
    if not allows_system:
        messages = [_system_as_user(message) if message.role == "system" else message for message in messages]
    turns = ChatTurns([], [], messages[-1].role == "assistant")
    if text := "\n".join(filter(None, system_texts)):
        _add_turn(turns, "system", {"role": "system", "content": text})
    for role, group in groupby(messages, key=lambda message: message.role):
        turn = list(group)
        param = turn[0].param
        if role == "user":
            _add_turn(turns, param, *_user_messages([block for message in turn for block in message.blocks], param))
        elif role == "assistant":
            _add_turn(turns, param, _assistant_message(turn))
        else:
            _add_turn(turns, param, {"role": "system", "content": "\n".join(map(_joined_text, turn))})
    if not turns.is_prefilled:
        return turns
    last = turns.items[-1]
    if last.get("tool_calls"):
        message = "Invalid 'messages': the last message has tool calls without results."
        raise invalid_request(message, param="messages", code="invalid_value")
    if last["content"] or "reasoning_content" in last:
        return turns
    return ChatTurns(turns.items[:-1], turns.params[:-1], is_prefilled=False)  # an empty prefill is none


def _read_messages(body: Json) -> list[_AnthropicMessage]:
    if body.get("messages") is None:
        raise fields.missing("messages")
    messages = []
    for index, value in enumerate(fields.array(body, "messages", MESSAGES_LIMIT) or ()):
        param = f"messages[{index}]"
        if not isinstance(value, dict):
            raise fields.wrong_type(param, "an object", value)
        role = fields.choice(value, "role", ROLES, f"{param}.")
        if role is None:
            raise fields.missing(f"{param}.role")
        messages.append(_AnthropicMessage(role, param, _read_blocks(value, "content", param)))
    return messages


def _read_blocks(value: Json, name: str, path: str) -> list[RequestContentBlock]:
    """Read a string or an array of blocks; returns a list."""
    content, param = value.get(name), f"{path}.{name}" if path else name
    match content:
        case None:
            raise fields.missing(param)
        case str():
            return [RequestContentBlock({"type": "text", "text": content}, param)]
        case list():
            return [_read_block(item, f"{param}[{index}]") for index, item in enumerate(content)]
        case _:
            raise fields.wrong_type(param, "a string or an array of objects", content)


def _read_block(item: object, param: str) -> RequestContentBlock:
    if not isinstance(item, dict):
        raise fields.wrong_type(param, "an object", item)
    if not isinstance(item.get("type"), str):
        raise fields.missing(f"{param}.type")
    return RequestContentBlock(item, param)


def _add_turn(turns: ChatTurns, param: str, *items: Json) -> None:
    turns.items.extend(items)
    turns.params.extend([param] * len(items))


def _system_text(body: Json) -> str:
    if body.get("system") is None:
        return ""
    texts = [_plain_text(block) for block in _read_blocks(body, "system", "")]
    texts = [text.partition("\n")[2] if text.startswith(_BILLING_PREFIX) else text for text in texts]
    return "\n".join(filter(None, texts))


def _joined_text(message: _AnthropicMessage) -> str:
    return "\n".join(filter(None, map(_plain_text, message.blocks)))


def _system_as_user(message: _AnthropicMessage) -> _AnthropicMessage:
    text = f"<system>\n{_joined_text(message)}\n</system>"
    return _AnthropicMessage(
        "user", message.param, [RequestContentBlock({"type": "text", "text": text}, f"{message.param}.content")]
    )


def _plain_text(block: RequestContentBlock) -> str:
    if block.value["type"] != "text":
        raise _unknown_block_type(block, ("text",))
    return _required_text(block, "text")


def _user_messages(blocks: list[RequestContentBlock], param: str) -> list[Json]:
    """Return a message per tool result, then one with the rest and all images: tool messages have text only."""
    results: list[Json] = []
    images: list[Json] = []
    rest: list[Json] = []
    for block in blocks:
        if block.value["type"] == "tool_result":
            result, result_images = _tool_result(block)
            results.append(result)
            images += result_images
        else:
            rest += _user_parts(block, (*_USER_BLOCK_TYPES, "tool_result"))
    parts = images + rest
    if not results and not parts:
        raise invalid_request(
            f"Invalid '{param}.content': it is empty.", param=f"{param}.content", code="invalid_value"
        )
    if not parts:
        return results
    content: str | list[Json] = parts
    if all(part["type"] == "text" for part in parts):  # not every server accepts content parts
        content = "\n".join(part["text"] for part in parts)
    return [*results, {"role": "user", "content": content}]


def _tool_result(block: RequestContentBlock) -> tuple[Json, list[Json]]:
    """Return the tool message, and the images of the result for the next user message."""
    value, param = block
    parts: list[Json] = []
    if value.get("content") is not None:
        for inner in _read_blocks(value, "content", param):
            parts += _user_parts(inner, _RESULT_BLOCK_TYPES)
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    images = [part for part in parts if part["type"] != "text"]
    call_id = _required_text(block, "tool_use_id")
    if images:
        text = text or _IMAGE_FOLLOWS_TEXT
        images.insert(0, {"type": "text", "text": _IMAGE_OF_CALL_TEXT.format(call_id)})
    if fields.boolean(value, "is_error", f"{param}.") and "error" not in text.lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": call_id, "content": text}, images


def _user_parts(block: RequestContentBlock, allowed: tuple[str, ...]) -> list[Json]:
    match block.value["type"]:
        case kind if kind not in allowed:
            raise _unknown_block_type(block, allowed)
        case "text":
            return _text_parts(_required_text(block, "text"))
        case "image":
            return [_image_part(block)]
        case "document":
            return _document_parts(block)
        case "search_result":
            return _search_result_parts(block)
        case _:  # tool_reference, of a tool search: the model has all tools anyway
            return _text_parts(_required_text(block, "tool_name"))


def _text_parts(*texts: str | None) -> list[Json]:
    text = "\n".join(filter(None, texts))
    return [{"type": "text", "text": text}] if text else []


def _image_part(block: RequestContentBlock) -> Json:
    source, param = _read_source(block, ("base64", "url", "file"))
    if source["type"] == "file":
        raise fields.unsupported(param, _NO_FILE_REASON)
    if source["type"] == "url":
        url = _required_text(RequestContentBlock(source, param), "url")
    else:
        kind = fields.choice(source, "media_type", _IMAGE_MEDIA_TYPES, f"{param}.")
        if kind is None:
            raise fields.missing(f"{param}.media_type")
        url = f"data:{kind};base64,{_required_text(RequestContentBlock(source, param), 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document_parts(block: RequestContentBlock) -> list[Json]:
    _check_no_citations(block)
    source, param = _read_source(block, ("text", "content", "base64", "url", "file"))
    title, context = (fields.string(block.value, name, 2**20, f"{block.param}.") for name in ("title", "context"))
    if source["type"] == "text":
        return _text_parts(title, context, _required_text(RequestContentBlock(source, param), "data"))
    if source["type"] == "content":
        parts = _text_parts(title, context)
        for inner in _read_blocks(source, "content", param):
            parts += _user_parts(inner, ("text", "image"))
        return parts
    raise fields.unsupported(param, _NO_FILE_REASON if source["type"] == "file" else _NO_PDF_REASON)


def _search_result_parts(block: RequestContentBlock) -> list[Json]:
    _check_no_citations(block)
    content = [_plain_text(inner) for inner in _read_blocks(block.value, "content", block.param)]
    return _text_parts(_required_text(block, "title"), _required_text(block, "source"), *content)


def _check_no_citations(block: RequestContentBlock) -> None:
    """Reject citations: a chat cannot request them."""
    param = f"{block.param}.citations"
    citations = fields.json_object(block.value, "citations", f"{block.param}.") or {}
    if fields.boolean(citations, "enabled", f"{param}."):
        raise fields.unsupported(param, "cannot be enabled: this model has no citations.")


def _read_source(block: RequestContentBlock, kinds: tuple[str, ...]) -> RequestContentBlock:
    source = fields.json_object(block.value, "source", f"{block.param}.")
    param = f"{block.param}.source"
    if source is None:
        raise fields.missing(param)
    if fields.choice(source, "type", kinds, f"{param}.") is None:
        raise fields.missing(f"{param}.type")
    return RequestContentBlock(source, param)


def _assistant_message(messages: list[_AnthropicMessage]) -> Json:
    """Merge a turn into one message. Text blocks of one message are joined without a gap: the server split them."""
    texts, reasoning, calls = [], [], []
    for message in messages:
        text = ""
        for block in message.blocks:
            match block.value["type"]:
                case "text":
                    text += _required_text(block, "text")
                case "thinking":
                    reasoning.append(_required_text(block, "thinking"))
                case "redacted_thinking":  # encrypted by another server
                    pass
                case "tool_use":
                    calls.append(_tool_call(block))
                case _:
                    raise _unknown_block_type(block, ("text", "thinking", "redacted_thinking", "tool_use"))
        texts.append(text)
    out: Json = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if reasoning_text := "".join(reasoning):
        out["reasoning_content"] = reasoning_text
    if calls:
        out["tool_calls"] = calls
    return out


def _tool_call(block: RequestContentBlock) -> Json:
    tool_input = fields.json_object(block.value, "input", f"{block.param}.")
    if tool_input is None:
        raise fields.missing(f"{block.param}.input")
    arguments = msgspec.json.encode(tool_input).decode()
    function = {"name": _required_text(block, "name"), "arguments": arguments}
    return {"id": _required_text(block, "id"), "type": "function", "function": function}


def _required_text(block: RequestContentBlock, name: str) -> str:
    text = block.value.get(name)
    if text is None:
        raise fields.missing(f"{block.param}.{name}")
    if not isinstance(text, str):
        raise fields.wrong_type(f"{block.param}.{name}", "a string", text)
    return text


def _unknown_block_type(block: RequestContentBlock, allowed: tuple[str, ...]) -> ApiError:
    return fields.wrong_value(f"{block.param}.type", block.value["type"], allowed)
