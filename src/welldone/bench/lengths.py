"""How many tokens a prompt or an answer has: as inference-benchmarker writes it, and a draw of one."""

import random

from welldone.bench.settings import LengthSpec

MAX_TEXT_TOKENS = 10_000_000
"""Of one text; the longest contexts of today take a tenth of it."""
_LENGTH_FIELDS = ("num_tokens", "min_tokens", "max_tokens", "variance")
_SPREADS = 3  # standard deviations: nearly all draws of a normal distribution lie within
_LENGTH_EXAMPLE = "num_tokens=200,max_tokens=220,min_tokens=180,variance=10"


def parse_length(text: str) -> LengthSpec:
    """What `num_tokens=200,max_tokens=220,min_tokens=180,variance=10` means; `ValueError` where it means nothing.

    Bounds that are not given lie three deviations away; a number that is not given lies between the bounds.
    """
    given = dict(_parse_pair(item) for item in text.split(","))
    if "num_tokens" not in given and not {"min_tokens", "max_tokens"} <= given.keys():
        raise ValueError(f"{text!r} has no num_tokens; write {_LENGTH_EXAMPLE}")
    variance = given.get("variance", 0)
    number = given["num_tokens"] if "num_tokens" in given else (given["min_tokens"] + given["max_tokens"]) // 2
    least = given.get("min_tokens", max(1, min(number, given.get("max_tokens", number)) - _SPREADS * variance))
    most = given.get("max_tokens", max(number, least) + _SPREADS * variance)
    if min(number, least, most) < 1:
        raise ValueError(f"{text!r} asks for no tokens at all; 1 is the least")
    if least > most:
        raise ValueError(f"in {text!r} min_tokens is above max_tokens")
    return LengthSpec(num_tokens=number, min_tokens=least, max_tokens=most, variance=variance)


def _parse_pair(item: str) -> tuple[str, int]:
    name, _, number = (part.strip() for part in item.partition("="))
    if name not in _LENGTH_FIELDS:
        raise ValueError(f"{name!r} is none of {', '.join(_LENGTH_FIELDS)}; write {_LENGTH_EXAMPLE}")
    if not (number.isascii() and number.isdigit() and len(number) <= len(str(MAX_TEXT_TOKENS))):
        raise ValueError(f"{name} is {number!r}, which is no number of tokens; write {_LENGTH_EXAMPLE}")
    if int(number) > MAX_TEXT_TOKENS:
        raise ValueError(f"{name} is {number}; {MAX_TEXT_TOKENS:,} is the most")
    return name, int(number)


def draw_length(length: LengthSpec, rng: random.Random) -> int:
    """One number of tokens: normal around the middle, and never beyond the bounds."""
    number = rng.gauss(length.num_tokens, length.variance) if length.variance else length.num_tokens
    return min(max(round(number), length.min_tokens), length.max_tokens)
