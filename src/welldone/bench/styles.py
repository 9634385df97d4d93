"""The styles in which prompts are written: how one opens, what it is made of, and what it asks for in the end.

No two prompts open alike, so that a cache of prompts does not flatter a server. The tokens of the parts must add up to
the tokens of the whole. So each part but the first begins with a blank or a line, and each ends in the same kind of
character: no tokenizer has tokens across such a seam.
"""

import random
from collections.abc import Callable

import msgspec

from welldone.bench import words


class PromptStyle(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of prompt."""

    separator: str
    """What stands before a part, by its last character: parts are counted behind it."""
    opening: Callable[[random.Random, int], str]
    """The first part, out of chance and the number of the prompt."""
    part: Callable[[random.Random], str]
    closing: str


def _report_opening(rng: random.Random, number: int) -> str:
    return f"{words.noun_phrase(rng).capitalize()}, report {number}."


def _file_opening(rng: random.Random, number: int) -> str:
    return f"# The {words.noun_phrase(rng)}, file {number} of the project"


def _sentence_part(rng: random.Random) -> str:
    return " " + words.sentence(rng)


def _function_part(rng: random.Random) -> str:
    return "\n\n" + words.python_function(rng)


PROSE_STYLE = PromptStyle(
    separator="end.",
    opening=_report_opening,
    part=_sentence_part,
    closing=" Write a long story that begins where this ends.",
)
CODE_STYLE = PromptStyle(
    separator="end",
    opening=_file_opening,
    part=_function_part,
    closing="\n\nWrite the function that should come next.",
)
CLASSIFICATION_STYLE = PromptStyle(
    separator="end.",
    opening=_report_opening,
    part=_sentence_part,
    closing=" Which word fits this text best: travel, trade, nature, or craft? Say the word, and give your reason.",
)
