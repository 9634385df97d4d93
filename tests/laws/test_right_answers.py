"""Law 3: legal streams of every dialect keep their content when repaired, collected and translated.

`right_answers` defines the comparison, and what a dialect cannot represent. To reproduce a failing seed:
`python -m tests.laws.right_answers --only DIALECT --streams 1 --seed SEED`.
"""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.laws.right_answers import DIALECTS, differences


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
