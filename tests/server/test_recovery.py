"""What follows a failed attempt is decided by the table of docs/recovery.md."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

from tests.table import table
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.server.generation.recovery import AttemptOutput, Continue, GiveUp, Recovery, Restart, Retry, decide

DOCUMENT = Path(__file__).parents[2] / "docs" / "recovery.md"
DECISIONS: dict[str, type[Recovery]] = {"retry": Retry, "restart": Restart, "continue": Continue, "give up": GiveUp}
ERROR = ApiError(502, "The upstream has failed.")


class Case:
    """A failed attempt: each fact is true or false."""

    FACTS = (
        *("is_retryable", "is_disconnect", "is_stale", "goes_unstreamed", "has_differed"),
        *("has_attempts", "is_local", "has_alternative", "can_discard", "can_continue"),
    )

    def __init__(self, *facts: bool) -> None:
        self.facts = dict(zip(self.FACTS, facts, strict=True))

    def __getattr__(self, name: str) -> bool:
        return self.facts[name]

    def decision(self) -> Recovery:
        return decide(
            AttemptFailure(ERROR, "502", **{name: self.facts[name] for name in self.FACTS[:5]}),
            AttemptOutput(self.can_discard, self.can_continue),
            **{name: self.facts[name] for name in self.FACTS[5:8]},
        )


CONDITIONS: dict[str, Callable[[Case], bool]] = {
    "": lambda case: True,
    "any": lambda case: True,
    "the request is at fault": lambda case: not case.is_retryable,
    "it was the last attempt, and its replay did not differ": lambda case: not (case.has_attempts or case.has_differed),
    "the connection is lost": lambda case: case.is_disconnect,
    "a pooled connection was stale": lambda case: case.is_stale,
    "a stream with tools was broken, and the next is not streamed": lambda case: case.goes_unstreamed,
    "can be discarded": lambda case: case.can_discard,
    "can be continued": lambda case: case.can_continue,
    "local engine": lambda case: case.is_local,
    "upstream": lambda case: not case.is_local,
    "upstream, and another one is available": lambda case: not case.is_local and case.has_alternative,
}


def documented_rows() -> list[list[str]]:
    text = DOCUMENT.read_text("utf-8").partition("| failure | output | backend | decision |\n")[2]
    lines = text.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"\|", line)[1:-1]] for line in lines]


def test_every_case_is_decided_as_documented() -> None:
    rows = documented_rows()
    used = set()
    for facts in product((False, True), repeat=len(Case.FACTS)):
        case = Case(*facts)
        number = next(n for n, row in enumerate(rows) if all(CONDITIONS[cell](case) for cell in row[:3]))
        used.add(number)
        assert isinstance(case.decision(), DECISIONS[rows[number][3]]), case.facts
    assert used == set(range(len(rows)))  # no row is hidden by those above it


@table(
    ("can_continue", "has_attempts", "lacks_way"),
    [(False, True, True), (None, True, False), (False, False, False)],
    ids=["begun, and no way", "not begun", "the last attempt"],
)
def test_an_answer_that_has_begun_lacks_a_way(can_continue: bool | None, has_attempts: bool, lacks_way: bool) -> None:
    output = AttemptOutput(can_discard=False, can_continue=can_continue)
    failure = AttemptFailure(ERROR, "cut")
    decision = decide(failure, output, has_attempts=has_attempts, is_local=False, has_alternative=True)
    assert decision == GiveUp(lacks_way)
