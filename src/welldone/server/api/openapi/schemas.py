"""JSON schema helpers, and the components of the request schemas."""

from typing import Any

import msgspec

from welldone.protocol.events import Json
from welldone.schemas.fields import describe_fields

# Most schemas are nullable, as the validators treat null as absent.

ANY: Json = {}
OBJECT: Json = {"type": "object", "additionalProperties": True}
"""Explicit, since some client generators take the default for an object without properties."""
NULLABLE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
COUNT: Json = {"type": "integer", "minimum": 0}
TEXT: Json = {"type": "string"}
NULLABLE_TEXT: Json = {"type": ["string", "null"]}


def integer(low: int, high: int) -> Json:
    """Return the schema of an integer in a range."""
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def enum_schema(values: tuple[str, ...]) -> Json:
    """Return the schema of an enum of strings."""
    return {"enum": [*values, None]}


def object_schema(properties: Json | None = None, *required: str) -> Json:
    """Return the schema of an object that may have other properties too."""
    return {"type": ["object", "null"], **_properties(properties, required)} if properties else NULLABLE_OBJECT


def any_of(*schemas: Json) -> Json:
    """Return the union of schemas."""
    return {"anyOf": list(schemas)}


def non_nullable(schema: Json) -> Json:
    """Return the schema without null."""
    if "enum" in schema:
        return {**schema, "enum": [value for value in schema["enum"] if value is not None]}
    kinds = schema["type"]
    return {**schema, "type": kinds[0] if isinstance(kinds, list) else kinds}


def reply_object(properties: Json, *optional: str) -> Json:
    """Return the schema of an object that the server sends; all properties but the optional ones are required."""
    required = tuple(name for name in properties if name not in optional)
    return {"type": "object", **_properties(properties, required)}


def component_ref(component: str) -> Json:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{component}"}


def _properties(properties: Json, required: tuple[str, ...]) -> Json:
    out: Json = {"properties": properties}
    return {**out, "required": list(required)} if required else out


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
