"""Validation of JSON schemas, and the limits that protect an engine."""

import re

import pytest

from tests.server.requests.builders import Body
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.server.requests.json_schema import SchemaBudget, check_schema


def check(schema: object) -> Body:
    """Return the schema for the engine."""
    return check_schema(schema, "s", SchemaBudget())


def rejection_reason(schema: object) -> str:
    """Return the error message for an invalid schema."""
    with pytest.raises(ApiError) as caught:
        check(schema)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "s", "invalid_json_schema")
    return caught.value.message


def nested(levels: int) -> Body:
    """Return a schema of nested objects."""
    schema: Body = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def required(count: int, value: object) -> Body:
    """Return an object schema with required properties."""
    names = [f"p{number}" for number in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, value), "required": names}


def choice(number: int, values: list[str], **members: object) -> Body:
    """Return a choice of two objects that differ in the last property, with the next choice inside."""
    inside = {"$ref": f"#/$defs/d{number + 1}"}
    parts = [
        {"type": "object", "properties": {**members, "v": inside, "k": {"const": value}}, "required": ["v", "k"]}
        for value in values
    ]
    return {"anyOf": parts}


def choices(levels: int) -> Body:
    """Return nested choices."""
    definitions: Body = {f"d{number}": choice(number, ["b", "c"]) for number in range(levels)}
    return {"$defs": {**definitions, f"d{levels}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


KEPT: list[Body] = [
    {},
    {"type": "object"},
    {"type": ["string", "null"], "description": "x", "title": "t", "default": None} | {"default": 1},
    {"type": "string", "pattern": "^a+$", "minLength": 1, "maxLength": 2000, "format": "date"},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 2}, "minItems": 0, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": {}},
    {"enum": ["a", 1, None, {"b": 1}]},
    {"const": {"a": 1}},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "string"}]},
    {"allOf": [{"$ref": "#/definitions/a"}], "definitions": {"a": {"type": "object"}}},
    {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}},
    {"anyOf": [{"$ref": "#/anyOf/1"}, {"type": "null"}]},
    # A list whose elements hold lists: a reference may lead back where one must not choose blindly.
    {
        "$defs": {
            "n": {
                "type": "object",
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}},
                "required": ["next"],
            }
        },
        "$ref": "#/$defs/n",
    },
]


@table("schema", KEPT)
def test_a_valid_schema_is_unchanged(schema: Body) -> None:
    assert check(schema) == schema


@table(
    ("schema", "left"),
    [
        (
            {"type": "object", "$schema": "x", "x-y": [1], "not": {}, "if": {}, "patternProperties": {}},
            {"type": "object"},
        ),
        ({"description": None, "required": None}, {}),
        ({"properties": {"a": True}}, {"properties": {"a": {}}}),
        ({"type": "string", "maxLength": 2001, "minLength": 2000}, {"type": "string", "minLength": 2000}),
        ({"type": "array", "maxItems": 10**9}, {"type": "array"}),
        (
            {"type": "integer", "maximum": 10**30, "minimum": 0, "exclusiveMinimum": True},
            {"type": "integer", "minimum": 0},
        ),
        # These stopped the engine for good.
        ({"type": "integer", "minimum": 10**15 + 1}, {"type": "integer"}),
        ({"type": "integer", "maximum": -(2**63 - 1)}, {"type": "integer"}),
        ({"type": "integer", "minimum": 10**15}, {"type": "integer", "minimum": 10**15}),
    ],
)
def test_keywords_that_a_grammar_cannot_use_are_dropped(schema: Body, left: Body) -> None:
    assert check(schema) == left


@table(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 3},
        {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 4},
        {"type": "integer", "minimum": 2.5, "maximum": 3.5},
        {"type": "number", "minimum": 0.2, "maximum": 0.8},
        {"minLength": 1, "maxLength": 1},
    ],
)
def test_bounds_that_allow_one_integer_are_kept(schema: Body) -> None:
    assert check(schema) == schema


