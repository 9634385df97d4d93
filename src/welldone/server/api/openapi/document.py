"""The OpenAPI document: operations, components, security schemes, and error responses in the format of each API."""

from collections.abc import Iterable, Mapping

import msgspec

import welldone
from welldone.gateway.errors import ERROR_TYPES
from welldone.protocol.events import Json
from welldone.server.api.openapi import replies, requests
from welldone.server.api.openapi.replies import list_reply
from welldone.server.api.openapi.schemas import (
    ANY,
    OBJECT,
    TEXT,
    any_of,
    component_ref,
    enum_schema,
    integer,
    non_nullable,
    object_schema,
)
from welldone.server.api.responses import PAGE_LIMIT, SORT_ORDERS
from welldone.server.generation.passthrough import PASSTHROUGH_ENDPOINTS

EVENT_STREAM_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"
JSON_TYPE = "application/json"


class Operation(msgspec.Struct, frozen=True):
    """One method of a path."""

    summary: str
    reply: Json
    """Schemas of the reply by content type."""
    body: Json | None = None
    """Schema of the request body."""
    queries: Json = {}
    """Schemas of the query parameters."""
    statuses: tuple[int, ...] = ()
    """Error statuses besides the common ones."""


def _json_reply(component: str) -> Json:
    return {JSON_TYPE: component_ref(component)}


def _streamed_reply(component: str, stream_type: str = EVENT_STREAM_TYPE) -> Json:
    return {**_json_reply(component), stream_type: {"description": "If `stream` is true"}}


_OBJECT_REPLY: Json = {JSON_TYPE: OBJECT}
_MODEL_REPLY: Json = {JSON_TYPE: any_of(component_ref("Model"), component_ref("AnthropicModel"))}
_MODELS_REPLY: Json = {
    JSON_TYPE: any_of(
        list_reply(component_ref("Model")),
        non_nullable(object_schema({"data": ANY, "has_more": ANY}, "data", "has_more")),
    )
}
_HEALTH_REPLY = _json_reply("Status")
_RERANK_OPERATION = Operation(
    "Rank documents by relevance to a query", _json_reply("RerankResults"), component_ref("RerankRequest")
)
_MODEL_OPERATION = Operation("Get a model", _MODEL_REPLY)

OPERATIONS: dict[str, dict[str, Operation]] = {  # `*` in a path matches a name or an id, as in `server/routes.py`
    "/chat/completions": {
        "POST": Operation("Create a chat completion", _streamed_reply("ChatCompletion"), component_ref("ChatRequest"))
    },
    "/chat/completions/input_tokens": {
        "POST": Operation(
            "Count the prompt tokens of a chat", _json_reply("ResponseTokens"), component_ref("ChatRequest")
        )
    },
    "/completions": {
        "POST": Operation("Create a text completion", _streamed_reply("Completion"), component_ref("CompletionRequest"))
    },
    "/embeddings": {
        "POST": Operation("Create embeddings", _json_reply("Embeddings"), component_ref("EmbeddingsRequest"))
    },
    "/rerank": {"POST": _RERANK_OPERATION},
    "/reranking": {"POST": _RERANK_OPERATION},
    "/tokenize": {"POST": Operation("Convert text to tokens", _json_reply("Tokens"), component_ref("TokenizeRequest"))},
    "/detokenize": {
        "POST": Operation("Convert tokens to text", _json_reply("DetokenizedText"), component_ref("DetokenizeRequest"))
    },
    "/responses": {
        "POST": Operation("Create a response", _streamed_reply("Response"), component_ref("ResponseRequest"))
    },
    "/responses/input_tokens": {
        "POST": Operation(
            "Count the input tokens of a response", _json_reply("ResponseTokens"), component_ref("ResponseRequest")
        )
    },
    "/responses/*": {
        "GET": Operation("Get a stored response", _json_reply("Response")),
        "DELETE": Operation("Delete a stored response", _json_reply("ResponseDeleted")),
    },
    "/responses/*/cancel": {"POST": Operation("Cancel a background response", _json_reply("Response"))},
    "/responses/*/input_items": {
        "GET": Operation(
            "List the input items of a response",
            _json_reply("ResponseItems"),
            queries={
                "limit": non_nullable(integer(1, PAGE_LIMIT)),
                "order": non_nullable(enum_schema(SORT_ORDERS)),
                "after": TEXT,
            },
        )
    },
    "/messages": {
        "POST": Operation(
            "Create a message (Anthropic's API)", _streamed_reply("AnthropicMessage"), component_ref("AnthropicRequest")
        )
    },
    "/messages/count_tokens": {
        "POST": Operation(
            "Count the input tokens of a message (Anthropic's API)",
            _json_reply("AnthropicTokens"),
            component_ref("AnthropicTokensRequest"),
        )
    },
    "/api/chat": {
        "POST": Operation(
            "Create a chat completion (Ollama's API)",
            _streamed_reply("OllamaChat", NDJSON_TYPE),
            component_ref("OllamaChatRequest"),
        )
    },
    "/api/generate": {
        "POST": Operation(
            "Generate text (Ollama's API)",
            _streamed_reply("OllamaGenerate", NDJSON_TYPE),
            component_ref("OllamaGenerateRequest"),
        )
    },
    "/api/tags": {"GET": Operation("List models (Ollama's API)", _json_reply("OllamaTags"))},
    "/api/version": {"GET": Operation("Get the version (Ollama's API)", _json_reply("OllamaVersion"))},
    "/models": {
        "GET": Operation("List models; in Anthropic's format with the header `anthropic-version`", _MODELS_REPLY)
    },
    "/models/*": {"GET": _MODEL_OPERATION},
    "/models/load": {
        "GET": _MODEL_OPERATION,
        "POST": Operation("Start to load a local model. For admins", _json_reply("Done"), component_ref("LoadRequest")),
    },
    "/models/unload": {
        "GET": _MODEL_OPERATION,
        "POST": Operation(
            "Unload a local model. For admins", _json_reply("Done"), component_ref("LoadRequest"), statuses=(409,)
        ),
    },
    "/health": {"GET": Operation("Readiness: whether requests can be served", _HEALTH_REPLY)},
    "/livez": {"GET": Operation("Liveness: whether the server runs", _HEALTH_REPLY)},
    "/readyz": {"GET": Operation("Same as `/health`", _HEALTH_REPLY)},
    "/metrics": {"GET": Operation("Prometheus metrics", {"text/plain": TEXT})},
    "/slots": {"GET": Operation("List slots and whether they are busy", _json_reply("Slots"))},
    "/openapi.json": {"GET": Operation("This document", _OBJECT_REPLY)},
    "/": {"GET": Operation("The web page", {"text/html": TEXT})},
    "/page/assets/*": {"GET": Operation("An asset of the web page", {"*/*": ANY})},
    "/page/api/state": {"GET": Operation("State of the server, for the web page", _OBJECT_REPLY)},
    "/page/api/recordings/*": {"GET": Operation("A recording", {"*/*": ANY})},
    "/page/api/tapes/*": {"GET": Operation("Capture of a response, for the inspector", _OBJECT_REPLY)},
    "/page/api/rules/*": {"GET": Operation("A conformance rule", _OBJECT_REPLY)},
    "/page/api/lint": {
        "POST": Operation("Check a captured stream against the rules", _OBJECT_REPLY, non_nullable(object_schema()))
    },
}

