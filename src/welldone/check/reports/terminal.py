"""The report for a person at a terminal: a row for each probe, each broken rule once, and one line that says it all."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from welldone.check.desk import SLOW
from welldone.check.report import Finding, Probed, Report, Ruled, Verdict
from welldone.check.reports.words import (
    JUDGED,
    follows,
    gist,
    inert,
    more,
    outcome,
    place,
    reason,
    sums,
    terms,
    unheard,
)
from welldone.drawing.columns import table, wrapped

Paint: TypeAlias = Callable[[str, str], str]
"""A text in the colour of its kind: a verdict, a severity, or `dim`."""

_WIDTH = 100  # of the names of probes that are joined, where no terminal has a width
_NAMED = 3  # probes that also heard a rule broken
_COMMANDS = ("again", "curl", "trace", "more")
"""What is copied into a shell: it stays in one line, however long."""


def lines(report: Report, paint: Paint, *, is_verbose: bool = False, width: int | None = None) -> list[str]:
    """The report, line by line. What is well is said briefly, unless `is_verbose`. Texts are wrapped at `width`."""
    report = inert(report)
    drawn = [*_heading(report, width), *_probes(report, paint, width, is_verbose=is_verbose), ""]
    sentences = {rule.id: rule.rule for rule in report.rules}
    for rule, findings in report.causes.items():
        named = len(findings) if is_verbose else _NAMED
        following = follows(report, rule)
        drawn += finding_lines(findings, sentences.get(rule, ""), named, paint, following=following, width=width)
        drawn.append("")
    if is_verbose:
        drawn += _silent(report.rules, paint, width)
    return drawn + _end(report, paint, width, is_verbose=is_verbose)


def _heading(report: Report, width: int | None) -> list[str]:
    who = f"{report.model} at {report.url}" + (f" ({report.server})" if report.server else "")
    measure = terms(report)
    return wrapped("", who + (f", {measure}" if measure else ""), width)


def _probes(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    probes = report.probes
    if is_verbose:
        return _rows(probes, paint, width)
    alike = _alike(probes)
    shown = [
        probe
        for probe in probes
        if probe.verdict not in (Verdict.RIGHT, Verdict.TIMED_OUT) and _causes(probe) not in alike
    ]
    return [
        *_right(probes, paint, width),
        *_late(report, paint, width),
        *_rows(shown, paint, width),
        *_broken_alike(alike, paint, width),
    ]


def _rows(probes: Sequence[Probed], paint: Paint, width: int | None) -> list[str]:
    return _table([(probe.name, probe.verdict, gist(probe)) for probe in probes], paint, width)


def _table(rows: Sequence[tuple[str, Verdict, str]], paint: Paint, width: int | None) -> list[str]:
    """Rows whose second column is a verdict, in its colour."""

    def colour(row: int, column: int, cell: str) -> str:
        return paint(cell, _kind(rows[row][1])) if column == 1 else cell

    return table(rows, width, paint=colour) if rows else []


def _right(probes: Sequence[Probed], paint: Paint, width: int | None) -> list[str]:
    """The probes that are right. A group that is right as a whole is one word."""
    groups: dict[str, list[Probed]] = {}
    for probe in probes:
        groups.setdefault(probe.name.partition("-")[0], []).append(probe)
    words: list[str] = []
    for group, members in groups.items():
        right = [probe.name for probe in members if probe.verdict is Verdict.RIGHT]
        words += [f"{group} ({len(right)})"] if 1 < len(right) == len(members) else right
    return _joined(Verdict.RIGHT, ", ".join(words), paint, width) if words else []


def _late(report: Report, paint: Paint, width: int | None) -> list[str]:
    """The probes that timed out, and what to do."""
    late = [probe.name for probe in report.probes if probe.verdict is Verdict.TIMED_OUT]
    text = f"after {report.timeout_s:g} s: {', '.join(late)}; {SLOW}"
    return _joined(Verdict.TIMED_OUT, text, paint, width) if late else []


def _alike(probes: Sequence[Probed]) -> dict[tuple[str, ...], list[Probed]]:
    """Probes that heard the same rules broken and nothing else, where they are many: what is wrong in every stream."""
    by_rules: dict[tuple[str, ...], list[Probed]] = {}
    for probe in probes:
        if probe.broken and not probe.is_given_up:
            by_rules.setdefault(_causes(probe), []).append(probe)
    # One that has more to say keeps its row, and so do those like it.
    told = {_causes(probe) for probe in probes if probe.is_given_up}
    return {rules: found for rules, found in by_rules.items() if len(found) > _NAMED and rules not in told}


def _causes(probe: Probed) -> tuple[str, ...]:
    return probe.causes or probe.broken


def _broken_alike(alike: dict[tuple[str, ...], list[Probed]], paint: Paint, width: int | None) -> list[str]:
    drawn: list[str] = []
    for rules, probes in alike.items():
        names = ", ".join(probe.name for probe in probes)
        drawn += _joined(probes[0].verdict, f"{', '.join(rules)}: in {names}", paint, width)
    return drawn


def _joined(verdict: Verdict, text: str, paint: Paint, width: int | None) -> list[str]:
    """A verdict on many."""
    first, *rest = wrapped(f"{verdict}  ", text, width or _WIDTH)
    return [first.replace(verdict, paint(verdict, _kind(verdict)), 1), *rest]


def _kind(verdict: Verdict) -> str:
    return verdict if verdict in JUDGED else "dim"


def finding_lines(
    findings: Sequence[Finding],
    sentence: str,
    named: int,
    paint: Paint,
    *,
    following: str = "",
    width: int | None = None,
) -> list[str]:
    """A broken rule: where it was found first, what, which rules follow, whom that hurts, and how to see it again."""
    first = findings[0]
    known = "" if any(finding.is_new for finding in findings) else ", known"
    where = f"{first.severity}  {place(first)}{more(findings, named)}{known}"
    heading = wrapped(f"x {first.rule}  ", where, width)
    heading[0] = heading[0].replace(f"  {first.severity}", f"  {paint(first.severity, first.severity)}", 1)
    labelled = [("heard", first.heard), ("wanted", first.wanted), ("causes", following)]
    labelled += [("from", first.cause or "")]
    labelled += zip(["hurts", *[""] * len(first.hurts)], first.hurts, strict=False)
    labelled += [("again", first.again), ("curl", first.curl or ""), ("trace", first.trace or "")]
    labelled += [("more", f"welldone rules {first.rule}")]
    drawn = [*heading, *(wrapped("  ", sentence, width) if sentence else [])]
    for label, text in labelled:
        if text:
            drawn += wrapped(f"  {label:<6}  ", text, None if label in _COMMANDS else width)
    return drawn


def _silent(rules: Sequence[Ruled], paint: Paint, width: int | None) -> list[str]:
    silent = [rule for rule in rules if rule.verdict not in JUDGED]
    rows = _table([(rule.id, rule.verdict, rule.why) for rule in silent], paint, width)
    return [*rows, ""] if rows else []


def _end(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    first, *rest = wrapped("", f"{sums(report)}: {outcome(report)}", width)
    verdict = f": {report.verdict}"
    drawn = [first.replace(verdict, f": {paint(report.verdict, _kind(report.verdict))}", 1), *rest]
    silent = unheard(report)
    if silent:
        drawn += wrapped("  ", f"{silent}{'' if is_verbose else '; --verbose says why'}", width)
    why = reason(report)
    return [*drawn, *wrapped("  ", why, width)] if why else drawn
