"""Words, sentences and code for synthetic prompts, deterministic for a given random generator."""

import random
from collections.abc import Callable, Mapping
from pkgutil import get_data

import msgspec

from welldone.bench.settings import LengthSpec

_LISTS = (get_data("welldone.bench", "words.txt") or b"").decode().split("\n\n")
NOUNS, ADJECTIVES, VERBS, PREPOSITIONS, ADVERBS, FUNCTION_WORDS = (tuple(words.split()) for words in _LISTS)
"""The paragraphs of `words.txt`, in this order."""
_FUNCTIONS = (get_data("welldone.bench", "functions.txt") or b"").decode().removesuffix("\n").split("\n---\n")
ALL_WORDS = (
    *(*NOUNS, *ADJECTIVES, *VERBS, *PREPOSITIONS, *ADVERBS, *FUNCTION_WORDS),
    *(word.capitalize() for word in (*FUNCTION_WORDS, *ADJECTIVES)),
)
"""Every form of a word in a sentence."""


def noun_phrase(rng: random.Random) -> str:
    """`quiet harbour`."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def sentence(rng: random.Random) -> str:
    """`Later the quiet harbour follows another letter behind the old gate.`"""
    middle = f"{noun_phrase(rng)} {rng.choice(VERBS)} {rng.choice(FUNCTION_WORDS[:6])} {noun_phrase(rng)}"
    match rng.randrange(4):
        case 0:
            return f"The {middle}."
        case 1:
            return f"{rng.choice(ADVERBS)} the {middle} {rng.choice(PREPOSITIONS)} the {rng.choice(NOUNS)}."
        case 2:
            subject, joint = rng.choice(FUNCTION_WORDS[:6]).capitalize(), rng.choice(FUNCTION_WORDS[6:10])
            return f"{subject} {middle}, {joint} {clause(rng)}."
        case _:
            adverb, preposition, article = rng.choice(ADVERBS), rng.choice(PREPOSITIONS), rng.choice(FUNCTION_WORDS[:6])
            return f"{adverb} this {middle} {preposition} {article} {noun_phrase(rng)}."


def clause(rng: random.Random) -> str:
    """`the gate closes very late`."""
    return f"the {rng.choice(NOUNS)} {rng.choice(VERBS)} the {noun_phrase(rng)}"


def python_function(rng: random.Random) -> str:
    """Return a function or a class in Python."""
    many, noun, mark = rng.sample(NOUNS, 3)
    names = {"many": many, "one": noun, "mark": mark, "class_name": noun.capitalize(), "limit": rng.randrange(2, 1000)}
    name = f"{rng.choice(VERBS)}_{noun}"
    return rng.choice(_FUNCTIONS).format(name=name, comment=sentence(rng), message=clause(rng), **names)


# Styles of prompts: the opening, the parts, and the final instruction.
#
# No two prompts have the same opening, so that a prompt cache does not improve the results. The tokens of the parts
# must add up to those of the whole. So each part but the first begins with a blank or a line break, and each ends in
# the same kind of character: no tokenizer has tokens across such a boundary.


class PromptStyle(msgspec.Struct, frozen=True):
    """A kind of prompt."""

    separator: str
    """Last character of the preceding part: tokens of parts are counted after it."""
    opening: Callable[[random.Random, int], str]
    """Returns the first part, from random numbers and the number of the prompt."""
    part: Callable[[random.Random], str]
    closing: str


def _report_opening(rng: random.Random, number: int) -> str:
    return f"{noun_phrase(rng).capitalize()}, report {number}."


_STORY_REQUEST = " Write a long story that begins where this ends."
_CODE_REQUEST = "\n\nWrite the function that should come next."
_WORD_REQUEST = " Which word fits this text best: travel, trade, nature, or craft? Say the word, and give your reason."
PROSE_STYLE = PromptStyle("end.", _report_opening, lambda rng: f" {sentence(rng)}", _STORY_REQUEST)
CODE_STYLE = PromptStyle(
    "end",
    lambda rng, number: f"# The {noun_phrase(rng)}, file {number} of the project",
    lambda rng: f"\n\n{python_function(rng)}",
    _CODE_REQUEST,
)
CLASSIFICATION_STYLE = msgspec.structs.replace(PROSE_STYLE, closing=_WORD_REQUEST)


# Workload profiles, with the names and numbers of inference-benchmarker.


class WorkloadProfile(msgspec.Struct, frozen=True):
    """Style and lengths of prompts and answers."""

    name: str
    style: PromptStyle
    """Style of synthetic prompts, without a dataset."""
    prompt: LengthSpec | None
    """None: the prompts of a dataset are not cut."""
    synthetic_length: LengthSpec
    """Length of synthetic prompts (in a chat: of each turn), if `prompt` is None."""
    decode: LengthSpec
    turns: tuple[int, int] = (1, 1)
    """Minimum and maximum number of turns of a synthetic conversation."""


_FIXED_LENGTH = LengthSpec(num_tokens=200, min_tokens=200, max_tokens=200)
_CODE_LENGTH = LengthSpec(num_tokens=4096, min_tokens=3000, max_tokens=6000, variance=1000)
_CLASSIFICATION_LENGTH = LengthSpec(num_tokens=10_000, min_tokens=8000, max_tokens=12_000, variance=5000)
_CHAT_LENGTH = LengthSpec(num_tokens=100, min_tokens=20, max_tokens=400, variance=80)
"""Not from inference-benchmarker, which has a dataset for chats: a question, or a question with a pasted text."""
_LONG_LENGTH = LengthSpec(num_tokens=800, min_tokens=50, max_tokens=800, variance=100)
_SHORT_LENGTH = LengthSpec(num_tokens=50, min_tokens=30, max_tokens=80, variance=10)

FIXED_LENGTH_PROFILE = WorkloadProfile("fixed-length", PROSE_STYLE, _FIXED_LENGTH, _FIXED_LENGTH, _LONG_LENGTH)
"""Also the default without a profile: every request has a limit."""
_CHAT = WorkloadProfile("chat", PROSE_STYLE, None, _CHAT_LENGTH, _LONG_LENGTH, turns=(2, 6))
_CODE = WorkloadProfile("code-generation", CODE_STYLE, _CODE_LENGTH, _CODE_LENGTH, _SHORT_LENGTH)
_CLASSIFICATION = WorkloadProfile(
    "classification", CLASSIFICATION_STYLE, _CLASSIFICATION_LENGTH, _CLASSIFICATION_LENGTH, _SHORT_LENGTH
)
WORKLOAD_PROFILES: Mapping[str, WorkloadProfile] = {
    profile.name: profile for profile in (FIXED_LENGTH_PROFILE, _CHAT, _CODE, _CLASSIFICATION)
}


def find_workload_profile(name: str) -> WorkloadProfile:
    """Return a profile by name; raises `ValueError` if there is none."""
    try:
        return WORKLOAD_PROFILES[name]
    except KeyError:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(WORKLOAD_PROFILES)}") from None
