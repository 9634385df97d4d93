"""Prompts that are written here, offline, of a given number of tokens.

Parts are made and counted once. A prompt is then a matter of drawing parts and adding up their tokens, which takes a
millionth of a second each: a prompt is made while requests are under way, and must not delay them.
"""

import random
from bisect import bisect_right

from welldone.bench import words
from welldone.bench.counting import Counter
from welldone.bench.forms import Form

PARTS = 500
"""How many different parts there are: a long prompt has some hundred of them, in an order of its own."""


class Writer:
    """Writes prompts in one form. What it writes depends on `rng` alone."""

    def __init__(self, form: Form, counter: Counter, rng: random.Random) -> None:
        self._form = form
        self._counter = counter
        self._rng = rng
        self._number = 0
        parts = [form.part(rng) for _ in range(PARTS)]
        by_tokens: dict[int, list[str]] = {}
        for part in (*parts, *(f" {word}" for word in words.SMALL)):  # small words fill what is left in the end
            by_tokens.setdefault(max(1, self._count(part)), []).append(part)
        self._by_tokens = by_tokens
        self._sizes = sorted(by_tokens)
        self._parts = [(part, self._count(part)) for part in parts]
        self._closing = self._count(form.closing)

    def _count(self, part: str) -> int:
        """How many tokens a part adds to a text."""
        return self._counter.count(self._form.before + part) - self._counter.count(self._form.before)

    def write(self, tokens: int) -> tuple[str, int]:
        """A prompt that was not there before, and how many tokens it has: as many as asked for, if it can be."""
        opening = self.opening()
        left = tokens - self._counter.count(opening) - self._closing
        if left < 0:
            text = self._counter.cut(opening + self._form.closing, tokens)
            return text, self._counter.count(text)
        written = [opening]
        while left >= self._sizes[-1]:
            part, size = self._rng.choice(self._parts)
            written.append(part)
            left -= size
        while left >= self._sizes[0]:
            size = self._sizes[bisect_right(self._sizes, left) - 1]
            written.append(self._rng.choice(self._by_tokens[size]))
            left -= size
        written.append(self._form.closing)
        return "".join(written), tokens - left

    def opening(self) -> str:
        """The first words of a text: never the same twice."""
        self._number += 1
        return self._form.open(self._rng, self._number)
