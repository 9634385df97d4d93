"""Tools, images and audio of a chat request for a local model, and forced tool calls.

For a required call llama.cpp allows free text first and ignores the name of the function. So the model is forced to
write JSON: its chat template lists the tools (or a system message, if the template has no tools), and a schema
constrains the answer. `core/text_tool_calls.py` converts the text into tool calls.

Images and audio are inline data only, validated before a decoder reads them. The server never fetches a URL for a
client: that would let clients reach the server's network (SSRF).
"""

import binascii
import struct
from typing import get_args

import msgspec

from welldone.core.events import Json
from welldone.core.text_tool_calls import ForcedToolCall
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas.chat import ChatRequest, ToolChoiceMode
from welldone.schemas.errors import shorten_value
from welldone.schemas.messages import AllowedTools, AudioPart, ImagePart, NamedFunction, ToolChoiceObject
from welldone.server.requests import fields
from welldone.server.requests.json_schema import SchemaBudget, check_schema, reroot

FORCED_CALLS_LIMIT = 8
"""Calls in one forced answer; without a limit a small model repeats calls until its context is full."""

_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL_CHOICE_MODES = get_args(ToolChoiceMode)
_TOOL_LIST_PROMPT = "You can call these functions, given as JSON:\n"
_CALL_ONLY_PROMPT = "\nAnswer with JSON only: the call of a function, or its arguments."
_PLAIN_TEXT_PROMPT = "\nAnswer in plain words."


class EngineTools(msgspec.Struct, kw_only=True):
    """The tools of one request, in the form that the engine needs."""

    body: Json = msgspec.field(default_factory=dict)
    """Fields of the engine's body."""
    template_tools: list[Json] | None = None
    """Tools for the chat template only: the engine itself must not parse calls."""
    system_text: str | None = None
    """The list of tools for a system message, if the chat template has no tools."""
    schema: Json | None = None
    """Schema of the answer for a forced call."""
    forced_call: ForcedToolCall | None = None
    choice: str | Json = "none"
    """`tool_choice` in chat form."""


class _ToolChoice(msgspec.Struct, frozen=True):
    mode: str
    name: str | None = None
    allowed: frozenset[str] | None = None


def read_tools(request: ChatRequest, capabilities: ModelCapabilities, budget: SchemaBudget) -> EngineTools:
    """Read `tools`, `tool_choice`, `parallel_tool_calls` and the legacy `functions` and `function_call`."""
    field = "tools" if request.tools else "functions"
    tools = _engine_tools(request, budget)
    choice = _read_tool_choice(request, field, {tool["function"]["name"] for tool in tools})
    is_parallel = request.parallel_tool_calls
    if field == "functions":  # the legacy form has one call
        is_parallel = False
    if choice.allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in choice.allowed]
    if not tools or choice.mode == "none":
        return EngineTools()
    tool_choice: str | Json = choice.mode
    if choice.name is not None:
        tool_choice = {"type": "function", "function": {"name": choice.name}}
    engine_fields = fields.given(tools=tools, tool_choice=tool_choice, parallel_tool_calls=is_parallel)
    if capabilities.kind == "command":
        return EngineTools(body=engine_fields, choice=tool_choice)
    tool_list = _TOOL_LIST_PROMPT + msgspec.json.encode(tools).decode()
    if choice.mode == "auto":
        system_text = None if capabilities.tools else tool_list + _PLAIN_TEXT_PROMPT
        return EngineTools(body=engine_fields, system_text=system_text, choice=tool_choice)
    candidates = [tool for tool in tools if choice.name in (None, tool["function"]["name"])]
    allows_several = is_parallel is True and choice.name is None
    if len(candidates) == 1 and not allows_several:
        function = candidates[0]["function"]
        schema: Json = function["parameters"]
        forced_call = ForcedToolCall(function["name"], choice.name is not None)
    else:
        schema = _named_calls_schema(candidates, allows_several)
        forced_call = ForcedToolCall()
    return EngineTools(
        template_tools=tools if capabilities.tools else None,
        system_text=None if capabilities.tools else tool_list + _CALL_ONLY_PROMPT,
        schema=schema,
        forced_call=forced_call,
        choice=tool_choice,
    )


