"""Cost limits of patterns, and patterns generated from lists of values."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.server.requests.json_schema_cost import pattern_of_values, pattern_problem


@table(
    "text",
    [
        "",
        "abc",
        "^[a-z]{1,20}$",
        r"^\d{3}-\d{3}-\d{4}$",
        r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        r"^(\w+\.)*\w+@(\w+\.)+[a-z]{2,}$",
        "^([a-z]+,?)*$",
        "^(a|b)+$",
        "^a{2000}$",
        "^(a{40}){50}$",
        "^[(?*]+$",
        r"^(\()*$",
        "^[]]*$",
        "(((",
        ")))",
        "[",
        "{",
        "\\",
        "a{,5}b{3,}",
        "^a{2,2}{b}$",
        r"^\{2,1\}[{2,1}]$",
        "^[a-z][+--][^-A][]-a]$",
        r"^[\w-a][\]-z-]$",
    ],
)
def test_common_patterns_are_accepted(text: str) -> None:
    assert pattern_problem(text) is None


@table(
    "text",
    [
        "^(a?)*$",
        "^(a*)+$",
        "^(a*){2}$",
        "^a{2,1}$",  # this one stopped the engine for good
        "^[z-a]$",
        "^x[^ab-A]+$",
        "^(ab){2,1}c$",
        "^a{ 2,1}$",
        "^a{+3000}$",
        "^a{2,-1}$",
        "^a{3x}$",
        "^a{99999999999}$",
        "^a{45}{45}$",
        "^(|a)*$",
        "^(a|b*)*$",
        "^((a?)(b?))*$",
        "^(()){5}$",
        "^a{2001}$",
        "^(a{45}){45}$",
        "^((a{13}){13}){13}$",
        "^" + "a?" * 65 + "$",
        "^(" + "|".join("ab" * 33) + ")$",
    ],
)
def test_expensive_patterns_are_rejected(text: str) -> None:
    assert pattern_problem(text)


@given(st.text(alphabet="ab()[]{}|?*+\\^$,0123:=!<", max_size=512))
def test_any_pattern_is_accepted_or_rejected(text: str) -> None:
    pattern_problem(text)


@given(
    st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1), st.text(max_size=8)
)
def test_a_pattern_of_values_matches_them_in_json(values: list[str], other: str) -> None:
    pattern = re.compile(pattern_of_values(values))
    for value in [*values, other]:
        written = json.dumps(value, ensure_ascii=False)[1:-1].replace("\\u007f", "\x7f")
        assert bool(pattern.fullmatch(written)) == (value in values)


def test_values_of_any_length_become_a_pattern() -> None:
    assert len(pattern_of_values(["x" * 100_000, "y"])) > 100_000


def test_common_prefixes_are_factored_out() -> None:
    assert pattern_of_values(["ab.1", "ab.2", "ab", "c", "c"]) == r"^(ab(\.(1|2))?|c)$"
    steps = ["x" * length for length in range(1, 480)]
    assert pattern_of_values(steps).count("x") == len(steps)
