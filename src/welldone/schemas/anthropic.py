"""Requests to `/v1/messages` and `/v1/messages/count_tokens` (Anthropic's API).

They become chat requests, which are validated again. So a field that only the chat request limits has no limit here.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from welldone.schemas.fields import FORWARDED, INT32_MAX, FieldInfo, ModelName, Probability, ignored, note, rejected

ANTHROPIC_MESSAGES_LIMIT = 8_192
"""Anthropic's limit is 100,000. Reading one blocks the event loop for 4 us."""
ANTHROPIC_TOOLS_LIMIT = 10_000
"""Anthropic's limit, with tool search; chat requests have a lower one."""
STOP_SEQUENCES_LIMIT = 8_191
"""Anthropic's limit; chat requests have a lower one."""

_Title: TypeAlias = Annotated[str, Meta(max_length=2**20)]
_StopSequences: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1)]], note("the same as stop of chat", max_length=STOP_SEQUENCES_LIMIT)
]
_Tools: TypeAlias = Annotated[
    list[dict[str, Any]], note("custom tools; others depend on --unknown-tools", max_length=ANTHROPIC_TOOLS_LIMIT)
]
_MaxOutputTokens: TypeAlias = Annotated[int, note("1 or more; required, except for token counting", ge=1, le=INT32_MAX)]


class Base64Source(Struct, tag_field="type", tag="base64"):
    """An inline image."""

    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(Struct, tag_field="type", tag="url"):
    """An image at a URL."""

    url: str


class FileSource(Struct, tag_field="type", tag="file"):
    """An uploaded file, which is not supported."""


class TextSource(Struct, tag_field="type", tag="text"):
    """A document of plain text."""

    data: str


class PdfSource(Struct, tag_field="type", tag="base64"):
    """An inline PDF, which is not supported."""


class PdfUrlSource(Struct, tag_field="type", tag="url"):
    """A PDF at a URL, which is not supported."""


class TextBlock(Struct, tag_field="type", tag="text"):
    """Text."""

    text: str


class OnlyTextBlock(Struct):
    """Text, where no other block is allowed. msgspec does not require the tag of a Struct that is not in a union."""

    type: Literal["text"]
    text: str


class ImageBlock(Struct, tag_field="type", tag="image"):
    """An image."""

    source: Base64Source | UrlSource | FileSource


class ContentSource(Struct, tag_field="type", tag="content"):
    """A document of content blocks."""

    content: str | list[TextBlock | ImageBlock]


class Citations(Struct):
    """Whether the answer should cite a document, which is not supported."""

    enabled: bool | None = None


class DocumentBlock(Struct, tag_field="type", tag="document"):
    """A document."""

    source: TextSource | ContentSource | PdfSource | PdfUrlSource | FileSource
    title: _Title | None = None
    context: _Title | None = None
    citations: Citations | None = None


class SearchResultBlock(Struct, tag_field="type", tag="search_result"):
    """A search result of the client."""

    title: str
    source: str
    content: str | list[OnlyTextBlock]
    citations: Citations | None = None


class ToolReferenceBlock(Struct, tag_field="type", tag="tool_reference"):
    """A tool that a tool search found."""

    tool_name: str


ResultBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    is_error: bool | None = None
    content: str | list[ResultBlock] | None = None


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any]


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning of the model."""

    thinking: str


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning that another server encrypted; ignored."""


UserBlock: TypeAlias = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock


class AnthropicUserMessage(Struct, tag_field="role", tag="user"):
    """A message of the user, with results of calls."""

    content: str | list[UserBlock]


class AnthropicAssistantMessage(Struct, tag_field="role", tag="assistant"):
    """A message of the model."""

    content: str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock]


class AnthropicSystemMessage(Struct, tag_field="role", tag="system"):
    """Instructions within the conversation."""

    content: str | list[OnlyTextBlock]


AnthropicMessage: TypeAlias = AnthropicUserMessage | AnthropicAssistantMessage | AnthropicSystemMessage


class Thinking(Struct):
    """Whether the model thinks."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"] | None = None
    budget_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None


class AnthropicTool(Struct, kw_only=True):
    """A tool that the client runs."""

    name: Any = None
    input_schema: dict[str, Any]
    description: str | None = None
    input_examples: Annotated[list[Any], Meta(max_length=ANTHROPIC_TOOLS_LIMIT)] | None = None
    strict: bool | None = None


class AnthropicToolChoice(Struct):
    """Which tools the model calls."""

    type: Literal["auto", "any", "none", "tool"] | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Struct):
    """A JSON schema of the answer."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    """Effort and format of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class AnthropicTokensRequest(Struct, kw_only=True):
    """A request to `/v1/messages/count_tokens`."""

    model: ModelName | None = None
    max_tokens: _MaxOutputTokens | None = None
    messages: Annotated[
        list[AnthropicMessage],
        note(
            "text, images, documents with text, search results, thinking, tool_use, tool_result",
            max_length=ANTHROPIC_MESSAGES_LIMIT,
            extra_json_schema={"minItems": 1},
        ),
    ]
    system: Annotated[str | list[OnlyTextBlock] | None, note("a string, or text blocks")] = None
    stream: bool | None = None
    stop_sequences: _StopSequences | None = None
    temperature: Probability | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, note("0 or more", ge=0, le=INT32_MAX, extra=FORWARDED)] | None = None
    metadata: Annotated[dict[str, Any] | None, note("user_id: forwarded as user if it has at most 64 characters")] = (
        None
    )
    thinking: Annotated[
        Thinking | None, note("enabled, adaptive: the reply has thinking; budget_tokens: for llama.cpp")
    ] = None
    tools: _Tools | None = None
    tool_choice: Annotated[AnthropicToolChoice | None, note("auto, any, tool, none; disable_parallel_tool_use")] = None
    output_config: Annotated[OutputConfig | None, note("effort, and format with a json_schema")] = None
    output_format: Annotated[OutputFormat | None, note("the same as output_config.format")] = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = [
        *ignored("betas", "cache_control", "compaction", "context_management", "diagnostics", "fallbacks"),
        *ignored("inference_geo", "service_tier", "speed", "user_profile_id", "workspace_id"),
        *rejected(
            container="needs a container, which this server does not have.",
            mcp_servers="needs an MCP client, which this server does not have.",
            thread="needs stored conversations, which this server does not have.",
        ),
    ]


class AnthropicRequest(AnthropicTokensRequest, kw_only=True):
    """A request to `/v1/messages`."""

    max_tokens: _MaxOutputTokens
