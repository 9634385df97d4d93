"""Law 3: legal streams of every dialect keep their content when repaired, collected and translated.

`right_answers` defines the comparison, and what a dialect cannot represent. To reproduce a failing seed:
`python -m tests.laws.right_answers --only DIALECT --streams 1 --seed SEED`.
"""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.laws.right_answers import DIALECTS, differences
from tests.table import table


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(
    max_examples=8 * settings().max_examples,
    phases=(
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ),  # shrinking is useless: a smaller seed is not a simpler stream
)
@given(seed=st.integers(0, 2**32))
def test_a_legal_stream_keeps_its_content(dialect: str, seed: int) -> None:
    assert differences(dialect, seed) == []


@pytest.mark.tier2
@table("dialect", DIALECTS)
def test_2000_legal_streams_keep_their_content(dialect: str) -> None:
    assert {seed: found for seed in range(2_000) if (found := differences(dialect, seed))} == {}
