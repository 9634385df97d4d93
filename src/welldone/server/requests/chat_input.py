"""Chat requests as the translations to other dialects read them: messages, content parts, calls and tools.

Only what a translation needs is checked; the upstream validates the values.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from welldone.core.answer_format import CUSTOM_INPUT_MEMBER
from welldone.core.events import Json
from welldone.core.lenient_json import as_list, as_object
from welldone.gateway.errors import ApiError
from welldone.schemas.errors import string_or_type_name
from welldone.server.requests import fields

HANDLED_FIELDS = frozenset({"messages", "modalities", "model", "n", "stream_options"})
"""Fields that no translation forwards: the gateway itself implements or sets them."""
_LEGACY_CALL_ID = "call_{}"


class Located(NamedTuple):
    """An object of the request, and its parameter name for errors."""

    value: Json
    param: str


class ChatCall(NamedTuple):
    """A tool call of an assistant message."""

    id: str
    name: str
    arguments: str
    """JSON text, or the input of a custom tool."""
    is_custom: bool
    param: str
    """Parameter name of the arguments."""


class ChatInput(NamedTuple):
    """A message: its content parts, calls, and the id of the call whose result it is, with that call if it is known."""

    role: str
    value: Json
    param: str
    parts: list[Located]
    calls: list[ChatCall]
    call_id: str
    call: ChatCall | None

    @property
    def plain_text(self) -> str | None:
        """The content, if it is a string."""
        content = self.value.get("content")
        return content if isinstance(content, str) else None


class ToolChoice(NamedTuple):
    """Which tools the model calls. `mode`: none, auto, required, or tool with the `name` of one."""

    mode: str
    name: str = ""
    is_custom: bool = False


def read_messages(body: Json, api: str) -> Iterator[ChatInput]:
    """Yield the messages. Deprecated function calls, which have no id, get one."""
    function_calls = 0
    known_calls: dict[str, ChatCall] = {}
    for index, message in enumerate(body["messages"]):
        param = f"messages[{index}]"
        value = _object(message, param)
        role = _string(value, "role", param)
        if role == "assistant" and value.get("audio") is not None:
            raise fields.unsupported(f"{param}.audio", f"cannot be sent to an upstream with the {api} API.")
        given_calls = enumerate(as_list(value.get("tool_calls")))
        calls = [_read_call(tool_call, f"{param}.tool_calls[{number}]") for number, tool_call in given_calls]
        if value.get("function_call") is not None and not calls:
            function = _object(value["function_call"], f"{param}.function_call")
            tool_call = {"id": _LEGACY_CALL_ID.format(function_calls), "function": function}
            calls.append(_read_call(tool_call, param))
            function_calls += 1
        call_id = ""
        if role == "tool":
            call_id = _string(value, "tool_call_id", param)
        elif role == "function":
            role, call_id = "tool", _LEGACY_CALL_ID.format(max(function_calls - 1, 0))
        known_calls |= {tool_call.id: tool_call for tool_call in calls}
        yield ChatInput(role, value, param, _read_parts(value, param), calls, call_id, known_calls.get(call_id))


def read_turns(
    body: Json,
    api: str,
    *,
    text: Callable[[Located], Json],
    user: Callable[[Located], Json],
    tool: Callable[[ChatInput], Json],
    assistant: Callable[[ChatInput], list[Json]],
) -> tuple[list[Json], list[tuple[str, list[Json]]]]:
    """Return the parts of the system instruction, and the turns: a role, user or assistant, and its parts.

    Consecutive messages of one role are one turn. The functions make parts; system messages are `text`. One that is not
    among the first messages becomes text of the user, for an API that has no such turns.
    """
    system: list[Json] = []
    turns: list[tuple[str, list[Json]]] = []
    for message in read_messages(body, api):
        role = "user"
        match message.role:
            case "system" | "developer" if not turns:
                system += map(text, message.parts)
                continue
            case "system" | "developer":
                late = "\n".join(text(content_part)["text"] for content_part in message.parts)
                parts = [text(Located({"type": "text", "text": f"<system>\n{late}\n</system>"}, message.param))]
            case "user":
                parts = list(map(user, message.parts))
            case "tool":
                parts = [tool(message)]
            case "assistant":
                role, parts = "assistant", assistant(message)
            case _:
                raise unsupported_role(message)
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(parts)
        elif parts:  # a turn must not be empty
            turns.append((role, parts))
    if not turns:
        raise fields.invalid("messages", "expected a message that is not a system message.")
    return system, turns


def _read_parts(message: Json, param: str) -> list[Located]:
    content, param = message.get("content"), f"{param}.content"
    if content is None:
        return []
    if isinstance(content, str):
        return [Located({"type": "text", "text": content}, param)] if content else []
    if not isinstance(content, list):
        raise fields.wrong_type(param, "a string or an array", content)
    parts = [Located(_object(entry, f"{param}[{index}]"), f"{param}[{index}]") for index, entry in enumerate(content)]
    return [entry for entry in parts if entry.value.get("type") != "text" or _string(entry.value, "text", entry.param)]


def _read_call(tool_call: object, param: str) -> ChatCall:
    value = _object(tool_call, param)
    variant, member = ("custom", "input") if value.get("type") == "custom" else ("function", "arguments")
    function, param = _object(value.get(variant), f"{param}.{variant}"), f"{param}.{variant}"
    arguments = function.get(member) or ""
    if not isinstance(arguments, str):
        raise fields.wrong_type(f"{param}.{member}", "a string", arguments)
    call_id = value.get("id") if isinstance(value.get("id"), str) else ""
    return ChatCall(str(call_id), _string(function, "name", param), arguments, variant == "custom", f"{param}.{member}")


def call_input(tool_call: ChatCall) -> Json:
    """Return the input of a call as an object."""
    if tool_call.is_custom:
        return {CUSTOM_INPUT_MEMBER: tool_call.arguments}
    value = json_object(tool_call.arguments) if tool_call.arguments.strip() else {}
    if value is None:
        raise fields.invalid(tool_call.param, "expected a JSON object as a string.")
    return value


def json_object(text: str) -> Json | None:
    """Return the object of a JSON text; None if it is something else."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = fields.decode_json(text.encode())
    except ApiError:
        return None
    return value if isinstance(value, dict) else None


