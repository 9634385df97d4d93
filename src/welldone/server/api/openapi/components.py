"""Components of the OpenAPI document: the schemas of requests, which come from their Structs, and of replies."""

from typing import Any

import msgspec

from welldone.protocol.dialects.anthropic.objects import STOP_REASONS, USAGE_COUNTS
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.protocol.envelope import REPLY_OBJECT, Endpoint
from welldone.protocol.events import Json
from welldone.schemas import anthropic, chat, ollama, responses, vectors
from welldone.schemas.fields import describe_fields

ANY: Json = {}
OBJECT: Json = {"type": "object", "additionalProperties": True}
"""Explicit, since some client generators take the default for an object without properties."""
TEXT: Json = {"type": "string"}
_NULLABLE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
_COUNT: Json = {"type": "integer", "minimum": 0}
_NUMBER: Json = {"type": "number"}
_BOOLEAN: Json = {"type": "boolean"}
_NULLABLE_TEXT: Json = {"type": ["string", "null"]}


def any_of(*schemas: Json) -> Json:
    """Return the union of schemas."""
    return {"anyOf": list(schemas)}


def component_ref(component: str) -> Json:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{component}"}


def reply_object(properties: Json, *optional: str) -> Json:
    """Return the schema of an object that the server sends; all properties but the optional ones are required.

    Upstreams and newer servers may add properties.
    """
    out: Json = {"type": "object", "properties": properties}
    required = [name for name in properties if name not in optional]
    return {**out, "required": required} if required else out


def list_reply(items: Json, **properties: Json) -> Json:
    """Return the schema of a list in OpenAI's format."""
    return reply_object({"object": {"const": "list"}, "data": _array(items), **properties})


def struct_components(*schemas: type[msgspec.Struct]) -> Json:
    """Return the components of request schemas: one for each Struct that is part of them."""
    _, components = msgspec.json.schema_components(schemas, ref_template="#/components/schemas/{name}")
    components = {name: _tidy_schema(schema) for name, schema in components.items()}
    for schema in schemas:
        properties = components[schema.__name__]["properties"]
        for field in describe_fields(schema):
            description = "; ".join(filter(None, (field.note, field.handling.value)))
            property_schema = {**properties[field.name], "description": description}
            if "also" in field.extra:  # a form that is replaced before the schema is applied
                property_schema["anyOf"] = [*property_schema["anyOf"], field.extra["also"]]
            properties[field.name] = property_schema
    return components