def unsupported_tool_type(param: str, tool_type: str, client_tool_type: str) -> ApiError:
    """Return the error for a tool that the server would have to run; clients run those of `client_tool_type`."""
    reason = f"This server runs no tools; supported: '{client_tool_type}'. Omit the tool"
    message = f"Invalid value for '{param}': '{shorten_value(tool_type)}'. {reason}, or start the server with "
    return invalid_request(f"{message}--unknown-tools ignore.", param=param, code="unsupported_value")


def _engine_tools(request: ChatRequest, budget: SchemaBudget) -> list[Json]:
    """Return the tools without null fields, and always with `parameters`."""
    tools: list[Json] = []
    names: set[str] = set()
    if request.tools:
        functions = [(tool.function, f"tools[{index}].function") for index, tool in enumerate(request.tools)]
    else:
        functions = [(function, f"functions[{index}]") for index, function in enumerate(request.functions or ())]
    for function, param in functions:
        if function.name in names:
            raise fields.invalid(f"{param}.name", f"there is another tool with the name '{function.name}'.")
        names.add(function.name)
        schema = function.parameters
        parameters = check_schema(schema, f"{param}.parameters", budget) if schema else _NO_PARAMETERS
        out = fields.given(name=function.name, description=function.description, parameters=parameters)
        tools.append({"type": "function", "function": out})
    return tools


def _read_tool_choice(request: ChatRequest, field: str, names: set[str]) -> _ToolChoice:
    param = "tool_choice" if request.tool_choice is not None or field == "tools" else "function_call"
    value = getattr(request, param)
    if value is None:
        return _ToolChoice("auto")
    choice = _parse_tool_choice(value, param)
    if choice.mode == "required" and not names:
        raise invalid_request(
            f"'{param}' is only allowed when '{field}' are specified.", param=param, code="invalid_value"
        )
    for name in {choice.name} if choice.name else choice.allowed or ():
        if name not in names:
            raise fields.invalid(param, f"there is no tool '{name}'.")
    return choice


def _parse_tool_choice(value: object, param: str) -> _ToolChoice:
    if isinstance(value, str):
        if value not in TOOL_CHOICE_MODES:
            raise fields.wrong_value(param, value, TOOL_CHOICE_MODES)
        return _ToolChoice(value)
    if not isinstance(value, dict):
        raise fields.wrong_type(param, "a string or an object", value)
    if param == "function_call":
        return _ToolChoice("required", fields.read_fields(value, NamedFunction, "function_call.").name)
    if value.get("type") == "allowed_tools":
        inner = fields.read_fields(value, ToolChoiceObject, f"{param}.").allowed_tools or value
        allowed = fields.read_fields(inner, AllowedTools, f"{param}.allowed_tools.")
        names = [
            _function_name(tool, f"{param}.allowed_tools.tools[{index}]")
            for index, tool in enumerate(allowed.tools or ())
        ]
        return _ToolChoice(allowed.mode or "auto", None, frozenset(names))
    if (value.get("type") or "function") != "function":
        raise fields.wrong_value(f"{param}.type", value["type"], ("function", "allowed_tools"))
    return _ToolChoice("required", _function_name(value, param))


def _function_name(value: Json, param: str) -> str:
    function = fields.read_fields(value, ToolChoiceObject, f"{param}.").function or value
    return fields.read_fields(function, NamedFunction, f"{param}.function.").name


def _named_calls_schema(candidates: list[Json], allows_several: bool) -> Json:
    """Return the schema of one call with name and arguments, or of an array of such calls."""
    definitions: Json = {}
    calls = []
    for number, tool in enumerate(candidates):
        pointer = f"#/$defs/tool{number}"
        definitions[f"tool{number}"] = reroot(tool["function"]["parameters"], pointer)
        properties = {"name": {"const": tool["function"]["name"]}, "arguments": {"$ref": pointer}}
        required = ["name", "arguments"]
        call_schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        calls.append(call_schema)
    schema: Json = {"anyOf": calls}
    if allows_several:
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": FORCED_CALLS_LIMIT}
    return {**schema, "$defs": definitions}