PASSTHROUGH_OPERATIONS: dict[str, dict[str, Operation]] = {
    endpoint.path: {
        method: Operation(
            "Forwarded to an upstream; its reply is returned unchanged",
            {"*/*": ANY},
            OBJECT if method == "POST" else None,
        )
        for method in endpoint.methods
    }
    for endpoint in PASSTHROUGH_ENDPOINTS
    if endpoint.path not in OPERATIONS
}
"""Operations of servers with upstreams."""


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
}
_COMMON_ERROR_STATUSES = (400, 401, 403, 404, 405, 426, 429, 500, 503)
_BODY_ERROR_STATUSES = (408, 413, 415, 502, 504)
_ERROR_COMPONENTS = {"/messages": "AnthropicError", "/api/": "OllamaError"}
"""Error components by prefix of the path; OpenAI's for all others."""
_PASSTHROUGH_PATHS = frozenset(endpoint.path for endpoint in PASSTHROUGH_ENDPOINTS)


def openapi_document(paths: Mapping[str, Iterable[str]], *, has_upstreams: bool) -> Json:
    """Return the document of a server with these paths and methods."""
    known = {**OPERATIONS, **PASSTHROUGH_OPERATIONS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "welldone", "version": welldone.__version__, "description": _DESCRIPTION},
        "servers": [{"url": API_PREFIX}, {"url": "/"}],
        "security": [{name: []} for name in _SECURITY_SCHEMES],
        "paths": {
            _path_template(path): {
                **_path_parameters(path),
                **{
                    method.lower(): _operation_object(path, method, known[path][method], has_upstreams=has_upstreams)
                    for method in methods
                },
            }
            for path, methods in paths.items()
        },
        "components": {
            "securitySchemes": _SECURITY_SCHEMES,
            "schemas": {**requests.REQUEST_COMPONENTS, **replies.REPLY_COMPONENTS},
        },
    }


def full_openapi_document() -> Json:
    """Return the document of a server with all endpoints."""
    return openapi_document({**OPERATIONS, **PASSTHROUGH_OPERATIONS}, has_upstreams=True)


def _path_template(path: str) -> str:
    return path.replace("*", "{id}")


def _path_parameters(path: str) -> Json:
    if "*" not in path:
        return {}
    return {
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
    }


def _operation_object(path: str, method: str, operation: Operation, *, has_upstreams: bool) -> Json:
    out: Json = {
        "operationId": "_".join([method.lower(), *_operation_id_words(path)]),
        "summary": operation.summary,
        "responses": _response_objects(path, operation, is_passthrough=has_upstreams and path in _PASSTHROUGH_PATHS),
    }
    if path in OPEN_PATHS:
        out["security"] = []
    if operation.queries:
        out["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in operation.queries.items()
        ]
    if operation.body is not None:
        out["requestBody"] = {"required": True, "content": _request_content(path, operation.body)}
    return out


def _operation_id_words(path: str) -> list[str]:
    return (path.strip("/") or "page").replace("*", "id").replace(".", "/").split("/")


def _request_content(path: str, body: Json) -> Json:
    forms: Json = {"multipart/form-data": {"schema": OBJECT}} if path in PASSTHROUGH_OPERATIONS else {}
    name = body.get("$ref", "").rpartition("/")[2]
    example: Json = {"example": requests.REQUEST_EXAMPLES[name]} if name in requests.REQUEST_EXAMPLES else {}
    return {JSON_TYPE: {"schema": body, **example}, **forms}


def _response_objects(path: str, operation: Operation, *, is_passthrough: bool) -> Json:
    """Return the responses by status. A passthrough endpoint may have any."""
    out: Json = {"200": {"description": operation.summary, "content": _media_types(operation.reply)}}
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
