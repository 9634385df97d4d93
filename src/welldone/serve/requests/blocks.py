"""The messages of Anthropic's API as messages of a chat: content blocks become texts, pictures, calls and results.

Messages of one role that follow each other are one turn, as Anthropic has it. What a chat cannot say is refused; what
only its shape cannot say (a document's title, a failed tool) is said in words.
"""

from itertools import groupby, takewhile
from typing import NamedTuple

import msgspec

from welldone.serve.errors import ApiError, invalid
from welldone.serve.requests import fields
from welldone.wire.events import Json

MESSAGES_LIMIT = 8_192
"""Anthropic takes 100,000. Each takes 4 us to read, in which no other stream is served."""

ROLES = ("user", "assistant", "system")
_PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_SAID = ("text", "image", "document", "search_result")
_RESULTS = (*_SAID, "tool_reference")
_BILLING = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with such a line. It changes with each request, so that no cache would know the
rest again, and is not meant for the model."""
_NO_FILE = "is a file that was uploaded elsewhere: send its text, or a picture as base64."
_NO_PDF = "is a PDF or an address, which cannot be read here: send its text."
_PICTURE_FOLLOWS = "The result is a picture. It follows in the next message."
_PICTURE_OF = "The picture that the tool gave for the call {}:"


class Block(NamedTuple):
    """A content block, and where it stands."""

    value: Json
    param: str


class Turns(NamedTuple):
    """The messages of a chat, and what the client calls each."""

    items: list[Json]
    places: list[str]
    is_open: bool
    """Whether the last one is the assistant's, to be continued."""


class _Said(NamedTuple):
    role: str
    param: str
    blocks: list[Block]


def read_turns(body: Json, *, takes_system: bool) -> Turns:
    """What `system` and `messages` say.

    Args:
        body: the client's.
        takes_system: whether the chat may have a system message in its middle. The templates of many models refuse
            that; for them it becomes a part of the user's turn.
    """
    said = _read(body)
    first = list(takewhile(lambda one: one.role == "system", said))
    texts = [_system_text(body), *map(_joined, first)]
    said = said[len(first) :]
    if not said:
        raise invalid("Invalid 'messages': expected at least 1 message.", param="messages", code="empty_array")
    if not takes_system:
        said = [_as_user(one) if one.role == "system" else one for one in said]
    turns = Turns([], [], said[-1].role == "assistant")
    if text := "\n".join(filter(None, texts)):
        _add(turns, "system", {"role": "system", "content": text})
    for role, group in groupby(said, key=lambda one: one.role):
        messages = list(group)
        place = messages[0].param
        if role == "user":
            _add(turns, place, *_user([block for one in messages for block in one.blocks], place))
        elif role == "assistant":
            _add(turns, place, _assistant(messages))
        else:
            _add(turns, place, {"role": "system", "content": "\n".join(map(_joined, messages))})
    return _closed(turns)


def _read(body: Json) -> list[_Said]:
    if body.get("messages") is None:
        raise fields.missing("messages")
    said = []
    for place, value in enumerate(fields.array(body, "messages", MESSAGES_LIMIT) or ()):
        param = f"messages[{place}]"
        if not isinstance(value, dict):
            raise fields.wrong_type(param, "an object", value)
        role = fields.choice(value, "role", ROLES, f"{param}.")
        if role is None:
            raise fields.missing(f"{param}.role")
        said.append(_Said(role, param, _blocks(value, "content", param)))
    return said


def _blocks(value: Json, name: str, path: str) -> list[Block]:
    """What may be a text or a list of blocks: always as a list."""
    content, param = value.get(name), f"{path}.{name}" if path else name
    match content:
        case None:
            raise fields.missing(param)
        case str():
            return [Block({"type": "text", "text": content}, param)]
        case list():
            return [_block(item, f"{param}[{place}]") for place, item in enumerate(content)]
        case _:
            raise fields.wrong_type(param, "a string or an array of objects", content)


def _block(item: object, param: str) -> Block:
    if not isinstance(item, dict):
        raise fields.wrong_type(param, "an object", item)
    if not isinstance(item.get("type"), str):
        raise fields.missing(f"{param}.type")
    return Block(item, param)


def _add(turns: Turns, place: str, *items: Json) -> None:
    turns.items.extend(items)
    turns.places.extend([place] * len(items))


def _closed(turns: Turns) -> Turns:
    """The turns, checked as to how they end: an empty beginning of an answer is none."""
    if not turns.is_open:
        return turns
    last = turns.items[-1]
    if last.get("tool_calls"):
        message = "Invalid 'messages': the last message calls tools, and their results do not follow."
        raise invalid(message, param="messages", code="invalid_value")
    if last["content"] or "reasoning_content" in last:
        return turns
    return Turns(turns.items[:-1], turns.places[:-1], is_open=False)


# What the system says.


def _system_text(body: Json) -> str:
    if body.get("system") is None:
        return ""
    texts = [_plain(block) for block in _blocks(body, "system", "")]
    texts = [text.partition("\n")[2] if text.startswith(_BILLING) else text for text in texts]
    return "\n".join(filter(None, texts))


def _joined(said: _Said) -> str:
    return "\n".join(filter(None, map(_plain, said.blocks)))


def _as_user(said: _Said) -> _Said:
    text = f"<system>\n{_joined(said)}\n</system>"
    return _Said("user", said.param, [Block({"type": "text", "text": text}, f"{said.param}.content")])


def _plain(block: Block) -> str:
    """The text of a block that may be nothing else."""
    if block.value["type"] != "text":
        raise _unknown(block, ("text",))
    return _text(block, "text")


# What the user says.


