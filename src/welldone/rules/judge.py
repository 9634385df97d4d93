"""The judge: runs every applicable check on a recorded reply and lists the violations.

Invariants: `judge` never raises, whatever the bytes, and its cost is linear in their number.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from pkgutil import get_data

import msgspec

from welldone.core.catalog import RULES, Kind
from welldone.rules.checks import ALL_CHECKS
from welldone.rules.rule_check import Violation
from welldone.rules.trace import Trace
from welldone.rules.view.view import TraceView

MAX_FINDINGS_PER_RULE = 100
"""Listed findings per rule: enough to show where they occur. `counts` has the full number."""
MAX_EXCERPT_CHARACTERS = 200
"""About two lines of a wide terminal."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class LintFinding(msgspec.Struct, frozen=True):
    """A violation of a rule, with its position in the body."""

    rule: str
    severity: str
    frame: int | None
    """Frame number, from 1; None if the finding is about the whole reply."""
    byte: int | None
    """Offset of that frame in the body."""
    observed: str
    expected: str
    affects: tuple[str, ...]
    cause: str | None = None
    """Rule whose violation in the same reply explains this one."""
    kind: str = ""
    """What the rule rests on; empty in reports of versions before 0.3."""
    form: str | None = None
    """What is wrong, such as `missing` or `null`; None if the rule has one form. Severity and clients depend on it."""

    @property
    def label(self) -> str:
        """Severity, kind and form as printed. Advice has no severity."""
        words = (self.kind,) if self.kind == Kind.ADVICE else dict.fromkeys((self.severity, self.kind))
        return ", ".join(words) + (f" ({self.form})" if self.form else "")


class LintVerdict(StrEnum):
    """Overall result for a reply."""

    PASS = "pass"
    WARN = "warn"
    """Violations, but only of advice."""
    FAIL = "fail"


class LintReport(msgspec.Struct, frozen=True):
    """Result of judging one reply."""

    verdict: LintVerdict
    frames: int
    findings: tuple[LintFinding, ...]
    """In body order; at most `MAX_FINDINGS_PER_RULE` of each rule."""
    counts: dict[str, int]
    """Number of violations by rule."""
    rules: int = 0
    """Number of rules that were checked."""
    skipped: int = 0
    """Number of applicable rules that were not checked for lack of trace fields."""
    missing: tuple[str, ...] = ()
    """Trace fields that the skipped rules need."""

    @property
    def ok(self) -> bool:
        """Whether no rule but advice is violated: the verdict is `pass` or `warn`."""
        return self.verdict is not LintVerdict.FAIL


def judge(trace: Trace, rules: Collection[str] | None = None) -> LintReport:
    """Check a reply against all applicable rules, or against those of them whose ids are in `rules`."""
    view = TraceView(trace)
    applicable = [check for check in ALL_CHECKS if check.applies(view) and (rules is None or check.rule in rules)]
    findings: list[LintFinding] = []
    counts: dict[str, int] = {}
    skipped = 0
    missing: set[str] = set()
    for check in applicable:
        if missing_fields := check.missing_fields(view):
            skipped += 1
            missing.update(missing_fields)
            continue
        violations = check.check(view)
        listed = [make_finding(view, check.rule, violation) for violation in islice(violations, MAX_FINDINGS_PER_RULE)]
        if listed:
            findings += listed
            counts[check.rule] = len(listed) + sum(1 for _ in violations)
    # The sort is stable: findings at one position stay in catalogue order.
    findings.sort(key=lambda finding: -1 if finding.byte is None else finding.byte)
    causes = RootCauses(findings, len(view.frames))
    findings = [
        msgspec.structs.replace(finding, cause=causes.cause_of(finding.rule, finding.frame)) for finding in findings
    ]
    is_broken = any(finding.kind != Kind.ADVICE for finding in findings)
    return LintReport(
        LintVerdict.FAIL if is_broken else LintVerdict.WARN if findings else LintVerdict.PASS,
        len(view.frames),
        tuple(findings),
        counts,
        rules=len(applicable) - skipped,
        skipped=skipped,
        missing=tuple(sorted(missing)),
    )


def has_content(trace: Trace) -> bool:
    """Whether there is anything to judge: a status, or a body that is not only white space."""
    return bool(trace.body.strip()) or trace.status is not None


def make_finding(view: TraceView, rule: str, violation: Violation) -> LintFinding:
    """The finding of a violation."""
    number = violation.frame_number
    name, form = RULES[rule].find_form(violation.form)
    return LintFinding(
        rule=rule,
        kind=(form.kind or RULES[rule].kind).value,
        form=name,
        severity=form.severity.value,
        frame=number,
        byte=None if number is None else view.frames[number - 1].byte,
        observed=excerpt(violation.observed),
        expected=excerpt(violation.expected),
        affects=form.affects,
    )


def excerpt(value: object) -> str:
    """Render a value as printable text, cut at `MAX_EXCERPT_CHARACTERS`."""
    text = value if isinstance(value, str) else _json_excerpt(value)
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: MAX_EXCERPT_CHARACTERS + 1])
    return shown if len(shown) <= MAX_EXCERPT_CHARACTERS else shown[:MAX_EXCERPT_CHARACTERS] + "…"


def _json_excerpt(value: object) -> str:
    # Encode incrementally: deep and long values are not walked to their end.
    text = ""
    for token in _ENCODER.iterencode(value):
        text += token
        if len(text) > MAX_EXCERPT_CHARACTERS:
            break
    return text


# ---- root causes: findings that follow from another finding of the same reply
#
# A truncated stream lacks its finish reason, its usage and its last empty line, and its last JSON value is incomplete:
# one defect, not five.


class CauseScope(StrEnum):
    """Which findings of a rule follow from a cause."""

    ANYWHERE = "anywhere"
    LAST_FRAME = "last_frame"
    """Findings in the last frame, or about the whole reply."""
    SAME_FRAME = "same_frame"
    """Findings in a frame that also has a finding of the cause."""


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

    def __init__(self, findings: Iterable[LintFinding], frames: int) -> None:
        self._last_frame = (None, frames)
        self._frames_by_rule: dict[str, set[int | None]] = {}
        self._roots: dict[str, str] = {}
        for finding in findings:
            self._frames_by_rule.setdefault(finding.rule, set()).add(finding.frame)

    def cause_of(self, rule: str, frame: int | None) -> str | None:
        """Return the rule that explains a finding, or None."""
        for cause, scopes in CONSEQUENCES.items():
            if cause in self._frames_by_rule and rule in scopes and self._is_in_scope(scopes[rule], cause, frame):
                return self._root_cause(cause)
        return None

    def _root_cause(self, cause: str) -> str:
        # A cause is itself explained if all its findings are.
        if cause not in self._roots:
            above = [self.cause_of(cause, frame) for frame in self._frames_by_rule[cause]]
            self._roots[cause] = cause if None in above else above[0] or cause
        return self._roots[cause]

    def _is_in_scope(self, scope: CauseScope, cause: str, frame: int | None) -> bool:
        if scope is CauseScope.LAST_FRAME:
            return frame in self._last_frame
        return scope is CauseScope.ANYWHERE or frame in self._frames_by_rule[cause]