def user_turn(results: list[Json], parts: list[Json], param: str) -> list[Json]:
    """Return the chat messages of a turn in another dialect: the results of tools, then the content of the user."""
    if not results and not parts:
        raise fields.invalid(param, "it is empty.")
    if not parts:
        return results
    content: str | list[Json] = parts
    if all(content_part["type"] == "text" for content_part in parts):  # not every server accepts content parts
        content = "\n".join(content_part["text"] for content_part in parts)
    return [*results, {"role": "user", "content": content}]


MEDIA_LIMIT = 20
"""Images and audio clips per request; each takes hundreds of tokens, and no common context holds more."""
PIXELS_LIMIT = 64_000_000
"""Pixels of one image: 256 MB when decoded, however small the file. Cameras have up to 50 million."""

_MAGIC_NUMBERS = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
}
_SIDE_LIMIT = 65_500  # of a JPEG, the lowest limit of all formats; larger values elsewhere are attacks


def read_image(image_part: ImagePart, param: str) -> Json:
    """Validate an `image_url` part and return it for the engine."""
    image = image_part.image_url
    url = image.get("url") if isinstance(image, dict) else image
    param = f"{param}.image_url.url" if isinstance(image, dict) else f"{param}.image_url"
    if not isinstance(url, str):
        raise fields.wrong_type(param, "a string", url)
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        reason = "this server does not fetch images. Send the image as 'data:image/png;base64,…'."
        raise fields.invalid(param, reason, "invalid_image_url")
    if not head.endswith(";base64"):
        raise fields.invalid(param, "expected base64.", "invalid_image")
    decoded = _decode_base64(data, param)
    image_type = image_format(decoded)
    if image_type is None:
        raise fields.invalid(param, "expected a PNG, JPEG, WebP, GIF or BMP.", "invalid_image")
    size = image_size(decoded, image_type)
    if size is None:
        raise fields.invalid(param, f"the {image_type} is damaged.", "invalid_image")
    width, height = size
    if not 0 < width * height <= PIXELS_LIMIT or max(size) > _SIDE_LIMIT:
        raise fields.invalid(
            param, f"expected at most {PIXELS_LIMIT} pixels, but got {width} x {height}.", "invalid_image"
        )
    return {"type": "image_url", "image_url": {"url": f"data:image/{image_type};base64,{data}"}}


def read_audio(audio_part: AudioPart, param: str) -> Json:
    """Validate an `input_audio` part and return it for the engine."""
    data = audio_part.input_audio.data
    if not isinstance(data, str):
        raise fields.wrong_type(f"{param}.input_audio.data", "a string", data)
    if not _decode_base64(data, f"{param}.input_audio.data"):
        raise fields.missing(f"{param}.input_audio.data")
    return {"type": "input_audio", "input_audio": {"data": data, "format": audio_part.input_audio.format or "wav"}}


def image_format(data: bytes) -> str | None:
    """Return the image format by magic number; the client's media type is ignored."""
    for magic, name in _MAGIC_NUMBERS.items():
        if data.startswith(magic):
            return name
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def image_size(data: bytes, image_format: str) -> tuple[int, int] | None:
    """Return width and height from the file header; None if it is truncated or damaged."""
    try:
        match image_format:
            case "png":
                return struct.unpack_from(">II", data, 16)
            case "gif":
                return struct.unpack_from("<HH", data, 6)
            case "bmp":
                width, height = struct.unpack_from("<ii", data, 18)
                return abs(width), abs(height)  # negative height: rows from top to bottom
            case "webp":
                return _webp_size(data)
            case _:
                return _jpeg_size(data)
    except struct.error:
        return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", data, 24)
            return (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1
        case _:
            return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    offset = 2
    while offset + 4 <= len(data):
        if data[offset] != 0xFF:
            return None
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, offset + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", data, offset + 2)
            offset += 2 + length
    return None


def _decode_base64(data: str, param: str) -> bytes:
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise fields.invalid(param, "this is not valid base64.", "invalid_base64") from None
