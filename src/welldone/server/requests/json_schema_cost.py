"""Cost of a JSON schema as a grammar: open alternatives, references that `allOf` expands, and patterns.

An engine that follows a grammar keeps every open alternative in memory. A value starts with all its alternatives; two
that start alike both stay open until they differ, and each nested choice multiplies them. 128 open alternatives delay
other streams by 0.3 s per token, 2,000 by some seconds (llama.cpp, 49,152 tokens, two cores).

A reference is built once, however often it is used, except in `allOf`: there the engine builds the target again for
each one. 128 `allOf` elements that refer to an object of 2,400 properties make 300,000 properties, and 19 such lists
block an engine for a minute. A target that includes itself crashes the engine: it recurses until its stack overflows.

llama.cpp converts a pattern into a grammar. Repeating something that can be empty makes it explore exponentially many
parses: `((a?){1000}){1000}` blocks it for minutes. It ignores patterns that it cannot parse, so only cost is checked.
"""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from welldone.core.events import Json
from welldone.gateway.errors import ApiError
from welldone.schemas.chat import ALTERNATIVES_LIMIT

REFERENCE_CHAIN_LIMIT = 32
"""Length of a chain of references or choices; hand-written schemas have two or three."""
SCHEMA_VISITS_LIMIT = 20_000
"""Visits while alternatives are counted. There are at most 10,000 schemas, each visited once unless it is part of a
reference cycle."""

SCHEMA_MAP_KEYWORDS = ("properties", "$defs", "definitions")
SCHEMA_LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE_SCHEMA_KEYWORDS = ("items", "additionalProperties")
_SUBSCHEMA_KEYWORDS = frozenset((*SCHEMA_LIST_KEYWORDS, *SINGLE_SCHEMA_KEYWORDS))
_CHOICE_KEYWORDS = ("anyOf", "oneOf")
_BRANCHING_KEYWORDS = frozenset((*_CHOICE_KEYWORDS, "enum", "$ref"))
_SCALAR_TYPES = frozenset(("string", "number", "integer", "boolean", "null"))
_NO_CONST = ""  # the first property has no constant value, so it does not identify the alternative


def subschemas(schema: Json) -> Iterator[Json]:
    """Return the direct subschemas of a schema."""
    for key, value in schema.items():
        if key in SCHEMA_MAP_KEYWORDS:
            yield from value.values()
        elif key in _SUBSCHEMA_KEYWORDS:
            if isinstance(value, dict):
                yield value
            elif isinstance(value, list):
                yield from value


class AlternativesCounter:
    """Counts the open alternatives of one schema. `targets` maps each reference to its schema."""

    def __init__(self, targets: dict[str, Json], make_error: Callable[[str], ApiError]) -> None:
        self._targets = targets
        self._make_error = make_error
        self._start_counts: dict[int, int] = {}
        self._ambiguous_counts: dict[int, int] = {}
        self._discriminators: dict[int, tuple[str, str] | None] = {}

    def check(self, root: Json) -> None:
        """Raise ApiError if too many alternatives are open at once. Follows references, also in cycles."""
        schemas = self._topological_order(root)
        ranks = {id(schema): rank for rank, schema in enumerate(schemas)}
        most = [1] + [0] * (len(schemas) - 1)  # open alternatives that lead to each schema
        done = [0] * len(schemas)
        todo = [0]
        visits = 0
        while todo:
            rank = heapq.heappop(todo)
            if done[rank] == most[rank]:
                continue
            done[rank] = most[rank]
            visits += 1
            self._count_starts(schemas[rank])
            alternatives = most[rank] * self._ambiguous_alternatives(schemas[rank])
            if alternatives > ALTERNATIVES_LIMIT or visits > SCHEMA_VISITS_LIMIT:
                raise self._make_error(f"nested choices have more than {ALTERNATIVES_LIMIT} open alternatives at once")
            for successor in self._successors(schemas[rank]):
                next_rank = ranks[id(successor)]
                if most[next_rank] < alternatives:
                    most[next_rank] = alternatives
                    heapq.heappush(todo, next_rank)

    def _topological_order(self, root: Json) -> list[Json]:
        """Return all schemas, each before its successors (except in cycles), so that counts are final when reached."""
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
        """Return the number of alternatives at the start of a value."""
        if _BRANCHING_KEYWORDS.isdisjoint(schema):
            return 1
        known = self._start_counts.get(id(schema))
        if known is not None:
            return known
        if chain > REFERENCE_CHAIN_LIMIT:
            raise self._make_error(f"more than {REFERENCE_CHAIN_LIMIT} references or choices are chained")
        count = max(1, len(schema.get("enum", ())))
        if "$ref" in schema:
            count = max(count, self._count_starts(self._targets[schema["$ref"]], chain + 1))
        for key in _CHOICE_KEYWORDS:
            count = max(count, sum(self._count_starts(item, chain + 1) for item in schema.get(key, ())))
        if count > ALTERNATIVES_LIMIT:
            raise self._make_error(f"there are more than {ALTERNATIVES_LIMIT} alternatives for one value")
        self._start_counts[id(schema)] = count
        return count

    def _ambiguous_alternatives(self, schema: Json) -> int:
        """Return how many alternatives may still be open inside one of them."""
        if _BRANCHING_KEYWORDS.isdisjoint(schema):
            return 1
        if (known := self._ambiguous_counts.get(id(schema))) is not None:
            return known
        undiscriminated = arrays = 0
        discriminated: dict[str, Counter[str]] = {}
        for item in (item for key in _CHOICE_KEYWORDS for item in schema.get(key, ())):
            alternative = self._resolve(item)
            declared = alternative.get("type", "object")  # without a type it may be an object
            kinds = set(declared) if isinstance(declared, list) else {declared}
            if "enum" in alternative or "const" in alternative or kinds <= _SCALAR_TYPES:
                continue
            if kinds == {"array"}:
                arrays += 1
            elif (discriminator := self._discriminator(alternative)) is None:
                undiscriminated += 1
            else:
                discriminated.setdefault(discriminator[0], Counter())[discriminator[1]] += 1
        objects = max((_most_ambiguous(values) for values in discriminated.values()), default=0)
        count = self._ambiguous_counts[id(schema)] = max(1, undiscriminated + max(arrays, objects))
        return count

    def _discriminator(self, schema: Json) -> tuple[str, str] | None:
        """Return the first required property and the constant that identifies the alternative."""
        if id(schema) not in self._discriminators:
            required = frozenset(schema.get("required", ()))
            name = next((name for name in schema.get("properties", ()) if name in required), None)
            property_schema = {} if name is None else self._resolve(schema["properties"][name])
            const = msgspec.json.encode(property_schema["const"]).decode() if "const" in property_schema else _NO_CONST
            self._discriminators[id(schema)] = None if name is None else (name, const)
        return self._discriminators[id(schema)]

    def _resolve(self, schema: Json) -> Json:
        for _ in range(REFERENCE_CHAIN_LIMIT):
            if "$ref" not in schema:
                break
            schema = self._targets[schema["$ref"]]
        return schema


