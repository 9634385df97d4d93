"""`/v1/responses`: the body, as the body of a chat that asks for the same, and what the answer repeats of it."""

from collections.abc import Callable, Generator
from itertools import takewhile
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.protocol.json_budget import decode_unlimited_in_steps
from welldone.server.requests import fields
from welldone.server.requests.chat import CONTENT_PARTS_LIMIT, MESSAGES_LIMIT
from welldone.server.requests.fields import GENERATION_FIELDS_BY_NAME, FieldHandling, RequestField
from welldone.server.requests.sampling import TOP_LOGPROBS_LIMIT
from welldone.server.requests.tools import TOOLS_LIMIT, check_function_name

# The tools of a response, in which a function stands flat, as those of a chat, in which it has a table of its own.


_TOOL_CHOICE_MODES = ("none", "auto", "required")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_CUSTOM_TOOL_KEYS = ("name", "description", "format")
_GRAMMAR_KEYS = ("definition", "syntax")


class ResponsesTools(msgspec.Struct):
    """What is said of tools."""

    chat: Json
    """The fields of a chat."""
    echoed: list[Json]
    """The tools as the response repeats them."""
    param_names: dict[str, str]
    """Where the tools of the chat stand in the request."""


def read_responses_tools(body: Json, *, ignores_unknown_tools: bool, allows_custom_tools: bool) -> ResponsesTools:
    """What `tools`, `tool_choice` and `parallel_tool_calls` ask for. `takes_custom`: custom tools are passed on.

    Raises:
        ApiError: a tool is none that a chat has, and such are not ignored here; or the choice is none.
    """
    kinds = ("function", "custom") if allows_custom_tools else ("function",)
    named = _supported_tools(body, kinds, ignores_unknown_tools)
    listed = [tool for tool, _ in named]
    choice, allowed = _read_tool_choice(
        body.get("tool_choice"), {tool["name"] for tool in listed}, kinds, ignores_unknown_tools
    )
    is_parallel = fields.boolean(body, "parallel_tool_calls")
    offered = [(tool, param) for tool, param in named if allowed is None or tool["name"] in allowed]
    names = {f"tools[{place}].{tool['type']}": param for place, (tool, param) in enumerate(offered)}
    if not offered:  # servers refuse a choice where there is nothing to choose
        return ResponsesTools({}, listed, names)
    chat: Json = {"tools": [_chat_tool(tool) for tool, _ in offered]}
    if choice is not None:
        chat["tool_choice"] = choice
    if is_parallel is not None:
        chat["parallel_tool_calls"] = is_parallel
    return ResponsesTools(chat, listed, names)


def _supported_tools(body: Json, tool_types: tuple[str, ...], ignores_unknown_tools: bool) -> list[tuple[Json, str]]:
    """The tools that a chat has, each with what an error calls it."""
    out = []
    for place, tool in enumerate(fields.array(body, "tools", TOOLS_LIMIT) or ()):
        param = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        kind = fields.string(tool, "type", TOOLS_LIMIT, f"{param}.")
        if kind is None:
            raise fields.missing(f"{param}.type")
        if kind in tool_types:
            check_function_name(tool.get("name"), f"{param}.name")
            filled = {"strict": False, "parameters": None, "description": None, **tool} if kind == "function" else tool
            out.append((filled, param))
        elif not ignores_unknown_tools:
            raise unsupported_tool_type(f"{param}.type", kind, "' and '".join(tool_types))
    return out


def _chat_tool(tool: Json) -> Json:
    if tool["type"] == "custom":
        custom = {name: tool[name] for name in _CUSTOM_TOOL_KEYS if tool.get(name) is not None}
        if isinstance(form := custom.get("format"), dict) and form.get("type") == "grammar":
            custom["format"] = {"type": "grammar", "grammar": {name: form.get(name) for name in _GRAMMAR_KEYS}}
        return {"type": "custom", "custom": custom}
    function = {name: tool[name] for name in _FUNCTION_KEYS if tool.get(name) not in (None, False)}
    return {"type": "function", "function": function}


