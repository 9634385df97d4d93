"""One fault: how it is done, what came of it, and the bars that it is judged by."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

Work = TypeVar("Work")

EVIDENCE_LIMIT = 20
"""Troubles that are kept of a case: who sees twenty need not see the next thousand."""


class Figure(msgspec.Struct, frozen=True):
    """A number, and the bar that it must keep."""

    name: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None
    is_timing: bool = False
    """It depends on how busy the machine is: the short form shows it, and only the whole plan judges it."""

    @property
    def is_kept(self) -> bool:
        """Whether it is within its bar."""
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)


class Outcome(msgspec.Struct, frozen=True):
    """What came of a fault."""

    count: int = 0
    """How often it was done."""
    happened: str = ""
    """What the server did, in a sentence."""
    figures: tuple[Figure, ...] = ()
    troubles: tuple[str, ...] = ()
    """What was wrong, each with its evidence."""
    not_run: str = ""
    """Why it could not be tried here, if so."""

    def broken(self, *, is_short: bool) -> list[str]:
        """Every promise that was not kept."""
        missed = [
            f"{figure.name}: {figure.value:g} {figure.unit}".rstrip()
            for figure in self.figures
            if not figure.is_kept and not (is_short and figure.is_timing)
        ]
        return [*missed, *self.troubles[:EVIDENCE_LIMIT]]


class Stage(msgspec.Struct, frozen=True):
    """What a case is given."""

    folder: Path
    """Empty, its own, and gone afterwards."""
    model: Path
    """A tiny GGUF of random weights."""
    seed: int = 0
    """Of whatever is drawn: the same seed draws the same."""
    is_short: bool = False
    note: Callable[[str], None] = lambda _: None
    """Told how far it is, in a few words, about once a second."""

    def times(self, full: int, short: int) -> int:
        """How often something is done: in the whole plan, or in its short form."""
        return short if self.is_short else full

    def each(self, work: Sequence[Work]) -> Iterator[Work]:
        """One after the other, with a note of how far it is."""
        for number, one in enumerate(work, 1):
            self.note(f"{number:,} of {len(work):,}")
            yield one


Run: TypeAlias = Callable[[Stage], Outcome]


class Case(msgspec.Struct, frozen=True):
    """A row of the plan."""

    name: str
    """A short word for the command line, of letters and dashes."""
    fault: str
    """What is done, as the table says it."""
    run: Run


class Group(msgspec.Struct, frozen=True):
    """Rows that belong together."""

    title: str
    cases: tuple[Case, ...]