@table(
    "schema",
    [
        1,
        [],
        "x",
        True,
        {"type": "foo"},
        {"type": 1},
        {"type": []},
        {"type": ["string", {}]},
        {"properties": []},
        {"properties": {"a": 1}},
        {"properties": {"a": False}},
        {"items": 1},
        {"anyOf": {}},
        {"anyOf": []},
        {"enum": []},
        {"enum": {}},
        {"required": "a"},
        {"required": [1]},
        {"pattern": 1},
        {"description": 1},
        {"minLength": -1},
        {"minLength": "1"},
        {"maxItems": True},
        {"minItems": 2001},
        {"minimum": "1"},
        {"minLength": 2, "maxLength": 1},
        {"minItems": 2, "maxItems": 1},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
        {"type": "integer", "minimum": 3, "exclusiveMaximum": 3},
        {"type": "integer", "minimum": 0.2, "maximum": 0.8},
        {"type": ["null", "integer"], "minimum": 1, "maximum": 0},
        {"additionalProperties": 1},
        {"$ref": 1},
        {"$ref": "http://host/schema"},
        {"$ref": "other.json#/a"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}},
        {"$ref": "#/required", "required": ["a"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#"},
    ],
)
def test_an_invalid_schema_is_rejected(schema: object) -> None:
    assert rejection_reason(schema)


def test_a_schema_that_refers_to_its_root_is_moved_to_defs() -> None:
    own = {"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}}, "required": ["a"]}
    led = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/root"}}},
        "required": ["a"],
    }
    assert check(own) == {"$defs": {"root": led}, "$ref": "#/$defs/root"}


def test_ten_levels_are_accepted_and_eleven_are_not() -> None:
    assert check(nested(10))
    assert "10 levels" in rejection_reason(nested(11))


def test_five_thousand_properties_are_accepted_and_one_more_is_not() -> None:
    assert check(required(5000, {}))
    assert "5000 properties" in rejection_reason(required(5001, {}))


def test_a_thousand_values_are_accepted_and_one_more_is_not() -> None:
    assert check(required(10, {"enum": [str(number) for number in range(100)]}))
    assert "1000 values" in rejection_reason(required(10, {"enum": [str(number) for number in range(101)]}))


def test_long_names_and_values_are_limited_together() -> None:
    assert check({"enum": ["x" * 119_990]})
    assert "120000 characters" in rejection_reason({"enum": ["x" * 120_000]})
    assert "120000 characters" in rejection_reason({"properties": {"x" * 120_001: {}}})


def test_the_limits_hold_for_all_schemas_of_a_request_together() -> None:
    budget = SchemaBudget()
    check_schema(required(3000, {}), "s", budget)
    with pytest.raises(ApiError):
        check_schema(required(3000, {}), "s", budget)


def test_optional_properties_are_limited() -> None:
    assert check({"properties": {f"p{number}": {} for number in range(128)}})
    assert "128 properties" in rejection_reason({"properties": {f"p{number}": {} for number in range(129)}})


def test_optional_properties_of_all_of_references_count_each_time() -> None:
    definition: Body = {"properties": {f"p{number}": {} for number in range(50)}}
    schema = {"$defs": {"a": definition}, "allOf": [{"$ref": "#/$defs/a"}] * 2}
    assert "128 properties" in rejection_reason(schema)


def test_alternatives_are_limited_through_references() -> None:
    assert check({"anyOf": [{"const": number} for number in range(128)]})
    assert "128" in rejection_reason({"anyOf": [{"const": number} for number in range(129)]})
    numbers = list(range(65))
    definitions = {"a": {"enum": numbers}, "b": {"enum": numbers}}
    assert "alternatives" in rejection_reason(
        {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": definitions}
    )
    assert "alternatives" in rejection_reason({"enum": list(range(129))})


def test_a_long_enum_becomes_a_pattern_that_matches_exactly_its_values() -> None:
    values = [f"value {number}" for number in range(1000)]
    found = check({"type": "string", "description": "x", "enum": values})
    assert found.keys() == {"type", "description", "pattern"}
    pattern = re.compile(found["pattern"])
    assert all(pattern.fullmatch(value) for value in values)
    assert not any(pattern.fullmatch(value) for value in ("value", "value 1000", "value 10001", "Value 1", ""))


def test_ambiguous_choices_may_not_be_nested_deeply() -> None:
    assert check(choices(7))
    assert "open alternatives" in rejection_reason(choices(8))
    assert "open alternatives" in rejection_reason({"$defs": {"d0": choice(-1, ["b", "c"])}, "$ref": "#/$defs/d0"})


def test_choices_with_a_discriminator_may_be_recursive() -> None:
    ring = {"$ref": "#/$defs/d0"}
    parts = [
        {"type": "object", "properties": {"kind": {"const": kind}, "left": ring}, "required": ["kind", "left"]}
        for kind in ("add", "multiply")
    ]
    number = {"type": "object", "properties": {"value": {"type": "number"}}, "required": ["value"]}
    assert check({"$defs": {"d0": {"anyOf": [*parts, number]}}, **ring})


def test_a_long_chain_of_references_is_rejected() -> None:
    definitions: Body = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(40)}
    assert "are chained" in rejection_reason({"$defs": {**definitions, "d40": {}}, "$ref": "#/$defs/d0"})


@table("pattern", ["^((a?){1000}){1000}$", "^(a*)*$", "^" + "a?" * 70 + "$", "x" * 513])
def test_a_pattern_that_would_block_an_engine_is_rejected(pattern: str) -> None:
    assert "pattern" in rejection_reason({"type": "string", "pattern": pattern})


def all_of_references(times: int, target: Body, **definitions: Body) -> Body:
    """Return a schema whose `allOf` refers to a definition several times."""
    return {"$defs": {"a": target, **definitions}, "allOf": [{"$ref": "#/$defs/a"}] * times}


def test_properties_of_all_of_references_count_each_time() -> None:
    assert check(all_of_references(2, required(1600, {})))
    assert "5000 properties" in rejection_reason(all_of_references(3, required(1600, {})))
    part = {"allOf": [{"$ref": "#/$defs/a"}] * 128}
    many = required(19, part) | {"$defs": {"a": required(2400, {"type": "string"})}}
    assert "5000 properties" in rejection_reason(many)


@table(
    "schema",
    [
        all_of_references(100, {"$ref": "#/$defs/b"}, b=required(100, {})),
        all_of_references(100, {"properties": {"x": required(100, {})}, "required": ["x"]}),
        all_of_references(20, required(1, {"allOf": [{"$ref": "#/$defs/b"}] * 20}), b=required(20, {})),
        {"$defs": {"a": required(100, {})}, "allOf": [{"anyOf": [{"$ref": "#/$defs/a"}] * 100}]},
        all_of_references(100, required(1, {"enum": [str(number) for number in range(100)]})),
        all_of_references(100, {"properties": {"x" * 2000: {}}, "required": ["x" * 2000]}),
        all_of_references(100, {"const": "x" * 2000}),
    ],
)
def test_all_of_references_count_with_everything_below_them(schema: Body) -> None:
    assert "in total" in rejection_reason(schema)


def test_a_recursive_all_of_is_rejected() -> None:
    inside: Body = {"allOf": [{"$ref": "#/$defs/a"}]}
    assert "are chained" in rejection_reason({"$defs": {"a": required(1, inside)}, "$ref": "#/$defs/a"})


def test_all_schemas_of_a_request_are_limited() -> None:
    lists: Body = {"items": {}}
    assert check(required(5000, lists))
    assert "schemas in total" in rejection_reason(required(5000, {"items": lists}))


@table(
    ("schema", "expected"),
    [
        ({"type": ["string"] * 8}, "7 elements"),
        ({"required": [""] * 120_001}, "120000 characters"),
        (required(33, {"pattern": "a" * 512}), "characters of patterns"),
        ({"$ref": "#/" + "a" * 511}, "512 characters"),
    ],
)
def test_arrays_and_strings_in_a_schema_are_limited(schema: Body, expected: str) -> None:
    assert expected in rejection_reason(schema)


@pytest.mark.parametrize("counts", [range(2, 50), range(49, 1, -1)], ids=["fewest first", "most first"])
def test_a_schema_that_many_choices_share_is_counted_once(counts: range) -> None:
    alternative = {"type": "object", "properties": {"x": {"$ref": "#/$defs/t"}}, "required": ["x"]}
    definitions = {f"k{count}": {"anyOf": [alternative] * count} for count in counts}
    rest = {"$defs": {"t": choice(-1, ["b", "c"]), "d0": {}}}
    assert check({"properties": definitions, **rest})
    assert "open alternatives" in rejection_reason(
        {"properties": {**definitions, "k65": {"anyOf": [alternative] * 65}}, **rest}
    )


def test_patterns_are_accepted_up_to_their_limit() -> None:
    assert check(required(32, {"pattern": "a" * 512}))
