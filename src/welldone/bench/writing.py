"""Prompts that are written here, offline, of a given number of tokens.

Parts are made and counted once. A prompt is then a matter of drawing parts and adding up their tokens, which takes a
millionth of a second each: a prompt is made while requests are under way, and must not delay them.
"""

import random
from bisect import bisect_right

from welldone.bench import words
from welldone.bench.counting import BenchTokenCounter
from welldone.bench.styles import PromptStyle

PART_COUNT = 500
"""How many different parts there are: a long prompt has some hundred of them, in an order of its own."""


class PromptWriter:
    """Writes prompts in one style. What it writes depends on `rng` alone."""

    def __init__(self, style: PromptStyle, counter: BenchTokenCounter, rng: random.Random) -> None:
        self._style = style
        self._counter = counter
        self._rng = rng
        self._number = 0
        self._parts = [(part, self._count(part)) for part in (style.part(rng) for _ in range(PART_COUNT))]
        # What is left in the end is filled with the longest parts that fit, and with small words.
        self._by_tokens: dict[int, list[str]] = {}
        for part, size in (*self._parts, *((f" {word}", self._count(f" {word}")) for word in words.FUNCTION_WORDS)):
            self._by_tokens.setdefault(size, []).append(part)
        self._sizes = sorted(self._by_tokens)
        self._closing_tokens = self._count(style.closing)

    def _count(self, part: str) -> int:
        """How many tokens a part adds to a text: one at least, so that writing comes to an end."""
        return max(1, self._counter.count(self._style.separator + part) - self._counter.count(self._style.separator))

    def write(self, tokens: int) -> tuple[str, int]:
        """A prompt that was not there before, and how many tokens it has: as many as asked for, if it can be."""
        opening = self.opening()
        left = tokens - self._counter.count(opening) - self._closing_tokens
        if left < 0:
            text = self._counter.truncate(opening + self._style.closing, tokens)
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
        written.append(self._style.closing)
        return "".join(written), tokens - left

    def opening(self) -> str:
        """The first words of a text: never the same twice."""
        self._number += 1
        return self._style.opening(self._rng, self._number)
