"""OpenAPI 3.1 description of the server (`GET /openapi.json`).

The schemas of requests come from their Structs, with the limits that the validators use.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import welldone
from welldone.gateway.errors import ERROR_TYPES
from welldone.protocol.dialects.anthropic.objects import STOP_REASONS, USAGE_COUNTS
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.protocol.envelope import REPLY_OBJECT, Endpoint
from welldone.protocol.events import Json
from welldone.schemas import anthropic, chat, gemini, keys, ollama, responses, vectors
from welldone.schemas.fields import EMPTY_VALUES, FieldHandling, describe_fields
from welldone.server.generation.passthrough import PASSTHROUGH_ENDPOINTS
from welldone.server.resume.api import LAST_EVENT_HEADER, RESUME_HEADER

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
            unread_schema = EMPTY_VALUES if field.handling is FieldHandling.REJECTED else ANY
            property_schema = {**properties.get(field.name, unread_schema), "description": description}
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
    empty: Json = {"default": None, "required": []}
    out = {
        key: _tidy_schema(item)
        for key, item in value.items()
        if not (key == "title" and isinstance(item, str)) and not (key in empty and item == empty[key])
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
    *(chat.ChatRequest, chat.CompletionRequest, responses.ResponseRequest, responses.CompactRequest),
    *(anthropic.AnthropicRequest, anthropic.AnthropicTokensRequest),
    *(gemini.GeminiRequest, gemini.GeminiTokensRequest),
    *(ollama.OllamaChatRequest, ollama.OllamaGenerateRequest, vectors.LoadRequest, keys.AddKeyRequest),
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
    "CompactRequest": {"model": _EXAMPLE_MODEL, "input": "Hello!"},
    "AnthropicRequest": {"model": _EXAMPLE_MODEL, "max_tokens": 64, **_EXAMPLE_MESSAGES},
    "GeminiRequest": {"contents": [{"role": "user", "parts": [{"text": "Hello!"}]}]},
    "EmbeddingsRequest": {"model": _EXAMPLE_MODEL, "input": ["Hello!"]},
    "RerankRequest": {"query": "Who purrs?", "documents": ["a cat", "a dog"]},
    "AddKeyRequest": {"name": "ci", "models": ["qwen-*"], "requests_per_minute": 60},
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


_KEY: Json = {
    "object": {"const": "key"},
    "name": TEXT,
    "models": _array(TEXT),
    **_of_type({"type": ["integer", "null"], "minimum": 0}, "requests_per_minute", "tokens_per_minute"),
    **_of_type(_BOOLEAN, "admin", "metrics"),
}
REPLY_COMPONENTS: Json = {
    "Usage": reply_object(_of_type(_COUNT, "prompt_tokens", "completion_tokens", "total_tokens")),
    "ChatCompletion": _completion_reply(Endpoint.CHAT, {"message": _ASSISTANT_MESSAGE}),
    "Completion": _completion_reply(Endpoint.COMPLETIONS, {"text": TEXT}),
    "Response": reply_object(_RESPONSE, "user"),
    "CompactedResponse": reply_object(
        {
            "id": TEXT,
            "object": {"const": "response.compaction"},
            "created_at": _NUMBER,
            "output": _array(OBJECT),
            "usage": OBJECT,
        }
    ),
    "ResponseItems": list_reply(OBJECT, **_of_type(_NULLABLE_TEXT, "first_id", "last_id"), has_more=_BOOLEAN),
    "ResponseDeleted": reply_object({"id": TEXT, "object": {"const": "response"}, "deleted": {"const": True}}),
    "StreamDeleted": reply_object({"id": TEXT, "object": {"const": "stream"}, "deleted": {"const": True}}),
    "ResponseTokens": reply_object({"object": {"const": "response.input_tokens"}, "input_tokens": _COUNT}),
    "AnthropicMessage": reply_object(_ANTHROPIC_MESSAGE),
    "AnthropicTokens": reply_object({"input_tokens": _COUNT}),
    "GeminiResponse": reply_object(
        {"candidates": _array(OBJECT), "usageMetadata": OBJECT, **_of_type(TEXT, "modelVersion", "responseId")}
    ),
    "GeminiTokens": reply_object({"totalTokens": _COUNT}),
    "GeminiModel": reply_object(_of_type(TEXT, "name", "displayName", "version")),
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
    "Mirrored": list_reply(
        reply_object(
            {
                "at": _NUMBER,
                **_of_type(TEXT, "request_id", "model"),
                "outcome": {"enum": ["identical", "different", "failed"]},
                "first_difference": {"type": ["integer", "null"]},
                "problem": _NULLABLE_TEXT,
                **_of_type(OBJECT, "reply", "mirrored"),
            }
        )
    ),
    "Reload": reply_object(
        {
            "outcome": {"enum": ["applied", "unchanged"]},
            **_of_type(_NULLABLE_TEXT, "file", "error"),
            **_of_type(_array(TEXT), "changes", "warnings"),
        }
    ),
    "Key": reply_object(_KEY),
    "Keys": list_reply(component_ref("Key")),
    "NewKey": reply_object({**_KEY, "key": TEXT}),
    "KeyDeleted": reply_object({"name": TEXT, "object": {"const": "key"}, "deleted": {"const": True}}),
    "Slots": _array(reply_object({"id": _COUNT, "model": TEXT, "is_processing": _BOOLEAN})),
    "Error": reply_object(
        {"error": reply_object({**_of_type(TEXT, "message", "type"), **_of_type(_NULLABLE_TEXT, "param", "code")})}
    ),
    "AnthropicError": reply_object(
        {"type": {"const": "error"}, "error": reply_object(_of_type(TEXT, "type", "message")), "request_id": TEXT},
        "request_id",
    ),
    "OllamaError": reply_object({"error": TEXT}),
    "GeminiError": reply_object({"error": reply_object({"code": _COUNT, **_of_type(TEXT, "message", "status")})}),
}


SSE_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"
JSON_TYPE = "application/json"


class Operation(msgspec.Struct, frozen=True):
    """One method of a path."""

    summary: str
    reply: str | Json
    """The component of the reply, or its schemas by content type."""
    body: str | Json | None = None
    """The component of the request body, or its schema."""
    stream_type: str | None = None
    """Content type of the reply if `stream` is true."""
    queries: Json = {}
    """Schemas of the query parameters."""
    headers: Json = {}
    """Schemas of the request headers."""
    statuses: tuple[int, ...] = ()
    """Error statuses besides the common ones."""


_OBJECT_REPLY: Json = {JSON_TYPE: OBJECT}
_MODEL_REPLY: Json = {JSON_TYPE: any_of(*map(component_ref, ("Model", "AnthropicModel", "GeminiModel")))}
_GEMINI_MODELS = reply_object({"models": _array(component_ref("GeminiModel"))})
_ANTHROPIC_MODELS = reply_object({"data": ANY, "has_more": ANY})
_MODELS_REPLY: Json = {JSON_TYPE: any_of(list_reply(component_ref("Model")), _ANTHROPIC_MODELS, _GEMINI_MODELS)}
_RERANK_OPERATION = Operation("Rank documents by relevance to a query", "RerankResults", "RerankRequest")
_MODEL_OPERATION = Operation("Get a model", _MODEL_REPLY)
_PAGE_QUERIES: Json = {
    "limit": {"type": "integer", "minimum": 1, "maximum": responses.PAGE_LIMIT},
    "order": {"enum": ["asc", "desc"]},
    "after": TEXT,
}

_STREAM_QUERIES: Json = {"stream": _BOOLEAN, "starting_after": _COUNT}
_RESUMED: Json = {SSE_TYPE: {"description": "The events after the last one that the client has"}}


def _generation(summary: str, reply: str, body: str) -> Operation:
    """An operation whose reply may be a stream that can be resumed."""
    return Operation(summary, reply, body, SSE_TYPE, headers={RESUME_HEADER: TEXT})


OPERATIONS = {  # `*` in a path matches a name or an id, as in `server/routes.py`
    "POST /chat/completions": _generation("Create a chat completion", "ChatCompletion", "ChatRequest"),
    "POST /chat/completions/input_tokens": Operation(
        "Count the prompt tokens of a chat", "ResponseTokens", "ChatRequest"
    ),
    "POST /completions": _generation("Create a text completion", "Completion", "CompletionRequest"),
    "POST /embeddings": Operation("Create embeddings", "Embeddings", "EmbeddingsRequest"),
    "POST /rerank": _RERANK_OPERATION,
    "POST /reranking": _RERANK_OPERATION,
    "POST /tokenize": Operation("Convert text to tokens", "Tokens", "TokenizeRequest"),
    "POST /detokenize": Operation("Convert tokens to text", "DetokenizedText", "DetokenizeRequest"),
    "POST /responses": _generation("Create a response", "Response", "ResponseRequest"),
    "POST /responses/input_tokens": Operation(
        "Count the input tokens of a response", "ResponseTokens", "ResponseRequest"
    ),
    "POST /responses/compact": Operation("Summarize a conversation", "CompactedResponse", "CompactRequest"),
    "GET /responses/*": Operation(
        "Get a stored response, or resume the stream of a background response",
        "Response",
        stream_type=SSE_TYPE,
        queries=_STREAM_QUERIES,
        statuses=(410,),
    ),
    "DELETE /responses/*": Operation("Delete a stored response", "ResponseDeleted"),
    "POST /responses/*/cancel": Operation("Cancel a background response", "Response"),
    "GET /responses/*/input_items": Operation(
        "List the input items of a response", "ResponseItems", queries=_PAGE_QUERIES
    ),
    "GET /streams/*": Operation("Resume a stream", _RESUMED, headers={LAST_EVENT_HEADER: _COUNT}, statuses=(410,)),
    "DELETE /streams/*": Operation("Stop and forget a stream", "StreamDeleted"),
    "POST /messages": _generation("Create a message (Anthropic's API)", "AnthropicMessage", "AnthropicRequest"),
    "POST /messages/count_tokens": Operation(
        "Count the input tokens of a message (Anthropic's API)", "AnthropicTokens", "AnthropicTokensRequest"
    ),
    "POST /api/chat": Operation(
        "Create a chat completion (Ollama's API)", "OllamaChat", "OllamaChatRequest", NDJSON_TYPE
    ),
    "POST /api/generate": Operation(
        "Generate text (Ollama's API)", "OllamaGenerate", "OllamaGenerateRequest", NDJSON_TYPE
    ),
    "GET /api/tags": Operation("List models (Ollama's API)", "OllamaTags"),
    "GET /api/version": Operation("Get the version (Ollama's API)", "OllamaVersion"),
    "POST /models/*:generateContent": Operation("Generate content (Google's API)", "GeminiResponse", "GeminiRequest"),
    "POST /models/*:streamGenerateContent": Operation(
        "Generate content as a stream (Google's API): a JSON array, or events with `alt=sse`",
        {JSON_TYPE: _array(component_ref("GeminiResponse")), SSE_TYPE: {"description": "With `alt=sse`"}},
        "GeminiRequest",
        queries={"alt": {"enum": ["json", "sse"]}},
    ),
    "POST /models/*:countTokens": Operation(
        "Count the prompt tokens of a request (Google's API)", "GeminiTokens", "GeminiTokensRequest"
    ),
    "GET /models": Operation(
        "List models; in Anthropic's format with the header `anthropic-version`, in Google's with `x-goog-api-key`",
        _MODELS_REPLY,
    ),
    "GET /models/*": _MODEL_OPERATION,
    "GET /models/load": _MODEL_OPERATION,
    "POST /models/load": Operation("Start to load a local model. For admins", "Done", "LoadRequest"),
    "GET /models/unload": _MODEL_OPERATION,
    "POST /models/unload": Operation("Unload a local model. For admins", "Done", "LoadRequest", statuses=(409,)),
    "GET /admin/mirror": Operation("List comparisons of mirrored requests. For admins", "Mirrored"),
    "POST /admin/reload": Operation("Read the configuration again. For admins", "Reload", statuses=(409,)),
    "GET /keys": Operation("List stored API keys. For admins", "Keys", statuses=(409,)),
    "POST /keys": Operation("Add an API key. For admins", "NewKey", "AddKeyRequest", statuses=(409,)),
    "DELETE /keys/*": Operation("Remove a stored API key. For admins", "KeyDeleted", statuses=(409,)),
    "GET /health": Operation("Readiness: whether requests can be served", "Status"),
    "GET /livez": Operation("Liveness: whether the server runs", "Status"),
    "GET /readyz": Operation("Same as `/health`", "Status"),
    "GET /metrics": Operation("Prometheus metrics", {"text/plain": TEXT}),
    "GET /slots": Operation("List slots and whether they are busy", "Slots"),
    "GET /openapi.json": Operation("This document", _OBJECT_REPLY),
    "GET /": Operation("The web page", {"text/html": TEXT}),
    "GET /page/assets/*": Operation("An asset of the web page", {"*/*": ANY}),
    "GET /page/api/state": Operation("State of the server, for the web page", _OBJECT_REPLY),
    "GET /page/api/recordings/*": Operation("A recording", {"*/*": ANY}),
    "GET /page/api/tapes/*": Operation("Capture of a response, for the inspector", _OBJECT_REPLY),
    "GET /page/api/rules/*": Operation("A conformance rule", _OBJECT_REPLY),
    "GET /page/api/hub/search": Operation(
        "Search the Hugging Face Hub for models. For admins", _OBJECT_REPLY, queries={"q": TEXT}, statuses=(502, 504)
    ),
    "GET /page/api/hub/files": Operation(
        "List the models of a repository. For admins", _OBJECT_REPLY, queries={"repository": TEXT}, statuses=(502, 504)
    ),
    "GET /page/api/pull": Operation("The latest download of a model. For admins", _OBJECT_REPLY),
    "POST /page/api/pull": Operation("Start to download a model. For admins", _OBJECT_REPLY, OBJECT, statuses=(409,)),
    "DELETE /page/api/pull": Operation("Cancel the download of a model. For admins", _OBJECT_REPLY),
    "POST /page/api/lint": Operation("Check a captured stream against the rules", _OBJECT_REPLY, OBJECT),
}

PASSTHROUGH_OPERATIONS = {
    f"{method} {endpoint.path}": Operation(
        "Forwarded to an upstream; its reply is returned unchanged", {"*/*": ANY}, OBJECT if method == "POST" else None
    )
    for endpoint in PASSTHROUGH_ENDPOINTS
    for method in endpoint.methods
    if not any(name.endswith(f" {endpoint.path}") for name in OPERATIONS)
}
"""Operations of servers with upstreams."""
_ALL_OPERATIONS = {**OPERATIONS, **PASSTHROUGH_OPERATIONS}

API_PREFIX = "/v1"
OPEN_PATHS = ("/health", "/livez", "/readyz", "/", "/page/assets/*")
"""Paths that need no key."""

_DESCRIPTION = (
    "Local models and upstreams behind one API. Every path is available with and without `/v1`. The limits of fields "
    "are those of local models: upstreams have their own, and get all fields. For local models, fields that are not "
    "listed are dropped. null counts as absent."
)
_SECURITY_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api_key": {"type": "apiKey", "in": "header", "name": "api-key"},
    "x_goog_api_key": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
}
_ID_PARAMETERS: Json = {
    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
}
_COMMON_ERROR_STATUSES = (400, 401, 403, 404, 405, 426, 429, 500, 503)
_BODY_ERROR_STATUSES = (408, 413, 415, 502, 504)
_ERROR_COMPONENTS = {"/messages": "AnthropicError", "/api/": "OllamaError", "/models/*:": "GeminiError"}
"""Error components by prefix of the path; OpenAI's for all others."""
_PASSTHROUGH_PATHS = frozenset(endpoint.path for endpoint in PASSTHROUGH_ENDPOINTS)


