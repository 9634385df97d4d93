"""Items of a Responses request: reading, references to stored items, and conversion to chat messages.

One turn of a model consists of several items: reasoning, a message, calls. A chat has one assistant message for all of
them, followed by the tool outputs. So consecutive items of the model are merged until an item of another role follows.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.protocol.json_budget import decode_unlimited_in_steps
from welldone.schemas.errors import shorten_value, string_or_type_name
from welldone.schemas.messages import CONTENT_PARTS_LIMIT
from welldone.schemas.responses import ITEMS_LIMIT
from welldone.server.requests import fields

REFERENCES_LIMIT = 1_024
"""References to stored items in one request: each is looked up and decoded."""

ItemLookup: TypeAlias = Callable[[str], bytes | None]
"""Returns a stored item by its id, as JSON."""

ITEM_ROLES = ("user", "assistant", "system", "developer")
_CUSTOM_CALL, _CUSTOM_OUTPUT = "custom_tool_call", "custom_tool_call_output"
ITEM_TYPES = (
    *("message", "function_call", "function_call_output", _CUSTOM_CALL, _CUSTOM_OUTPUT),
    *("reasoning", "item_reference"),
)
_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    _CUSTOM_CALL: "ctc",
    _CUSTOM_OUTPUT: "ctco",
    "reasoning": "rs",
}
_ITEM_REFERENCE = "item_reference"


def read_input_items(body: Json, lookup: ItemLookup, limit_bytes: int) -> Generator[None, None, list[Json]]:
    """Read the items of `input`, and resolve references, which may have `limit_bytes` in total.

    Yields between slow steps, so that the event loop can run.

    Raises:
        ApiError: `input` is neither a string nor an array of objects, or a referenced item does not exist.
    """
    value = body.get("input")
    if value is None and body.get("previous_response_id") is not None:
        return []
    if value is None:
        raise fields.missing("input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise fields.wrong_type("input", "a string or an array of objects", value)
    items = []
    references = _ItemReferences(lookup, limit_bytes)
    for index, item in enumerate(fields.array(body, "input", ITEMS_LIMIT) or ()):
        if not isinstance(item, dict):
            raise fields.wrong_type(f"input[{index}]", "an object", item)
        if not isinstance(item.get("id"), str | None):
            raise fields.wrong_type(f"input[{index}].id", "a string", item["id"])
        is_reference = item_type(item) == _ITEM_REFERENCE
        items.append((yield from references.resolve(item, f"input[{index}]")) if is_reference else item)
    return items


def raw_input_items(body: Json) -> list[Json]:
    """Return the items of `input` unchanged, for an upstream that validates them itself."""
    value = body.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def item_type(item: Json) -> object:
    """Return the type of an item, inferred from its other fields if the client omits it."""
    kind = item.get("type")
    if kind is not None:
        return kind
    return "message" if "role" in item else _ITEM_REFERENCE if item.keys() == {"id"} else None


def complete_items(items: list[Json], response_id: str) -> list[Json]:
    """Return items as they are stored and listed: with type, status and an id derived from the response's."""
    return [_complete_item(item, f"{response_id.removeprefix('resp_')}_in{index}") for index, item in enumerate(items)]


class ConvertedMessage(NamedTuple):
    """A chat message, and the client's names for it and for its fields."""

    value: Json
    param_names: dict[str, str]


def items_to_messages(items: list[tuple[Json, str]]) -> list[ConvertedMessage]:
    """Convert items to chat messages. Each item comes with its parameter name for errors.

    Raises:
        ApiError: an item is invalid, or has no equivalent in a chat.
    """
    chat = _ChatBuilder()
    for item, param in items:
        chat.add_item(item, param)
    chat.close_turn()
    return chat.messages


class _AssistantTurn(msgspec.Struct):
    """Consecutive items of the model, which become one message."""

    reasoning: list[str] = []
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[Json] = []
    param: str = ""
    """Parameter name of its first item."""
    call_params: list[str] = []

    @property
    def accepts_text(self) -> bool:
        """Whether more text belongs to this turn: a second text starts a message, unless calls await their outputs."""
        return bool(self.calls) or not (self.texts or self.refusals)

    @property
    def param_names(self) -> dict[str, str]:
        """The client's names for the fields of the message."""
        calls = {f".tool_calls[{index}]": param for index, param in enumerate(self.call_params)}
        functions = {f"{name}.function": param for name, param in calls.items()}
        return {"": self.param, **calls, **functions}

    def to_message(self) -> Json | None:
        """Return the message; None if the turn has only reasoning."""
        if not (self.texts or self.refusals or self.calls):
            return None
        out: Json = {"role": "assistant", "content": "\n".join(self.texts) if self.texts else None}
        if self.refusals:
            out["refusal"] = "\n".join(self.refusals)
        if self.reasoning:
            out["reasoning_content"] = "\n\n".join(self.reasoning)
        if self.calls:
            out["tool_calls"] = self.calls
        return out


