"""Requests to `generateContent`, `streamGenerateContent` and `countTokens` (Google's Gemini API).

They become chat requests, which are validated again. So a field that only the chat request limits has no limit here.
Google's API accepts each name in camelCase and in snake_case; `camel_case_names` makes them one.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from welldone.core.events import Json
from welldone.schemas.chat import MESSAGES_LIMIT
from welldone.schemas.fields import INT32_MAX, FieldInfo, ignored, note, rejected
from welldone.schemas.messages import TOOLS_LIMIT

PARTS_LIMIT = 4_096
"""Parts of one content."""
_STOP_SEQUENCES_LIMIT = 16  # of chat; Google's is 5
OPAQUE_MEMBERS = frozenset(
    {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "partMetadata"}
)
"""Members whose value has names of the client."""
_ENUM_MEMBERS = frozenset({"thinkingLevel", "mode", "responseModalities"})
"""Members whose values Google's API accepts in any case; most clients send `low`, not `LOW`."""

_Texts: TypeAlias = Annotated[list[str], Meta(max_length=TOOLS_LIMIT)]
_Schema: TypeAlias = dict[str, Any]


class Blob(Struct, rename="camel"):
    """Inline data, as base64."""

    data: str
    mime_type: str


class GeminiFunctionCall(Struct, kw_only=True):
    """A call."""

    name: str
    args: dict[str, Any] | None = None
    id: str | None = None


class GeminiFunctionResponse(Struct, kw_only=True):
    """The result of a call."""

    name: str
    response: dict[str, Any] | None = None
    id: str | None = None
    parts: Annotated[list[Any], note("not supported")] | None = None


class Part(Struct, kw_only=True, rename="camel"):
    """A part of a content: one of text, inlineData, functionCall and functionResponse."""

    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Blob | None = None
    function_call: GeminiFunctionCall | None = None
    function_response: GeminiFunctionResponse | None = None


class Content(Struct, kw_only=True):
    """A turn of the conversation."""

    role: Literal["user", "model", "function"] | None = None
    parts: Annotated[list[Part], Meta(max_length=PARTS_LIMIT)] | None = None


class SystemInstruction(Struct):
    """Instructions; the role is ignored."""

    parts: Annotated[list[Part], Meta(max_length=PARTS_LIMIT)] | None = None


class FunctionDeclaration(Struct, kw_only=True, rename="camel"):
    """A function that the client runs."""

    name: str
    description: str | None = None
    parameters: _Schema | None = None
    parameters_json_schema: _Schema | None = None


class FunctionCallingConfig(Struct, kw_only=True, rename="camel"):
    """Which functions the model calls."""

    mode: Literal["AUTO", "ANY", "NONE", "VALIDATED", "MODE_UNSPECIFIED"] | None = None
    allowed_function_names: _Texts | None = None


class ToolConfig(Struct, rename="camel"):
    """Configuration of tools."""

    function_calling_config: FunctionCallingConfig | None = None


class ThinkingConfig(Struct, kw_only=True, rename="camel"):
    """Whether the model reasons, and whether the reply has its thoughts."""

    include_thoughts: bool | None = None
    thinking_budget: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    thinking_level: Literal["THINKING_LEVEL_UNSPECIFIED", "MINIMAL", "LOW", "MEDIUM", "HIGH"] | None = None


class GenerationConfig(Struct, kw_only=True, rename="camel"):
    """Options of the answer."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_output_tokens: Annotated[int, note("1 or more", ge=1, le=INT32_MAX)] | None = None
    stop_sequences: Annotated[list[str], note("the same as stop of chat", max_length=_STOP_SEQUENCES_LIMIT)] | None = (
        None
    )
    candidate_count: Annotated[int, note("the same as n of chat", ge=1, le=INT32_MAX)] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, note("the same as top_logprobs of chat")] | None = None
    response_mime_type: Literal["text/plain", "application/json", ""] | None = None
    response_schema: Annotated[_Schema, note("in the format of OpenAPI")] | None = None
    response_json_schema: _Schema | None = None
    response_modalities: Annotated[list[Literal["TEXT"]], note("TEXT", max_length=8)] | None = None
    thinking_config: ThinkingConfig | None = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = [
        *ignored("enableEnhancedCivicAnswers", "mediaResolution", "audioTimestamp", "routingConfig"),
        *rejected(
            imageConfig="needs a model that makes images.",
            responseFormat="is not supported: use responseMimeType and responseJsonSchema.",
            speechConfig="needs a model that speaks.",
        ),
    ]


class GeminiTokensRequest(Struct, kw_only=True, rename="camel"):
    """A request to `countTokens`. `generateContentRequest` counts all parts of a request."""

    contents: Annotated[list[Content], note("the turns", max_length=MESSAGES_LIMIT)] | None = None
    generate_content_request: Annotated[dict[str, Any], note("a request to generateContent")] | None = None


class GeminiRequest(Struct, kw_only=True, rename="camel"):
    """A request to `generateContent` or `streamGenerateContent`. The path has the name of the model."""

    contents: Annotated[
        list[Content],
        note("text, inlineData, functionCall, functionResponse", min_length=1, max_length=MESSAGES_LIMIT),
    ]
    system_instruction: Annotated[SystemInstruction | None, note("parts with text")] = None
    tools: (
        Annotated[list[dict[str, Any]], note("functionDeclarations; others: --unknown-tools", max_length=TOOLS_LIMIT)]
        | None
    ) = None
    tool_config: Annotated[ToolConfig | None, note("functionCallingConfig with mode and allowedFunctionNames")] = None
    generation_config: Annotated[GenerationConfig | None, note("sampling, limits, format, thinkingConfig")] = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = [
        *ignored("safetySettings", note="no effect: the model has no such filters"),
        *ignored("labels", "model", "serviceTier", "store"),
        *rejected(cachedContent="needs stored contents, which this server does not have."),
    ]


SAFETY_SETTINGS = "safetySettings"


def camel_case_names(value: Json) -> Json:
    """Return the body with the names of the API in camelCase and enums in upper case.

    Values with names of the client are not changed.

    Raises:
        ValueError: a name is given in both forms. The exception has the name.
    """
    out: Json = {}
    for name, member in value.items():
        camel = camel_case_name(name)
        if camel in out:
            raise ValueError(camel)
        convert = _upper_case if camel in _ENUM_MEMBERS else _with_camel_case
        out[camel] = member if camel in OPAQUE_MEMBERS else convert(member)
    return out


def _with_camel_case(value: Any) -> Any:  # noqa: ANN401 - a part of a body
    if isinstance(value, dict):
        return camel_case_names(value)
    return [_with_camel_case(item) for item in value] if isinstance(value, list) else value


def _upper_case(value: Any) -> Any:  # noqa: ANN401 - a part of a body
    if isinstance(value, list):
        return [_upper_case(item) for item in value]
    return value.upper() if isinstance(value, str) else value


def camel_case_name(name: str) -> str:
    """Return a name of the API in camelCase."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest) if first and rest else name
