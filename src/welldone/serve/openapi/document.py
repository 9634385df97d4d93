"""The document as a whole: paths, components, keys, and the errors of each path in the shape that its clients know."""

from collections.abc import Iterable, Mapping

import welldone
from welldone.serve.errors import TYPES
from welldone.serve.openapi import bodies, chats, replies
from welldone.serve.openapi.kinds import OBJECT, ref
from welldone.serve.openapi.operations import JSON, OPERATIONS, PASSED, Operation
from welldone.serve.passing import WAYS
from welldone.wire.events import Json

PREFIX = "/v1"
OPEN = ("/health", "/livez", "/readyz", "/", "/page/assets/*")
"""Paths that need no key."""

_ABOUT = (
    "Local models and upstreams behind one API. Every path stands with `/v1` and without. The limits of fields are "
    "those of local models: an upstream has its own, and gets what it is sent. A field that is not listed is dropped "
    "for local models. null is the same as silence."
)
_SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x_api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "api_key": {"type": "apiKey", "in": "header", "name": "api-key"},
}
_OF_ALL = (400, 401, 403, 404, 405, 426, 429, 500, 503)
_OF_BODIES = (408, 413, 415, 502, 504)
_ERRORS = {"/messages": "AnthropicError", "/api/": "OllamaError"}
"""Whose errors the clients of paths that begin so know; the others know OpenAI's."""
_PASSED = frozenset(way.path for way in WAYS)


def document(paths: Mapping[str, Iterable[str]], *, has_upstreams: bool) -> Json:
    """The document of a server with these paths, each with its methods."""
    known = {**OPERATIONS, **PASSED}
    return {
        "openapi": "3.1.0",
        "info": {"title": "welldone", "version": welldone.__version__, "description": _ABOUT},
        "servers": [{"url": PREFIX}, {"url": "/"}],
        "security": [{name: []} for name in _SECURITY],
        "paths": {
            _address(path): {
                **_parameters(path),
                **{
                    method.lower(): _operation(path, method, known[path][method], has_upstreams=has_upstreams)
                    for method in methods
                },
            }
            for path, methods in paths.items()
        },
        "components": {
            "securitySchemes": _SECURITY,
            "schemas": {**chats.COMPONENTS, **bodies.COMPONENTS, **replies.COMPONENTS},
        },
    }


def whole() -> Json:
    """The document of a server that has all there is."""
    return document({**OPERATIONS, **PASSED}, has_upstreams=True)


def _address(path: str) -> str:
    return path.replace("*", "{id}")


def _parameters(path: str) -> Json:
    if "*" not in path:
        return {}
    return {
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}]
    }


def _operation(path: str, method: str, operation: Operation, *, has_upstreams: bool) -> Json:
    made: Json = {
        "operationId": "_".join([method.lower(), *_words(path)]),
        "summary": operation.summary,
        "responses": _responses(path, operation, is_passed=has_upstreams and path in _PASSED),
    }
    if path in OPEN:
        made["security"] = []
    if operation.queries:
        made["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in operation.queries.items()
        ]
    if operation.body is not None:
        made["requestBody"] = {"required": True, "content": _content(path, operation.body)}
    return made


def _words(path: str) -> list[str]:
    return (path.strip("/") or "page").replace("*", "id").replace(".", "/").split("/")


def _content(path: str, body: Json) -> Json:
    forms: Json = {"multipart/form-data": {"schema": OBJECT}} if path in PASSED else {}
    name = body.get("$ref", "").rpartition("/")[2]
    example: Json = {"example": bodies.EXAMPLES[name]} if name in bodies.EXAMPLES else {}
    return {JSON: {"schema": body, **example}, **forms}


def _responses(path: str, operation: Operation, *, is_passed: bool) -> Json:
    """The replies by status. What passes comes back with whatever an upstream says."""
    found: Json = {"200": {"description": operation.summary, "content": _schemas(operation.reply)}}
    if is_passed:
        return {**found, "default": {"description": "What the upstream said", "content": {"*/*": {}}}}
    of_bodies = _OF_BODIES if operation.body is not None else ()
    statuses = [one for one in (*_OF_ALL, *of_bodies, *operation.statuses) if not (one == 401 and path in OPEN)]
    shape = next((name for start, name in _ERRORS.items() if path.startswith(start)), "Error")
    for status in sorted(statuses):
        found[str(status)] = {"description": TYPES[status], "content": _schemas({JSON: ref(shape)})}
    return found


def _schemas(content: Json) -> Json:
    return {kind: {"schema": schema} for kind, schema in content.items()}
