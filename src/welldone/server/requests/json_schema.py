"""JSON schemas: what an engine can turn into a grammar without harm to the others that it serves.

Grammars are built and followed in the engine's one loop: a schema that takes it a second stops every other stream for
that second. So besides OpenAI's own limits there are some that were measured with llama.cpp (49,152 tokens, two cores):
alternatives (`branches.py`), patterns (`pattern.py`), and properties that may be left out. The cost of these grows with
their square: 128 stop the others for 0.3 s, 1,000 for 5 s.

What comes out is a copy with the keywords that a grammar or a reader of the schema can use; others are dropped.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import json_schema_patterns
from welldone.server.requests.fields import json_type_name, shorten_value

# How many ways a schema leaves open at once: an engine that follows a grammar keeps every one of them in memory.
#
# At the start of a value there are its alternatives. Inside a value there are all the ways that led to it: where two
# alternatives begin alike, both are open until they differ, and each level of such a choice doubles them. 128 ways stop
# other streams for 0.3 s at each token; 2,000 for some seconds.


ALTERNATIVES_LIMIT = 128
REFERENCE_CHAIN_LIMIT = 32
"""References or choices from one to the next; people write two or three."""
SCHEMA_VISITS_LIMIT = 20_000
"""Visits to schemas while the ways are counted. There are 10,000 schemas at most, and each is visited once unless it is
in a ring of references."""

SCHEMA_MAP_KEYWORDS = ("properties", "$defs", "definitions")
SCHEMA_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE_SCHEMA_KEYWORDS = ("items", "additionalProperties")
_SUBSCHEMA_KEYWORDS = frozenset((*SCHEMA_LIST_KEYWORDS, *SINGLE_SCHEMA_KEYWORDS))
_CHOICE_KEYWORDS = ("anyOf", "oneOf")
_BRANCHING_KEYWORDS = frozenset((*_CHOICE_KEYWORDS, "enum", "$ref"))
_SCALAR_TYPES = frozenset(("string", "number", "integer", "boolean", "null"))
_NO_CONST = ""  # the first property says nothing of which alternative it is


def subschemas(schema: Json) -> Iterator[Json]:
    """The schemas that stand directly in a schema."""
    for key, found in schema.items():
        if key in SCHEMA_MAP_KEYWORDS:
            yield from found.values()
        elif key in _SUBSCHEMA_KEYWORDS:
            if isinstance(found, dict):
                yield found
            elif isinstance(found, list):
                yield from found


class AlternativesCounter:
    """Judges one schema. `targets` has what each reference names."""

    def __init__(self, targets: dict[str, Json], refuse: Callable[[str], ApiError]) -> None:
        self._targets = targets
        self._refuse = refuse
        self._start_counts: dict[int, int] = {}
        self._ambiguous_counts: dict[int, int] = {}
        self._discriminators: dict[int, tuple[str, str] | None] = {}

    def check(self, root: Json) -> None:
        """ApiError where too many ways are open at once. References are followed: a ring of choices has ever more."""
        places = self._topological_order(root)
        ranks = {id(schema): rank for rank, schema in enumerate(places)}
        most = [1] + [0] * (len(places) - 1)  # ways that lead to each place
        done = [0] * len(places)
        todo = [0]
        visits = 0
        while todo:
            rank = heapq.heappop(todo)
            if done[rank] == most[rank]:
                continue
            done[rank] = most[rank]
            visits += 1
            self._count_starts(places[rank])
            ways = most[rank] * self._ambiguous_alternatives(places[rank])
            if ways > ALTERNATIVES_LIMIT or visits > SCHEMA_VISITS_LIMIT:
                raise self._refuse(
                    f"alternatives in alternatives leave more than {ALTERNATIVES_LIMIT} ways open at once"
                )
            for item in self._successors(places[rank]):
                place = ranks[id(item)]
                if most[place] < ways:
                    most[place] = ways
                    heapq.heappush(todo, place)

    def _topological_order(self, root: Json) -> list[Json]:
        """All schemas, each before those it leads to: so all ways to one are known at its turn, except in rings."""
        order: list[Json] = []
        seen = {id(root)}
        todo = [(root, self._successors(root))]
        while todo:
            schema, rest = todo[-1]
            item = next((item for item in rest if id(item) not in seen), None)
            if item is None:
                order.append(schema)
                todo.pop()
            else:
                seen.add(id(item))
                todo.append((item, self._successors(item)))
        return order[::-1]

    def _successors(self, schema: Json) -> Iterator[Json]:
        yield from subschemas(schema)
        if "$ref" in schema:
            yield self._targets[schema["$ref"]]

    def _count_starts(self, schema: Json, chain: int = 0) -> int:
        """How many alternatives a value begins with."""
        if _BRANCHING_KEYWORDS.isdisjoint(schema):
            return 1
        known = self._start_counts.get(id(schema))
        if known is not None:
            return known
        if chain > REFERENCE_CHAIN_LIMIT:
            raise self._refuse(f"more than {REFERENCE_CHAIN_LIMIT} references or choices follow one another")
        count = max(1, len(schema.get("enum", ())))
        if "$ref" in schema:
            count = max(count, self._count_starts(self._targets[schema["$ref"]], chain + 1))
        for key in _CHOICE_KEYWORDS:
            count = max(count, sum(self._count_starts(item, chain + 1) for item in schema.get(key, ())))
        if count > ALTERNATIVES_LIMIT:
            raise self._refuse(f"there are more than {ALTERNATIVES_LIMIT} alternatives at one place")
        self._start_counts[id(schema)] = count
        return count

    def _ambiguous_alternatives(self, schema: Json) -> int:
        """How many alternatives may still be open when the inside of one is reached."""
        if _BRANCHING_KEYWORDS.isdisjoint(schema):
            return 1
        if id(schema) not in self._ambiguous_counts:
            self._ambiguous_counts[id(schema)] = self._count_ambiguous(schema)
        return self._ambiguous_counts[id(schema)]

    def _count_ambiguous(self, schema: Json) -> int:
        loose = arrays = 0
        leads: dict[str, Counter[str]] = {}
        for item in (item for key in _CHOICE_KEYWORDS for item in schema.get(key, ())):
            found = self._resolve(item)
            kinds = _schema_types(found)
            if "enum" in found or "const" in found or kinds <= _SCALAR_TYPES:
                continue
            if kinds == {"array"}:
                arrays += 1
            elif (lead := self._discriminator(found)) is None:
                loose += 1
            else:
                leads.setdefault(lead[0], Counter())[lead[1]] += 1
        objects = max((_most_ambiguous(values) for values in leads.values()), default=0)
        return max(1, loose + max(arrays, objects))

    def _discriminator(self, schema: Json) -> tuple[str, str] | None:
        """The first property that must come, and the value by which it tells which alternative this is."""
        if id(schema) not in self._discriminators:
            self._discriminators[id(schema)] = self._find_discriminator(schema)
        return self._discriminators[id(schema)]

    def _find_discriminator(self, schema: Json) -> tuple[str, str] | None:
        required = frozenset(schema.get("required", ()))
        for name, item in schema.get("properties", {}).items():
            if name in required:
                found = self._resolve(item)
                return name, msgspec.json.encode(found["const"]).decode() if "const" in found else _NO_CONST
        return None

    def _resolve(self, schema: Json) -> Json:
        for _ in range(REFERENCE_CHAIN_LIMIT):
            if "$ref" not in schema:
                break
            schema = self._targets[schema["$ref"]]
        return schema


def _schema_types(schema: Json) -> set[str]:
    """The types that a schema names; "object" too where it names none, for it may be one."""
    kind = schema.get("type", "object")
    return set(kind) if isinstance(kind, list) else {kind}


def _most_ambiguous(values: Counter[str]) -> int:
    return values[_NO_CONST] + max((count for value, count in values.items() if value != _NO_CONST), default=0)


# What `allOf` takes in by reference: an engine builds all of it anew at each such place.
#
# Elsewhere a reference is built once, however often it is used. But 128 parts of an `allOf` that name an object of 2,400
# properties make 300,000 of them, and 19 such places stop an engine for a minute. A place that takes in itself ends the
# engine: it follows the ring until its stack is full.


class SchemaSize(NamedTuple):
    """How much there is in a schema."""

    properties: int = 0
    optional_property_count: int = 0
    values: int = 0
    characters: int = 0

    def plus(self, other: "SchemaSize") -> "SchemaSize":
        """Both together."""
        return SchemaSize(*map(int.__add__, self, other))


class ReferenceSizes:
    """Weighs the places that references name. `targets` has what each names."""

    def __init__(self, targets: dict[str, Json], refuse: Callable[[str], ApiError]) -> None:
        self._targets = targets
        self._refuse = refuse
        self._cache: dict[int, SchemaSize] = {}

    def size_of(self, target: Json, chain: int = 0) -> SchemaSize:
        """All that is in a place, with what it takes in itself. ApiError where it takes in itself."""
        known = self._cache.get(id(target))
        if known is not None:
            return known
        if chain > REFERENCE_CHAIN_LIMIT:
            raise self._refuse(f"more than {REFERENCE_CHAIN_LIMIT} references of 'allOf' follow one another")
        weight = SchemaSize()
        if "$ref" in target:
            weight = self.size_of(self._targets[target["$ref"]], chain + 1)
        todo = [target]
        while todo:
            schema = todo.pop()
            parts = list(subschemas(schema))
            todo += parts
            weight = weight.plus(_own_size(schema, len(parts)))
            for name in all_of_references(schema):
                weight = weight.plus(self.size_of(self._targets[name], chain + 1))
        self._cache[id(target)] = weight
        return weight


def all_of_references(schema: Json) -> Iterator[str]:
    """The references of the parts of `allOf`, and of the alternatives in them."""
    for part in schema.get("allOf", ()):
        for item in (part, *part.get("anyOf", ())):
            if "$ref" in item:
                yield item["$ref"]


def optional_property_count(schema: Json) -> int:
    """How many properties of an object may be left out."""
    return len(schema.get("properties", {}).keys() - set(schema.get("required", ())))


def _own_size(schema: Json, parts: int) -> SchemaSize:
    values = schema.get("enum", ())
    characters = sum(map(len, schema.get("properties", ()))) + len(schema.get("pattern", ""))
    characters += sum(len(msgspec.json.encode(schema[key])) for key in ("enum", "const") if key in schema)
    return SchemaSize(parts, optional_property_count(schema) if "properties" in schema else 0, len(values), characters)


# https://platform.openai.com/docs/guides/structured-outputs, "Supported schemas"
SCHEMA_DEPTH_LIMIT = 10
PROPERTIES_LIMIT = 5_000
ENUM_VALUES_LIMIT = 1_000
CHARACTERS_LIMIT = 120_000

SCHEMAS_LIMIT = 2 * PROPERTIES_LIMIT + 256
"""All schemas of a request: each property may be a list of something, and each of 128 tools has a root."""
OPTIONAL_PROPERTIES_LIMIT = 128
REPEAT_LIMIT = 2_000
"""llama.cpp's own limit for repetitions: beyond it a grammar is refused."""
PATTERN_LENGTH = 512
ALL_PATTERNS_LENGTH = 16_384
"""Characters of all patterns: to judge them takes 2 ms for each thousand."""
REFERENCE_LENGTH = 512
"""Characters of a reference; each of the 10 levels has room for a name."""

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_BOUND_LIMIT = 10**15
"""llama.cpp makes rules for whole numbers of up to 16 digits. A bound near that or above it, with none on the other
side, makes it build rules without end: it stands still, and takes 200 MB a second."""
_NESTING_KEYWORDS = (
    "properties",
    "prefixItems",
    *SINGLE_SCHEMA_KEYWORDS,
)  # what makes the data deeper; a choice of schemas does not
_TEXT_KEYWORDS = ("title", "description", "format")
_MINIMUM_KEYWORDS = ("minLength", "minItems")
_MAXIMUM_KEYWORDS = ("maxLength", "maxItems")
_BOUND_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_VALUE_KEYWORDS = ("default", "examples", "const")
_OTHER_KEYWORDS = ("type", "enum", "required", "pattern", "$ref")
_KNOWN_KEYWORDS = frozenset(
    (
        *_TEXT_KEYWORDS,
        *_MINIMUM_KEYWORDS,
        *_MAXIMUM_KEYWORDS,
        *_BOUND_KEYWORDS,
        *_VALUE_KEYWORDS,
        *_OTHER_KEYWORDS,
        *SCHEMA_MAP_KEYWORDS,
        *SCHEMA_LIST_KEYWORDS,
        *SINGLE_SCHEMA_KEYWORDS,
    )
)


