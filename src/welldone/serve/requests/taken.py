"""What `allOf` takes in by reference: an engine builds all of it anew at each such place.

Elsewhere a reference is built once, however often it is used. But 128 parts of an `allOf` that name an object of 2,400
properties make 300,000 of them, and 19 such places stop an engine for a minute. A place that takes in itself ends the
engine: it follows the ring until its stack is full.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from welldone.serve.errors import ApiError
from welldone.serve.requests.branches import REFERENCE_CHAIN_LIMIT, subschemas
from welldone.wire.events import Json


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
