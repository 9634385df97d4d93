"""Length specifications: syntax of inference-benchmarker, and draws within the bounds."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.bench.settings import MAX_TEXT_TOKENS, LengthSpec, draw_length, parse_length


@table(
    ("text", "length"),
    [
        ("num_tokens=200,max_tokens=220,min_tokens=180,variance=10", (200, 180, 220, 10)),
        (" num_tokens = 200 , max_tokens=220", (200, 200, 220, 0)),
        ("num_tokens=200", (200, 200, 200, 0)),
        ("num_tokens=200,variance=10", (200, 170, 230, 10)),
        ("num_tokens=5,variance=10", (5, 1, 35, 10)),
        ("min_tokens=100,max_tokens=200", (150, 100, 200, 0)),
        ("num_tokens=500,max_tokens=200", (500, 200, 200, 0)),
        ("num_tokens=5,min_tokens=20", (5, 20, 20, 0)),
    ],
)
def test_a_length_is_parsed(text: str, length: tuple[int, int, int, int]) -> None:
    number, least, most, variance = length
    assert parse_length(text) == LengthSpec(num_tokens=number, min_tokens=least, max_tokens=most, variance=variance)


@table(
    ("text", "complaint"),
    [
        ("", "'' is not one of num_tokens"),
        ("200", "'200' is not one of num_tokens"),
        ("num_tokens=", "num_tokens is ''"),
        ("num_tokens=-5", "num_tokens is '-5'"),
        ("num_tokens=2.5", "num_tokens is '2.5'"),
        ("num_tokens=٣", "not a number"),
        ("num_tokens=" + "9" * 5000, "not a number"),
        (f"num_tokens={MAX_TEXT_TOKENS + 1}", "the maximum is"),
        ("num_tokens=0", "allows no tokens"),
        ("num_tokens=5,min_tokens=0", "allows no tokens"),
        ("num_tokens=5,min_tokens=9,max_tokens=8", "min_tokens is above max_tokens"),
        ("variance=5,max_tokens=8", "has no num_tokens"),
        ("num_tokens=5,length=8", "'length' is not one of"),
        ("num_tokens=5,", "'' is not one of"),
    ],
)
def test_an_invalid_length_is_rejected_with_a_message(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_length(text)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 500), st.integers(0, 1000), st.integers())
def test_draws_stay_within_the_bounds(number: int, one: int, other: int, variance: int, seed: int) -> None:
    least, most = sorted((one, other))
    length = LengthSpec(num_tokens=number, min_tokens=least, max_tokens=most, variance=variance)
    rng = random.Random(seed)
    assert all(least <= draw_length(length, rng) <= most for _ in range(20))


def test_draws_lie_around_the_number() -> None:
    length = LengthSpec(num_tokens=200, min_tokens=1, max_tokens=400, variance=10)
    rng = random.Random(1)
    drawn = [draw_length(length, rng) for _ in range(1000)]
    assert 198 < sum(drawn) / len(drawn) < 202
    assert len(set(drawn)) > 30


def test_without_a_variance_each_draw_is_the_number() -> None:
    assert {draw_length(parse_length("num_tokens=7"), random.Random(seed)) for seed in range(20)} == {7}