class SchemaBudget:
    """What all schemas of one request may have together."""

    def __init__(self) -> None:
        self._remaining = {
            "properties": PROPERTIES_LIMIT,
            "values": ENUM_VALUES_LIMIT,
            "characters": CHARACTERS_LIMIT,
            "schemas": SCHEMAS_LIMIT,
            "characters of patterns": ALL_PATTERNS_LENGTH,
        }
        self._limits = dict(self._remaining)

    def spend(self, resource: str, amount: int, param: str) -> None:
        """Take so many. ApiError where there are not so many left."""
        self._remaining[resource] -= amount
        if self._remaining[resource] < 0:
            raise _invalid_schema(
                param, f"the schemas of a request may have at most {self._limits[resource]} {resource} in all"
            )


def check_schema(schema: object, param: str, budget: SchemaBudget) -> Json:
    """The schema for the engine."""
    if not isinstance(schema, dict):
        raise _invalid_schema(param, f"expected an object, but got {json_type_name(schema)}")
    reader = _SchemaReader(param, budget)
    copy = reader.read(schema, 0)
    reader.check_references(copy)
    if reader.refers_to_root:  # llama.cpp knows only references that name a place
        return {"$defs": {"root": reroot(copy, "#/$defs/root")}, "$ref": "#/$defs/root"}
    return copy