class _ChatBuilder:
    def __init__(self) -> None:
        self.messages: list[ConvertedMessage] = []
        self._turn = _AssistantTurn()

    def add_item(self, item: Json, param: str) -> None:
        kind = item_type(item)
        match kind:
            case "message":
                self._add_message_item(item, param)
            case "function_call" | "custom_tool_call":
                self._turn.calls.append(_tool_call(item, param))
                self._turn.call_params.append(param)
                self._turn.param = self._turn.param or param
            case "function_call_output" | "custom_tool_call_output":
                call_id, content = _required_text(item, "call_id", param), _message_content(item, "output", param)
                message = {"role": "tool", "tool_call_id": call_id, "content": content}
                names = {"": param, ".content": f"{param}.output", ".tool_call_id": f"{param}.call_id"}
                self._add_message(message, names)
            case "reasoning":
                self._add_reasoning_item(item, param)
            case None:
                raise fields.missing(f"{param}.type")
            case _:
                raise fields.wrong_value(f"{param}.type", kind, ITEM_TYPES)

    def close_turn(self) -> None:
        message = self._turn.to_message()
        if message is not None:
            self.messages.append(ConvertedMessage(message, self._turn.param_names))
        self._turn = _AssistantTurn()

    def _add_message(self, message: Json, param_names: dict[str, str]) -> None:
        self.close_turn()
        self.messages.append(ConvertedMessage(message, param_names))

    def _add_message_item(self, item: Json, param: str) -> None:
        role = fields.choice(item, "role", ITEM_ROLES, f"{param}.")
        if role is None:
            raise fields.missing(f"{param}.role")
        if role == "assistant":
            self._add_assistant_item(item, param)
        elif role == "user":
            self._add_message({"role": role, "content": _message_content(item, "content", param)}, {"": param})
        else:  # not every server has the developer role
            self._add_message({"role": "system", "content": _plain_text(item, param)}, {"": param})

    def _add_assistant_item(self, item: Json, param: str) -> None:
        if not self._turn.accepts_text:
            self.close_turn()
        self._turn.param = self._turn.param or param
        content = item.get("content")
        if isinstance(content, str):
            self._turn.texts.append(content)
            return
        for part, part_param in _read_content_parts(item, "content", param):
            if part.get("type") == "refusal":
                self._turn.refusals.append(_required_text(part, "refusal", part_param))
            else:
                _check_part_type(part, ("output_text", "input_text"), part_param)
                self._turn.texts.append(_required_text(part, "text", part_param))

    def _add_reasoning_item(self, item: Json, param: str) -> None:
        """Add reasoning to the turn that follows it. Encrypted reasoning is dropped."""
        if not self._turn.accepts_text:
            self.close_turn()
        for name in ("content", "summary"):
            parts = _read_content_parts(item, name, param) if item.get(name) is not None else []
            texts = [_required_text(part, "text", part_param) for part, part_param in parts]
            if any(texts):
                self._turn.reasoning.append("\n\n".join(texts))
                return


def _tool_call(item: Json, param: str) -> Json:
    if item["type"] == _CUSTOM_CALL:
        custom = {"name": _required_text(item, "name", param), "input": _required_text(item, "input", param)}
        return {"id": _required_text(item, "call_id", param), "type": "custom", "custom": custom}
    function = {"name": _required_text(item, "name", param), "arguments": _required_text(item, "arguments", param)}
    return {"id": _required_text(item, "call_id", param), "type": "function", "function": function}


def _message_content(item: Json, name: str, param: str) -> str | list[Json]:
    content = item.get(name)
    if isinstance(content, str):
        return content
    parts = [_chat_part(part, part_param) for part, part_param in _read_content_parts(item, name, param)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts


def _plain_text(item: Json, param: str) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        _required_text(_check_part_type(part, ("input_text",), part_param), "text", part_param)
        for part, part_param in _read_content_parts(item, "content", param)
    )


