"""Regular expressions in JSON schemas: cost limits, and generation of a pattern from a list of strings.

llama.cpp converts a pattern into a grammar. Repeating something that can be empty makes it explore exponentially many
parses: `((a?){1000}){1000}` blocks it for minutes. It ignores patterns that it cannot parse, so only cost is checked.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

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
    while offset < len(text) and (found := _PATTERN_TOKEN.match(text, offset)):
        token, offset = found[0], found.end()
        if token == "{" and _INVALID_QUANTIFIER.match(text, found.start()):
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
    found = _QUANTIFIER.match(text, offset)
    if found is None:
        return 1, 1, offset
    sign, low, comma, high = found.groups()
    if sign:
        return {"?": (0, 1), "*": (0, 2), "+": (1, 2)}[sign] + (found.end(),)
    least = int(low or 0)
    most = int(high) if high else least + 1 if comma else least
    return least, most, found.end()
