"""Words, sentences and code for synthetic prompts, deterministic for a given random generator."""

import random
from collections.abc import Callable, Mapping

import msgspec

from welldone.bench.settings import LengthSpec


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# fmt: off
NOUNS = _words("""
    harbour market garden workshop library bridge river valley mountain village station school kitchen engine teacher
    farmer doctor sailor painter writer driver baker letter picture window ladder basket bottle carpet mirror hammer
    lantern journey winter summer morning evening storm shadow forest island castle tower corner street field orchard
    meadow cellar attic roof chimney fence gate path road wagon train boat ferry plane signal machine measure number
    table chair drawer shelf paper pencil story song dance festival meeting question answer problem plan promise secret
    lesson paragraph chapter ticket parcel coin button thread needle blanket apron helmet compass map clock bell whistle
    apple bread butter cheese honey pepper carrot onion potato barley horse donkey rabbit sparrow heron otter beetle
""")
ADJECTIVES = _words("""
    quiet narrow bright heavy gentle distant ancient modern careful hollow golden silver wooden broken patient curious
    sudden simple hidden famous lonely cheerful bitter frozen dusty crowded empty early late little enormous ordinary
    perfect faded polished rough smooth steady nervous honest clever stubborn sleepy hungry eager proud humble foreign
    local northern southern eastern western rainy sunny windy foggy
""")
VERBS = _words("""
    follows carries repairs watches measures remembers forgets describes paints collects counts opens closes moves
    finds hides keeps loses sells borrows returns cleans breaks builds guards visits crosses reaches leaves studies
    explains ignores admires changes copies delivers examines imagines mentions notices prepares protects
""")
PREPOSITIONS = _words("""
    behind beside near under above beyond across without before after during towards against around inside outside
""")
ADVERBS = _words("""
    Later Meanwhile Often Sometimes Usually Yesterday Today Tomorrow Slowly Suddenly Perhaps Finally Again Still
    Instead Besides
""")
FUNCTION_WORDS = _words("""
    the one every another this that and but while because so very quite rather also then now here there
""")
# fmt: on
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
    many, one, mark = rng.sample(NOUNS, 3)
    name = f"{rng.choice(VERBS)}_{one}"
    limit = rng.randrange(2, 1000)
    match rng.randrange(3):
        case 0:
            return (
                f"def {name}({many}s, limit={limit}):\n    # {sentence(rng)}\n    total = 0\n"
                f"    for {one} in {many}s:\n        if {one}.{mark} > limit:\n            total += {one}.{mark}\n"
                "    return total"
            )
        case 1:
            return (
                f"def {name}({one}, {mark}=None):\n    # {sentence(rng)}\n    if {mark} is None:\n"
                f'        raise ValueError("{clause(rng)}")\n    return {one}.{many}[{mark}]'
            )
        case _:
            return (
                f"class {one.capitalize()}:\n    # {sentence(rng)}\n    def __init__(self, {mark}):\n"
                f"        self.{mark} = {mark}\n        self.{many}s = [{limit}] * len({mark})\n\n"
                f"    def {name}(self, other):\n        return self.{mark} + other.{mark}"
            )


# Styles of prompts: the opening, the parts, and the final instruction.
#
# No two prompts have the same opening, so that a prompt cache does not improve the results. The tokens of the parts
# must add up to those of the whole. So each part but the first begins with a blank or a line break, and each ends in
# the same kind of character: no tokenizer has tokens across such a boundary.


class PromptStyle(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of prompt."""

    separator: str
    """Last character of the preceding part: tokens of parts are counted after it."""
    opening: Callable[[random.Random, int], str]
    """Returns the first part, from random numbers and the number of the prompt."""
    part: Callable[[random.Random], str]
    closing: str


def _report_opening(rng: random.Random, number: int) -> str:
    return f"{noun_phrase(rng).capitalize()}, report {number}."


def _file_opening(rng: random.Random, number: int) -> str:
    return f"# The {noun_phrase(rng)}, file {number} of the project"


def _sentence_part(rng: random.Random) -> str:
    return " " + sentence(rng)


def _function_part(rng: random.Random) -> str:
    return "\n\n" + python_function(rng)


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


# Workload profiles, with the names and numbers of inference-benchmarker.


class WorkloadProfile(msgspec.Struct, frozen=True, kw_only=True):
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

FIXED_LENGTH_PROFILE = WorkloadProfile(
    name="fixed-length", style=PROSE_STYLE, prompt=_FIXED_LENGTH, synthetic_length=_FIXED_LENGTH, decode=_LONG_LENGTH
)
"""Also the default without a profile: every request has a limit."""

WORKLOAD_PROFILES: Mapping[str, WorkloadProfile] = {
    profile.name: profile
    for profile in (
        FIXED_LENGTH_PROFILE,
        WorkloadProfile(
            name="chat",
            style=PROSE_STYLE,
            prompt=None,
            synthetic_length=_CHAT_LENGTH,
            decode=_LONG_LENGTH,
            turns=(2, 6),
        ),
        WorkloadProfile(
            name="code-generation",
            style=CODE_STYLE,
            prompt=_CODE_LENGTH,
            synthetic_length=_CODE_LENGTH,
            decode=_SHORT_LENGTH,
        ),
        WorkloadProfile(
            name="classification",
            style=CLASSIFICATION_STYLE,
            prompt=_CLASSIFICATION_LENGTH,
            synthetic_length=_CLASSIFICATION_LENGTH,
            decode=_SHORT_LENGTH,
        ),
    )
}


def find_workload_profile(name: str) -> WorkloadProfile:
    """Return a profile by name; raises `ValueError` if there is none."""
    try:
        return WORKLOAD_PROFILES[name]
    except KeyError:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(WORKLOAD_PROFILES)}") from None
