"""What `allOf` takes in by reference: an engine builds all of it anew at each such place.

Elsewhere a reference is built once, however often it is used. But 128 parts of an `allOf` that name an object of 2,400
properties make 300,000 of them, and 19 such places stop an engine for a minute. A place that takes in itself ends the
engine: it follows the ring until its stack is full.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from welldone.serve.errors import ApiError
from welldone.serve.requests.branches import CHAIN_LIMIT, inner
from welldone.wire.events import Json


class Weight(NamedTuple):
    """How much there is in a schema."""

    properties: int = 0
    optional: int = 0
    values: int = 0
    characters: int = 0

    def plus(self, other: "Weight") -> "Weight":
        """Both together."""
        return Weight(*map(int.__add__, self, other))


class Weights:
    """Weighs the places that references name. `targets` has what each names."""

    def __init__(self, targets: dict[str, Json], refuse: Callable[[str], ApiError]) -> None:
        self._targets = targets
        self._refuse = refuse
        self._known: dict[int, Weight] = {}

    def of(self, target: Json, chain: int = 0) -> Weight:
        """All that is in a place, with what it takes in itself. ApiError where it takes in itself."""
        known = self._known.get(id(target))
        if known is not None:
            return known
        if chain > CHAIN_LIMIT:
            raise self._refuse(f"more than {CHAIN_LIMIT} references of 'allOf' follow one another")
        weight = Weight()
        if "$ref" in target:
            weight = self.of(self._targets[target["$ref"]], chain + 1)
        todo = [target]
        while todo:
            schema = todo.pop()
            parts = list(inner(schema))
            todo += parts
            weight = weight.plus(_own(schema, len(parts)))
            for name in taken(schema):
                weight = weight.plus(self.of(self._targets[name], chain + 1))
        self._known[id(target)] = weight
        return weight


def taken(schema: Json) -> Iterator[str]:
    """The references of the parts of `allOf`, and of the alternatives in them."""
    for part in schema.get("allOf", ()):
        for item in (part, *part.get("anyOf", ())):
            if "$ref" in item:
                yield item["$ref"]


def optional(schema: Json) -> int:
    """How many properties of an object may be left out."""
    return len(schema.get("properties", {}).keys() - set(schema.get("required", ())))


def _own(schema: Json, parts: int) -> Weight:
    values = schema.get("enum", ())
    characters = sum(map(len, schema.get("properties", ()))) + len(schema.get("pattern", ""))
    characters += sum(len(msgspec.json.encode(schema[key])) for key in ("enum", "const") if key in schema)
    return Weight(parts, optional(schema) if "properties" in schema else 0, len(values), characters)
