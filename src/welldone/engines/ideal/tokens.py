"""The tokens of a model that is none: words up to five letters, pieces of longer ones, and single signs."""

import re
from collections.abc import Iterable
from itertools import cycle, islice

_TOKEN = re.compile(r"\s*\w{1,5}|\s*[^\w\s]|\s+")


def tokenize(text: str) -> tuple[str, ...]:
    """The text in tokens. They join to it, and so do those of any of its beginnings that ends where a token does."""
    return tuple(_TOKEN.findall(text))


def repeat_to_length(text: str, count: int) -> str:
    """So many tokens of the text, again from its start where it has fewer."""
    first = tokenize(text)
    again = tokenize(text if text[:1].isspace() else f" {text}")
    return "".join([*first, *islice(cycle(again), max(0, count - len(first)))][:count]) if first else ""


def count_tokens(texts: Iterable[str], limit: int) -> int:
    """How many tokens the texts have; it is not counted on beyond `most`."""
    return sum(1 for _ in islice((token for text in texts for token in _TOKEN.finditer(text)), limit))
