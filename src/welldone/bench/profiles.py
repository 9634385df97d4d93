"""Profiles: kinds of work that servers differ in, by the names and numbers of inference-benchmarker."""

from collections.abc import Mapping

import msgspec

from welldone.bench.settings import Length
from welldone.bench.styles import CODE, LABELS, PROSE, Style


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how long prompts and answers are."""

    name: str
    style: Style
    """How prompts are written where there is no dataset."""
    prompt: Length | None
    """None: the prompts of a dataset are taken as they are."""
    written: Length
    """The length of written prompts (in a chat: of each turn), where `prompt` says none."""
    decode: Length
    turns: tuple[int, int] = (1, 1)
    """How many a written conversation has, at least and at most."""


_FIXED = Length(num_tokens=200, min_tokens=200, max_tokens=200)
_CODE = Length(num_tokens=4096, min_tokens=3000, max_tokens=6000, variance=1000)
_LABELS = Length(num_tokens=10_000, min_tokens=8000, max_tokens=12_000, variance=5000)
_TALK = Length(num_tokens=100, min_tokens=20, max_tokens=400, variance=80)
"""Ours: inference-benchmarker has a dataset for chats. A question, or a question with something pasted."""
_LONG = Length(num_tokens=800, min_tokens=50, max_tokens=800, variance=100)
_SHORT = Length(num_tokens=50, min_tokens=30, max_tokens=80, variance=10)

FIXED_LENGTH = Profile(name="fixed-length", style=PROSE, prompt=_FIXED, written=_FIXED, decode=_LONG)
"""Also what is done where no profile is named: every request has a limit."""

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        FIXED_LENGTH,
        Profile(name="chat", style=PROSE, prompt=None, written=_TALK, decode=_LONG, turns=(2, 6)),
        Profile(name="code-generation", style=CODE, prompt=_CODE, written=_CODE, decode=_SHORT),
        Profile(name="classification", style=LABELS, prompt=_LABELS, written=_LABELS, decode=_SHORT),
    )
}


def profile_named(name: str) -> Profile:
    """The profile; `ValueError` where there is none."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(PROFILES)}") from None