def _tidy_schema(value: Any) -> Any:  # noqa: ANN401 - a schema or a part of one
    """Drop titles and what is empty; make objects and arrays of anything explicit, for client generators."""
    if isinstance(value, list):
        return [_tidy_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    out = {
        key: _tidy_schema(item)
        for key, item in value.items()
        if not (
            (key == "title" and isinstance(item, str))
            or (key == "default" and item is None)
            or (key == "required" and item == [])
        )
    }
    if isinstance(pattern := out.get("pattern"), str):
        out["pattern"] = pattern.replace("\\Z", "$")  # Python's end of a string
    if out.get("type") == "object" and not out.keys() & {"properties", "additionalProperties", "maxProperties"}:
        out["additionalProperties"] = True
    if out.get("type") == "array":
        out.setdefault("items", {})
    return out


_RESPONSE_ITEMS: tuple[type[msgspec.Struct], ...] = (
    *responses.MESSAGE_ITEMS.values(),
    *responses.ITEMS.values(),
    responses.ItemReference,
)
_REQUESTS: tuple[type[msgspec.Struct], ...] = (
    *(chat.ChatRequest, chat.CompletionRequest, responses.ResponseRequest),
    *(anthropic.AnthropicRequest, anthropic.AnthropicTokensRequest),
    *(ollama.OllamaChatRequest, ollama.OllamaGenerateRequest, vectors.LoadRequest),
    *(vectors.EmbeddingsRequest, vectors.RerankRequest, vectors.TokenizeRequest, vectors.DetokenizeRequest),
)
REQUEST_COMPONENTS: Json = {
    "ResponseItem": any_of(*(component_ref(item.__name__) for item in _RESPONSE_ITEMS)),
    **struct_components(*_REQUESTS, *_RESPONSE_ITEMS),
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


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _of_type(schema: Json, *names: str) -> Json:
    return dict.fromkeys(names, schema)


_FUNCTION_CALL = reply_object(_of_type(TEXT, "name", "arguments"))
_TOOL_CALL = reply_object({"id": TEXT, "type": {"const": "function"}, "function": _FUNCTION_CALL})
_ASSISTANT_MESSAGE = reply_object(
    {
        "role": {"const": "assistant"},
        **_of_type(_NULLABLE_TEXT, "content", "refusal"),
        "reasoning_content": TEXT,
        "tool_calls": {**_array(_TOOL_CALL), "minItems": 1},
        "function_call": _FUNCTION_CALL,
    },
    *("reasoning_content", "tool_calls", "function_call"),
)
_PROMPT_USAGE = reply_object(_of_type(_COUNT, "prompt_tokens", "total_tokens"))
_RESPONSE_STATUSES = ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_RESPONSE: Json = {
    **_of_type(TEXT, "id", "model"),
    "object": {"const": "response"},
    "created_at": _NUMBER,
    "completed_at": {"type": ["number", "null"]},
    "status": {"enum": _RESPONSE_STATUSES},
    **_of_type(_NULLABLE_OBJECT, "error", "incomplete_details", "usage"),
    "output": _array(OBJECT),
    **_of_type(ANY, *RESPONSE_DEFAULTS),
}
_ANTHROPIC_USAGE = reply_object(_of_type({"type": ["integer", "null"]}, *USAGE_COUNTS), *USAGE_COUNTS)
_ANTHROPIC_MESSAGE: Json = {
    **_of_type(TEXT, "id", "model"),
    "type": {"const": "message"},
    "role": {"const": "assistant"},
    "content": _array(reply_object({"type": TEXT})),
    "stop_reason": {"enum": [*sorted(STOP_REASONS), None]},
    "stop_sequence": _NULLABLE_TEXT,
    "usage": _ANTHROPIC_USAGE,
}


def _completion_reply(endpoint: Endpoint, content: Json) -> Json:
    choice = {"index": _COUNT, **content, "logprobs": _NULLABLE_OBJECT, "finish_reason": TEXT}
    properties = {
        **_of_type(TEXT, "id", "model"),
        "object": {"const": REPLY_OBJECT[endpoint]},
        "created": _COUNT,
        "choices": _array(reply_object(choice)),
        "usage": component_ref("Usage"),
    }
    return reply_object(properties, "usage")


def _ollama_reply(**content: Json) -> Json:
    optional = {"done_reason": TEXT, **_of_type(_COUNT, "prompt_eval_count", "eval_count")}
    return reply_object({**_of_type(TEXT, "model", "created_at"), **content, "done": _BOOLEAN, **optional}, *optional)


REPLY_COMPONENTS: Json = {
    "Usage": reply_object(_of_type(_COUNT, "prompt_tokens", "completion_tokens", "total_tokens")),
    "ChatCompletion": _completion_reply(Endpoint.CHAT, {"message": _ASSISTANT_MESSAGE}),
    "Completion": _completion_reply(Endpoint.COMPLETIONS, {"text": TEXT}),
    "Response": reply_object(_RESPONSE, "user"),
    "ResponseItems": list_reply(OBJECT, **_of_type(_NULLABLE_TEXT, "first_id", "last_id"), has_more=_BOOLEAN),
    "ResponseDeleted": reply_object({"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}}),
    "ResponseTokens": reply_object({"object": {"const": "response.input_tokens"}, "input_tokens": _COUNT}),
    "AnthropicMessage": reply_object(_ANTHROPIC_MESSAGE),
    "AnthropicTokens": reply_object({"input_tokens": _COUNT}),
    "OllamaChat": _ollama_reply(message=reply_object({"role": {"const": "assistant"}, "content": TEXT})),
    "OllamaGenerate": _ollama_reply(response=TEXT),
    "OllamaTags": reply_object({"models": _array(reply_object(_of_type(TEXT, "name", "model")))}),
    "OllamaVersion": reply_object({"version": TEXT}),
    "Model": reply_object({**_of_type(TEXT, "id", "owned_by"), "object": {"const": "model"}, "created": _COUNT}),
    "AnthropicModel": reply_object({**_of_type(TEXT, "id", "display_name", "created_at"), "type": {"const": "model"}}),
    "Embeddings": list_reply(
        reply_object({"index": _COUNT, "embedding": any_of(_array(_NUMBER), TEXT)}), model=TEXT, usage=_PROMPT_USAGE
    ),
    "RerankResults": reply_object(
        {
            "model": TEXT,
            "results": _array(reply_object({"index": _COUNT, "relevance_score": _NUMBER})),
            "usage": _PROMPT_USAGE,
        }
    ),
    "Tokens": reply_object(
        {"tokens": _array(ANY), **_of_type(_COUNT, "count", "max_model_len"), "token_strs": _array(TEXT)}, "token_strs"
    ),
    "DetokenizedText": reply_object(_of_type(TEXT, "content", "prompt")),
    "Status": reply_object({"status": {"const": "ok"}}),
    "Done": reply_object({"success": {"const": True}}),
    "Slots": _array(reply_object({"id": _COUNT, "model": TEXT, "is_processing": _BOOLEAN})),
    "Error": reply_object(
        {"error": reply_object({**_of_type(TEXT, "message", "type"), **_of_type(_NULLABLE_TEXT, "param", "code")})}
    ),
    "AnthropicError": reply_object(
        {"type": {"const": "error"}, "error": reply_object(_of_type(TEXT, "type", "message")), "request_id": TEXT},
        "request_id",
    ),
    "OllamaError": reply_object({"error": TEXT}),
}
