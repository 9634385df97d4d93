"""The short form of every case: few repetitions, no limits on timing."""

from pathlib import Path

import pytest

from faults.case import Case, CaseContext
from faults.plan import CASES

SEED = 20260822
"""Fixed, so that each run has the same faults; the full plan draws others."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_limits_hold_in_the_short_form(case: Case, tiny_model: Path, short_path: Path) -> None:
    outcome = case.run(CaseContext(short_path, tiny_model, SEED, is_short=True))
    assert outcome.broken(is_short=True) == []
    assert outcome.count or outcome.not_run


def test_case_names_are_unique() -> None:
    assert all(case.name == name for name, case in CASES.items())
