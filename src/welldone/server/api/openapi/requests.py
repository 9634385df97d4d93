"""Components of the request schemas, and examples."""

from welldone.protocol.events import Json
from welldone.schemas.anthropic import AnthropicRequest, AnthropicTokensRequest
from welldone.schemas.chat import ChatRequest, CompletionRequest
from welldone.schemas.ollama import OllamaChatRequest, OllamaGenerateRequest
from welldone.schemas.responses import ResponseRequest
from welldone.schemas.vectors import (
    DetokenizeRequest,
    EmbeddingsRequest,
    LoadRequest,
    RerankRequest,
    TokenizeRequest,
)
from welldone.server.api.openapi.schemas import (
    ANY,
    NULLABLE_TEXT,
    TEXT,
    any_of,
    component_ref,
    enum_schema,
    non_nullable,
    object_schema,
    struct_components,
)
from welldone.server.requests.response_items import ITEM_ROLES

# Items may omit their type, which a union of Structs cannot express. `requests/response_items.py` reads them.
_TEXT_OR_PARTS = any_of(TEXT, {"type": "array", "items": ANY})
_MESSAGE_ITEM: Json = {
    "id": NULLABLE_TEXT,
    "type": enum_schema(("message",)),
    "role": non_nullable(enum_schema(ITEM_ROLES)),
    "content": ANY,
    "status": ANY,
}


def _input_item(kind: str, *optional: str, **members: Json) -> Json:
    properties = {"id": NULLABLE_TEXT, "type": {"const": kind}, **members, **dict.fromkeys(optional, ANY)}
    return non_nullable(object_schema(properties, "type", *members))


_RESPONSE_ITEMS: Json = {
    "ResponseItemMessage": non_nullable(object_schema(_MESSAGE_ITEM, "role")),
    "ResponseItemFunctionCall": _input_item("function_call", "status", call_id=TEXT, name=TEXT, arguments=TEXT),
    "ResponseItemFunctionCallOutput": _input_item(
        "function_call_output", "status", call_id=TEXT, output=_TEXT_OR_PARTS
    ),
    "ResponseItemCustomCall": _input_item("custom_tool_call", "status", call_id=TEXT, name=TEXT, input=TEXT),
    "ResponseItemCustomCallOutput": _input_item(
        "custom_tool_call_output", "status", call_id=TEXT, output=_TEXT_OR_PARTS
    ),
    "ResponseItemReasoning": _input_item("reasoning", "summary", "content", "encrypted_content", "status"),
    "ResponseItemReference": non_nullable(object_schema({"id": TEXT, "type": enum_schema(("item_reference",))}, "id")),
}

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
    **_RESPONSE_ITEMS,
    "ResponseItem": any_of(*map(component_ref, _RESPONSE_ITEMS)),
    **struct_components(
        ChatRequest,
        CompletionRequest,
        ResponseRequest,
        AnthropicRequest,
        AnthropicTokensRequest,
        OllamaChatRequest,
        OllamaGenerateRequest,
        EmbeddingsRequest,
        RerankRequest,
        TokenizeRequest,
        DetokenizeRequest,
        LoadRequest,
    ),
}
