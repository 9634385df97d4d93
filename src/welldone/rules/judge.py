"""The judge: which rules a heard reply breaks, where, and what would have been right there.

The law of this file: `judge` never raises, whatever the bytes, and its cost grows with their number only.
"""

import json
from collections.abc import Collection
from enum import StrEnum
from itertools import islice

import msgspec

from welldone.protocol.catalog.rule import Severity
from welldone.rules.checks import ALL_CHECKS
from welldone.rules.root_causes import RootCauses
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.trace import Trace
from welldone.rules.view.view import TraceView

MAX_FINDINGS_PER_RULE = 100
"""How many findings of one rule are listed: enough to see where they stand; `counts` has the full number."""
MAX_EXCERPT_CHARACTERS = 200
"""How many characters of a piece at fault are shown: about two lines of a wide terminal."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class LintFinding(msgspec.Struct, frozen=True):
    """A fault that was heard, with its place."""

    rule: str
    severity: str
    frame: int | None
    """The number of the frame, from 1; None where it is about the reply as a whole."""
    byte: int | None
    """Where that frame begins in the body."""
    observed: str
    expected: str
    affects: tuple[str, ...]
    cause: str | None = None
    """The rule whose breach in the same reply explains this one; None: nothing else explains it."""


class LintVerdict(StrEnum):
    """What a reply is worth."""

    PASS = "right"
    WARN = "lax"
    """Broken rules, but none that is known to break a client."""
    FAIL = "wrong"


class Judgement(msgspec.Struct, frozen=True):
    """All that the judge has to say about one reply."""

    verdict: LintVerdict
    frames: int
    findings: tuple[LintFinding, ...]
    """By place; at most `LISTED` of each rule."""
    counts: dict[str, int]
    """How often each rule was broken."""
    rules: int = 0
    """How many rules were judged."""
    skipped: int = 0
    """How many speak about such replies but need what is not known."""
    missing: tuple[str, ...] = ()
    """What that is: fields of the trace."""


def judge(trace: Trace, rules: Collection[str] | None = None) -> Judgement:
    """Which rules the reply breaks; only the `rules` with these ids are asked, where given."""
    heard = TraceView(trace)
    asked = [rule for rule in ALL_CHECKS if rule.applies(heard) and (rules is None or rule.rule.id in rules)]
    judged = [rule for rule in asked if rule.can_be_checked(heard)]
    findings: list[LintFinding] = []
    counts: dict[str, int] = {}
    for rule in judged:
        places = rule.check(heard)
        listed = [_finding(heard, rule, place) for place in islice(places, MAX_FINDINGS_PER_RULE)]
        if listed:
            findings += listed
            counts[rule.rule.id] = len(listed) + sum(1 for _ in places)
    # The sort is stable: findings at one place stay in the order of the rules.
    findings.sort(key=lambda finding: -1 if finding.byte is None else finding.byte)
    findings = _with_causes(findings, len(heard.frames))
    unheard = [rule for rule in asked if not rule.can_be_checked(heard)]
    missing = {need for rule in unheard for need in rule.missing_fields(heard)}
    return Judgement(
        _verdict(findings),
        len(heard.frames),
        tuple(findings),
        counts,
        rules=len(judged),
        skipped=len(unheard),
        missing=tuple(sorted(missing)),
    )


def _with_causes(findings: list[LintFinding], frames: int) -> list[LintFinding]:
    causes = RootCauses(findings, frames)
    explained = []
    for finding in findings:
        cause = causes.cause_of(finding.rule, finding.frame)
        explained.append(finding if cause is None else msgspec.structs.replace(finding, cause=cause))
    return explained


def has_content(trace: Trace) -> bool:
    """Whether there is anything to judge: some byte that is no white space, or at least a status."""
    return bool(trace.body.strip()) or trace.status is not None


def _verdict(findings: list[LintFinding]) -> LintVerdict:
    if not findings:
        return LintVerdict.PASS
    breaks = any(finding.severity == Severity.BREAKS for finding in findings)
    return LintVerdict.FAIL if breaks else LintVerdict.WARN


def _finding(view: TraceView, check: RuleCheck, violation: Violation) -> LintFinding:
    number = violation.frame_number
    byte = None if number is None else view.frames[number - 1].byte
    fault = check.rule
    severity = violation.severity or fault.severity
    return LintFinding(
        fault.id, severity.value, number, byte, excerpt(violation.observed), excerpt(violation.expected), fault.affects
    )


def excerpt(piece: object) -> str:
    """The piece as printable text, cut where it gets long."""
    text = piece if isinstance(piece, str) else _json_excerpt(piece)
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: MAX_EXCERPT_CHARACTERS + 1])
    return shown if len(shown) <= MAX_EXCERPT_CHARACTERS else shown[:MAX_EXCERPT_CHARACTERS] + "…"


def _json_excerpt(value: object) -> str:
    """The beginning of the value as JSON. Deep and long values are not walked to their end."""
    text = ""
    for piece in _ENCODER.iterencode(value):
        text += piece
        if len(text) > MAX_EXCERPT_CHARACTERS:
            break
    return text
