"""Requests to `/v1/responses`. They become chat requests, which are validated again."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from welldone.schemas.chat import MESSAGES_LIMIT, ToolChoice, TopLogprobs
from welldone.schemas.fields import INT32_MAX, FieldHandling, FieldInfo, ModelName, ignored, note, rejected
from welldone.schemas.messages import CONTENT_PARTS_LIMIT, TOOLS_LIMIT, FunctionName, NamedFunction, RefusalPart

ITEMS_LIMIT = 2 * MESSAGES_LIMIT
"""Items of one request: one chat message may be reasoning, a text and calls. Reading one blocks the loop for 4 us."""
METADATA_PAIRS_LIMIT, METADATA_KEY_LENGTH, METADATA_VALUE_LENGTH = 16, 64, 512  # OpenAI's limits
PAGE_LIMIT = 100
"""OpenAI's limit of items in a list."""
INCLUDE_LOGPROBS = "message.output_text.logprobs"

_IGNORED = {"handling": FieldHandling.IGNORED}
_Id: TypeAlias = Annotated[str, Meta(max_length=METADATA_VALUE_LENGTH)]
_Word: TypeAlias = Annotated[str, Meta(max_length=METADATA_KEY_LENGTH)]
_EchoedText: TypeAlias = Annotated[str, note("echoed", max_length=METADATA_VALUE_LENGTH)]
_SummaryMode: TypeAlias = Literal["auto", "concise", "detailed"]
_Includes: TypeAlias = Annotated[
    list[
        Literal[
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
            "file_search_call.results",
            "web_search_call.results",
            "web_search_call.action.sources",
            "message.input_image.image_url",
            "computer_call_output.output.image_url",
            "code_interpreter_call.outputs",
        ]
    ],
    note(f"{INCLUDE_LOGPROBS}; OpenAI's others are ignored", max_length=8),
]
_PreviousId: TypeAlias = Annotated[_Id, note("a stored response: its conversation precedes the input")]
_Metadata: TypeAlias = Annotated[
    dict[str, Any],
    note(
        "up to 16 strings of 512 characters, with keys of 64; echoed",
        extra_json_schema={
            "maxProperties": METADATA_PAIRS_LIMIT,
            "propertyNames": {"maxLength": METADATA_KEY_LENGTH},
            "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_LENGTH},
        },
    ),
]
_MaxToolCalls: TypeAlias = Annotated[
    int, note("applies only to tools that a server runs itself", ge=0, le=INT32_MAX, extra=_IGNORED)
]


class InputTextPart(Struct, tag_field="type", tag="input_text"):
    """Text of a message."""

    text: str


