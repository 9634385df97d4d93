"""Schemas of replies. Upstreams and newer servers may add properties to all of them."""

from welldone.protocol.dialects.anthropic.objects import STOP_REASONS, USAGE_COUNTS
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.protocol.envelope import REPLY_OBJECT, Endpoint
from welldone.protocol.events import Json
from welldone.server.api.openapi.schemas import (
    ANY,
    COUNT,
    NULLABLE_OBJECT,
    NULLABLE_TEXT,
    OBJECT,
    TEXT,
    any_of,
    component_ref,
    reply_object,
)

_COUNT_OR_NULL: Json = {"type": ["integer", "null"]}
_OBJECT_ARRAY: Json = {"type": "array", "items": OBJECT}
_USAGE_REPLY = reply_object(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), COUNT))
_PROMPT_USAGE = reply_object(dict.fromkeys(("prompt_tokens", "total_tokens"), COUNT))
_FUNCTION_CALL = reply_object({"name": TEXT, "arguments": TEXT})
_EMBEDDING_VECTOR = any_of({"type": "array", "items": {"type": "number"}}, TEXT)


def list_reply(items: Json) -> Json:
    """Return the schema of a list in OpenAI's format."""
    return reply_object({"object": {"const": "list"}, "data": {"type": "array", "items": items}})


def _completion_reply(endpoint: Endpoint, content: Json) -> Json:
    choice = {"index": COUNT, **content, "logprobs": NULLABLE_OBJECT, "finish_reason": TEXT}
    properties = {
        "id": TEXT,
        "object": {"const": REPLY_OBJECT[endpoint]},
        "created": COUNT,
        "model": TEXT,
        "choices": {"type": "array", "items": reply_object(choice)},
        "usage": component_ref("Usage"),
    }
    return reply_object(properties, "usage")


def _assistant_message_reply() -> Json:
    call = reply_object({"id": TEXT, "type": {"const": "function"}, "function": _FUNCTION_CALL})
    properties = {
        "role": {"const": "assistant"},
        "content": NULLABLE_TEXT,
        "refusal": NULLABLE_TEXT,
        "reasoning_content": TEXT,
        "tool_calls": {"type": "array", "items": call, "minItems": 1},
        "function_call": _FUNCTION_CALL,
    }
    return reply_object(properties, "reasoning_content", "tool_calls", "function_call")


def _response_reply() -> Json:
    properties = {
        "id": TEXT,
        "object": {"const": "response"},
        "created_at": {"type": "number"},
        "completed_at": {"type": ["number", "null"]},
        "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
        "error": NULLABLE_OBJECT,
        "incomplete_details": NULLABLE_OBJECT,
        "model": TEXT,
        "output": _OBJECT_ARRAY,
        "usage": NULLABLE_OBJECT,
    }
    return reply_object(properties | dict.fromkeys(RESPONSE_DEFAULTS, ANY), "user")


def _ollama_reply(content_field: str, content: Json) -> Json:
    counts = dict.fromkeys(("prompt_eval_count", "eval_count"), COUNT)
    properties = {
        "model": TEXT,
        "created_at": TEXT,
        content_field: content,
        "done": {"type": "boolean"},
        "done_reason": TEXT,
        **counts,
    }
    return reply_object(properties, "done_reason", *counts)


REPLY_COMPONENTS: Json = {
    "Usage": _USAGE_REPLY,
    "ChatCompletion": _completion_reply(Endpoint.CHAT, {"message": _assistant_message_reply()}),
    "Completion": _completion_reply(Endpoint.COMPLETIONS, {"text": TEXT}),
    "Response": _response_reply(),
    "ResponseItems": reply_object(
        {
            "object": {"const": "list"},
            "data": _OBJECT_ARRAY,
            "first_id": NULLABLE_TEXT,
            "last_id": NULLABLE_TEXT,
            "has_more": {"type": "boolean"},
        }
    ),
    "ResponseDeleted": reply_object(
        {"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}},
    ),
    "ResponseTokens": reply_object({"object": {"const": "response.input_tokens"}, "input_tokens": COUNT}),
    "AnthropicMessage": reply_object(
        {
            "id": TEXT,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": TEXT,
            "content": {"type": "array", "items": reply_object({"type": TEXT})},
            "stop_reason": {"enum": [*sorted(STOP_REASONS), None]},
            "stop_sequence": NULLABLE_TEXT,
            "usage": reply_object(dict.fromkeys(USAGE_COUNTS, _COUNT_OR_NULL), *USAGE_COUNTS),
        }
    ),
    "AnthropicTokens": reply_object({"input_tokens": COUNT}),
    "OllamaChat": _ollama_reply("message", reply_object({"role": {"const": "assistant"}, "content": TEXT})),
    "OllamaGenerate": _ollama_reply("response", TEXT),
    "OllamaTags": reply_object({"models": {"type": "array", "items": reply_object({"name": TEXT, "model": TEXT})}}),
    "OllamaVersion": reply_object({"version": TEXT}),
    "Model": reply_object({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT}),
    "AnthropicModel": reply_object({"id": TEXT, "type": {"const": "model"}, "display_name": TEXT, "created_at": TEXT}),
    "Embeddings": reply_object(
        {
            "object": {"const": "list"},
            "data": {"type": "array", "items": reply_object({"index": COUNT, "embedding": _EMBEDDING_VECTOR})},
            "model": TEXT,
            "usage": _PROMPT_USAGE,
        }
    ),
    "RerankResults": reply_object(
        {
            "model": TEXT,
            "results": {
                "type": "array",
                "items": reply_object({"index": COUNT, "relevance_score": {"type": "number"}}),
            },
            "usage": _PROMPT_USAGE,
        }
    ),
    "Tokens": reply_object(
        {
            "tokens": {"type": "array", "items": ANY},
            "count": COUNT,
            "max_model_len": COUNT,
            "token_strs": {"type": "array", "items": TEXT},
        },
        "token_strs",
    ),
    "DetokenizedText": reply_object({"content": TEXT, "prompt": TEXT}),
    "Status": reply_object({"status": {"const": "ok"}}),
    "Done": reply_object({"success": {"const": True}}),
    "Slots": {
        "type": "array",
        "items": reply_object({"id": COUNT, "model": TEXT, "is_processing": {"type": "boolean"}}),
    },
    "Error": reply_object(
        {"error": reply_object({"message": TEXT, "type": TEXT, "param": NULLABLE_TEXT, "code": NULLABLE_TEXT})},
    ),
    "AnthropicError": reply_object(
        {"type": {"const": "error"}, "error": reply_object({"type": TEXT, "message": TEXT}), "request_id": TEXT},
        "request_id",
    ),
    "OllamaError": reply_object({"error": TEXT}),
}
