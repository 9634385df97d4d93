"""The words of which prompts are written, and sentences and functions made of them. The same draws, the same text."""

import random


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
"""Every form in which a word stands in a sentence."""


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
            return f"{rng.choice(FUNCTION_WORDS[:6]).capitalize()} {middle}, {rng.choice(FUNCTION_WORDS[6:10])} {clause(rng)}."
        case _:
            return f"{rng.choice(ADVERBS)} this {middle} {rng.choice(PREPOSITIONS)} {rng.choice(FUNCTION_WORDS[:6])} {noun_phrase(rng)}."


def clause(rng: random.Random) -> str:
    """`the gate closes very late`."""
    return f"the {rng.choice(NOUNS)} {rng.choice(VERBS)} the {noun_phrase(rng)}"


def python_function(rng: random.Random) -> str:
    """A function in Python, which may even do something."""
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
