"""Validation of JSON schemas that an engine compiles into a grammar.

An engine compiles and evaluates grammars in the loop that serves all streams: a schema that takes it a second stops
every other stream for that second. Besides OpenAI's limits there are limits measured with llama.cpp (49,152 tokens, two
cores): on alternatives and patterns (`json_schema_cost.py`), and on optional properties, whose cost is quadratic: 128
delay other streams by 0.3 s, 1,000 by 5 s.

The engine gets a copy with the keywords that matter for the grammar or for the model; others are dropped.
"""

import math
from collections.abc import Callable

import msgspec

from welldone.core.events import Json
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas.chat import ALTERNATIVES_LIMIT
from welldone.schemas.errors import json_type_name, shorten_value
from welldone.server.requests import json_schema_cost as cost

# https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas"
SCHEMA_DEPTH_LIMIT = 10
PROPERTIES_LIMIT = 5_000
ENUM_VALUES_LIMIT = 1_000
CHARACTERS_LIMIT = 120_000

SCHEMAS_LIMIT = 2 * PROPERTIES_LIMIT + 256
"""All schemas of a request: each property may be an array with items, and each of 128 tools has a root."""
OPTIONAL_PROPERTIES_LIMIT = 128
REPEAT_LIMIT = 2_000
"""llama.cpp's limit for repetitions; it rejects grammars beyond it."""
PATTERN_LENGTH = 512
ALL_PATTERNS_LENGTH = 16_384
"""Characters of all patterns: checking takes 2 ms per thousand."""
REFERENCE_LENGTH = 512
"""Characters of a reference: room for a name on each of the 10 levels."""

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_BOUND_LIMIT = 10**15
"""llama.cpp generates rules for integers of up to 16 digits. A bound near that or above, without a bound on the other
side, makes it generate rules without end: it hangs and allocates 200 MB per second."""
_NESTING_KEYWORDS = ("properties", "prefixItems", *cost.SINGLE_SCHEMA_KEYWORDS)
"""Those that make the data itself deeper."""
_TEXT_KEYWORDS = ("title", "description", "format")
_MINIMUM_KEYWORDS = ("minLength", "minItems")
_MAXIMUM_KEYWORDS = ("maxLength", "maxItems")
_BOUND_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_VALUE_KEYWORDS = ("default", "examples", "const")
_BUDGET = {
    "properties": PROPERTIES_LIMIT,
    "values": ENUM_VALUES_LIMIT,
    "characters": CHARACTERS_LIMIT,
    "schemas": SCHEMAS_LIMIT,
    "characters of patterns": ALL_PATTERNS_LENGTH,
}


class SchemaBudget:
    """Limits for all schemas of one request together."""

    def __init__(self) -> None:
        self._remaining = dict(_BUDGET)

    def spend(self, resource: str, amount: int, param: str) -> None:
        """Count `amount`. Raises ApiError if the limit is exceeded."""
        self._remaining[resource] -= amount
        if self._remaining[resource] < 0:
            reason = f"the schemas of a request may have at most {_BUDGET[resource]} {resource} in total"
            raise _invalid_schema(param, reason)


def check_schema(schema: object, param: str, budget: SchemaBudget) -> Json:
    """Validate a schema and return the copy for the engine."""
    if not isinstance(schema, dict):
        raise _invalid_schema(param, f"expected an object, but got {json_type_name(schema)}")
    reader = _SchemaReader(param, budget)
    copy = reader.read(schema, 0)
    reader.check_references(copy)
    if reader.refers_to_root:  # llama.cpp does not support the reference "#"
        return {"$defs": {"root": reroot(copy, "#/$defs/root")}, "$ref": "#/$defs/root"}
    return copy


def reroot(schema: Json, root: str) -> Json:
    """Return a validated schema with its references rewritten for the position `root` in another schema."""
    copy = dict(schema)
    for key, value in schema.items():
        if key in cost.SCHEMA_MAP_KEYWORDS:
            copy[key] = {name: reroot(item, root) for name, item in value.items()}
        elif key in cost.SCHEMA_LIST_KEYWORDS or key in cost.SINGLE_SCHEMA_KEYWORDS:
            if isinstance(value, dict):
                copy[key] = reroot(value, root)
            elif isinstance(value, list):
                copy[key] = [reroot(item, root) for item in value]
    if "$ref" in copy:
        copy["$ref"] = root + copy["$ref"][1:]
    return copy


