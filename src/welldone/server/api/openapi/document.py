"""The document as a whole: paths, components, keys, and the errors of each path in the shape that its clients know."""

from collections.abc import Iterable, Mapping

import msgspec

import welldone
from welldone.gateway.errors import ERROR_TYPES
from welldone.protocol.events import Json
from welldone.server.api.openapi import replies, requests, schemas
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

# What each path takes and gives, by method. A path has `*` where a name or an id stands, as in `serve/routes.py`.


EVENT_STREAM_TYPE = "text/event-stream"
NDJSON_TYPE = "application/x-ndjson"
JSON_TYPE = "application/json"


class Operation(msgspec.Struct, frozen=True):
    """One method of a path."""

    summary: str
    reply: Json
    """The schema of a reply, by its content type."""
    body: Json | None = None
    """The schema of the request's body, if it has one."""
    queries: Json = {}
    """The schemas of its query's fields."""
    statuses: tuple[int, ...] = ()
    """Those that only it has."""


def _json_reply(component: str) -> Json:
    return {JSON_TYPE: component_ref(component)}


def _streamed_reply(component: str, stream_type: str = EVENT_STREAM_TYPE) -> Json:
    return {**_json_reply(component), stream_type: {"description": "Where `stream` is true"}}


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
    "Documents by how well they fit a query", _json_reply("Ranks"), component_ref("RankRequest")
)
_MODEL_OPERATION = Operation("A model", _MODEL_REPLY)

OPERATIONS: dict[str, dict[str, Operation]] = {
    "/chat/completions": {"POST": Operation("A chat", _streamed_reply("ChatCompletion"), component_ref("ChatRequest"))},
    "/chat/completions/input_tokens": {
        "POST": Operation("The tokens of a chat's prompt", _json_reply("ResponseTokens"), component_ref("ChatRequest"))
    },
    "/completions": {
        "POST": Operation(
            "Text that goes on from a prompt", _streamed_reply("Completion"), component_ref("CompletionRequest")
        )
    },
    "/embeddings": {
        "POST": Operation("Vectors of texts", _json_reply("Embeddings"), component_ref("EmbeddingsRequest"))
    },
    "/rerank": {"POST": _RERANK_OPERATION},
    "/reranking": {"POST": _RERANK_OPERATION},
    "/tokenize": {"POST": Operation("A text as tokens", _json_reply("Tokens"), component_ref("TokensRequest"))},
    "/detokenize": {
        "POST": Operation("Tokens as a text", _json_reply("TextOfTokens"), component_ref("TextOfTokensRequest"))
    },
    "/responses": {"POST": Operation("A response", _streamed_reply("Response"), component_ref("ResponseRequest"))},
    "/responses/input_tokens": {
        "POST": Operation(
            "The tokens of a response's input", _json_reply("ResponseTokens"), component_ref("ResponseRequest")
        )
    },
    "/responses/*": {
        "GET": Operation("A response that was kept", _json_reply("Response")),
        "DELETE": Operation("The end of a response that was kept", _json_reply("ResponseDeleted")),
    },
    "/responses/*/cancel": {"POST": Operation("Ends a response in the background", _json_reply("Response"))},
    "/responses/*/input_items": {
        "GET": Operation(
            "What was said before a response",
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
            "A chat in Anthropic's form", _streamed_reply("AnthropicMessage"), component_ref("AnthropicRequest")
        )
    },
    "/messages/count_tokens": {
        "POST": Operation(
            "The tokens that a message would take",
            _json_reply("AnthropicTokens"),
            component_ref("AnthropicTokensRequest"),
        )
    },
    "/api/chat": {
        "POST": Operation(
            "A chat in Ollama's form", _streamed_reply("OllamaChat", NDJSON_TYPE), component_ref("OllamaChatRequest")
        )
    },
    "/api/generate": {
        "POST": Operation(
            "Text in Ollama's form",
            _streamed_reply("OllamaGenerate", NDJSON_TYPE),
            component_ref("OllamaGenerateRequest"),
        )
    },
    "/api/tags": {"GET": Operation("The models, in Ollama's form", _json_reply("OllamaTags"))},
    "/api/version": {"GET": Operation("The version, in Ollama's form", _json_reply("OllamaVersion"))},
    "/models": {"GET": Operation("The models; in Anthropic's form for who sends `anthropic-version`", _MODELS_REPLY)},
    "/models/*": {"GET": _MODEL_OPERATION},
    "/models/load": {
        "GET": _MODEL_OPERATION,
        "POST": Operation(
            "Begins to load a local model. For admins", _json_reply("Done"), component_ref("LoadRequest")
        ),
    },
    "/models/unload": {
        "GET": _MODEL_OPERATION,
        "POST": Operation(
            "Unloads a local model. For admins", _json_reply("Done"), component_ref("LoadRequest"), statuses=(409,)
        ),
    },
    "/health": {"GET": Operation("Whether requests can be answered", _HEALTH_REPLY)},
    "/livez": {"GET": Operation("Whether the server runs", _HEALTH_REPLY)},
    "/readyz": {"GET": Operation("The same as `/health`", _HEALTH_REPLY)},
    "/metrics": {"GET": Operation("Figures for Prometheus", {"text/plain": TEXT})},
    "/slots": {"GET": Operation("Which slots are busy", _json_reply("Slots"))},
    "/openapi.json": {"GET": Operation("This document", _OBJECT_REPLY)},
    "/": {"GET": Operation("The page", {"text/html": TEXT})},
    "/page/assets/*": {"GET": Operation("A file of the page", {"*/*": ANY})},
    "/page/api/state": {"GET": Operation("What the page shows of the server", _OBJECT_REPLY)},
    "/page/api/recordings/*": {"GET": Operation("A recording", {"*/*": ANY})},
    "/page/api/tapes/*": {"GET": Operation("What a request of the page was answered", _OBJECT_REPLY)},
    "/page/api/rules/*": {"GET": Operation("A rule of the stream", _OBJECT_REPLY)},
    "/page/api/lint": {
        "POST": Operation("Judges a stream that was captured", _OBJECT_REPLY, non_nullable(object_schema()))
    },
}

