"""JSON schemas of small things, as the readers of `requests/fields.py` take them: null is the same as not said."""

import re

from welldone.wire.events import Json

ANY: Json = {}
OBJECT: Json = {"type": "object", "additionalProperties": True}
"""Whatever its members are. That is said: some generators of clients read silence as an object without any."""
NULLABLE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
EMPTY_OBJECT: Json = {"type": "object", "maxProperties": 0}
_EMPTY_ARRAY: Json = {"type": "array", "items": {}, "maxItems": 0}
BOOLEAN: Json = {"type": ["boolean", "null"]}
COUNT: Json = {"type": "integer", "minimum": 0}
TEXT: Json = {"type": "string"}
NULLABLE_TEXT: Json = {"type": ["string", "null"]}
"""As long as a body may be."""


def number(low: float, high: float) -> Json:
    """A number within limits."""
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def integer(low: int, high: int) -> Json:
    """A whole number within limits."""
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def string(max_length: int, min_length: int = 0) -> Json:
    """A text of so many characters."""
    return {"type": ["string", "null"], "maxLength": max_length} | ({"minLength": min_length} if min_length else {})


def pattern_string(pattern: re.Pattern[str]) -> Json:
    """A text that is all of a pattern."""
    return {"type": "string", "pattern": f"^{pattern.pattern}$"}


def enum_schema(values: tuple[str, ...]) -> Json:
    """One of a few words."""
    return {"enum": [*values, None]}


def array(items: Json, max_items: int, min_items: int = 0) -> Json:
    """A list of so many elements."""
    return {"type": ["array", "null"], "items": items, "maxItems": max_items} | (
        {"minItems": min_items} if min_items else {}
    )


def object_schema(properties: Json | None = None, *required: str) -> Json:
    """An object, which may have others beside these."""
    return {"type": ["object", "null"], **_properties(properties, required)} if properties else NULLABLE_OBJECT


def any_of(*schemas: Json) -> Json:
    """Any of several."""
    return {"anyOf": list(schemas)}


def const_values(*values: object) -> Json:
    """One of a few values of several kinds, where generators of clients know no `enum`."""
    return any_of(*map(_const_schema, values))


def _const_schema(value: object) -> Json:
    match value:
        case None:
            return {"type": "null"}
        case dict():
            return EMPTY_OBJECT
        case list():
            return _EMPTY_ARRAY
        case _:
            return {"const": value}


def non_nullable(schema: Json) -> Json:
    """The same, where null is not taken for silence."""
    if "enum" in schema:
        return {**schema, "enum": [word for word in schema["enum"] if word is not None]}
    kinds = schema["type"]
    return {**schema, "type": kinds[0] if isinstance(kinds, list) else kinds}


def reply_object(properties: Json, *optional: str) -> Json:
    """An object that the server sends: all of these are there but the optional ones, and perhaps others."""
    return {"type": "object", **_properties(properties, tuple(one for one in properties if one not in optional))}


def component_ref(component: str) -> Json:
    """What stands among the components under a name."""
    return {"$ref": f"#/components/schemas/{component}"}


def _properties(properties: Json, required: tuple[str, ...]) -> Json:
    listed: Json = {"properties": properties}
    return {**listed, "required": list(required)} if required else listed
