"""The messages of a chat: each checked, and put in the one form that all engines read."""

from collections.abc import Callable

import msgspec

from welldone.engines.abilities import ModelCapabilities
from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.body import JsonSizeLimits, decode_json
from welldone.serve.requests.media import MEDIA_LIMIT, read_audio, read_image
from welldone.serve.requests.sampling import check_context_length
from welldone.serve.requests.tools import TOOLS_LIMIT, check_function_name
from welldone.wire.events import Json

MESSAGES_LIMIT = 4_096
"""No common context holds more: each costs some tokens besides its text."""
CONTENT_PARTS_LIMIT = 1_024
"""Parts of one message; a page of a book in as many lines has 40."""
ALL_CONTENT_PARTS_LIMIT = 16_384
"""Parts of all messages: 4 for each that may be there."""
ALL_TOOL_CALLS_LIMIT = 4_096
"""Calls of all messages; one message may have as many as there may be tools."""
NAME_LIMIT = 256
"""Characters of a name or an id; OpenAI's have 64 at most."""

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ENGINE_ROLES = {"developer": "system", "function": "tool"}
_CONTENT_SUBSTITUTES = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning")
_LEGACY_CALL_ID = "call_{}"


class ChatMessages(msgspec.Struct):
    """The messages for the engine, and how much text they hold."""

    items: list[Json]
    text_bytes: int


def read_messages(body: Json, abilities: ModelCapabilities) -> ChatMessages:
    """What `messages` says."""
    if body.get("messages") is None:
        raise fields.missing("messages")
    values = fields.array(body, "messages", MESSAGES_LIMIT)
    if not values:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
        raise invalid_request(message, param="messages", code="empty_array")
    reader = _MessageReader(abilities)
    items = [reader.read(value, f"messages[{place}]") for place, value in enumerate(values)]
    return ChatMessages(items, reader.text_bytes)


def prepend_system_text(items: list[Json], text: str) -> list[Json]:
    """The messages with a system message that begins with `text`; templates want at most one."""
    if items[0]["role"] == "system" and isinstance(items[0]["content"], str):
        return [{**items[0], "content": f"{text}\n\n{items[0]['content']}"}, *items[1:]]
    return [{"role": "system", "content": text}, *items]


