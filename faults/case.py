"""A fault case: how to run it, its outcome, and the limits on its figures."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

Work = TypeVar("Work")

EVIDENCE_LIMIT = 20
"""Problems recorded per case; more add nothing."""


class Figure(msgspec.Struct, frozen=True):
    """A measured number with its limits."""

    name: str
    value: float
    unit: str = ""
    most: float | None = None
    least: float | None = None
    is_timing: bool = False
    """It depends on the load of the machine: checked only in the full plan."""

    @property
    def is_within_limits(self) -> bool:
        """Whether it is within its limits."""
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a case."""

    count: int = 0
    """Number of repetitions."""
    happened: str = ""
    """What the server did, in one sentence."""
    figures: tuple[Figure, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems, each with its evidence."""
    not_run: str = ""
    """Why it could not run here; empty: it ran."""

    def broken(self, *, is_short: bool) -> list[str]:
        """Missed limits and problems."""
        missed = [
            f"{figure.name}: {figure.value:g} {figure.unit}".rstrip()
            for figure in self.figures
            if not figure.is_within_limits and not (is_short and figure.is_timing)
        ]
        return [*missed, *self.problems[:EVIDENCE_LIMIT]]


class CaseContext(msgspec.Struct, frozen=True):
    """The environment of a case."""

    folder: Path
    """Empty, used by this case only, removed afterwards."""
    model: Path
    """A tiny GGUF with random weights."""
    seed: int = 0
    """Seed of all random choices."""
    is_short: bool = False
    note: Callable[[str], None] = lambda _: None
    """Called with the progress, about once a second."""

    def times(self, full: int, short: int) -> int:
        """Choose the number of repetitions for the full plan or the short form."""
        return short if self.is_short else full

    def each(self, work: Sequence[Work]) -> Iterator[Work]:
        """Iterate with progress notes."""
        for number, one in enumerate(work, 1):
            self.note(f"{number:,} of {len(work):,}")
            yield one


Run: TypeAlias = Callable[[CaseContext], Outcome]


class Case(msgspec.Struct, frozen=True):
    """A row of the plan."""

    name: str
    """Name for the command line: letters and dashes."""
    fault: str
    """What is done, for the table."""
    run: Run


class Group(msgspec.Struct, frozen=True):
    """Related cases."""

    title: str
    cases: tuple[Case, ...]