def _user(blocks: list[Block], param: str) -> list[Json]:
    """The results of tools, each a message of its own; then all the rest. Chats have pictures only in the rest."""
    results: list[Json] = []
    pictures: list[Json] = []
    rest: list[Json] = []
    for block in blocks:
        if block.value["type"] == "tool_result":
            result, seen = _result(block)
            results.append(result)
            pictures += seen
        else:
            rest += _said(block, (*_SAID, "tool_result"))
    parts = pictures + rest
    if not results and not parts:
        raise invalid(f"Invalid '{param}.content': it is empty.", param=f"{param}.content", code="invalid_value")
    return [*results, {"role": "user", "content": _content(parts)}] if parts else results


def _content(parts: list[Json]) -> str | list[Json]:
    """Texts as one: not every server reads parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _result(block: Block) -> tuple[Json, list[Json]]:
    """A tool's result, and the pictures in it."""
    value, param = block
    parts = []
    if value.get("content") is not None:
        parts = [part for one in _blocks(value, "content", param) for part in _said(one, _RESULTS)]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    pictures = [part for part in parts if part["type"] != "text"]
    id_ = _text(block, "tool_use_id")
    if pictures:
        text = text or _PICTURE_FOLLOWS
        pictures.insert(0, {"type": "text", "text": _PICTURE_OF.format(id_)})
    if fields.boolean(value, "is_error", f"{param}.") and "error" not in text.lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": id_, "content": text}, pictures


def _said(block: Block, known: tuple[str, ...]) -> list[Json]:
    """What a block of the user says, as parts of a message."""
    match block.value["type"]:
        case kind if kind not in known:
            raise _unknown(block, known)
        case "text":
            return _texts(_text(block, "text"))
        case "image":
            return [_image(block)]
        case "document":
            return _document(block)
        case "search_result":
            return _search_result(block)
        case _:  # a tool that was searched for: all tools are shown from the start
            return _texts(_text(block, "tool_name"))


def _texts(*texts: str | None) -> list[Json]:
    text = "\n".join(filter(None, texts))
    return [{"type": "text", "text": text}] if text else []


def _image(block: Block) -> Json:
    source, param = _source(block, ("base64", "url", "file"))
    if source["type"] == "file":
        raise fields.unsupported(param, _NO_FILE)
    if source["type"] == "url":
        url = _text(Block(source, param), "url")
    else:
        kind = fields.choice(source, "media_type", _PICTURES, f"{param}.")
        if kind is None:
            raise fields.missing(f"{param}.media_type")
        url = f"data:{kind};base64,{_text(Block(source, param), 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Block) -> list[Json]:
    _check_uncited(block)
    source, param = _source(block, ("text", "content", "base64", "url", "file"))
    title, context = (fields.string(block.value, name, 2**20, f"{block.param}.") for name in ("title", "context"))
    if source["type"] == "text":
        return _texts(title, context, _text(Block(source, param), "data"))
    if source["type"] == "content":
        inner = [part for one in _blocks(source, "content", param) for part in _said(one, ("text", "image"))]
        return _texts(title, context) + inner
    raise fields.unsupported(param, _NO_FILE if source["type"] == "file" else _NO_PDF)


def _search_result(block: Block) -> list[Json]:
    _check_uncited(block)
    content = [_plain(one) for one in _blocks(block.value, "content", block.param)]
    return _texts(_text(block, "title"), _text(block, "source"), *content)


def _check_uncited(block: Block) -> None:
    """Answers that cite, and say where, are nothing that a chat can ask for."""
    param = f"{block.param}.citations"
    cites = fields.table(block.value, "citations", f"{block.param}.") or {}
    if fields.boolean(cites, "enabled", f"{param}."):
        raise fields.unsupported(param, "cannot be enabled: the model behind this server does not cite.")


def _source(block: Block, kinds: tuple[str, ...]) -> Block:
    source = fields.table(block.value, "source", f"{block.param}.")
    param = f"{block.param}.source"
    if source is None:
        raise fields.missing(param)
    if fields.choice(source, "type", kinds, f"{param}.") is None:
        raise fields.missing(f"{param}.type")
    return Block(source, param)


# What the assistant has said.


def _assistant(messages: list[_Said]) -> Json:
    """One message. The texts of one answer were cut by their writer, so they are joined without a gap."""
    texts, thoughts, calls = [], [], []
    for said in messages:
        text = ""
        for block in said.blocks:
            match block.value["type"]:
                case "text":
                    text += _text(block, "text")
                case "thinking":
                    thoughts.append(_text(block, "thinking"))
                case "redacted_thinking":  # nobody but its writer can read it
                    pass
                case "tool_use":
                    calls.append(_call(block))
                case _:
                    raise _unknown(block, ("text", "thinking", "redacted_thinking", "tool_use"))
        texts.append(text)
    out: Json = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if thought := "".join(thoughts):
        out["reasoning_content"] = thought
    if calls:
        out["tool_calls"] = calls
    return out


def _call(block: Block) -> Json:
    given = fields.table(block.value, "input", f"{block.param}.")
    if given is None:
        raise fields.missing(f"{block.param}.input")
    arguments = msgspec.json.encode(given).decode()
    function = {"name": _text(block, "name"), "arguments": arguments}
    return {"id": _text(block, "id"), "type": "function", "function": function}


# What is wrong.


def _text(block: Block, name: str) -> str:
    text = block.value.get(name)
    if text is None:
        raise fields.missing(f"{block.param}.{name}")
    if not isinstance(text, str):
        raise fields.wrong_type(f"{block.param}.{name}", "a string", text)
    return text


def _unknown(block: Block, known: tuple[str, ...]) -> ApiError:
    return fields.wrong_value(f"{block.param}.type", block.value["type"], known)