def _chat_part(part: Json, param: str) -> Json:
    match part.get("type"):
        case "input_text" | "output_text":
            return {"type": "text", "text": _required_text(part, "text", param)}
        case "input_image":
            return _image_part(part, param)
        case "input_audio":
            audio = fields.json_object(part, "input_audio", f"{param}.")
            if audio is None:
                raise fields.missing(f"{param}.input_audio")
            return {"type": "input_audio", "input_audio": audio}
        case "input_file":
            return _file_part(part, param)
        case _:
            return _check_part_type(part, ("input_text", "input_image", "input_audio", "input_file"), param)


def _image_part(part: Json, param: str) -> Json:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise fields.unsupported(f"{param}.file_id", "is not supported: send the image as 'image_url'.")
    image: Json = {"url": _required_text(part, "image_url", param)}
    if part.get("detail") is not None:
        image["detail"] = _required_text(part, "detail", param)
    return {"type": "image_url", "image_url": image}


def _file_part(part: Json, param: str) -> Json:
    if part.get("file_url") is not None:
        raise fields.unsupported(f"{param}.file_url", "is not supported: send the file as 'file_data'.")
    names = [name for name in ("file_data", "file_id", "filename") if part.get(name) is not None]
    return {"type": "file", "file": {name: _required_text(part, name, param) for name in names}}


def _read_content_parts(item: Json, name: str, param: str) -> list[tuple[Json, str]]:
    """Return the content parts of an item, each with its parameter name."""
    value = item.get(name)
    if value is None:
        raise fields.missing(f"{param}.{name}")
    if not isinstance(value, list):
        raise fields.wrong_type(f"{param}.{name}", "a string or an array of objects", value)
    parts = []
    for index, part in enumerate(fields.array(item, name, CONTENT_PARTS_LIMIT, f"{param}.") or ()):
        part_param = f"{param}.{name}[{index}]"
        if not isinstance(part, dict):
            raise fields.wrong_type(part_param, "an object", part)
        parts.append((part, part_param))
    return parts


def _check_part_type(part: Json, allowed: tuple[str, ...], param: str) -> Json:
    kind = part.get("type")
    if kind is None:
        raise fields.missing(f"{param}.type")
    if kind not in allowed:
        raise fields.wrong_value(f"{param}.type", kind, allowed)
    return part


def _required_text(item: Json, name: str, param: str) -> str:
    value = item.get(name)
    if value is None:
        raise fields.missing(f"{param}.{name}")
    if not isinstance(value, str):
        raise fields.wrong_type(f"{param}.{name}", "a string", value)
    return value


class _ItemReferences:
    """Resolves the item references of one request, up to a total number and size."""

    def __init__(self, lookup: ItemLookup, limit_bytes: int) -> None:
        self._lookup = lookup
        self._limit_bytes = limit_bytes
        self._remaining = REFERENCES_LIMIT
        self._remaining_bytes = limit_bytes

    def resolve(self, item: Json, param: str) -> Generator[None, None, Json]:
        item_id = _required_text(item, "id", param)
        data = self._lookup(item_id)
        if data is None:
            raise item_not_found(item_id, param)
        self._remaining -= 1
        self._remaining_bytes -= len(data)
        if self._remaining < 0:
            message = f"Invalid 'input': too many item references. Expected at most {REFERENCES_LIMIT} in one request."
            raise invalid_request(message, param="input", code="array_above_max_length")
        if self._remaining_bytes < 0:
            message = f"The referenced items have more than {self._limit_bytes} bytes, the size limit of a request."
            raise invalid_request(message, param=param, code="context_length_exceeded")
        yield
        stored = yield from decode_unlimited_in_steps(data)
        return stored  # type: ignore[return-value]  # it was encoded from an object


def item_not_found(item_id: str, param: str) -> ApiError:
    """Return the error for an id that is not an item of this client."""
    message = (
        f"Item with id '{shorten_value(item_id)}' not found. Items of stored responses are kept in memory for a "
        "limited time. Send the item itself."
    )
    return invalid_request(message, param=param, code="item_not_found")


def _complete_item(item: Json, suffix: str) -> Json:
    kind = string_or_type_name(item_type(item))
    out: Json = {"id": f"{_ID_PREFIXES.get(kind, 'item')}_{suffix}", "type": kind, "status": "completed"}
    out |= {key: value for key, value in item.items() if value is not None}
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        output_part: Json = {"type": "output_text", "text": content, "annotations": []}
        input_part: Json = {"type": "input_text", "text": content}
        out["content"] = [output_part if item.get("role") == "assistant" else input_part]
    return out
