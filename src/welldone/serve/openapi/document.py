"""The document as a whole: paths, components, keys, and the errors of each path in the shape that its clients know."""

from collections.abc import Iterable, Mapping

import welldone
from welldone.serve.errors import ERROR_TYPES
from welldone.serve.openapi import bodies, chats, replies
from welldone.serve.openapi.kinds import OBJECT, component_ref
from welldone.serve.openapi.operations import JSON_TYPE, OPERATIONS, PASSTHROUGH_OPERATIONS, Operation
from welldone.serve.passing import PASSTHROUGH_ENDPOINTS
from welldone.wire.events import Json

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
            "schemas": {**chats.CHAT_COMPONENTS, **bodies.REQUEST_COMPONENTS, **replies.REPLY_COMPONENTS},
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
    example: Json = {"example": bodies.REQUEST_EXAMPLES[name]} if name in bodies.REQUEST_EXAMPLES else {}
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
