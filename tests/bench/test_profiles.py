"""The workload profiles have the numbers of inference-benchmarker."""

import pytest

from tests.table import table
from welldone.bench.settings import LengthSpec
from welldone.bench.words import WORKLOAD_PROFILES, find_workload_profile


def _numbers(length: LengthSpec | None) -> tuple[int, int, int, int] | None:
    return None if length is None else (length.num_tokens, length.min_tokens, length.max_tokens, length.variance)


@table(
    ("name", "prompt", "decode"),
    [
        ("fixed-length", (200, 200, 200, 0), (800, 50, 800, 100)),
        ("chat", None, (800, 50, 800, 100)),
        ("code-generation", (4096, 3000, 6000, 1000), (50, 30, 80, 10)),
        ("classification", (10_000, 8000, 12_000, 5000), (50, 30, 80, 10)),
    ],
)
def test_a_profile_has_its_lengths(
    name: str, prompt: tuple[int, int, int, int] | None, decode: tuple[int, int, int, int]
) -> None:
    profile = find_workload_profile(name)
    assert profile.name == name
    assert _numbers(profile.prompt) == prompt
    assert _numbers(profile.decode) == decode


def test_an_unknown_profile_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no profile 'chess'; there are fixed-length, chat, code-generation, cl"):
        find_workload_profile("chess")


def test_only_a_chat_has_several_turns() -> None:
    assert [name for name, profile in WORKLOAD_PROFILES.items() if profile.turns != (1, 1)] == ["chat"]