def _most_ambiguous(values: Counter[str]) -> int:
    return values[_NO_CONST] + max((count for value, count in values.items() if value != _NO_CONST), default=0)


SchemaSize: TypeAlias = Counter[str]
"""What a schema takes from the `SchemaBudget`, and its optional properties."""


class ReferenceSizes:
    """Sizes of the schemas that references name. `targets` maps each reference to its schema."""

    def __init__(self, targets: dict[str, Json], make_error: Callable[[str], ApiError]) -> None:
        self._targets = targets
        self._make_error = make_error
        self._cache: dict[int, SchemaSize] = {}

    def size_of(self, target: Json, chain: int = 0) -> SchemaSize:
        """Return the size of a schema with all that its `allOf` expands. Raises ApiError if it includes itself."""
        known = self._cache.get(id(target))
        if known is not None:
            return known
        if chain > REFERENCE_CHAIN_LIMIT:
            raise self._make_error(f"more than {REFERENCE_CHAIN_LIMIT} references of 'allOf' are chained")
        size: SchemaSize = Counter()
        if "$ref" in target:
            size.update(self.size_of(self._targets[target["$ref"]], chain + 1))
        todo = [target]
        while todo:
            schema = todo.pop()
            parts = list(subschemas(schema))
            todo += parts
            size.update(_own_size(schema, len(parts)))
            for name in all_of_references(schema):
                size.update(self.size_of(self._targets[name], chain + 1))
        self._cache[id(target)] = size
        return size


def all_of_references(schema: Json) -> Iterator[str]:
    """Return the references of the elements of `allOf`, and of the alternatives in them."""
    for element in schema.get("allOf", ()):
        for item in (element, *element.get("anyOf", ())):
            if "$ref" in item:
                yield item["$ref"]


def optional_property_count(schema: Json) -> int:
    """Return the number of properties that are not required."""
    return len(schema.get("properties", {}).keys() - set(schema.get("required", ())))


def _own_size(schema: Json, parts: int) -> SchemaSize:
    characters = sum(map(len, schema.get("properties", ()))) + len(schema.get("pattern", ""))
    characters += sum(len(msgspec.json.encode(schema[key])) for key in ("enum", "const") if key in schema)
    optional = optional_property_count(schema) if "properties" in schema else 0
    return Counter(properties=parts, optional=optional, values=len(schema.get("enum", ())), characters=characters)


PATTERN_CHOICES_LIMIT = 64
"""Alternatives and optional parts of a pattern. The pattern for versions at semver.org has 22."""
PATTERN_REPEAT_LIMIT = 2_000
"""Repetitions, multiplied when nested: llama.cpp's own limit for a single one."""