def openapi_document(paths: Mapping[str, Iterable[str]], *, has_upstreams: bool) -> Json:
    """Return the document of a server with these paths and methods."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "welldone", "version": welldone.__version__, "description": _DESCRIPTION},
        "servers": [{"url": API_PREFIX}, {"url": "/"}],
        "security": [{name: []} for name in _SECURITY_SCHEMES],
        "paths": {
            path.replace("*", "{id}"): {
                **(_ID_PARAMETERS if "*" in path else {}),
                **{method.lower(): _operation_object(path, method, has_upstreams) for method in methods},
            }
            for path, methods in paths.items()
        },
        "components": {"securitySchemes": _SECURITY_SCHEMES, "schemas": {**REQUEST_COMPONENTS, **REPLY_COMPONENTS}},
    }


def full_openapi_document() -> Json:
    """Return the document of a server with all endpoints."""
    paths: dict[str, list[str]] = {}
    for name in _ALL_OPERATIONS:
        method, _, path = name.partition(" ")
        paths.setdefault(path, []).append(method)
    return openapi_document(paths, has_upstreams=True)


def _operation_object(path: str, method: str, has_upstreams: bool) -> Json:
    operation = _ALL_OPERATIONS[f"{method} {path}"]
    words = (path.strip("/") or "page").replace("*", "id").replace(".", "/").replace(":", "/").split("/")
    out: Json = {
        "operationId": "_".join([method.lower(), *words]),
        "summary": operation.summary,
        "responses": _response_objects(path, operation, is_passthrough=has_upstreams and path in _PASSTHROUGH_PATHS),
    }
    if path in OPEN_PATHS:
        out["security"] = []
    places = (("query", operation.queries), ("header", operation.headers))
    if parameters := [
        {"name": name, "in": place, "schema": schema} for place, found in places for name, schema in found.items()
    ]:
        out["parameters"] = parameters
    if (body := operation.body) is not None:
        content: Json = {"schema": component_ref(body) if isinstance(body, str) else body}
        if isinstance(body, str) and body in REQUEST_EXAMPLES:
            content["example"] = REQUEST_EXAMPLES[body]
        forms: Json = (
            {"multipart/form-data": {"schema": OBJECT}} if f"{method} {path}" in PASSTHROUGH_OPERATIONS else {}
        )
        out["requestBody"] = {"required": True, "content": {JSON_TYPE: content, **forms}}
    return out


def _response_objects(path: str, operation: Operation, *, is_passthrough: bool) -> Json:
    """Return the responses by status. A passthrough endpoint may have any."""
    reply = operation.reply
    content: Json = {JSON_TYPE: component_ref(reply)} if isinstance(reply, str) else reply
    if operation.stream_type is not None:
        content = {**content, operation.stream_type: {"description": "If `stream` is true"}}
    out: Json = {"200": {"description": operation.summary, "content": _media_types(content)}}
    if is_passthrough:
        return {**out, "default": {"description": "The upstream's reply", "content": {"*/*": {}}}}
    body_statuses = _BODY_ERROR_STATUSES if operation.body is not None else ()
    statuses = {*_COMMON_ERROR_STATUSES, *body_statuses, *operation.statuses}
    if path in OPEN_PATHS:
        statuses.discard(401)
    component = next((name for start, name in _ERROR_COMPONENTS.items() if path.startswith(start)), "Error")
    for status in sorted(statuses):
        out[str(status)] = {
            "description": ERROR_TYPES[status],
            "content": _media_types({JSON_TYPE: component_ref(component)}),
        }
    return out


def _media_types(content: Json) -> Json:
    return {media_type: {"schema": schema} for media_type, schema in content.items()}
