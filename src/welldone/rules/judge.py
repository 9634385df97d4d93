"""The judge: which rules a heard reply breaks, where, and what would have been right there.

The law of this file: `judge` never raises, whatever the bytes, and its cost grows with their number only.
"""

import json
from collections.abc import Collection
from enum import StrEnum
from itertools import islice

import msgspec

from welldone.rules.causes import Causes
from welldone.rules.checks import RULES
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.rules.trace import Trace
from welldone.wire.faults import Severity

LISTED = 100
"""How many findings of one rule are listed: enough to see where they stand; `counts` has the full number."""
SHOWN = 200
"""How many characters of a piece at fault are shown: about two lines of a wide terminal."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class Finding(msgspec.Struct, frozen=True):
    """A fault that was heard, with its place."""

    rule: str
    severity: str
    frame: int | None
    """The number of the frame, from 1; None where it is about the reply as a whole."""
    byte: int | None
    """Where that frame begins in the body."""
    heard: str
    wanted: str
    hurts: tuple[str, ...]
    cause: str | None = None
    """The rule whose breach in the same reply explains this one; None: nothing else explains it."""


class Verdict(StrEnum):
    """What a reply is worth."""

    RIGHT = "right"
    LAX = "lax"
    """Broken rules, but none that is known to break a client."""
    WRONG = "wrong"


class Judgement(msgspec.Struct, frozen=True):
    """All that the judge has to say about one reply."""

    verdict: Verdict
    frames: int
    findings: tuple[Finding, ...]
    """By place; at most `LISTED` of each rule."""
    counts: dict[str, int]
    """How often each rule was broken."""
    rules: int = 0
    """How many rules were judged."""
    unheard: int = 0
    """How many speak about such replies but need what is not known."""
    missing: tuple[str, ...] = ()
    """What that is: fields of the trace."""


def judge(trace: Trace, rules: Collection[str] | None = None) -> Judgement:
    """Which rules the reply breaks; only the `rules` with these ids are asked, where given."""
    heard = Heard(trace)
    asked = [rule for rule in RULES if rule.applies(heard) and (rules is None or rule.fault.id in rules)]
    judged = [rule for rule in asked if rule.can_be_judged(heard)]
    findings: list[Finding] = []
    counts: dict[str, int] = {}
    for rule in judged:
        places = rule.check(heard)
        listed = [_finding(heard, rule, place) for place in islice(places, LISTED)]
        if listed:
            findings += listed
            counts[rule.fault.id] = len(listed) + sum(1 for _ in places)
    # The sort is stable: findings at one place stay in the order of the rules.
    findings.sort(key=lambda finding: -1 if finding.byte is None else finding.byte)
    findings = _explained(findings, len(heard.frames))
    unheard = [rule for rule in asked if not rule.can_be_judged(heard)]
    missing = {need for rule in unheard for need in rule.missing(heard)}
    return Judgement(
        _verdict(findings),
        len(heard.frames),
        tuple(findings),
        counts,
        rules=len(judged),
        unheard=len(unheard),
        missing=tuple(sorted(missing)),
    )


def _explained(findings: list[Finding], frames: int) -> list[Finding]:
    causes = Causes(findings, frames)
    explained = []
    for finding in findings:
        cause = causes.of(finding.rule, finding.frame)
        explained.append(finding if cause is None else msgspec.structs.replace(finding, cause=cause))
    return explained


def has_something(trace: Trace) -> bool:
    """Whether there is anything to judge: some byte that is no white space, or at least a status."""
    return bool(trace.body.strip()) or trace.status is not None


def _verdict(findings: list[Finding]) -> Verdict:
    if not findings:
        return Verdict.RIGHT
    breaks = any(finding.severity == Severity.BREAKS for finding in findings)
    return Verdict.WRONG if breaks else Verdict.LAX


def _finding(heard: Heard, rule: Rule, place: Place) -> Finding:
    number = place.number
    byte = None if number is None else heard.frames[number - 1].byte
    fault = rule.fault
    severity = place.severity or fault.severity
    return Finding(fault.id, severity.value, number, byte, show(place.heard), show(place.wanted), fault.hurts)


def show(piece: object) -> str:
    """The piece as printable text, cut where it gets long."""
    text = piece if isinstance(piece, str) else _compact(piece)
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: SHOWN + 1])
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"


def _compact(value: object) -> str:
    """The beginning of the value as JSON. Deep and long values are not walked to their end."""
    text = ""
    for piece in _ENCODER.iterencode(value):
        text += piece
        if len(text) > SHOWN:
            break
    return text
