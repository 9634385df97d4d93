"""Regular expressions of schemas: whether an engine can follow one, and how a list of texts becomes one.

llama.cpp turns a pattern into a grammar. What can be empty and is repeated makes it try the same place in very many
ways: `((a?){1000}){1000}` stops it for minutes. A pattern that it cannot read it ignores, so only the cost is judged.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

PATTERN_CHOICES_LIMIT = 64
"""Places where a pattern can go on in more than one way. A version number by semver.org has 22."""
PATTERN_REPEAT_LIMIT = 2_000
"""Repetitions, multiplied where one is inside another: llama.cpp's own limit for one."""

_PATTERN_TOKEN = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]?|\((?:\?[:=!]|\?<[=!])?|[)|]|[^\\\[()|]", re.DOTALL)
_QUANTIFIER = re.compile(r"([?*+])|\{(\d{1,9})?(,)?(\d{1,9})?\}")
_INVALID_QUANTIFIER = re.compile(r"\{[^}\d]*\d[^}]*\}?")
"""What llama.cpp takes for a number of times too, though it is none: ` 2`, `+2`, `-1`, `2x`, or more than there are."""
_INVALID_REPEAT = "has a number of times that cannot be"
_RANGE = re.compile(r"([^\\])-([^\\])|\\.", re.DOTALL)
_PATTERN_ESCAPES = {ord(letter): "\\" + letter for letter in '\\^$.[]()|{}*+?"'}


class _PrefixSpan(NamedTuple):
    """Texts that are the same up to a depth."""

    start: int
    end: int
    depth: int


class _PatternGroup:
    """What was read of a group."""

    def __init__(self) -> None:
        self.can_be_empty = False  # by one of its branches that is whole
        self.is_empty_so_far = True
        self.repeats = 0

    def end_branch(self) -> None:
        self.can_be_empty = self.can_be_empty or self.is_empty_so_far
        self.is_empty_so_far = True


def pattern_problem(text: str) -> str | None:
    """Why a pattern cannot be followed, or None where it can."""
    groups = [_PatternGroup()]
    choices = place = 0
    while place < len(text) and (found := _PATTERN_TOKEN.match(text, place)):
        token, place = found[0], found.end()
        if token == "{" and _INVALID_QUANTIFIER.match(text, found.start()):
            return _INVALID_REPEAT
        if token[0] == "[" and _has_reversed_range(token):  # llama.cpp finds nothing that fits, and breaks off
            return "has a range that runs backwards"
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
        low, high, place = _read_quantifier(text, place)
        if high < low:  # llama.cpp makes rules for it without end
            return _INVALID_REPEAT
        if atom.can_be_empty and high > 1:
            return "repeats what can be empty"
        choices += low != high
        group = groups[-1]
        group.repeats += max(atom.repeats, 1) * high if high > 1 else atom.repeats
        group.is_empty_so_far = group.is_empty_so_far and (low == 0 or atom.can_be_empty or token in ("^", "$"))
        if choices > PATTERN_CHOICES_LIMIT or group.repeats > PATTERN_REPEAT_LIMIT:
            return f"has more than {PATTERN_CHOICES_LIMIT} choices or {PATTERN_REPEAT_LIMIT} repetitions"
    return None


def _has_reversed_range(characters: str) -> bool:
    """Whether one of the ranges between the brackets begins after its end."""
    ranges = _RANGE.findall(characters[1:].removeprefix("^").removesuffix("]"))
    return any(first > last for first, last in ranges)


def pattern_of_values(values: list[str]) -> str:
    """A pattern for exactly these texts, as they stand in JSON. What several begin with stands in it once.

    Texts in their order lie together by what they begin with. No recursion: a text may begin with another, and so on.
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
    """A span cut where the letter at its depth changes."""
    start = span.start
    for place in range(start + 1, span.end + 1):
        if place == span.end or texts[place][span.depth] != texts[start][span.depth]:
            yield _PrefixSpan(start, place, span.depth)
            start = place


def _common_prefix_end(first: str, last: str, depth: int) -> int:
    """To where two texts are the same, which they are up to `depth`."""
    end = min(len(first), len(last))
    if first[depth:end] == last[depth:end]:
        return end
    while first[depth] == last[depth]:
        depth += 1
    return depth


def _read_quantifier(text: str, place: int) -> tuple[int, int, int]:
    """The least and most times of what was just read, and where the pattern goes on."""
    found = _QUANTIFIER.match(text, place)
    if found is None:
        return 1, 1, place
    sign, low, comma, high = found.groups()
    if sign:
        return {"?": (0, 1), "*": (0, 2), "+": (1, 2)}[sign] + (found.end(),)
    least = int(low or 0)
    most = int(high) if high else least + 1 if comma else least
    return least, most, found.end()