class _SchemaReader:
    def __init__(self, param: str, budget: SchemaBudget) -> None:
        self._param = param
        self._budget = budget
        self._optional = 0
        self._references: set[str] = set()
        self.refers_to_root = False
        self._keywords: dict[str, Callable[[str, object], object]] = {
            **dict.fromkeys(_TEXT_KEYWORDS, self._text),
            **dict.fromkeys(_MINIMUM_KEYWORDS + _MAXIMUM_KEYWORDS, self._count),
            **dict.fromkeys(_BOUND_KEYWORDS, self._bound),
            **dict.fromkeys(_VALUE_KEYWORDS, self._value),
            "type": self._type,
            "enum": self._enum,
            "required": self._required,
            "pattern": self._pattern,
            "$ref": self._ref,
        }

    def invalid_schema(self, reason: str) -> ApiError:
        return _invalid_schema(self._param, reason)

    def read(self, schema: object, depth: int) -> Json:
        if schema is True:
            return {}
        if not isinstance(schema, dict):
            raise self.invalid_schema(f"a schema must be an object, but got {json_type_name(schema)}")
        if depth > SCHEMA_DEPTH_LIMIT:
            raise self.invalid_schema(f"it is nested more than {SCHEMA_DEPTH_LIMIT} levels deep")
        self._spend("schemas", 1)
        copy: Json = {}
        for key, value in schema.items():
            checked = self._keyword(key, value, depth + (key in _NESTING_KEYWORDS))
            if checked is not None:
                copy[key] = checked
        if "properties" in copy:
            self._add_optional(cost.optional_property_count(copy))
        self._check_satisfiable(copy)
        return _without_long_enum(copy)

    def _keyword(self, key: str, value: object, depth: int) -> object:
        if value is None:
            return None
        if key in self._keywords:
            return self._keywords[key](key, value)
        if key in cost.SCHEMA_MAP_KEYWORDS:
            return self._schema_map(key, value, depth)
        if key in cost.SCHEMA_LIST_KEYWORDS or (key == "items" and isinstance(value, list)):
            return self._schema_list(key, value, depth)
        if key in cost.SINGLE_SCHEMA_KEYWORDS:
            return value if key == "additionalProperties" and isinstance(value, bool) else self.read(value, depth)
        return None

    def _schema_map(self, key: str, value: object, depth: int) -> Json:
        if not isinstance(value, dict):
            raise self._wrong_keyword_type(key, "an object", value)
        self._spend("properties", len(value))
        self._spend("characters", sum(map(len, value)))
        return {name: self.read(item, depth) for name, item in value.items()}

    def _schema_list(self, key: str, value: object, depth: int) -> list[Json]:
        if not isinstance(value, list) or not value:
            raise self._wrong_keyword_type(key, "a non-empty array", value)
        if len(value) > ALTERNATIVES_LIMIT:
            raise self.invalid_schema(f"'{key}' may have at most {ALTERNATIVES_LIMIT} elements")
        self._spend("properties", len(value))
        return [self.read(item, depth) for item in value]

    def _type(self, key: str, value: object) -> object:
        if isinstance(value, list) and len(value) > len(_TYPES):
            raise self.invalid_schema(f"'type' may have at most {len(_TYPES)} elements")
        for name in value if isinstance(value, list) and value else [value]:
            if name not in _TYPES:
                raise self.invalid_schema(f"'type' must be one of {', '.join(_TYPES)}")
        return value

    def _enum(self, key: str, value: object) -> object:
        if not isinstance(value, list) or not value:
            raise self._wrong_keyword_type(key, "a non-empty array", value)
        self._spend("values", len(value))
        return self._value(key, value)

    def _required(self, key: str, value: object) -> object:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self._wrong_keyword_type(key, "an array of strings", value)
        self._spend("characters", sum(map(len, value)) + len(value))
        return value

    def _pattern(self, key: str, value: object) -> object:
        text = self._text(key, value)
        if len(text) > PATTERN_LENGTH:
            raise self.invalid_schema(f"a pattern may have at most {PATTERN_LENGTH} characters")
        self._spend("characters of patterns", len(text))
        problem = cost.pattern_problem(text)
        if problem:
            raise self.invalid_schema(f"the pattern '{shorten_value(text)}' {problem}")
        return text

    def _ref(self, key: str, value: object) -> object:
        text = self._text(key, value)
        if len(text) > REFERENCE_LENGTH:
            raise self.invalid_schema(f"a reference may have at most {REFERENCE_LENGTH} characters")
        if not (text == "#" or text.startswith("#/")) or "~" in text or "%" in text:
            raise self.invalid_schema(f"the reference '{shorten_value(text)}' does not point into the same schema")
        self.refers_to_root = self.refers_to_root or text == "#"
        self._references.add(text)
        return text

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._wrong_keyword_type(key, "a string", value)
        return value

    def _count(self, key: str, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong_keyword_type(key, "an integer >= 0", value)
        if value <= REPEAT_LIMIT:
            return value
        if key in _MINIMUM_KEYWORDS:
            raise self.invalid_schema(f"'{key}' may be at most {REPEAT_LIMIT}")
        return None  # the model ends longer answers itself

    def _bound(self, key: str, value: object) -> object:
        if isinstance(value, bool):
            return None  # draft 4: `exclusiveMinimum: true` modifies `minimum`
        if not isinstance(value, int | float):
            raise self._wrong_keyword_type(key, "a number", value)
        return value if abs(value) <= _BOUND_LIMIT else None

    def _value(self, key: str, value: object) -> object:
        self._spend("characters", len(msgspec.json.encode(value)))
        return value

    def _wrong_keyword_type(self, key: str, expected: str, value: object) -> ApiError:
        return self.invalid_schema(f"'{key}' must be {expected}, but is {json_type_name(value)}")

    def _spend(self, resource: str, amount: int) -> None:
        self._budget.spend(resource, amount, self._param)

    def _add_optional(self, count: int) -> None:
        self._optional += count
        if self._optional > OPTIONAL_PROPERTIES_LIMIT:
            reason = f"at most {OPTIONAL_PROPERTIES_LIMIT} properties may be optional (not in 'required')"
            raise self.invalid_schema(reason)

    def _check_satisfiable(self, copy: Json) -> None:
        """Reject contradictions: for those an engine ignores the schema, or aborts in the middle of the answer."""
        for minimum, maximum in zip(_MINIMUM_KEYWORDS, _MAXIMUM_KEYWORDS, strict=True):
            if copy.get(minimum, 0) > copy.get(maximum, REPEAT_LIMIT):
                raise self.invalid_schema(f"'{minimum}' is greater than '{maximum}'")
        if "integer" in copy.get("type", ()) and not _has_integers(copy):
            raise self.invalid_schema("no integer lies within the bounds")

    def check_references(self, copy: Json) -> None:
        targets: dict[str, Json] = {}
        for name in self._references:
            target = _resolve_pointer(copy, name)
            if not isinstance(target, dict):
                raise self.invalid_schema(f"the reference '{shorten_value(name)}' does not point to a schema")
            targets[name] = target
        sizes = cost.ReferenceSizes(targets, self.invalid_schema)
        todo = [copy]
        while todo:
            schema = todo.pop()
            todo += cost.subschemas(schema)
            for name in cost.all_of_references(schema):  # each expansion counts in full
                for resource, amount in sizes.size_of(targets[name]).items():
                    if resource == "optional":
                        self._add_optional(amount)
                    else:
                        self._spend(resource, amount)
        cost.AlternativesCounter(targets, self.invalid_schema).check(copy)


def _has_integers(schema: Json) -> bool:
    lows = (schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    highs = (schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    low, high = max(lows), min(highs)
    if math.isinf(low) or math.isinf(high):
        return True
    first = math.ceil(low) + (math.ceil(low) == lows[1])
    last = math.floor(high) - (math.floor(high) == highs[1])
    return bool(first <= last)


def _without_long_enum(schema: Json) -> Json:
    """Replace a long enum of strings by a pattern with shared prefixes, which costs a grammar next to nothing."""
    values = schema.get("enum", ())
    if len(values) <= ALTERNATIVES_LIMIT or not all(isinstance(value, str) for value in values):
        return schema
    rest = {key: value for key, value in schema.items() if key != "enum"}
    return {**rest, "type": "string", "pattern": cost.pattern_of_values(values)}


def _resolve_pointer(schema: Json, reference: str) -> object:
    node: object = schema
    for name in reference.split("/")[1:]:
        if isinstance(node, list) and name.isascii() and name.isdigit() and len(name) < 5 and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict):
            node = node.get(name)
        else:
            return None
    return node


def _invalid_schema(param: str, reason: str) -> ApiError:
    return invalid_request(f"Invalid schema for '{param}': {reason}.", param=param, code="invalid_json_schema")
