"""Schemas of all other requests: Responses, Anthropic, Ollama, embeddings, rerank, tokens and model loading."""

from welldone.protocol.events import Json
from welldone.server.api.openapi import schemas
from welldone.server.api.openapi.schemas import (
    ANY,
    BOOLEAN,
    NULLABLE_TEXT,
    OBJECT,
    TEXT,
    any_of,
    array,
    component_ref,
    const_values,
    enum_schema,
    field_schema,
    integer,
    non_nullable,
    number,
    object_schema,
    string,
    text_or_token_ids,
)
from welldone.server.requests import (
    anthropic,
    anthropic_messages,
    ollama,
    response_items,
    responses,
    sampling,
    tools,
    vectors,
)
from welldone.server.requests.fields import GENERATION_FIELDS_BY_NAME, RequestField
from welldone.server.requests.media import MEDIA_LIMIT
from welldone.server.requests.vectors import DIMENSIONS_LIMIT, DOCUMENTS_LIMIT, INPUTS_LIMIT, TOP_N_LIMIT

_MODEL_NAME = string(sampling.MODEL_NAME_LENGTH)
_ANTHROPIC_CONTENT = any_of(TEXT, {"type": "array", "items": component_ref("AnthropicBlock")})
_ANTHROPIC_TEXT = any_of(TEXT, {"type": "array", "items": component_ref("AnthropicBlockText")}, {"type": "null"})
_ANTHROPIC_TOOL = non_nullable(object_schema())
_INCLUDE = array(non_nullable(string(responses.METADATA_VALUE_LENGTH, 1)), len(responses.INCLUDE_VALUES))

_RESPONSES_TOOL = dict.fromkeys(("name", "description", "parameters", "strict"), ANY)
_RESPONSES_FORMAT = dict.fromkeys(("name", "description", "schema", "strict"), ANY)

_RESPONSES_FIELD_SCHEMAS: Json = {
    "input": any_of(TEXT, array(component_ref("ResponseItem"), response_items.ITEMS_LIMIT)),
    "instructions": NULLABLE_TEXT,
    "previous_response_id": string(responses.METADATA_VALUE_LENGTH),
    "store": BOOLEAN,
    "background": BOOLEAN,
    "tools": array(non_nullable(object_schema({"type": TEXT, **_RESPONSES_TOOL}, "type")), tools.TOOLS_LIMIT),
    "tool_choice": any_of(enum_schema(tools.TOOL_CHOICE_MODES), OBJECT),
    "parallel_tool_calls": BOOLEAN,
    "text": object_schema(
        {
            "format": object_schema(
                {"type": non_nullable(enum_schema(responses.TEXT_FORMATS)), **_RESPONSES_FORMAT}, "type"
            ),
            "verbosity": string(responses.METADATA_KEY_LENGTH),
        }
    ),
    "reasoning": object_schema(
        {"effort": string(responses.METADATA_KEY_LENGTH), "summary": enum_schema(responses.REASONING_SUMMARIES)}
    ),
    "max_output_tokens": integer(1, responses.INT32_MAX),
    "temperature": number(GENERATION_FIELDS_BY_NAME["temperature"].low, GENERATION_FIELDS_BY_NAME["temperature"].high),
    "top_p": number(GENERATION_FIELDS_BY_NAME["top_p"].low, GENERATION_FIELDS_BY_NAME["top_p"].high),
    "top_logprobs": integer(0, sampling.TOP_LOGPROBS_LIMIT),
    "include": {**_INCLUDE, "items": {"enum": list(responses.INCLUDE_VALUES)}},
    "stream": BOOLEAN,
    "stream_options": object_schema({"include_obfuscation": BOOLEAN}),
    "metadata": {
        "type": ["object", "null"],
        "maxProperties": responses.METADATA_PAIRS_LIMIT,
        "propertyNames": {"maxLength": responses.METADATA_KEY_LENGTH},
        "additionalProperties": non_nullable(string(responses.METADATA_VALUE_LENGTH)),
    },
    "n": integer(1, 1),
}
_ANTHROPIC_FIELD_SCHEMAS: Json = {
    "model": _MODEL_NAME,
    "max_tokens": integer(1, anthropic.INT32_MAX),
    "messages": {
        "type": "array",
        "minItems": 1,
        "maxItems": anthropic_messages.MESSAGES_LIMIT,
        "items": non_nullable(
            object_schema(
                {"role": non_nullable(enum_schema(anthropic_messages.ROLES)), "content": _ANTHROPIC_CONTENT},
                "role",
                "content",
            ),
        ),
    },
    "system": _ANTHROPIC_TEXT,
    "stream": BOOLEAN,
    "stop_sequences": array(non_nullable(string(sampling.STOP_STRING_LENGTH, 1)), sampling.STOP_STRINGS_LIMIT),
    "temperature": number(0, 1),
    "top_p": number(0, 1),
    "top_k": integer(0, anthropic.INT32_MAX),
    "metadata": object_schema(),
    "thinking": object_schema(
        {"type": enum_schema(anthropic.THINKING_MODES), "budget_tokens": integer(0, anthropic.INT32_MAX)}
    ),
    "tools": array(_ANTHROPIC_TOOL, anthropic.ANTHROPIC_TOOLS_LIMIT),
    "tool_choice": object_schema(
        {"type": enum_schema(tuple(anthropic.TOOL_CHOICE_MODES)), "disable_parallel_tool_use": BOOLEAN}
    ),
    "output_config": object_schema({"effort": enum_schema(anthropic.OUTPUT_EFFORTS), "format": object_schema()}),
    "output_format": object_schema(
        {"type": non_nullable(enum_schema(("json_schema",))), "schema": non_nullable(object_schema())}, "type", "schema"
    ),
}
_OLLAMA_FIELD_SCHEMAS: Json = {
    "model": _MODEL_NAME,
    "stream": BOOLEAN,
    "format": any_of({"enum": ["json", "", None]}, OBJECT),
    "options": object_schema(),
    "think": ANY,
}
_OLLAMA_IMAGES = array({**TEXT, "minLength": 1}, MEDIA_LIMIT)


