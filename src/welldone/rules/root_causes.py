"""Root causes: which findings of a reply follow from another finding of the same reply.

A truncated stream lacks its finish reason, its usage and its last empty line, and its last JSON value is incomplete:
one defect, not five. A finding follows from a cause only if both occur in the same reply.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pkgutil import get_data
from typing import Protocol

import msgspec


class CauseScope(StrEnum):
    """Which findings of a rule follow from a cause."""

    ANYWHERE = "anywhere"
    LAST_FRAME = "last_frame"
    """Findings in the last frame, or about the whole reply."""
    SAME_FRAME = "same_frame"
    """Findings in a frame that also has a finding of the cause."""


class LocatedFinding(Protocol):
    """A finding of `lint` or `check`."""

    @property
    def rule(self) -> str: ...

    @property
    def frame(self) -> int | None: ...


class _Row(msgspec.Struct, frozen=True):
    """Rules that violations of any of the causes also break."""

    causes: tuple[str, ...]
    consequences: Mapping[CauseScope, tuple[str, ...]]


def _load_consequences() -> dict[str, dict[str, CauseScope]]:
    by_cause: dict[str, dict[str, CauseScope]] = {}
    for row in msgspec.json.decode(get_data("welldone.rules", "root_causes.json") or b"", type=list[_Row]):
        for cause in row.causes:
            scopes = {rule: scope for scope, rules in row.consequences.items() for rule in rules}
            by_cause.setdefault(cause, {}).update(scopes)
    return by_cause


CONSEQUENCES: Mapping[str, Mapping[str, CauseScope]] = _load_consequences()
"""Consequences by cause, from `root_causes.json`. The first cause found counts; a consequence that is itself a cause
comes later: no cycles."""


class RootCauses:
    """Causes among the findings of one reply."""

    def __init__(self, findings: Iterable[LocatedFinding], frames: int) -> None:
        self._last_frame = (None, frames)
        self._found: dict[str, set[int | None]] = {}
        self._roots: dict[str, str] = {}
        for finding in findings:
            self._found.setdefault(finding.rule, set()).add(finding.frame)

    def cause_of(self, rule: str, frame: int | None) -> str | None:
        """Return the rule that explains a finding, or None."""
        for cause, consequences in CONSEQUENCES.items():
            if cause in self._found and rule in consequences and self._is_in_scope(consequences[rule], cause, frame):
                return self._root_cause(cause)
        return None

    def _root_cause(self, cause: str) -> str:
        # A cause is itself explained if all its findings are.
        if cause not in self._roots:
            above = [self.cause_of(cause, frame) for frame in self._found[cause]]
            self._roots[cause] = cause if None in above else above[0] or cause
        return self._roots[cause]

    def _is_in_scope(self, scope: CauseScope, cause: str, frame: int | None) -> bool:
        if scope is CauseScope.LAST_FRAME:
            return frame in self._last_frame
        return scope is CauseScope.ANYWHERE or frame in self._found[cause]
