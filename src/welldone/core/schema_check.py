"""Check of a JSON value against a JSON schema, as far as it is safe to do between two chunks of a stream.

Checked: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `minProperties`, `maxProperties`,
`items`, `prefixItems`, `minItems`, `maxItems`, `uniqueItems`, `minLength`, `maxLength`, `minimum`, `maximum`,
`exclusiveMinimum`, `exclusiveMaximum`, `allOf`, `anyOf`, `oneOf`, `not`, and `$ref` within the schema. Other keywords
allow everything: `pattern` would run a regular expression of a client, which may take forever, and `format` is only a
comment in most schemas. A value that takes too many steps does not fit.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from welldone.core.events import Json
from welldone.core.lenient_json import as_list, as_object

STEPS_LIMIT = 4_096
"""Pairs of a value and a schema, or of a value and one of its enum: some 10 ms. A call has some dozens."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def fits_schema(value: object, schema: object) -> bool:
    """Whether a decoded JSON value fits a schema."""
    checker = _SchemaChecker(schema)
    try:
        return checker.fits(value, schema) and checker.steps <= STEPS_LIMIT
    except RecursionError:
        return False


def resolve_reference(reference: object, root: object) -> object:
    """Return the schema that a reference names (RFC 6901); one that allows nothing if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return False
    for name in reference.removeprefix("#").split("/")[1:]:
        root = as_object(root).get(name.replace("~1", "/").replace("~0", "~"), False)
    return root


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value == int(value),
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}
_BOUND_CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}
_LENGTH_KEYWORDS: tuple[tuple[type, str, str], ...] = (
    (str, "minLength", "maxLength"),
    (list, "minItems", "maxItems"),
    (dict, "minProperties", "maxProperties"),
)


class _SchemaChecker:
    def __init__(self, root: object) -> None:
        self.steps = 0
        self._root = root

    def fits(self, value: object, schema: object) -> bool:
        """Whether a value fits; the result counts only if the steps are within their limit."""
        self.steps += 1
        if not isinstance(schema, dict) or self.steps > STEPS_LIMIT:
            return schema is True  # false allows nothing; anything else is not a schema
        return (
            self._fits_type(value, schema)
            and _fits_bounds(value, schema)
            and self._fits_alternatives(value, schema)
            and self._fits_members(value, schema)
        )

    def _fits_type(self, value: object, schema: Json) -> bool:
        kinds = schema.get("type")
        if kinds is not None:
            names = kinds if isinstance(kinds, list) else [kinds]
            if not any(isinstance(name, str) and name in _TYPE_CHECKS and _TYPE_CHECKS[name](value) for name in names):
                return False
        # Python's True equals 1, JSON's does not.
        if "enum" in schema:
            values = as_list(schema["enum"])
            self.steps += len(values)
            if _encode(value) not in map(_encode, values):
                return False
        return "const" not in schema or _encode(schema["const"]) == _encode(value)

    def _fits_alternatives(self, value: object, schema: Json) -> bool:
        if "$ref" in schema and not self.fits(value, resolve_reference(schema["$ref"], self._root)):
            return False
        if not all(self.fits(value, subschema) for subschema in as_list(schema.get("allOf"))):
            return False
        if "anyOf" in schema and not any(self.fits(value, subschema) for subschema in as_list(schema["anyOf"])):
            return False
        if "oneOf" in schema and sum(self.fits(value, subschema) for subschema in as_list(schema["oneOf"])) != 1:
            return False
        return "not" not in schema or not self.fits(value, schema["not"])

    def _fits_members(self, value: object, schema: Json) -> bool:
        if isinstance(value, dict):
            if not all(isinstance(name, str) and name in value for name in as_list(schema.get("required"))):
                return False
            properties, others = as_object(schema.get("properties")), schema.get("additionalProperties", True)
            return all(self.fits(item, properties.get(name, others)) for name, item in value.items())
        if isinstance(value, list):
            first, rest = as_list(schema.get("prefixItems")), schema.get("items", True)
            schemas = first + [rest] * (len(value) - len(first))
            return all(self.fits(item, item_schema) for item, item_schema in zip(value, schemas, strict=False))
        return True


def _fits_bounds(value: object, schema: Json) -> bool:
    if _is_number(value):
        bounds = [(check, schema.get(name)) for name, check in _BOUND_CHECKS.items()]
        return all(check(value, bound) for check, bound in bounds if _is_number(bound))
    for value_type, low, high in _LENGTH_KEYWORDS:
        if isinstance(value, value_type):
            size = len(value)  # type: ignore[arg-type]  # a string, list or dict
            if (_is_number(schema.get(low)) and size < schema[low]) or (
                _is_number(schema.get(high)) and size > schema[high]
            ):
                return False
    if isinstance(value, list) and schema.get("uniqueItems") is True:
        return len(set(map(_encode, value))) == len(value)
    return True
