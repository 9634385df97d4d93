"""Messages and tools of chat requests, with the limits of local models."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from welldone.schemas.fields import ANY_OBJECT, note, text_or_object

CONTENT_PARTS_LIMIT = 1_024
"""Content parts of one message; a page of a book, one part per line, has 40."""
NAME_LIMIT = 256
"""Characters of a name or an id; OpenAI's have at most 64."""
TOOLS_LIMIT = 128
"""OpenAI's limit."""
DESCRIPTION_LIMIT = 65_536
"""Characters. OpenAI's limit was 1,024; clients no longer keep to it."""

FunctionName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,128}\Z")]
"""Anthropic's length; OpenAI's 64 characters are too few for names that agents build from MCP servers and tools."""
CallId: TypeAlias = Annotated[str, Meta(max_length=NAME_LIMIT)]


class TextPart(Struct, tag_field="type", tag="text"):
    """A content part with text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """A content part with a refusal."""

    refusal: str


class ImagePart(Struct, tag_field="type", tag="image_url"):
    """A content part with an image."""

    image_url: Annotated[Any, Meta(extra_json_schema=text_or_object("url"))] = None


class InputAudio(Struct):
    """The audio of a content part, as base64."""

    data: Annotated[Any, Meta(extra_json_schema={"type": "string"})] = None
    format: Literal["wav", "mp3"] | None = None


class AudioPart(Struct, tag_field="type", tag="input_audio"):
    """A content part with audio."""

    input_audio: InputAudio


TextContentPart: TypeAlias = TextPart | RefusalPart
UserContentPart: TypeAlias = TextPart | RefusalPart | ImagePart | AudioPart


class FunctionCall(Struct):
    """Name and arguments of a call."""

    name: FunctionName
    arguments: Annotated[str, note("a JSON object as a string")]


class MessageToolCall(Struct, kw_only=True):
    """A tool call in an assistant message. A call of another type than function is rejected for its type."""

    type: Any = None
    function: FunctionCall | None = None
    id: CallId


class ChatMessage(Struct, kw_only=True, tag_field="role"):
    """Common fields of all messages."""

    name: Annotated[str, Meta(max_length=NAME_LIMIT)] | None = None


class SystemMessage(ChatMessage, kw_only=True, tag="system"):
    """Instructions for the model."""

    content: str | Annotated[list[TextContentPart], Meta(min_length=1, max_length=CONTENT_PARTS_LIMIT)]


class DeveloperMessage(SystemMessage, kw_only=True, tag="developer"):
    """The same as a system message."""


class UserMessage(ChatMessage, kw_only=True, tag="user"):
    """A message of the user."""

    content: str | Annotated[list[UserContentPart], Meta(min_length=1, max_length=CONTENT_PARTS_LIMIT)]


class AssistantMessage(ChatMessage, kw_only=True, tag="assistant"):
    """A message of the model. The content may be absent if there is a call, a refusal or reasoning."""

    content: str | Annotated[list[TextContentPart], Meta(max_length=CONTENT_PARTS_LIMIT)] | UnsetType | None = UNSET
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=TOOLS_LIMIT)] | None = None
    function_call: FunctionCall | None = None


class FunctionMessage(ChatMessage, kw_only=True, tag="function"):
    """The result of a legacy function call."""

    content: str | Annotated[list[TextContentPart], Meta(max_length=CONTENT_PARTS_LIMIT)]


class ToolMessage(FunctionMessage, kw_only=True, tag="tool"):
    """The result of a tool call."""

    tool_call_id: CallId


Message: TypeAlias = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class Function(Struct):
    """Definition of a function."""

    name: FunctionName
    description: Annotated[str, Meta(max_length=DESCRIPTION_LIMIT)] | None = None
    parameters: Annotated[Any, Meta(extra_json_schema=ANY_OBJECT)] = None
    strict: bool | None = None


class NamedFunction(Struct):
    """A function by its name."""

    name: FunctionName


class AllowedTools(Struct):
    """`tool_choice` that limits the tools."""

    tools: Annotated[list[dict[str, Any]], Meta(max_length=TOOLS_LIMIT)] | None = None
    mode: Literal["auto", "required"] | None = None


class ToolChoiceObject(Struct):
    """`tool_choice` as an object. What it contains may also be in the object itself."""

    function: dict[str, Any] | None = None
    allowed_tools: dict[str, Any] | None = None


class Tool(Struct, kw_only=True):
    """A tool that the model may call."""

    type: Literal["function"] | None = None
    function: Function