def _read_tool_choice(
    value: object, names: set[str], tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> tuple[str | Json | None, set[str] | None]:
    """The choice as a chat has it, and the tools that may be called, where not all of them may."""
    if value is None:
        return None, None
    if isinstance(value, dict):
        return _read_tool_choice_object(value, names, tool_types, ignores_unknown_tools)
    if not isinstance(value, str):
        raise fields.wrong_type("tool_choice", "a string or an object", value)
    if value not in _TOOL_CHOICE_MODES:
        raise fields.wrong_value("tool_choice", value, _TOOL_CHOICE_MODES)
    _check_tools_for_mode(value, names)
    return value, None


def _read_tool_choice_object(
    value: Json, names: set[str], tool_types: tuple[str, ...], ignores_unknown_tools: bool
) -> tuple[str | Json, set[str] | None]:
    kind = fields.string(value, "type", TOOLS_LIMIT, "tool_choice.")
    if kind in tool_types:
        return {"type": kind, kind: {"name": _known_tool_name(value, "tool_choice.name", names)}}, None
    if kind == "allowed_tools":
        return _read_allowed_tools(value, names)
    if kind is None:
        raise fields.missing("tool_choice.type")
    if ignores_unknown_tools:  # a tool that was left out cannot be called
        return "auto", None
    raise fields.wrong_value("tool_choice.type", kind, (*tool_types, "allowed_tools"))


def _read_allowed_tools(value: Json, names: set[str]) -> tuple[str, set[str]]:
    mode = fields.choice(value, "mode", ("auto", "required"), "tool_choice.") or "auto"
    allowed = set()
    for place, tool in enumerate(fields.array(value, "tools", TOOLS_LIMIT, "tool_choice.") or ()):
        param = f"tool_choice.tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        allowed.add(_known_tool_name(tool, f"{param}.name", names))
    _check_tools_for_mode(mode, allowed)
    return mode, allowed


def _known_tool_name(table: Json, param: str, names: set[str]) -> str:
    name = check_function_name(table.get("name"), param)
    if name not in names:
        raise invalid_request(f"Invalid '{param}': there is no tool '{name}'.", param=param, code="invalid_value")
    return name


def _check_tools_for_mode(mode: str, names: set[str]) -> None:
    if mode == "required" and not names:
        message = "'tool_choice' is only allowed when 'tools' has functions."
        raise invalid_request(message, param="tool_choice", code="invalid_value")


def unsupported_tool_type(param: str, kind: str, client_tool_type: str) -> ApiError:
    """A tool that its API's own server runs. `known`: what it calls those that clients run."""
    if kind == "namespace":  # Codex sends tools of MCP servers so
        message = (
            f"Invalid value for '{param}': 'namespace'. Functions in a namespace are not supported: send each as a "
            f"tool of type '{client_tool_type}', or have them left out by the server (--unknown-tools ignore)."
        )
        return invalid_request(message, param=param, code="unsupported_value")
    message = (
        f"Invalid value for '{param}': '{fields.shorten_value(kind)}'. This server calls no tools itself: it offers models "
        f"'{client_tool_type}' only. Leave the tool out, or have such tools ignored by the server (--unknown-tools ignore)."
    )
    return invalid_request(message, param=param, code="unsupported_value")


# The items that a response is made of, as the messages of a chat.
#
# What a model said in one turn is several items: thoughts, a message, calls. Chat has one message for all of them, and
# what answers a call must come right after it: so they are put together until somebody else speaks.


ITEMS_LIMIT = 2 * MESSAGES_LIMIT
"""Items of one request: a message of a chat may be thoughts, a text and calls. Each takes 4 us to read, in which no
other stream is served."""

REFERENCES_LIMIT = 1_024
"""Items of one request that are only named: each is looked up and decoded."""

ItemLookup: TypeAlias = Callable[[str], bytes | None]
"""Finds an item that was kept, by its id, as JSON."""

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
    """The items of `input`; those that are only named are looked up, and have `limit_bytes` at most in all.

    Each step takes a turn.

    Raises:
        ApiError: `input` is no text and no list of objects, or an item is not there.
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
    found = _ItemReferences(lookup, limit_bytes)
    for place, item in enumerate(fields.array(body, "input", ITEMS_LIMIT) or ()):
        if not isinstance(item, dict):
            raise fields.wrong_type(f"input[{place}]", "an object", item)
        if not isinstance(item.get("id"), str | None):
            raise fields.wrong_type(f"input[{place}].id", "a string", item["id"])
        is_reference = item_type(item) == _ITEM_REFERENCE
        items.append((yield from found.look_up(item, f"input[{place}]")) if is_reference else item)
    return items


def raw_input_items(body: Json) -> list[Json]:
    """The items of `input` as they came, for a server that judges them itself."""
    value = body.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def item_type(item: Json) -> object:
    """The type of an item; clients leave it out where the rest tells it."""
    kind = item.get("type")
    if kind is not None:
        return kind
    return "message" if "role" in item else _ITEM_REFERENCE if item.keys() == {"id"} else None


def complete_items(items: list[Json], response_id: str) -> list[Json]:
    """Items as they are kept and listed: each with a type, a status and an id, which is made of the response's."""
    return [_complete_item(item, f"{response_id.removeprefix('resp_')}_in{place}") for place, item in enumerate(items)]


class ConvertedMessage(NamedTuple):
    """A message of a chat, and what the client calls it and what stands below it."""

    value: Json
    param_names: dict[str, str]


def items_to_messages(items: list[tuple[Json, str]]) -> list[ConvertedMessage]:
    """The messages of a chat that say what these items say; each comes with what an error calls it.

    Raises:
        ApiError: a chat cannot say it.
    """
    chat = _ChatBuilder()
    for item, param in items:
        chat.add_item(item, param)
    chat.close_turn()
    return chat.messages


class _AssistantTurn(msgspec.Struct):
    """What the model said before somebody else spoke."""

    reasoning: list[str] = []
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[Json] = []
    param: str = ""
    """Where it begins."""
    call_params: list[str] = []
    """Where its calls stand."""

    @property
    def accepts_text(self) -> bool:
        """Whether words belong to it: after its text another message begins, unless calls wait for their outputs."""
        return bool(self.calls) or not (self.texts or self.refusals)

    @property
    def param_names(self) -> dict[str, str]:
        """What the client calls the parts of the message."""
        calls = {f".tool_calls[{place}]": param for place, param in enumerate(self.call_params)}
        functions = {f"{name}.function": param for name, param in calls.items()}
        return {"": self.param, **calls, **functions}

    def to_message(self) -> Json | None:
        """The message; None where there are thoughts only, which nothing followed."""
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
                id_, content = _required_text(item, "call_id", param), _message_content(item, "output", param)
                message = {"role": "tool", "tool_call_id": id_, "content": content}
                self._add_message(
                    message, {"": param, ".content": f"{param}.output", ".tool_call_id": f"{param}.call_id"}
                )
            case "reasoning":
                self._add_reasoning_item(item, param)
            case None:
                raise fields.missing(f"{param}.type")
            case _:
                shown = kind if isinstance(kind, str) else fields.json_type_name(kind)
                raise fields.wrong_value(f"{param}.type", shown, ITEM_TYPES)

    def close_turn(self) -> None:
        """Put down what the model said so far."""
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
        else:  # not every server knows developers
            self._add_message({"role": "system", "content": _plain_text(item, param)}, {"": param})

    def _add_assistant_item(self, item: Json, param: str) -> None:
        if not self._turn.accepts_text:
            self.close_turn()
        self._turn.param = self._turn.param or param
        content = item.get("content")
        if isinstance(content, str):
            self._turn.texts.append(content)
            return
        for part, where in _read_content_parts(item, "content", param):
            if part.get("type") == "refusal":
                self._turn.refusals.append(_required_text(part, "refusal", where))
            else:
                self._turn.texts.append(
                    _required_text(_check_part_type(part, ("output_text", "input_text"), where), "text", where)
                )

    def _add_reasoning_item(self, item: Json, param: str) -> None:
        """Thoughts go before what they led to. Those that came sealed cannot be read, and are left out."""
        if not self._turn.accepts_text:
            self.close_turn()
        for name in ("content", "summary"):
            found = _read_content_parts(item, name, param) if item.get(name) is not None else []
            texts = [_required_text(part, "text", where) for part, where in found]
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
    """A text, or the parts of a chat."""
    content = item.get(name)
    if isinstance(content, str):
        return content
    parts = [_chat_part(part, where) for part, where in _read_content_parts(item, name, param)]
    if len(parts) == 1 and parts[0]["type"] == "text":
        text: str = parts[0]["text"]
        return text
    return parts


def _plain_text(item: Json, param: str) -> str:
    """The text of who may say nothing else."""
    content = item.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(
        _required_text(_check_part_type(part, ("input_text",), where), "text", where)
        for part, where in _read_content_parts(item, "content", param)
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
        raise fields.unsupported(f"{param}.file_id", "cannot be followed here: send the picture as 'image_url'.")
    image: Json = {"url": _required_text(part, "image_url", param)}
    if part.get("detail") is not None:
        image["detail"] = _required_text(part, "detail", param)
    return {"type": "image_url", "image_url": image}


def _file_part(part: Json, param: str) -> Json:
    if part.get("file_url") is not None:
        raise fields.unsupported(f"{param}.file_url", "cannot be followed here: send the file as 'file_data'.")
    names = [name for name in ("file_data", "file_id", "filename") if part.get(name) is not None]
    return {"type": "file", "file": {name: _required_text(part, name, param) for name in names}}


def _read_content_parts(item: Json, name: str, param: str) -> list[tuple[Json, str]]:
    """The parts of an item, each with what an error calls it."""
    where = f"{param}.{name}"
    value = item.get(name)
    if value is None:
        raise fields.missing(where)
    if not isinstance(value, list):
        raise fields.wrong_type(where, "a string or an array of objects", value)
    found = []
    for place, part in enumerate(fields.array(item, name, CONTENT_PARTS_LIMIT, f"{param}.") or ()):
        if not isinstance(part, dict):
            raise fields.wrong_type(f"{where}[{place}]", "an object", part)
        found.append((part, f"{where}[{place}]"))
    return found


def _check_part_type(part: Json, allowed: tuple[str, ...], param: str) -> Json:
    kind = part.get("type")
    if kind is None:
        raise fields.missing(f"{param}.type")
    if kind not in allowed:
        raise fields.wrong_value(
            f"{param}.type", kind if isinstance(kind, str) else fields.json_type_name(kind), allowed
        )
    return part


def _required_text(item: Json, name: str, param: str) -> str:
    value = item.get(name)
    if value is None:
        raise fields.missing(f"{param}.{name}")
    if not isinstance(value, str):
        raise fields.wrong_type(f"{param}.{name}", "a string", value)
    return value


class _ItemReferences:
    """The items of one request that are only named: so many, of so many bytes in all."""

    def __init__(self, lookup: ItemLookup, limit_bytes: int) -> None:
        self._lookup = lookup
        self._limit_bytes = limit_bytes
        self._remaining = REFERENCES_LIMIT
        self._remaining_bytes = limit_bytes

    def look_up(self, item: Json, param: str) -> Generator[None, None, Json]:
        """The item that is named. Each step takes a turn."""
        name = _required_text(item, "id", param)
        data = self._lookup(name)
        if data is None:
            raise item_not_found(name, param)
        self._remaining -= 1
        self._remaining_bytes -= len(data)
        if self._remaining < 0:
            message = f"Invalid 'input': at most {REFERENCES_LIMIT} items may be referred to in one request."
            raise invalid_request(message, param="input", code="array_above_max_length")
        if self._remaining_bytes < 0:
            message = (
                f"The items that are referred to have more than {self._limit_bytes} bytes, the longest request here."
            )
            raise invalid_request(message, param=param, code="context_length_exceeded")
        yield
        found = yield from decode_unlimited_in_steps(data)
        return found  # type: ignore[return-value]  # it was encoded from an object


def item_not_found(item_id: str, param: str) -> ApiError:
    """The refusal of an id that names no item of this client."""
    message = (
        f"Item with id '{fields.shorten_value(item_id)}' not found. Items are kept in memory, for some time, and only of "
        "responses that are stored. Send the item itself."
    )
    return invalid_request(message, param=param, code="item_not_found")


def _complete_item(item: Json, suffix: str) -> Json:
    kind = fields.string_or_type_name(item_type(item))
    out: Json = {"id": f"{_ID_PREFIXES.get(kind, 'item')}_{suffix}", "type": kind, "status": "completed"}
    out |= {key: value for key, value in item.items() if value is not None}
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        is_ours = item.get("role") == "assistant"
        part: Json = {"type": "output_text", "text": content, "annotations": []}
        out["content"] = [part if is_ours else {"type": "input_text", "text": content}]
    return out


METADATA_PAIRS_LIMIT, METADATA_KEY_LENGTH, METADATA_VALUE_LENGTH = 16, 64, 512  # OpenAI's, of `metadata`
INT32_MAX = 2**31 - 1
_INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_VALUES = (
    _INCLUDE_LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
REASONING_SUMMARIES = ("auto", "concise", "detailed")
TEXT_FORMATS = ("text", "json_object", "json_schema")

RESPONSES_FIELDS: tuple[RequestField, ...] = (
    RequestField(
        "input",
        FieldHandling.TRANSLATED,
        "a text, or items: messages, calls of functions and custom tools and their outputs, thoughts, references",
    ),
    RequestField(
        "instructions",
        FieldHandling.TRANSLATED,
        "a text: the first system message; not carried over to the next response",
    ),
    RequestField(
        "previous_response_id",
        FieldHandling.TRANSLATED,
        "a response that is stored: what was said goes before the input",
    ),
    RequestField(
        "store",
        FieldHandling.TRANSLATED,
        "true (as if not said) or false: whether the response is kept, in memory, for some time",
    ),
    RequestField("background", FieldHandling.TRANSLATED, "true or false; true: without a stream, and stored"),
    RequestField(
        "tools",
        FieldHandling.TRANSLATED,
        "up to 128 functions; custom tools for upstreams; others are refused, or ignored: --unknown-tools ignore",
    ),
    RequestField(
        "tool_choice", FieldHandling.TRANSLATED, "none, auto, required, a function, a custom tool, allowed_tools"
    ),
    RequestField("parallel_tool_calls", FieldHandling.TRANSLATED, "true or false"),
    RequestField(
        "text", FieldHandling.TRANSLATED, "format: text, json_object, json_schema; verbosity goes on to upstreams"
    ),
    RequestField(
        "reasoning",
        FieldHandling.TRANSLATED,
        "effort: as reasoning_effort of a chat; summary: thoughts come as a summary",
    ),
    RequestField("max_output_tokens", FieldHandling.TRANSLATED, "1 or more"),
    RequestField("temperature", FieldHandling.TRANSLATED, GENERATION_FIELDS_BY_NAME["temperature"].note),
    RequestField("top_p", FieldHandling.TRANSLATED, GENERATION_FIELDS_BY_NAME["top_p"].note),
    RequestField("top_logprobs", FieldHandling.TRANSLATED, f"0 to 20, with {_INCLUDE_LOGPROBS} in include"),
    RequestField("include", FieldHandling.TRANSLATED, f"{_INCLUDE_LOGPROBS}; OpenAI's others are without effect"),
    RequestField("stream", FieldHandling.TRANSLATED, "true or false"),
    RequestField("stream_options", FieldHandling.TRANSLATED, "include_obfuscation: true or false, without effect"),
    RequestField(
        "metadata", FieldHandling.TRANSLATED, "up to 16 texts of 512 characters, with names of 64: they are repeated"
    ),
    RequestField("n", FieldHandling.TRANSLATED, "1: a response has one answer"),
    RequestField("truncation", FieldHandling.IGNORED, "auto or disabled: what is too long is refused either way"),
    RequestField("max_tool_calls", FieldHandling.IGNORED, "only of tools that a server calls itself"),
    RequestField("context_management", FieldHandling.IGNORED),
    RequestField("client_metadata", FieldHandling.IGNORED),
    RequestField("access_programs", FieldHandling.IGNORED),
    RequestField("image", FieldHandling.IGNORED),
    RequestField("conversation", FieldHandling.REJECTED, "is not offered: use 'previous_response_id'."),
    RequestField(
        "prompt",
        FieldHandling.REJECTED,
        "is not offered: this server keeps no prompts. Send 'instructions' and 'input'.",
    ),
    RequestField("moderation", FieldHandling.REJECTED, "is not offered."),
    RequestField("messages", FieldHandling.REJECTED, "is called 'input' in this API."),
    RequestField("response_format", FieldHandling.REJECTED, "is called 'text.format' in this API."),
    RequestField("max_tokens", FieldHandling.REJECTED, "is called 'max_output_tokens' in this API."),
    RequestField("max_completion_tokens", FieldHandling.REJECTED, "is called 'max_output_tokens' in this API."),
    RequestField("reasoning_effort", FieldHandling.REJECTED, "is called 'reasoning.effort' in this API."),
    RequestField("verbosity", FieldHandling.REJECTED, "is called 'text.verbosity' in this API."),
    RequestField("logprobs", FieldHandling.REJECTED, f"is said by '{_INCLUDE_LOGPROBS}' in 'include' in this API."),
    RequestField("functions", FieldHandling.REJECTED, "is called 'tools' in this API."),
    RequestField("function_call", FieldHandling.REJECTED, "is called 'tool_choice' in this API."),
)
"""What becomes of each field. Any other is of chat as well, and goes on to be read there."""

_CLIENT_PARAM_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": "include",
    "tool_choice.function": "tool_choice",
}
"""What the client calls fields of a chat."""
_OWN_FIELDS = frozenset(row.name for row in RESPONSES_FIELDS)
_ECHOED_FIELDS = (
    *("background", "frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *(
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "store",
    ),
    *("temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user"),
)


class ResponseStorageOptions(msgspec.Struct, frozen=True):
    """How the answer is given, and whether it is kept."""

    previous_response_id: str | None
    """The response that this one goes on from."""
    is_stored: bool
    is_background: bool
    is_stream: bool


class ResponsesTranslation(msgspec.Struct):
    """A request in the words of a chat."""

    chat: Json
    echo: Json
    """What the response repeats of its request."""
    param_names: dict[str, str]
    """What the client calls fields of the chat, its messages and tools."""
    wants_summary: bool
    """Whether thoughts were asked for as a summary."""


def read_storage_options(body: Json) -> ResponseStorageOptions:
    """What is said of the answer as a thing that can be asked for again."""
    keeping = ResponseStorageOptions(
        previous_response_id=fields.string(body, "previous_response_id", METADATA_VALUE_LENGTH) or None,
        is_stored=fields.boolean(body, "store") is not False,
        is_background=fields.boolean(body, "background") is True,
        is_stream=fields.boolean(body, "stream") is True,
    )
    if keeping.is_background and keeping.is_stream:
        raise fields.unsupported(
            "background", "cannot be used together with 'stream' here: ask for the response later."
        )
    if keeping.is_background and not keeping.is_stored:
        raise fields.unsupported("background", "needs 'store': the response could not be asked for.")
    return keeping


def echoed_fields(body: Json) -> Json:
    """What a response repeats of its request, as it came."""
    return {name: body[name] for name in _ECHOED_FIELDS if body.get(name) not in (None, "")}


def check_responses_fields(body: Json) -> None:
    """ApiError for a field that cannot be followed here, or has another name."""
    for row in RESPONSES_FIELDS:
        if row.handling is FieldHandling.REJECTED and body.get(row.name) not in (None, False, "", {}):
            raise fields.unsupported(row.name, row.note)


def responses_to_chat(
    body: Json,
    history: list[Json],
    items: list[Json],
    *,
    ignores_unknown_tools: bool,
    allows_custom_tools: bool = False,
) -> ResponsesTranslation:
    """The request as that for a chat. `history` has the items that went before `items`.

    `takes_custom`: custom tools are passed on; else they are unknown ones.

    Raises:
        ApiError: a field is wrong, or a chat cannot say it.
    """
    check_responses_fields(body)
    _check_echoed_fields(body)
    chat = {name: value for name, value in body.items() if name not in _OWN_FIELDS}
    tools = read_responses_tools(
        body, ignores_unknown_tools=ignores_unknown_tools, allows_custom_tools=allows_custom_tools
    )
    reasoning = _read_reasoning(body)
    text = fields.json_object(body, "text") or {}
    chat |= {**tools.chat, **_sampling_fields(body), **_text_format_fields(text), **_logprobs_fields(body)}
    if reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if fields.boolean(body, "stream") is not None:
        chat["stream"] = body["stream"]
    messages = _read_messages(body, history, items)
    chat["messages"] = [message.value for message in messages]
    echo = echoed_fields(body) | {"tools": tools.echoed, "reasoning": reasoning}
    echo["text"] = {**text, "format": text.get("format") or {"type": "text"}}
    names = _CLIENT_PARAM_NAMES | tools.param_names
    for place, message in enumerate(messages):
        names |= {f"messages[{place}]{below}": param for below, param in message.param_names.items()}
    return ResponsesTranslation(chat, echo, names, wants_summary=reasoning["summary"] is not None)


def _read_messages(body: Json, history: list[Json], items: list[Json]) -> list[ConvertedMessage]:
    """What was said before, and now; what stands first for the model is one system message: templates want no more."""
    named = [(item, "previous_response_id") for item in history]
    named += [(item, f"input[{place}]") for place, item in enumerate(items)]
    messages = items_to_messages(named)
    instructions = fields.string(body, "instructions", INT32_MAX)
    if instructions:
        messages.insert(0, ConvertedMessage({"role": "system", "content": instructions}, {".content": "instructions"}))
    first = list(takewhile(lambda message: message.value["role"] == "system", messages))
    if not first:
        return messages
    text = "\n\n".join(message.value["content"] for message in first)
    return [ConvertedMessage({"role": "system", "content": text}, first[0].param_names), *messages[len(first) :]]


def _sampling_fields(body: Json) -> Json:
    out: Json = {}
    for name in ("temperature", "top_p"):
        value = fields.number(body, name, GENERATION_FIELDS_BY_NAME[name].low, GENERATION_FIELDS_BY_NAME[name].high)
        if value is not None:
            out[name] = value
    most = fields.integer(body, "max_output_tokens", 1, INT32_MAX)
    if most is not None:
        out["max_completion_tokens"] = most
    return out


def _logprobs_fields(body: Json) -> Json:
    """Alternatives are shown with the tokens that were chosen; without those they are not."""
    top = fields.integer(body, "top_logprobs", 0, TOP_LOGPROBS_LIMIT)
    included = fields.strings(body, "include", len(INCLUDE_VALUES), METADATA_VALUE_LENGTH) or []
    for place, name in enumerate(included):
        if name not in INCLUDE_VALUES:
            raise fields.wrong_value(f"include[{place}]", name, INCLUDE_VALUES)
    if _INCLUDE_LOGPROBS not in included:
        return {}
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


def _text_format_fields(text: Json) -> Json:
    out: Json = {}
    if text.get("verbosity") is not None:
        out["verbosity"] = fields.string(text, "verbosity", METADATA_KEY_LENGTH, "text.")
    form = fields.json_object(text, "format", "text.")
    if form is None:
        return out
    kind = fields.choice(form, "type", TEXT_FORMATS, "text.format.")
    if kind is None:
        raise fields.missing("text.format.type")
    if kind == "json_object":
        out["response_format"] = {"type": kind}
    elif kind == "json_schema":
        if form.get("name") is None:
            raise fields.missing("text.format.name")
        if fields.json_object(form, "schema", "text.format.") is None:
            raise fields.missing("text.format.schema")
        named = {name: value for name, value in form.items() if name != "type" and value is not None}
        out["response_format"] = {"type": kind, kind: named}
    return out


def _read_reasoning(body: Json) -> Json:
    """What is said of thoughts, in full. `generate_summary` is an older name."""
    given = fields.json_object(body, "reasoning") or {}
    summary = fields.choice(given, "summary", REASONING_SUMMARIES, "reasoning.")
    older = fields.choice(given, "generate_summary", REASONING_SUMMARIES, "reasoning.")
    effort = fields.string(given, "effort", METADATA_KEY_LENGTH, "reasoning.")
    return {"effort": effort, "summary": summary or older}


def _check_echoed_fields(body: Json) -> None:
    """What is only repeated must be right all the same: clients read the answer by its types."""
    for name in ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"):
        fields.string(body, name, METADATA_VALUE_LENGTH)
    fields.choice(body, "truncation", ("auto", "disabled"))
    fields.integer(body, "max_tool_calls", 0, INT32_MAX)
    fields.integer(body, "n", 1, 1)
    options = fields.json_object(body, "stream_options") or {}
    fields.boolean(options, "include_obfuscation", "stream_options.")
    metadata = fields.json_object(body, "metadata") or {}
    if len(metadata) > METADATA_PAIRS_LIMIT:
        raise _invalid_metadata(f"has {len(metadata)} pairs; at most {METADATA_PAIRS_LIMIT} are accepted")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise fields.wrong_type(f"metadata.{fields.shorten_value(name)}", "a string", value)
        if len(name) > METADATA_KEY_LENGTH or len(value) > METADATA_VALUE_LENGTH:
            raise _invalid_metadata(
                f"has names of at most {METADATA_KEY_LENGTH} characters, and texts of at most {METADATA_VALUE_LENGTH}"
            )


def _invalid_metadata(reason: str) -> ApiError:
    return invalid_request(f"Invalid 'metadata': it {reason}.", param="metadata", code="invalid_value")