class _MessageReader:
    def __init__(self, abilities: ModelCapabilities) -> None:
        self._abilities = abilities
        self.text_bytes = 0
        self._media_count = 0
        self._parts_read = 0
        self._calls_read = 0
        self._argument_limits = JsonSizeLimits("arguments")  # of all calls together
        self._legacy_calls = 0  # calls in the older form have no id: they are numbered

    def read(self, value: object, param: str) -> Json:
        if not isinstance(value, dict):
            raise fields.wrong_type(param, "an object", value)
        role = fields.choice(value, "role", CHAT_ROLES, f"{param}.")
        if role is None:
            raise fields.missing(f"{param}.role")
        out: Json = {"role": _ENGINE_ROLES.get(role, role), "content": self._content(value, role, param)}
        name = fields.string(value, "name", NAME_LIMIT, f"{param}.")
        if name is not None:
            out["name"] = name
        if role == "assistant":
            self._add_assistant(value, out, param)
        elif role == "tool":
            out["tool_call_id"] = self._id(value, "tool_call_id", f"{param}.")
        elif role == "function":
            out["tool_call_id"] = _LEGACY_CALL_ID.format(max(self._legacy_calls - 1, 0))
        return out

    def _add_assistant(self, value: Json, out: Json, param: str) -> None:
        thought = value.get("reasoning_content")
        thought = value.get("reasoning") if thought is None else thought
        if thought is not None:
            out["reasoning_content"] = self._text(thought, f"{param}.reasoning_content")
        calls = self._tool_calls(value, param)
        if calls:
            out["tool_calls"] = calls

    def _content(self, value: Json, role: str, param: str) -> str | list[Json]:
        content = value.get("content")
        match content:
            case str():
                return self._text(content, f"{param}.content")
            case list():
                return self._content_parts(content, role, f"{param}.content")
            case None if role == "assistant" and any(value.get(name) for name in _CONTENT_SUBSTITUTES):
                refusal = value.get("refusal")
                return "" if refusal is None else self._text(refusal, f"{param}.refusal")
            case None if "content" not in value:
                raise fields.missing(f"{param}.content")
            case _:
                raise fields.wrong_type(f"{param}.content", "one of a string or array of objects", content)

    def _content_parts(self, parts: list[object], role: str, param: str) -> str | list[Json]:
        """Texts are joined by line breaks, as llama.cpp does; only where there are pictures they stay parts."""
        if len(parts) > CONTENT_PARTS_LIMIT:
            raise fields.too_many(param, CONTENT_PARTS_LIMIT, len(parts))
        self._parts_read += len(parts)
        if self._parts_read > ALL_CONTENT_PARTS_LIMIT:
            raise _too_many_in_total("parts", ALL_CONTENT_PARTS_LIMIT)
        if not parts and role in ("user", "system", "developer"):
            raise invalid_request(
                f"Invalid '{param}': empty array. Expected at least 1 part.", param=param, code="empty_array"
            )
        out = [self._content_part(part, role, f"{param}[{place}]") for place, part in enumerate(parts)]
        if all(part["type"] == "text" for part in out):
            return "\n".join(part["text"] for part in out)
        return out

    def _content_part(self, part: object, role: str, param: str) -> Json:
        if not isinstance(part, dict):
            raise fields.wrong_type(param, "an object", part)
        kind = part.get("type")
        if kind in ("text", "refusal"):
            return {"type": "text", "text": self._text(part.get(kind), f"{param}.{kind}")}
        if kind == "image_url" and role == "user":
            return self._media_part(read_image, part, param, self._abilities.images, "pictures")
        if kind == "input_audio" and role == "user":
            return self._media_part(read_audio, part, param, self._abilities.audio, "sound")
        if kind is None:
            raise fields.missing(f"{param}.type")
        words = ("text", "image_url", "input_audio") if role == "user" else ("text",)
        raise fields.wrong_value(f"{param}.type", fields.string_or_type_name(kind), words)

    def _media_part(self, read: Callable[[Json, str], Json], part: Json, param: str, is_able: bool, noun: str) -> Json:
        if not is_able:
            raise invalid_request(
                f"Invalid '{param}': this model cannot read {noun}.", param=param, code="unsupported_value"
            )
        self._media_count += 1
        if self._media_count > MEDIA_LIMIT:
            raise too_many_media()
        return read(part, param)

    def _tool_calls(self, value: Json, param: str) -> list[Json]:
        old = fields.json_object(value, "function_call", f"{param}.")
        if old is not None:
            self._legacy_calls += 1
            made = {"id": _LEGACY_CALL_ID.format(self._legacy_calls - 1), "function": old}
            return [self._tool_call(made, param, f"{param}.function_call")]
        calls = []
        given = fields.array(value, "tool_calls", TOOLS_LIMIT, f"{param}.") or []
        self._calls_read += len(given)
        if self._calls_read > ALL_TOOL_CALLS_LIMIT:
            raise _too_many_in_total("tool calls", ALL_TOOL_CALLS_LIMIT)
        for place, call in enumerate(given):
            where = f"{param}.tool_calls[{place}]"
            if not isinstance(call, dict):
                raise fields.wrong_type(where, "an object", call)
            calls.append(self._tool_call(call, where, f"{where}.function"))
        return calls

    def _tool_call(self, call: Json, param: str, inner: str) -> Json:
        if (call.get("type") or "function") != "function":
            raise fields.wrong_value(f"{param}.type", fields.string_or_type_name(call["type"]), ("function",))
        function = fields.json_object(call, "function", f"{param}.")
        if function is None:
            raise fields.missing(inner)
        name = check_function_name(function.get("name"), f"{inner}.name")
        arguments = self._arguments(function.get("arguments"), f"{inner}.arguments")
        return {
            "id": self._id(call, "id", f"{param}."),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _arguments(self, value: object, param: str) -> str:
        """Engines read the arguments again: so they must be JSON that is whole and not deep."""
        text = self._text(value, param).strip() or "{}"
        check_context_length(self.text_bytes, self._abilities.context, "messages")
        data = text.encode()
        try:
            self._argument_limits.check(data)
            whole = decode_json(data)
        except ApiError:
            whole = None
        if not isinstance(whole, dict):
            raise invalid_request(
                f"Invalid '{param}': expected a JSON object as a string.", param=param, code="invalid_value"
            )
        return text

    def _id(self, value: Json, name: str, path: str) -> str:
        text = fields.string(value, name, NAME_LIMIT, path)
        if text is None:
            raise fields.missing(path + name)
        return text

    def _text(self, value: object, param: str) -> str:
        if value is None:
            raise fields.missing(param)
        if not isinstance(value, str):
            raise fields.wrong_type(param, "a string", value)
        self.text_bytes += len(value.encode())
        return value


def _too_many_in_total(noun: str, limit: int) -> ApiError:
    message = f"Invalid 'messages': at most {limit} {noun} are accepted in one request."
    return invalid_request(message, param="messages", code="array_above_max_length")


def too_many_media() -> ApiError:
    """More pictures than a request may have."""
    return _too_many_in_total("pictures and sounds", MEDIA_LIMIT)