PASSTHROUGH_OPERATIONS: dict[str, dict[str, Operation]] = {
    way.path: {
        method: Operation(
            "Passes to an upstream, whose reply comes back as it is",
            {"*/*": ANY},
            OBJECT if method == "POST" else None,
        )
        for method in way.methods
    }
    for way in PASSTHROUGH_ENDPOINTS
    if way.path not in OPERATIONS
}
"""What is there only where there are upstreams."""


API_PREFIX = "/v1"
OPEN_PATHS = ("/health", "/livez", "/readyz", "/", "/page/assets/*")
"""Paths that need no key."""

_DESCRIPTION = (
    "Local models and upstreams behind one API. Every path stands with `/v1` and without. The limits of fields are "
    "those of local models: an upstream has its own, and gets what it is sent. A field that is not listed is dropped "
    "for local models. null is the same as silence."
)
_SECURITY_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api_key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_COMMON_ERROR_STATUSES = (400, 401, 403, 404, 405, 426, 429, 500, 503)
_BODY_ERROR_STATUSES = (408, 413, 415, 502, 504)
_ERROR_COMPONENTS = {"/messages": "AnthropicError", "/api/": "OllamaError"}
"""Whose errors the clients of paths that begin so know; the others know OpenAI's."""
_PASSTHROUGH_PATHS = frozenset(way.path for way in PASSTHROUGH_ENDPOINTS)


def openapi_document(paths: Mapping[str, Iterable[str]], *, has_upstreams: bool) -> Json:
    """The document of a server with these paths, each with its methods."""
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
            "schemas": {**schemas.CHAT_COMPONENTS, **requests.REQUEST_COMPONENTS, **replies.REPLY_COMPONENTS},
        },
    }


def full_openapi_document() -> Json:
    """The document of a server that has all there is."""
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
    made: Json = {
        "operationId": "_".join([method.lower(), *_operation_id_words(path)]),
        "summary": operation.summary,
        "responses": _response_objects(path, operation, is_passthrough=has_upstreams and path in _PASSTHROUGH_PATHS),
    }
    if path in OPEN_PATHS:
        made["security"] = []
    if operation.queries:
        made["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in operation.queries.items()
        ]
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": _request_content(path, operation.body)}
    return made


def _operation_id_words(path: str) -> list[str]:
    return (path.strip("/") or "page").replace("*", "id").replace(".", "/").split("/")


def _request_content(path: str, body: Json) -> Json:
    forms: Json = {"multipart/form-data": {"schema": OBJECT}} if path in PASSTHROUGH_OPERATIONS else {}
    name = body.get("$ref", "").rpartition("/")[2]
    example: Json = {"example": requests.REQUEST_EXAMPLES[name]} if name in requests.REQUEST_EXAMPLES else {}
    return {JSON_TYPE: {"schema": body, **example}, **forms}


def _response_objects(path: str, operation: Operation, *, is_passthrough: bool) -> Json:
    """The replies by status. What passes comes back with whatever an upstream says."""
    found: Json = {"200": {"description": operation.summary, "content": _media_types(operation.reply)}}
    if is_passthrough:
        return {**found, "default": {"description": "What the upstream said", "content": {"*/*": {}}}}
    of_bodies = _BODY_ERROR_STATUSES if operation.body is not None else ()
    statuses = [
        one
        for one in (*_COMMON_ERROR_STATUSES, *of_bodies, *operation.statuses)
        if not (one == 401 and path in OPEN_PATHS)
    ]
    shape = next((name for start, name in _ERROR_COMPONENTS.items() if path.startswith(start)), "Error")
    for status in sorted(statuses):
        found[str(status)] = {
            "description": ERROR_TYPES[status],
            "content": _media_types({JSON_TYPE: component_ref(shape)}),
        }
    return found


def _media_types(content: Json) -> Json:
    return {kind: {"schema": schema} for kind, schema in content.items()}
