"""Law 3: legal streams of every dialect keep all that they have, repaired, folded and translated.

What is compared, and what a dialect cannot carry, is written in `right_answers`. A seed that fails here:
`python -m tests.laws.right_answers --only DIALECT --streams 1 --seed SEED`.
"""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.laws.right_answers import DIALECTS, differences


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(
    max_examples=8 * settings().max_examples,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a smaller seed is no simpler stream
)
@given(seed=st.integers(0, 2**32))
def test_a_legal_stream_keeps_all_that_it_has(dialect: str, seed: int) -> None:
    assert differences(dialect, seed) == []