def reroot(schema: Json, root: str) -> Json:
    """A checked schema that can stand at `root` of another: its references are led there."""
    copy = dict(schema)
    for key, found in schema.items():
        if key in SCHEMA_MAP_KEYWORDS:
            copy[key] = {name: reroot(item, root) for name, item in found.items()}
        elif key in SCHEMA_LIST_KEYWORDS or key in SINGLE_SCHEMA_KEYWORDS:
            if isinstance(found, dict):
                copy[key] = reroot(found, root)
            elif isinstance(found, list):
                copy[key] = [reroot(item, root) for item in found]
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
            raise self.invalid_schema(f"a schema must be an object, but one is {json_type_name(schema)}")
        if depth > SCHEMA_DEPTH_LIMIT:
            raise self.invalid_schema(f"it is nested more than {SCHEMA_DEPTH_LIMIT} levels deep")
        self._spend("schemas", 1)
        copy: Json = {}
        for key, value in schema.items():
            if key not in _KNOWN_KEYWORDS:
                continue
            kept = self._keyword(key, value, depth + (key in _NESTING_KEYWORDS))
            if kept is not None:
                copy[key] = kept
        self._count_optional(copy)
        self._check_satisfiable(copy)
        return _without_long_enum(copy)

    def _keyword(self, key: str, value: object, depth: int) -> object:
        if value is None:
            return None
        if key in self._keywords:
            return self._keywords[key](key, value)
        if key in SCHEMA_MAP_KEYWORDS:
            return self._table(key, value, depth)
        if key in SCHEMA_LIST_KEYWORDS or (key == "items" and isinstance(value, list)):
            return self._list(key, value, depth)
        if key in SINGLE_SCHEMA_KEYWORDS:
            return value if key == "additionalProperties" and isinstance(value, bool) else self.read(value, depth)
        return None

    def _table(self, key: str, value: object, depth: int) -> Json:
        if not isinstance(value, dict):
            raise self._wrong_keyword_type(key, "an object", value)
        self._spend("properties", len(value))
        self._spend("characters", sum(map(len, value)))
        return {name: self.read(item, depth) for name, item in value.items()}

    def _list(self, key: str, value: object, depth: int) -> list[Json]:
        if not isinstance(value, list) or not value:
            raise self._wrong_keyword_type(key, "an array that is not empty", value)
        if len(value) > ALTERNATIVES_LIMIT:
            raise self.invalid_schema(f"'{key}' may have at most {ALTERNATIVES_LIMIT} elements")
        self._spend("properties", len(value))
        return [self.read(item, depth) for item in value]

    def _type(self, key: str, value: object) -> object:
        if isinstance(value, list) and len(value) > len(_TYPES):
            raise self.invalid_schema(f"'type' may have at most {len(_TYPES)} elements")
        for name in value if isinstance(value, list) and value else [value]:
            if name not in _TYPES:
                raise self.invalid_schema(f"'type' is none of {', '.join(_TYPES)}")
        return value

    def _enum(self, key: str, value: object) -> object:
        if not isinstance(value, list) or not value:
            raise self._wrong_keyword_type(key, "an array that is not empty", value)
        self._spend("values", len(value))
        self._spend("characters", len(msgspec.json.encode(value)))
        return value

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
        trouble = json_schema_patterns.pattern_problem(text)
        if trouble:
            raise self.invalid_schema(f"the pattern '{shorten_value(text)}' {trouble}")
        return text

    def _ref(self, key: str, value: object) -> object:
        text = self._text(key, value)
        if len(text) > REFERENCE_LENGTH:
            raise self.invalid_schema(f"a reference may have at most {REFERENCE_LENGTH} characters")
        if not (text == "#" or text.startswith("#/")) or "~" in text or "%" in text:
            raise self.invalid_schema(f"the reference '{shorten_value(text)}' does not name a place in the same schema")
        self.refers_to_root = self.refers_to_root or text == "#"
        self._references.add(text)
        return text

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._wrong_keyword_type(key, "a string", value)
        return value

    def _count(self, key: str, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong_keyword_type(key, "an integer of at least 0", value)
        if value <= REPEAT_LIMIT:
            return value
        if key in _MINIMUM_KEYWORDS:
            raise self.invalid_schema(f"'{key}' may be at most {REPEAT_LIMIT}")
        return None  # a longer answer than this is not ended by a count but by the model

    def _bound(self, key: str, value: object) -> object:
        if isinstance(value, bool):
            return None  # as in draft 4, where it said how `minimum` is meant
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

    def _count_optional(self, copy: Json) -> None:
        if "properties" in copy:
            self._add_optional(optional_property_count(copy))

    def _add_optional(self, count: int) -> None:
        self._optional += count
        if self._optional > OPTIONAL_PROPERTIES_LIMIT:
            raise self.invalid_schema(
                f"at most {OPTIONAL_PROPERTIES_LIMIT} properties may be ones that are not required"
            )

    def _check_satisfiable(self, copy: Json) -> None:
        """Refuse what nothing can follow: the engine would write what it likes, or break off within its answer."""
        for least, most in zip(_MINIMUM_KEYWORDS, _MAXIMUM_KEYWORDS, strict=True):
            if copy.get(least, 0) > copy.get(most, REPEAT_LIMIT):
                raise self.invalid_schema(f"'{least}' is more than '{most}'")
        if "integer" in copy.get("type", ()) and not _has_integers(copy):
            raise self.invalid_schema("no integer is within the bounds of one of them")

    def check_references(self, copy: Json) -> None:
        """Each reference names a schema; choices are counted through them; `allOf` pays for what it takes in."""
        places = {name: _resolve_pointer(copy, name) for name in self._references}
        for name, found in places.items():
            if not isinstance(found, dict):
                raise self.invalid_schema(f"the reference '{shorten_value(name)}' names no schema")
        targets = {name: found for name, found in places.items() if isinstance(found, dict)}
        weights = ReferenceSizes(targets, self.invalid_schema)
        todo = [copy]
        while todo:
            schema = todo.pop()
            todo += subschemas(schema)
            for name in all_of_references(schema):
                self._charge_reference(weights.size_of(targets[name]))
        AlternativesCounter(targets, self.invalid_schema).check(copy)

    def _charge_reference(self, size: SchemaSize) -> None:
        self._add_optional(size.optional)
        self._spend("properties", size.properties)
        self._spend("values", size.values)
        self._spend("characters", size.characters)


def _has_integers(schema: Json) -> bool:
    """Whether a whole number is within the bounds. One that is missing leaves room for all."""
    lows = (schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    highs = (schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    low, high = max(lows), min(highs)
    if math.isinf(low) or math.isinf(high):
        return True
    first = math.ceil(low) + (math.ceil(low) == lows[1])
    last = math.floor(high) - (math.floor(high) == highs[1])
    return bool(first <= last)


def _without_long_enum(schema: Json) -> Json:
    """A long list of texts as a pattern that shares what they begin with: it costs a grammar next to nothing."""
    values = schema.get("enum", ())
    if len(values) <= ALTERNATIVES_LIMIT or not all(isinstance(value, str) for value in values):
        return schema
    rest = {key: value for key, value in schema.items() if key != "enum"}
    return {**rest, "type": "string", "pattern": json_schema_patterns.pattern_of_values(values)}


def _resolve_pointer(schema: Json, reference: str) -> object:
    place: object = schema
    for name in reference.split("/")[1:]:
        if isinstance(place, list) and name.isascii() and name.isdigit() and len(name) < 5 and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, dict):
            place = place.get(name)
        else:
            return None
    return place


def _invalid_schema(param: str, reason: str) -> ApiError:
    return invalid_request(f"Invalid schema for '{param}': {reason}.", param=param, code="invalid_json_schema")