class OutputTextPart(Struct, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str


class OnlyInputTextPart(Struct):
    """Text, where no other part is allowed. msgspec does not require the tag of a Struct that is not in a union."""

    type: Literal["input_text"]
    text: str


class InputImagePart(Struct, tag_field="type", tag="input_image"):
    """An image."""

    image_url: str | None = None
    detail: str | None = None
    file_id: Any = None


class InputAudioPart(Struct, tag_field="type", tag="input_audio"):
    """Audio, as in a chat."""

    input_audio: dict[str, Any]


class InputFilePart(Struct, tag_field="type", tag="input_file"):
    """A file, which some upstreams read."""

    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None
    file_url: Any = None


class ReasoningText(Struct):
    """A part of reasoning, or of its summary."""

    text: str


InputPart: TypeAlias = InputTextPart | OutputTextPart | InputImagePart | InputAudioPart | InputFilePart
_InputContent: TypeAlias = str | Annotated[list[InputPart], Meta(max_length=CONTENT_PARTS_LIMIT)]
_ReasoningContent: TypeAlias = Annotated[list[ReasoningText], Meta(max_length=CONTENT_PARTS_LIMIT)]


class MessageItem(Struct, kw_only=True, tag_field="role"):
    """Common fields of messages."""

    type: Literal["message"] | None = None


class UserItem(MessageItem, kw_only=True, tag="user"):
    """A message of the user."""

    content: _InputContent


class AssistantItem(MessageItem, kw_only=True, tag="assistant"):
    """A message of the model."""

    content: str | Annotated[list[OutputTextPart | InputTextPart | RefusalPart], Meta(max_length=CONTENT_PARTS_LIMIT)]


class SystemItem(MessageItem, kw_only=True, tag="system"):
    """Instructions for the model."""

    content: str | Annotated[list[OnlyInputTextPart], Meta(max_length=CONTENT_PARTS_LIMIT)]


class DeveloperItem(SystemItem, kw_only=True, tag="developer"):
    """The same as a system message."""


class FunctionCallItem(Struct, tag_field="type", tag="function_call"):
    """A call of a function."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    call_id: str
    name: str
    input: str
    namespace: str | None = None


class FunctionOutputItem(Struct, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    call_id: str
    output: _InputContent


class CustomOutputItem(FunctionOutputItem, tag="custom_tool_call_output"):
    """The result of a call of a custom tool."""


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    """Reasoning of the model."""

    content: _ReasoningContent | None = None
    summary: _ReasoningContent | None = None


class CompactionItem(Struct, tag_field="type", tag="compaction"):
    """The summary of an earlier part of the conversation, from `/v1/responses/compact`."""

    encrypted_content: str


class ItemReference(Struct, kw_only=True):
    """A stored item."""

    id: str
    type: Literal["item_reference"] | None = None


def _by_tag(*schemas: type[Struct]) -> dict[str, type[Struct]]:
    return {str(schema.__struct_config__.tag): schema for schema in schemas}


# Items may omit their type, which a union of Structs cannot express.
MESSAGE_ITEMS = _by_tag(UserItem, AssistantItem, SystemItem, DeveloperItem)
"""Messages by their role."""
ITEMS = _by_tag(FunctionCallItem, FunctionOutputItem, CustomCallItem, CustomOutputItem, ReasoningItem, CompactionItem)
"""Other items by their type."""


class ResponseTextFormat(Struct, tag_field="type", tag="text"):
    """No constraint on the answer."""


class ResponseObjectFormat(Struct, tag_field="type", tag="json_object"):
    """The answer is a JSON object."""


class ResponseSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """The answer matches a JSON schema."""

    name: Any
    schema: dict[str, Any]
    strict: bool | None = None


class ResponseText(Struct):
    """Format and verbosity of the answer."""

    format: ResponseTextFormat | ResponseObjectFormat | ResponseSchemaFormat | None = None
    verbosity: _Word | None = None


class ReasoningOptions(Struct):
    """Effort and summary of reasoning."""

    effort: _Word | None = None
    summary: _SummaryMode | None = None
    generate_summary: _SummaryMode | None = None


class ResponseStreamOptions(Struct):
    """Options of a stream."""

    include_obfuscation: bool | None = None


class ResponseTool(Struct):
    """A tool of any type."""

    type: Annotated[str, Meta(max_length=128)]


class NamespaceTool(Struct):
    """Functions and custom tools with names of their own."""

    name: FunctionName
    tools: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=TOOLS_LIMIT)]
    description: str | None = None


class NamedTool(NamedFunction):
    """A tool by its name. Without a namespace, the name must be unique among the tools of all namespaces."""

    namespace: FunctionName | None = None


class ItemsQuery(Struct):
    """The query of `/v1/responses/{id}/input_items`."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_LIMIT)] | None = None
    order: Literal["asc", "desc"] | None = None
    after: str | None = None


class ResponseQuery(Struct):
    """The query of `GET /v1/responses/{id}`."""

    stream: bool | None = None
    starting_after: Annotated[str, Meta(max_length=METADATA_KEY_LENGTH)] | None = None


class ResponseStorage(Struct, kw_only=True):
    """How the response is delivered and stored."""

    previous_response_id: _PreviousId | None = None
    store: Annotated[
        bool | None, note("true (default) or false: whether the response is stored, in memory, for a limited time")
    ] = None
    background: Annotated[
        bool | None, note("true or false; true needs store; with stream, the stream can be resumed")
    ] = None
    stream: bool | None = None


_ITEM_REF = {"$ref": "#/components/schemas/ResponseItem"}
_ITEM_ARRAY = {"type": ["array", "null"], "items": _ITEM_REF, "maxItems": ITEMS_LIMIT}
_Input: TypeAlias = Annotated[
    Any,
    note(
        "a string, or items: messages, function and custom tool calls and their outputs, reasoning, compactions, "
        "references",
        extra_json_schema={"anyOf": [{"type": "string"}, _ITEM_ARRAY]},
    ),
]


class ResponseRequest(ResponseStorage, kw_only=True):
    """A request to `/v1/responses`. Other fields are read as fields of a chat."""

    model: ModelName | None = None
    input: _Input = None
    instructions: Annotated[
        str | None, note("a string: the first system message; not carried over to the next response")
    ] = None
    tools: Annotated[
        Annotated[list[dict[str, Any]], Meta(max_length=TOOLS_LIMIT)] | None,
        note(
            "up to 128 functions, also in namespaces; custom tools for upstreams; OpenAI's hosted tools are ignored "
            "unless tool_choice names one; others are rejected, or ignored: --unknown-tools"
        ),
    ] = None
    tool_choice: Annotated[ToolChoice, note("none, auto, required, a function, a custom tool, allowed_tools")] = None
    parallel_tool_calls: bool | None = None
    text: Annotated[
        ResponseText | None, note("format: text, json_object, json_schema; verbosity is forwarded to upstreams")
    ] = None
    reasoning: Annotated[
        ReasoningOptions | None, note("effort: as reasoning_effort of chat; summary: reasoning is sent as a summary")
    ] = None
    max_output_tokens: Annotated[int, note("1 or more", ge=1, le=INT32_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[TopLogprobs | None, note(f"0 to 20, with {INCLUDE_LOGPROBS} in include")] = None
    include: _Includes | None = None
    stream_options: Annotated[ResponseStreamOptions | None, note("include_obfuscation: true or false, ignored")] = None
    metadata: _Metadata | None = None
    n: Annotated[int, note("1", ge=1, le=1)] | None = None
    user: _EchoedText | None = None
    safety_identifier: _EchoedText | None = None
    prompt_cache_key: _EchoedText | None = None
    prompt_cache_retention: _EchoedText | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        note("auto or disabled: input that is too long is rejected either way", extra=_IGNORED),
    ] = None
    max_tool_calls: _MaxToolCalls | None = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = [
        *ignored("context_management", "client_metadata", "access_programs", "image"),
        *rejected(
            conversation="is not supported: use 'previous_response_id'.",
            prompt="is not supported: this server stores no prompts. Send 'instructions' and 'input'.",
            moderation="is not supported.",
            messages="is called 'input' in this API.",
            response_format="is called 'text.format' in this API.",
            max_tokens="is called 'max_output_tokens' in this API.",
            max_completion_tokens="is called 'max_output_tokens' in this API.",
            reasoning_effort="is called 'reasoning.effort' in this API.",
            verbosity="is called 'text.verbosity' in this API.",
            logprobs=f"is '{INCLUDE_LOGPROBS}' in 'include' in this API.",
            functions="is called 'tools' in this API.",
            function_call="is called 'tool_choice' in this API.",
        ),
    ]


class CompactRequest(Struct, kw_only=True):
    """A request to `/v1/responses/compact`."""

    model: ModelName
    input: _Input = None
    previous_response_id: _PreviousId | None = None
    instructions: Annotated[
        str | None, note("a string: how to summarize, instead of the built-in instructions for the model")
    ] = None

    UNREAD_FIELDS: ClassVar[list[FieldInfo]] = ignored(
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "service_tier", "image", "tools"),
        *("parallel_tool_calls", "reasoning", "text"),
    )


class SocketEvent(Struct, kw_only=True):
    """A message of the client on a WebSocket: a request for a response, with these fields besides."""

    type: Annotated[str, Meta(max_length=128)]
    stream_id: _Word | None = None
    generate: bool | None = None
    background: bool | None = None
