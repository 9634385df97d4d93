"""Profiles: kinds of work that servers differ in, by the names and numbers of inference-benchmarker."""

from collections.abc import Mapping

import msgspec

from welldone.bench.settings import LengthSpec
from welldone.bench.styles import CODE_STYLE, CLASSIFICATION_STYLE, PROSE_STYLE, PromptStyle


class WorkloadProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and how long prompts and answers are."""

    name: str
    style: PromptStyle
    """How prompts are written where there is no dataset."""
    prompt: LengthSpec | None
    """None: the prompts of a dataset are taken as they are."""
    synthetic_length: LengthSpec
    """The length of written prompts (in a chat: of each turn), where `prompt` says none."""
    decode: LengthSpec
    turns: tuple[int, int] = (1, 1)
    """How many a written conversation has, at least and at most."""


_FIXED_LENGTH = LengthSpec(num_tokens=200, min_tokens=200, max_tokens=200)
_CODE_LENGTH = LengthSpec(num_tokens=4096, min_tokens=3000, max_tokens=6000, variance=1000)
_CLASSIFICATION_LENGTH = LengthSpec(num_tokens=10_000, min_tokens=8000, max_tokens=12_000, variance=5000)
_CHAT_LENGTH = LengthSpec(num_tokens=100, min_tokens=20, max_tokens=400, variance=80)
"""Ours: inference-benchmarker has a dataset for chats. A question, or a question with something pasted."""
_LONG_LENGTH = LengthSpec(num_tokens=800, min_tokens=50, max_tokens=800, variance=100)
_SHORT_LENGTH = LengthSpec(num_tokens=50, min_tokens=30, max_tokens=80, variance=10)

FIXED_LENGTH_PROFILE = WorkloadProfile(
    name="fixed-length", style=PROSE_STYLE, prompt=_FIXED_LENGTH, synthetic_length=_FIXED_LENGTH, decode=_LONG_LENGTH
)
"""Also what is done where no profile is named: every request has a limit."""

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
    """The profile; `ValueError` where there is none."""
    try:
        return WORKLOAD_PROFILES[name]
    except KeyError:
        raise ValueError(f"there is no profile {name!r}; there are {', '.join(WORKLOAD_PROFILES)}") from None
