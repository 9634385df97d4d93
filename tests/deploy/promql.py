"""The metrics and labels of a PromQL expression, read with a small tokenizer."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

_TOKEN = re.compile(
    r"""\s*(?: (?P<text>"(?:[^"\\]|\\.)*") | (?P<number>\d[\w.]*) | (?P<name>[A-Za-z_:][\w:]*)
         | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){}\[\],]) )""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "unless", "bool", "offset"})
_LABEL_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
_FUNCTIONS = frozenset(
    {"absent", "avg", "count", "histogram_quantile", "increase", "max", "min", "rate", "sum", "time", "topk", "vector"}
)
_MATCH: Mapping[str, Callable[[str, str], bool]] = {
    "=": lambda pattern, value: value == pattern,
    "!=": lambda pattern, value: value != pattern,
    "=~": lambda pattern, value: re.fullmatch(pattern, value) is not None,
    "!~": lambda pattern, value: re.fullmatch(pattern, value) is None,
}


class Selector(NamedTuple):
    """A metric with its matchers."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels is selected."""
        return all(_MATCH[sign](value, labels.get(label, "")) for label, sign, value in self.matchers)


class Expression(NamedTuple):
    """What an expression reads."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]
    """Labels that it groups or joins by."""


def parse(text: str) -> Expression:
    """Parse an expression.

    Raises:
        ValueError: an unknown character or function.
    """
    tokens = _tokens(text)
    selectors: list[Selector] = []
    labels: set[str] = set()
    index = 0
    while index < len(tokens):
        kind, word = tokens[index]
        following = tokens[index + 1][1] if index + 1 < len(tokens) else ""
        index += 1
        if kind != "name" or word in _WORDS:
            continue
        if word in _LABEL_LISTS:
            end = tokens.index(("sign", ")"), index)
            labels.update(label for kind, label in tokens[index:end] if kind == "name")
            index = end
        elif following == "(" or word in _FUNCTIONS:
            if word not in _FUNCTIONS:
                raise ValueError(f"unknown function {word}")
        elif following == "{":
            end = tokens.index(("sign", "}"), index)
            inner = [word for _, word in tokens[index + 1 : end] if word != ","]
            matchers = zip(inner[::3], inner[1::3], inner[2::3], strict=True)
            selectors.append(Selector(word, tuple((label, sign, value[1:-1]) for label, sign, value in matchers)))
            index = end
        else:
            selectors.append(Selector(word, ()))
    return Expression(tuple(selectors), frozenset(labels))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise ValueError(f"cannot read {text[position:]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens
