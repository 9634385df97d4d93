"""docs/reliability.md: rendering of results; a missed limit is never shown as kept."""

from pathlib import Path

import pytest

from faults import page, results
from faults.case import Case, CaseContext, Figure, Group, Outcome
from faults.plan import PLAN as WHOLE

CASE = Case("fire", "the house burns | brightly", lambda context: Outcome())
PLAN = (Group("Fires", (CASE,)),)


def drawn(outcome: Outcome) -> str:
    """Render the row of a case with this outcome."""
    drawn = page.draw(PLAN, {"fire": results.Result(outcome, 1.0, 7, "2026-01-02", "a machine")})
    assert "Measured on 2026-01-02: a machine." in drawn
    return drawn.splitlines()[-1]


def test_a_row_has_the_behaviour_and_the_limits() -> None:
    figures = (Figure("put out after", 12.345, "ms", most=50), Figure("lost", 0, most=0, least=0), Figure("seen", 3))
    assert drawn(Outcome(1000, "it was put out", figures)) == (
        "| the house burns \\| brightly (`fire`) | 1,000 | it was put out "
        "| put out after: 12.3 ms (limit: ≤ 50 ms)<br>lost: 0 (limit: 0)<br>seen: 3 | kept |"
    )


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(1, "slow", (Figure("time", 51, "ms", most=50),)),
        Outcome(1, "few", (Figure("finished", 99, "%", least=100),)),
        Outcome(1, "slow", (Figure("time", 51, "ms", most=50, is_timing=True),)),
        Outcome(1, "well", problems=("but not quite",)),
    ],
)
def test_a_missed_limit_is_marked(outcome: Outcome) -> None:
    assert drawn(outcome).endswith("| missed |")


def test_a_case_that_did_not_run_is_neither_kept_nor_missed() -> None:
    assert drawn(Outcome(not_run="no matches")).endswith("| not run: no matches | | |")
    assert page.draw(PLAN, {}).endswith("| not run yet | | |\n")


def test_the_short_form_ignores_only_limits_on_timing() -> None:
    slow = Figure("time", 51, "ms", most=50, is_timing=True)
    lost = Figure("lost", 1, most=0)
    outcome = Outcome(1, "well", (slow, lost), ("trouble",))
    assert outcome.broken(is_short=True) == ["lost: 1", "trouble"]
    assert outcome.broken(is_short=False) == ["time: 51 ms", "lost: 1", "trouble"]


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert results.stored(file) == {}
    one = results.result(Outcome(2, "so", (Figure("a", 1.5, "s", most=2),)), 3.21, 9)
    results.store({"fire": one}, file)
    assert results.stored(file) == {"fire": one}


def test_a_stage_chooses_the_number_of_repetitions(tmp_path: Path) -> None:
    assert CaseContext(tmp_path, tmp_path).times(1000, 10) == 1000
    assert CaseContext(tmp_path, tmp_path, is_short=True).times(1000, 10) == 10


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0"), (1000, "1,000"), (0.01234, "0.0123"), (12.345, "12.3"), (1234.5, "1,234")]
)
def test_numbers_are_rounded(value: float, shown: str) -> None:
    assert page.number(value) == shown


def test_the_page_matches_the_stored_results() -> None:
    assert results.PAGE.read_text("utf-8") == page.draw(WHOLE, results.stored()), 'run make faults ARGS="--draw"'


def test_every_case_has_a_stored_result_within_its_limits() -> None:
    seen = results.stored()
    names = [case.name for group in WHOLE for case in group.cases]
    assert list(seen) == names
    assert {name: found for name, one in seen.items() if (found := one.outcome.broken(is_short=False))} == {}
