"""The OpenAPI document: operations, components, security schemes, and error responses in the format of each API."""

from collections.abc import Iterable, Mapping

import msgspec

import welldone
from welldone.gateway.errors import ERROR_TYPES
from welldone.protocol.events import Json
from welldone.schemas.responses import PAGE_LIMIT
from welldone.server.api.openapi import components
from welldone.server.api.openapi.components import ANY, OBJECT, TEXT, any_of, component_ref, list_reply, reply_object
from welldone.server.generation.passthrough import PASSTHROUGH_ENDPOINTS

EVENT_STREAM_TYPE = "text/event-stream"
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
    statuses: tuple[int, ...] = ()
    """Error statuses besides the common ones."""


_OBJECT_REPLY: Json = {JSON_TYPE: OBJECT}
_MODEL_REPLY: Json = {JSON_TYPE: any_of(component_ref("Model"), component_ref("AnthropicModel"))}
_ANTHROPIC_MODELS = reply_object({"data": ANY, "has_more": ANY})
_MODELS_REPLY: Json = {JSON_TYPE: any_of(list_reply(component_ref("Model")), _ANTHROPIC_MODELS)}
_RERANK_OPERATION = Operation("Rank documents by relevance to a query", "RerankResults", "RerankRequest")
_MODEL_OPERATION = Operation("Get a model", _MODEL_REPLY)
_PAGE_QUERIES: Json = {
    "limit": {"type": "integer", "minimum": 1, "maximum": PAGE_LIMIT},
    "order": {"enum": ["asc", "desc"]},
    "after": TEXT,
}

OPERATIONS: dict[str, dict[str, Operation]] = {  # `*` in a path matches a name or an id, as in `server/routes.py`
    "/chat/completions": {
        "POST": Operation("Create a chat completion", "ChatCompletion", "ChatRequest", EVENT_STREAM_TYPE)
    },
    "/chat/completions/input_tokens": {
        "POST": Operation("Count the prompt tokens of a chat", "ResponseTokens", "ChatRequest")
    },
    "/completions": {
        "POST": Operation("Create a text completion", "Completion", "CompletionRequest", EVENT_STREAM_TYPE)
    },
    "/embeddings": {"POST": Operation("Create embeddings", "Embeddings", "EmbeddingsRequest")},
    "/rerank": {"POST": _RERANK_OPERATION},
    "/reranking": {"POST": _RERANK_OPERATION},
    "/tokenize": {"POST": Operation("Convert text to tokens", "Tokens", "TokenizeRequest")},
    "/detokenize": {"POST": Operation("Convert tokens to text", "DetokenizedText", "DetokenizeRequest")},
    "/responses": {"POST": Operation("Create a response", "Response", "ResponseRequest", EVENT_STREAM_TYPE)},
    "/responses/input_tokens": {
        "POST": Operation("Count the input tokens of a response", "ResponseTokens", "ResponseRequest")
    },
    "/responses/*": {
        "GET": Operation("Get a stored response", "Response"),
        "DELETE": Operation("Delete a stored response", "ResponseDeleted"),
    },
    "/responses/*/cancel": {"POST": Operation("Cancel a background response", "Response")},
    "/responses/*/input_items": {
        "GET": Operation("List the input items of a response", "ResponseItems", queries=_PAGE_QUERIES)
    },
    "/messages": {
        "POST": Operation(
            "Create a message (Anthropic's API)", "AnthropicMessage", "AnthropicRequest", EVENT_STREAM_TYPE
        )
    },
    "/messages/count_tokens": {
        "POST": Operation(
            "Count the input tokens of a message (Anthropic's API)", "AnthropicTokens", "AnthropicTokensRequest"
        )
    },
    "/api/chat": {
        "POST": Operation("Create a chat completion (Ollama's API)", "OllamaChat", "OllamaChatRequest", NDJSON_TYPE)
    },
    "/api/generate": {
        "POST": Operation("Generate text (Ollama's API)", "OllamaGenerate", "OllamaGenerateRequest", NDJSON_TYPE)
    },
    "/api/tags": {"GET": Operation("List models (Ollama's API)", "OllamaTags")},
    "/api/version": {"GET": Operation("Get the version (Ollama's API)", "OllamaVersion")},
    "/models": {
        "GET": Operation("List models; in Anthropic's format with the header `anthropic-version`", _MODELS_REPLY)
    },
    "/models/*": {"GET": _MODEL_OPERATION},
    "/models/load": {
        "GET": _MODEL_OPERATION,
        "POST": Operation("Start to load a local model. For admins", "Done", "LoadRequest"),
    },
    "/models/unload": {
        "GET": _MODEL_OPERATION,
        "POST": Operation("Unload a local model. For admins", "Done", "LoadRequest", statuses=(409,)),
    },
    "/health": {"GET": Operation("Readiness: whether requests can be served", "Status")},
    "/livez": {"GET": Operation("Liveness: whether the server runs", "Status")},
    "/readyz": {"GET": Operation("Same as `/health`", "Status")},
    "/metrics": {"GET": Operation("Prometheus metrics", {"text/plain": TEXT})},
    "/slots": {"GET": Operation("List slots and whether they are busy", "Slots")},
    "/openapi.json": {"GET": Operation("This document", _OBJECT_REPLY)},
    "/": {"GET": Operation("The web page", {"text/html": TEXT})},
    "/page/assets/*": {"GET": Operation("An asset of the web page", {"*/*": ANY})},
    "/page/api/state": {"GET": Operation("State of the server, for the web page", _OBJECT_REPLY)},
    "/page/api/recordings/*": {"GET": Operation("A recording", {"*/*": ANY})},
    "/page/api/tapes/*": {"GET": Operation("Capture of a response, for the inspector", _OBJECT_REPLY)},
    "/page/api/rules/*": {"GET": Operation("A conformance rule", _OBJECT_REPLY)},
    "/page/api/lint": {"POST": Operation("Check a captured stream against the rules", _OBJECT_REPLY, OBJECT)},
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
_ID_PARAMETERS: Json = {
    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
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
            path.replace("*", "{id}"): {
                **(_ID_PARAMETERS if "*" in path else {}),
                **{
                    method.lower(): _operation_object(path, method, known[path][method], has_upstreams=has_upstreams)
                    for method in methods
                },
            }
            for path, methods in paths.items()
        },
        "components": {
            "securitySchemes": _SECURITY_SCHEMES,
            "schemas": {**components.REQUEST_COMPONENTS, **components.REPLY_COMPONENTS},
        },
    }


def full_openapi_document() -> Json:
    """Return the document of a server with all endpoints."""
    return openapi_document({**OPERATIONS, **PASSTHROUGH_OPERATIONS}, has_upstreams=True)


def _operation_object(path: str, method: str, operation: Operation, *, has_upstreams: bool) -> Json:
    words = (path.strip("/") or "page").replace("*", "id").replace(".", "/").split("/")
    out: Json = {
        "operationId": "_".join([method.lower(), *words]),
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


def _request_content(path: str, body: str | Json) -> Json:
    forms: Json = {"multipart/form-data": {"schema": OBJECT}} if path in PASSTHROUGH_OPERATIONS else {}
    if not isinstance(body, str):
        return {JSON_TYPE: {"schema": body}, **forms}
    examples = components.REQUEST_EXAMPLES
    example: Json = {"example": examples[body]} if body in examples else {}
    return {JSON_TYPE: {"schema": component_ref(body), **example}, **forms}


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
