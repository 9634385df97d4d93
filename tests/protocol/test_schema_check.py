"""Check of values against JSON schemas."""

from typing import Any

from tests.table import table
from welldone.core.schema_check import STEPS_LIMIT, fits_schema

OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/a~1b"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"a/b": {"type": "integer", "minimum": 1, "maximum": 7}},
}
TREE: dict[str, Any] = {"type": "object", "properties": {"child": {"$ref": "#"}}, "additionalProperties": False}


@table(
    ("schema", "value", "fits"),
    [
        (True, 1, True),
        (False, 1, False),
        (7, 1, False),
        ({}, None, True),
        ({"pattern": "^a$", "format": "email"}, "b", True),
        ({"type": "string"}, "", True),
        ({"type": "null"}, None, True),
        ({"type": "array"}, [], True),
        ({"type": ["string", "null"]}, None, True),
        ({"type": ["string", 7]}, 7, False),
        ({"type": "str"}, "a", False),
        ({"type": "number"}, 1.5, True),
        ({"type": "number"}, True, False),
        ({"type": "integer"}, 2.0, True),
        ({"type": "integer"}, 2.5, False),
        ({"type": "boolean"}, False, True),
        ({"type": "boolean"}, 0, False),
        ({"enum": ["a", 1]}, 1, True),
        ({"enum": ["a", 1]}, True, False),
        ({"enum": 7}, 7, False),
        ({"const": {"a": 1, "b": 2}}, {"b": 2, "a": 1}, True),
        ({"const": 1}, 2, False),
        ({"minimum": 1, "exclusiveMaximum": 3}, 1, True),
        ({"minimum": 1, "exclusiveMaximum": 3}, 3, False),
        ({"exclusiveMinimum": 1}, 1, False),
        ({"maximum": 1}, 2, False),
        ({"maximum": "1"}, 2, True),
        ({"minLength": 1, "maxLength": 2}, "ab", True),
        ({"minLength": 1}, "", False),
        ({"maxLength": 1}, "ab", False),
        ({"minLength": "1"}, "", True),
        ({"minItems": 1}, [], False),
        ({"maxItems": 1, "uniqueItems": True}, [1], True),
        ({"uniqueItems": True}, [1, 1], False),
        ({"uniqueItems": True}, [1, True], True),
        ({"minProperties": 1}, {}, False),
        ({"items": {"type": "string"}}, ["a", 1], False),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], True),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], False),
        ({"prefixItems": [{}, {}]}, ["a"], True),
        ({"required": [["a"]]}, {"a": 1}, False),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, False),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, "a", False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, False),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1.5, True),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1, False),
        ({"not": {"type": "string"}}, 1, True),
        ({"not": {"type": "string"}}, "a", False),
        (OBJECT, {"city": "Oslo", "days": 7}, True),
        (OBJECT, {"city": "Oslo", "days": 8}, False),
        (OBJECT, {"days": 1}, False),
        (OBJECT, {"city": "Oslo", "unit": "C"}, False),
        ({"$ref": "#/$defs/none"}, 1, False),
        ({"$ref": "#/$defs/none/deeper"}, 1, False),
        ({"$ref": "https://example.com"}, 1, False),
        ({"$ref": 7}, 1, False),
        (TREE, {"child": {"child": {}}}, True),
        (TREE, {"child": {"child": {"x": 1}}}, False),
    ],
)
def test_a_value_fits_or_not(schema: object, value: object, fits: bool) -> None:
    assert fits_schema(value, schema) is fits


def test_a_value_that_takes_too_many_steps_does_not_fit() -> None:
    many = [1] * (STEPS_LIMIT - 1)
    assert fits_schema(many, {"items": True})
    assert not fits_schema([*many, 1], {"items": True})
    assert not fits_schema([*many, 1], {"not": {"items": False}})
    assert not fits_schema(1, {"enum": list(range(STEPS_LIMIT))})
    assert not fits_schema([1], {"$ref": "#"})
    nested: dict[str, Any] = {}
    for _ in range(16):
        nested = {"anyOf": [{"allOf": [nested, False]}, {"allOf": [nested, False]}]}
    assert not fits_schema(1, {"not": nested})