def read_tools(body: Json) -> list[Located]:
    """Return the tools that the model may call; of deprecated functions, their new form."""
    tools = body.get("tools") or [{"type": "function", "function": legacy} for legacy in as_list(body.get("functions"))]
    if not isinstance(tools, list):
        raise fields.wrong_type("tools", "an array of objects", tools)
    located = [Located(_object(tool, f"tools[{index}]"), f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = as_object(body.get("tool_choice"))
    if choice.get("type") != "allowed_tools":
        return located
    listed = as_list(as_object(choice.get("allowed_tools", choice)).get("tools"))
    allowed = {tool_name(as_object(tool)) for tool in listed}
    return [tool for tool in located if tool_name(tool.value) in allowed]


def tool_name(tool: Json) -> object:
    """Return the name of a function or custom tool, or of a tool choice."""
    tag = tool.get("type")
    return as_object(tool.get(tag if isinstance(tag, str) else "function", tool)).get("name", tool.get("name"))


def read_tool_choice(body: Json) -> ToolChoice | None:
    """Return the tool choice, also of a deprecated `function_call`; None if there is none."""
    value = body.get("tool_choice")
    if value is None and (legacy := body.get("function_call")) is not None:
        value = {"type": "function", "function": legacy} if isinstance(legacy, dict) else legacy
    if value is None:
        return None
    if isinstance(value, str):
        return ToolChoice(value)
    choice = _object(value, "tool_choice")
    if choice.get("type") == "allowed_tools":
        return ToolChoice(str(as_object(choice.get("allowed_tools", choice)).get("mode") or "auto"))
    name = tool_name(choice)
    if not isinstance(name, str):
        raise fields.missing("tool_choice.function.name")
    return ToolChoice("tool", name, choice.get("type") == "custom")


def stop_strings(body: Json) -> tuple[str, ...]:
    """Return the stop strings."""
    stop = body.get("stop")
    values = [stop] if isinstance(stop, str) else as_list(stop)
    return tuple(text for text in values if isinstance(text, str) and text)


def max_tokens(body: Json) -> object:
    """Return the limit of output tokens; None if there is none."""
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    return None if limit == -1 else limit  # llama.cpp's word for no limit


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 data of a `data:` URL; None for another URL."""
    head, comma, data = url.partition(",")
    if not (url.startswith("data:") and comma and head.endswith(";base64")):
        return None
    return head.removeprefix("data:").removesuffix(";base64").partition(";")[0], data


def image_url(image_part: Located) -> str:
    """Return the URL of an image part."""
    image = image_part.value.get("image_url")
    if isinstance(image, str):
        return image
    return _string(_object(image, f"{image_part.param}.image_url"), "url", f"{image_part.param}.image_url")


def forwarded_fields(body: Json, known: Collection[str], rejected: Mapping[str, str], api: str) -> Json:
    """Return the fields that are forwarded unchanged: those that chat does not define.

    Raises:
        ApiError: a field has an effect that the upstream's API cannot have.
    """
    for name, reason in rejected.items():
        if body.get(name):
            raise fields.unsupported(name, f"cannot be sent to an upstream with the {api} API: {reason}")
    for index, value in enumerate(as_list(body.get("modalities"))):
        if value != "text":
            raise fields.wrong_value(f"modalities[{index}]", value, ("text",))
    skipped = {*HANDLED_FIELDS, *known, *rejected}
    return {name: value for name, value in body.items() if name not in skipped and value is not None}


def unsupported_type(located: Located, api: str) -> ApiError:
    """Return the error for a content part or tool without an equivalent."""
    name = string_or_type_name(located.value.get("type"))
    return fields.unsupported(f"{located.param}.type", f"'{name}' cannot be sent to an upstream with the {api} API.")


def unsupported_role(message: ChatInput) -> ApiError:
    """Return the error for an unknown role."""
    allowed = ("system", "developer", "user", "assistant", "tool", "function")
    return fields.wrong_value(f"{message.param}.role", message.role, allowed)


def _object(value: object, param: str) -> Json:
    if not isinstance(value, dict):
        raise fields.wrong_type(param, "an object", value)
    return value


def _string(value: Json, name: str, param: str) -> str:
    text = value.get(name)
    if text is None:
        raise fields.missing(f"{param}.{name}")
    if not isinstance(text, str):
        raise fields.wrong_type(f"{param}.{name}", "a string", text)
    return text
