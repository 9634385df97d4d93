"""JSON schemas of small things, as the readers of `requests/fields.py` take them: null is the same as not said."""

import re

from welldone.wire.events import Json

ANY: Json = {}
OBJECT: Json = {"type": "object", "additionalProperties": True}
"""Whatever its members are. That is said: some generators of clients read silence as an object without any."""
MAYBE_OBJECT: Json = {"type": ["object", "null"], "additionalProperties": True}
EMPTY_OBJECT: Json = {"type": "object", "maxProperties": 0}
_EMPTY_LIST: Json = {"type": "array", "items": {}, "maxItems": 0}
BOOLEAN: Json = {"type": ["boolean", "null"]}
COUNT: Json = {"type": "integer", "minimum": 0}
TEXT: Json = {"type": "string"}
MAYBE_TEXT: Json = {"type": ["string", "null"]}
"""As long as a body may be."""


def number(low: float, high: float) -> Json:
    """A number within limits."""
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def integer(low: int, high: int) -> Json:
    """A whole number within limits."""
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def string(most: int, least: int = 0) -> Json:
    """A text of so many characters."""
    return {"type": ["string", "null"], "maxLength": most} | ({"minLength": least} if least else {})


def name(pattern: re.Pattern[str]) -> Json:
    """A text that is all of a pattern."""
    return {"type": "string", "pattern": f"^{pattern.pattern}$"}


def words(known: tuple[str, ...]) -> Json:
    """One of a few words."""
    return {"enum": [*known, None]}


def array(items: Json, most: int, least: int = 0) -> Json:
    """A list of so many elements."""
    return {"type": ["array", "null"], "items": items, "maxItems": most} | ({"minItems": least} if least else {})


def table(properties: Json | None = None, *required: str) -> Json:
    """An object, which may have others beside these."""
    return {"type": ["object", "null"], **_members(properties, required)} if properties else MAYBE_OBJECT


def one_of(*kinds: Json) -> Json:
    """Any of several."""
    return {"anyOf": list(kinds)}


def only(*values: object) -> Json:
    """One of a few values of several kinds, where generators of clients know no `enum`."""
    return one_of(*map(_only, values))


def _only(value: object) -> Json:
    match value:
        case None:
            return {"type": "null"}
        case dict():
            return EMPTY_OBJECT
        case list():
            return _EMPTY_LIST
        case _:
            return {"const": value}


def needed(schema: Json) -> Json:
    """The same, where null is not taken for silence."""
    if "enum" in schema:
        return {**schema, "enum": [word for word in schema["enum"] if word is not None]}
    kinds = schema["type"]
    return {**schema, "type": kinds[0] if isinstance(kinds, list) else kinds}


def shown(properties: Json, *optional: str) -> Json:
    """An object that the server sends: all of these are there but the optional ones, and perhaps others."""
    return {"type": "object", **_members(properties, tuple(one for one in properties if one not in optional))}


def ref(component: str) -> Json:
    """What stands among the components under a name."""
    return {"$ref": f"#/components/schemas/{component}"}


def _members(properties: Json, required: tuple[str, ...]) -> Json:
    listed: Json = {"properties": properties}
    return {**listed, "required": list(required)} if required else listed