def _responses_request() -> Json:
    properties = _field_schemas(responses.RESPONSES_FIELDS, _RESPONSES_FIELD_SCHEMAS, (None, False, 0, "", {}))
    others: Json = {"additionalProperties": True, "description": "Other fields are read as fields of a chat."}
    return {**non_nullable(object_schema({"model": _MODEL_NAME, **properties})), **others}


def _anthropic_request(*required: str) -> Json:
    properties = _field_schemas(anthropic.ANTHROPIC_FIELDS, _ANTHROPIC_FIELD_SCHEMAS, (None, [], {}, ""))
    return non_nullable(object_schema(properties, "messages", *required))


def _ollama_chat_request() -> Json:
    message = non_nullable(
        object_schema(
            {"role": string(64), "content": NULLABLE_TEXT, "thinking": NULLABLE_TEXT, "images": _OLLAMA_IMAGES}
        )
    )
    arrays = {"messages": array(message, ollama.MESSAGES_LIMIT), "tools": array(ANY, ollama.MESSAGES_LIMIT)}
    return non_nullable(object_schema(_OLLAMA_FIELD_SCHEMAS | arrays))


def _ollama_generate_request() -> Json:
    rejected: Json = {name: const_values(None, False, "", 0, [], {}) for name in ollama.UNSUPPORTED_FIELDS}
    return non_nullable(
        object_schema(
            {
                **_OLLAMA_FIELD_SCHEMAS,
                "prompt": NULLABLE_TEXT,
                "system": NULLABLE_TEXT,
                "images": _OLLAMA_IMAGES,
                **rejected,
            }
        )
    )


def _field_schemas(request_fields: tuple[RequestField, ...], known: Json, empty: tuple[object, ...]) -> Json:
    return {row.name: field_schema(row, known, empty) for row in request_fields}


_EMBEDDINGS_REQUEST = non_nullable(
    object_schema(
        {
            "model": _MODEL_NAME,
            "input": text_or_token_ids(INPUTS_LIMIT),
            "dimensions": integer(1, DIMENSIONS_LIMIT),
            "encoding_format": enum_schema(("float", "base64")),
        },
        "input",
    )
)
_RERANK_REQUEST = non_nullable(
    object_schema(
        {
            "model": _MODEL_NAME,
            "query": TEXT,
            "documents": non_nullable(
                array(any_of(TEXT, non_nullable(object_schema({"text": TEXT}, "text"))), DOCUMENTS_LIMIT, 1)
            ),
            "top_n": integer(1, TOP_N_LIMIT),
            "return_documents": BOOLEAN,
        },
        "query",
        "documents",
    )
)
_TOKENIZE_FLAG_SCHEMAS = dict.fromkeys((*vectors.TOKENIZE_FLAGS, "with_pieces", "return_token_strs"), BOOLEAN)
_TOKENIZE_REQUEST = non_nullable(
    object_schema({"model": _MODEL_NAME, "content": NULLABLE_TEXT, "prompt": NULLABLE_TEXT, **_TOKENIZE_FLAG_SCHEMAS})
)
_DETOKENIZE_REQUEST = non_nullable(
    object_schema(
        {
            "model": _MODEL_NAME,
            "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": sampling.MAX_TOKEN_ID}},
        },
        "tokens",
    )
)
_LOAD_REQUEST = non_nullable(object_schema({"model": _MODEL_NAME, "force": BOOLEAN}))

