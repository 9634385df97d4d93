"""Requests to `/api/chat` and `/api/generate` (Ollama's API). They become chat requests, which are validated again."""

from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct

from welldone.schemas.chat import MESSAGES_LIMIT
from welldone.schemas.fields import FieldInfo, ModelName, note, rejected

_IMAGES_LIMIT = 64
_Images: TypeAlias = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=_IMAGES_LIMIT)]


class OllamaMessage(Struct, kw_only=True):
    """A message."""

    role: Annotated[str, Meta(max_length=64)] | None = None
    content: str | None = None
    thinking: str | None = None
    images: _Images | None = None
    tool_calls: Annotated[list[Any], Meta(max_length=MESSAGES_LIMIT)] | None = None


class OllamaRequest(Struct, kw_only=True):
    """Fields of both endpoints."""

    model: ModelName | None = None
    stream: Annotated[bool | None, note("true (default) or false")] = None
    format: Annotated[
        Any,
        note(
            "json, or a JSON schema",
            extra_json_schema={
                "anyOf": [{"enum": ["json", "", None]}, {"type": "object", "additionalProperties": True}]
            },
        ),
    ] = None
    options: dict[str, Any] | None = None
    think: Any = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """A request to `/api/chat`."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=MESSAGES_LIMIT)] | None = None
    tools: Annotated[list[Any], Meta(max_length=MESSAGES_LIMIT)] | None = None


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """A request to `/api/generate`."""

    prompt: str | None = None
    system: str | None = None
    images: _Images | None = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = rejected(
        suffix="needs infill, which is not supported.",
        template="is not supported: the server uses the model's own template.",
        context="is not supported: send the messages to /api/chat.",
        raw="is not supported: use /v1/completions.",
    )
