"""Every fault of the plan, a few times each. What depends on how busy the machine is, is not judged here."""

from pathlib import Path

import pytest

from faults.case import Case, Stage
from faults.plan import CASES

SEED = 20260822
"""The same faults each time: who wants others runs the plan."""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_bars_are_kept_in_the_short_form(case: Case, tiny_model: Path, short_path: Path) -> None:
    outcome = case.run(Stage(short_path, tiny_model, SEED, is_short=True))
    assert outcome.broken(is_short=True) == []
    assert outcome.count or outcome.not_run


def test_every_case_has_a_name_of_its_own() -> None:
    assert all(case.name == name for name, case in CASES.items())