_MESSAGE_ITEM: Json = {
    "id": NULLABLE_TEXT,
    "type": enum_schema(("message",)),
    "role": non_nullable(enum_schema(response_items.ITEM_ROLES)),
    "content": ANY,
    "status": ANY,
}
_BLOCK_SOURCE = non_nullable(object_schema({"type": TEXT, "media_type": ANY, "data": ANY, "url": ANY}, "type"))


def _input_item(kind: str, *optional: str, **members: Json) -> Json:
    return non_nullable(
        object_schema({"id": NULLABLE_TEXT, **_typed_properties(kind, optional, members)}, "type", *members)
    )


def _content_block(kind: str, *optional: str, **members: Json) -> Json:
    return non_nullable(object_schema(_typed_properties(kind, (*optional, "cache_control"), members), "type", *members))


def _typed_properties(kind: str, optional: tuple[str, ...], members: Json) -> Json:
    return {"type": {"const": kind}, **members, **dict.fromkeys(optional, ANY)}


def _named_union(prefix: str, members: Json) -> Json:
    """Return a component per member and one for the union: client generators name types after components."""
    names = {f"{prefix}{name}": schema for name, schema in members.items()}
    return {**names, prefix: any_of(*map(component_ref, names))}


_EXAMPLE_MODEL = "smollm2-135m-instruct"
_EXAMPLE_MESSAGES: Json = {"messages": [{"role": "user", "content": "Hello!"}]}
REQUEST_EXAMPLES: Json = {
    "ChatRequest": {"model": _EXAMPLE_MODEL, **_EXAMPLE_MESSAGES, "stream": True},
    "CompletionRequest": {"model": _EXAMPLE_MODEL, "prompt": "Once upon a time", "max_tokens": 16},
    "ResponseRequest": {"model": _EXAMPLE_MODEL, "input": "Hello!"},
    "AnthropicRequest": {"model": _EXAMPLE_MODEL, "max_tokens": 64, **_EXAMPLE_MESSAGES},
    "EmbeddingsRequest": {"model": _EXAMPLE_MODEL, "input": ["Hello!"]},
    "RerankRequest": {"query": "Who purrs?", "documents": ["a cat", "a dog"]},
}
"""Example bodies."""

REQUEST_COMPONENTS: Json = {
    **_named_union(
        "AnthropicBlock",
        {
            "Text": _content_block("text", "citations", text=TEXT),
            "Image": _content_block("image", source=_BLOCK_SOURCE),
            "Document": _content_block("document", "title", "context", "citations", source=_BLOCK_SOURCE),
            "SearchResult": _content_block(
                "search_result", "citations", title=TEXT, source=TEXT, content=_ANTHROPIC_TEXT
            ),
            "ToolResult": _content_block("tool_result", "content", "is_error", tool_use_id=TEXT),
            "ToolUse": _content_block("tool_use", id=TEXT, name=TEXT, input=OBJECT),
            "Thinking": _content_block("thinking", "signature", thinking=TEXT),
            "RedactedThinking": _content_block("redacted_thinking", "data"),
        },
    ),
    **_named_union(
        "ResponseItem",
        {
            "Message": non_nullable(object_schema(_MESSAGE_ITEM, "role")),
            "FunctionCall": _input_item("function_call", "status", call_id=TEXT, name=TEXT, arguments=TEXT),
            "FunctionCallOutput": _input_item(
                "function_call_output", "status", call_id=TEXT, output=any_of(TEXT, {"type": "array", "items": ANY})
            ),
            "Reasoning": _input_item("reasoning", "summary", "content", "encrypted_content", "status"),
            "Reference": non_nullable(object_schema({"id": TEXT, "type": enum_schema(("item_reference",))}, "id")),
        },
    ),
    "ChatRequest": schemas.generation_request("chat"),
    "CompletionRequest": schemas.generation_request("completions"),
    "ResponseRequest": _responses_request(),
    "AnthropicRequest": _anthropic_request("max_tokens"),
    "AnthropicTokensRequest": _anthropic_request(),
    "OllamaChatRequest": _ollama_chat_request(),
    "OllamaGenerateRequest": _ollama_generate_request(),
    "EmbeddingsRequest": _EMBEDDINGS_REQUEST,
    "RerankRequest": _RERANK_REQUEST,
    "TokenizeRequest": _TOKENIZE_REQUEST,
    "DetokenizeRequest": _DETOKENIZE_REQUEST,
    "LoadRequest": _LOAD_REQUEST,
}
