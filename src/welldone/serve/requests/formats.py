"""What form the answer must have: plain text, JSON, or JSON by a schema."""

import re

from welldone.serve.errors import invalid
from welldone.serve.requests import fields
from welldone.serve.requests.schema import Budget, check_schema
from welldone.wire.events import Json

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
KINDS = ("text", "json_object", "json_schema")
ANY_OBJECT: Json = {"type": "object"}


def read_schema(body: Json, budget: Budget) -> Json | None:
    """The schema that the answer must follow, from `response_format` or llama.cpp's `json_schema`."""
    found = _from_format(body, budget)
    own = body.get("json_schema")
    if own is None:
        return found
    if found is not None:
        message = "'json_schema' and 'response_format' cannot be used together."
        raise invalid(message, param="json_schema", code="invalid_value")
    return check_schema(own, "json_schema", budget)


def _from_format(body: Json, budget: Budget) -> Json | None:
    wanted = fields.table(body, "response_format")
    if wanted is None:
        return None
    kind = fields.choice(wanted, "type", KINDS, "response_format.")
    if kind is None:
        raise fields.missing("response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        own = wanted.get("schema")  # llama.cpp takes a schema here too
        return ANY_OBJECT if own is None else check_schema(own, "response_format.schema", budget)
    return _named(wanted, budget)


def _named(wanted: Json, budget: Budget) -> Json:
    param = "response_format.json_schema"
    named = fields.table(wanted, "json_schema", "response_format.")
    if named is None:
        raise fields.missing(param)
    name = fields.string(named, "name", 64, f"{param}.")
    if name is not None and not NAME.fullmatch(name):
        message = f"Invalid '{param}.name': expected letters, digits, '_' and '-', but got '{fields.shown(name)}'."
        raise invalid(message, param=f"{param}.name", code="invalid_value")
    fields.boolean(named, "strict", f"{param}.")
    schema = named.get("schema")
    return ANY_OBJECT if schema is None else check_schema(schema, f"{param}.schema", budget)
