"""How many ways a schema leaves open at once: an engine that follows a grammar keeps every one of them in memory.

At the start of a value there are its alternatives. Inside a value there are all the ways that led to it: where two
alternatives begin alike, both are open until they differ, and each level of such a choice doubles them. 128 ways stop
other streams for 0.3 s at each token; 2,000 for some seconds.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from welldone.serve.errors import ApiError
from welldone.wire.events import Json

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