_PATTERN_TOKEN = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]?|\((?:\?[:=!]|\?<[=!])?|[)|]|[^\\\[()|]", re.DOTALL)
_QUANTIFIER = re.compile(r"([?*+])|\{(\d{1,9})?(,)?(\d{1,9})?\}")
_INVALID_QUANTIFIER = re.compile(r"\{[^}\d]*\d[^}]*\}?")
"""Invalid counts that llama.cpp parses nevertheless: ` 2`, `+2`, `-1`, `2x`, or out of range."""
_INVALID_REPEAT = "has an invalid repetition count"
_RANGE = re.compile(r"([^\\])-([^\\])|\\.", re.DOTALL)
_PATTERN_ESCAPES = {ord(letter): "\\" + letter for letter in '\\^$.[]()|{}*+?"'}


class _PrefixSpan(NamedTuple):
    """A range of sorted strings with a common prefix of length `depth`."""

    start: int
    end: int
    depth: int


class _PatternGroup:
    def __init__(self) -> None:
        self.can_be_empty = False  # through one of its finished branches
        self.is_empty_so_far = True
        self.repeats = 0

    def end_branch(self) -> None:
        self.can_be_empty = self.can_be_empty or self.is_empty_so_far
        self.is_empty_so_far = True


def pattern_problem(text: str) -> str | None:
    """Return why a pattern is rejected, or None."""
    groups = [_PatternGroup()]
    choices = offset = 0
    while offset < len(text) and (match := _PATTERN_TOKEN.match(text, offset)):
        token, offset = match[0], match.end()
        if token == "{" and _INVALID_QUANTIFIER.match(text, match.start()):
            return _INVALID_REPEAT
        if token[0] == "[" and _has_reversed_range(token):  # llama.cpp aborts: no token matches
            return "has a reversed range"
        if token[0] == "(":
            groups.append(_PatternGroup())
            continue
        if token == "|":
            groups[-1].end_branch()
            choices += 1
            continue
        atom = _PatternGroup()
        if token == ")" and len(groups) > 1:
            atom = groups.pop()
            atom.end_branch()
        low, high, offset = _read_quantifier(text, offset)
        if high < low:  # llama.cpp generates rules without end
            return _INVALID_REPEAT
        if atom.can_be_empty and high > 1:
            return "repeats a part that can be empty"
        choices += low != high
        group = groups[-1]
        group.repeats += max(atom.repeats, 1) * high if high > 1 else atom.repeats
        group.is_empty_so_far = group.is_empty_so_far and (low == 0 or atom.can_be_empty or token in ("^", "$"))
        if choices > PATTERN_CHOICES_LIMIT or group.repeats > PATTERN_REPEAT_LIMIT:
            return f"has more than {PATTERN_CHOICES_LIMIT} choices or {PATTERN_REPEAT_LIMIT} repetitions"
    return None


def _has_reversed_range(characters: str) -> bool:
    ranges = _RANGE.findall(characters[1:].removeprefix("^").removesuffix("]"))
    return any(first > last for first, last in ranges)


def pattern_of_values(values: list[str]) -> str:
    """Return a pattern that matches exactly these strings, JSON-escaped, with common prefixes factored out.

    Strings with a common prefix are adjacent when sorted. Iterative: prefixes may nest as deep as the list is long.
    """
    texts = sorted({msgspec.json.encode(value).decode()[1:-1] for value in values})
    out = ["^"]
    todo: list[_PrefixSpan | str] = [_PrefixSpan(0, len(texts), 0)]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        first, depth = texts[item.start], _common_prefix_end(texts[item.start], texts[item.end - 1], item.depth)
        out.append(first[item.depth : depth].translate(_PATTERN_ESCAPES))
        if item.end - item.start > 1:
            ends = len(first) == depth
            branches = _split_span(texts, _PrefixSpan(item.start + ends, item.end, depth))
            steps = [step for branch in branches for step in ("|", branch)][1:]
            todo += reversed(["(", *steps, ")?" if ends else ")"])
    return "".join([*out, "$"])


def _split_span(texts: list[str], span: _PrefixSpan) -> Iterator[_PrefixSpan]:
    """Split a span where the character at its depth changes."""
    start = span.start
    for index in range(start + 1, span.end + 1):
        if index == span.end or texts[index][span.depth] != texts[start][span.depth]:
            yield _PrefixSpan(start, index, span.depth)
            start = index


def _common_prefix_end(first: str, last: str, depth: int) -> int:
    """Return the length of the common prefix, which is at least `depth`."""
    end = min(len(first), len(last))
    if first[depth:end] == last[depth:end]:
        return end
    while first[depth] == last[depth]:
        depth += 1
    return depth


def _read_quantifier(text: str, offset: int) -> tuple[int, int, int]:
    """Return the minimum, the maximum (capped where unbounded) and the offset after the quantifier."""
    match = _QUANTIFIER.match(text, offset)
    if match is None:
        return 1, 1, offset
    sign, low, comma, high = match.groups()
    if sign:
        return {"?": (0, 1), "*": (0, 2), "+": (1, 2)}[sign] + (match.end(),)
    least = int(low or 0)
    most = int(high) if high else least + 1 if comma else least
    return least, most, match.end()
