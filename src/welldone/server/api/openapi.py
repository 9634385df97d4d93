"""OpenAPI 3.1 description of the server (`GET /openapi.json`).

The schemas of requests come from their Structs, with the limits that the validators use. Operations and replies are the
rows of `openapi.json` in this folder, whose schemas are short: the name of a type or of a component, `=CONSTANT`,
`A|B|C`, `# DESCRIPTION`, `[ITEMS]` or `[ITEMS, MINIMUM]`, `{"anyOf": [SCHEMA, …]}`, or an object by the names of its
members, of which those with a `?` are optional.
"""

from collections.abc import Iterable, Mapping
from pkgutil import get_data
from typing import Any

import msgspec

import welldone
from welldone.core.events import Json
from welldone.dialects.messages.objects import STOP_REASONS
from welldone.gateway.errors import ERROR_TYPES
from welldone.schemas import anthropic, chat, gemini, ollama, responses, utilities
from welldone.schemas.fields import EMPTY_VALUES, FieldHandling, describe_fields
from welldone.server.generation.passthrough import PASSTHROUGH_ENDPOINTS

_JSON_TYPE = "application/json"


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One method of a path. Schemas are short."""

    summary: str
    reply: str | Json
    """Schema of the JSON reply, or schemas by content type."""
    body: str | None = None
    """Schema of the request body."""
    stream_type: str | None = None
    """Content type of the reply if `stream` is true."""
    queries: Json = {}
    """Schemas of the query parameters."""
    headers: Json = {}
    """Schemas of the request headers."""
    statuses: tuple[int, ...] = ()
    """Error statuses besides the common ones."""


class _Rows(msgspec.Struct, frozen=True):
    document: Json
    security_schemes: Json
    types: Json
    replies: Json
    examples: Json
    operations: dict[str, Operation]


_ROWS = msgspec.json.decode(get_data("welldone.server.api", "openapi.json") or b"", type=_Rows)
_TYPES: Json = _ROWS.types | {
    "page limit": {"type": "integer", "minimum": 1, "maximum": responses.PAGE_LIMIT},
    "stop reason": {"enum": [*sorted(STOP_REASONS), None]},
}


def _schema(short: Any) -> Json:  # noqa: ANN401 - the module's docstring lists the forms
    """Return the schema for its short form."""
    match short:
        case [items]:
            return {"type": "array", "items": _schema(items)}
        case [items, int() as minimum]:
            return {**_schema([items]), "minItems": minimum}
        case {"anyOf": members}:
            return {"anyOf": [_schema(member) for member in members]}
        case dict():
            members = {name: _schema(member) for names, member in short.items() for name in names.split(", ")}
            # Upstreams and newer servers may add members.
            out: Json = {"type": "object", "properties": {name.rstrip("?"): members[name] for name in members}}
            required = [name for name in members if not name.endswith("?")]
            return {**out, "required": required} if required else out
        case _ if short in _TYPES:
            return dict(_TYPES[short])
        case _ if "|" in short:
            return {"enum": short.split("|")}
        case _ if short[0] in "=#":
            return {"const" if short[0] == "=" else "description": short[1:].lstrip()}
        case _:
            return {"$ref": f"#/components/schemas/{short}"}


def struct_components(*schemas: type[msgspec.Struct]) -> Json:
    """Return the components of request schemas: one for each Struct that is part of them."""
    _, components = msgspec.json.schema_components(schemas, ref_template="#/components/schemas/{name}")
    components = {name: _tidy_schema(schema) for name, schema in components.items()}
    for schema in schemas:
        properties = components[schema.__name__]["properties"]
        for field in describe_fields(schema):
            description = "; ".join(filter(None, (field.note, field.handling.value)))
            unread_schema = EMPTY_VALUES if field.handling is FieldHandling.REJECTED else {}
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
_STRUCTS = {
    name: value
    for module in (chat, responses, anthropic, gemini, ollama, utilities)
    for name, value in vars(module).items()
}
_REQUESTS: tuple[type[msgspec.Struct], ...] = tuple(
    _STRUCTS[name]
    for name in dict.fromkeys(operation.body for operation in _ROWS.operations.values())
    if name in _STRUCTS
)
_COMPONENTS: Json = {
    "ResponseItem": _schema({"anyOf": [item.__name__ for item in _RESPONSE_ITEMS]}),
    **struct_components(*_REQUESTS, *_RESPONSE_ITEMS),
    **{name: _schema(short) for name, short in _ROWS.replies.items()},
}
REQUEST_EXAMPLES = _ROWS.examples
"""Example bodies, by component."""

PASSTHROUGH_OPERATIONS = {
    f"{method} {endpoint.path}": Operation(
        "Forwarded to an upstream; its reply is returned unchanged",
        {"*/*": "any"},
        "object" if method == "POST" else None,
    )
    for endpoint in PASSTHROUGH_ENDPOINTS
    for method in endpoint.methods
    if not any(name.endswith(f" {endpoint.path}") for name in _ROWS.operations)
}
"""Operations of servers with upstreams."""
_OPERATIONS = {**_ROWS.operations, **PASSTHROUGH_OPERATIONS}  # `*` matches a name or an id, as in `server/routes.py`

API_PREFIX = "/v1"
OPEN_PATHS = ("/health", "/livez", "/readyz", "/", "/page/assets/*")
"""Paths that need no key."""

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
    document = _ROWS.document
    return document | {
        "info": {**document["info"], "version": welldone.__version__},
        "paths": {
            path.replace("*", "{id}"): {
                **(_ID_PARAMETERS if "*" in path else {}),
                **{method.lower(): _operation_object(path, method, has_upstreams) for method in methods},
            }
            for path, methods in paths.items()
        },
        "components": {"securitySchemes": _ROWS.security_schemes, "schemas": _COMPONENTS},
    }


def full_openapi_document() -> Json:
    """Return the document of a server with all endpoints."""
    paths: dict[str, list[str]] = {}
    for name in _OPERATIONS:
        method, _, path = name.partition(" ")
        paths.setdefault(path, []).append(method)
    return openapi_document(paths, has_upstreams=True)


def _operation_object(path: str, method: str, has_upstreams: bool) -> Json:
    operation = _OPERATIONS[f"{method} {path}"]
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
        {"name": name, "in": place, "schema": _schema(short)}
        for place, declared in places
        for name, short in declared.items()
    ]:
        out["parameters"] = parameters
    if operation.body is not None:
        content: Json = {"schema": _schema(operation.body)}
        if operation.body in REQUEST_EXAMPLES:
            content["example"] = REQUEST_EXAMPLES[operation.body]
        forms = _media_types({"multipart/form-data": "object"} if f"{method} {path}" in PASSTHROUGH_OPERATIONS else {})
        out["requestBody"] = {"required": True, "content": {_JSON_TYPE: content, **forms}}
    return out


def _response_objects(path: str, operation: Operation, *, is_passthrough: bool) -> Json:
    """Return the responses by status. A passthrough endpoint may have any."""
    content = {_JSON_TYPE: operation.reply} if isinstance(operation.reply, str) else operation.reply
    if operation.stream_type is not None:
        content = {**content, operation.stream_type: "# If `stream` is true"}
    out: Json = {"200": {"description": operation.summary, "content": _media_types(content)}}
    if is_passthrough:
        return {**out, "default": {"description": "The upstream's reply", "content": {"*/*": {}}}}
    body_statuses = _BODY_ERROR_STATUSES if operation.body is not None else ()
    statuses = {*_COMMON_ERROR_STATUSES, *body_statuses, *operation.statuses}
    if path in OPEN_PATHS:
        statuses.discard(401)
    component = next((name for start, name in _ERROR_COMPONENTS.items() if path.startswith(start)), "Error")
    for status in sorted(statuses):
        out[str(status)] = {"description": ERROR_TYPES[status], "content": _media_types({_JSON_TYPE: component})}
    return out


def _media_types(content: Json) -> Json:
    return {media_type: {"schema": _schema(short)} for media_type, short in content.items()}
