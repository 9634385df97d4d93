"""The report for a person at a terminal: a row for each probe, each broken rule once, and one line that says it all."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from welldone.check.desk import SLOW_SERVER_HINT
from welldone.check.report import Finding, ProbeResult, Report, RuleResult, Verdict
from welldone.check.reports.words import (
    JUDGED_VERDICTS,
    consequences_of,
    probe_summary,
    sanitize_report,
    other_occurrences,
    verdict_summary,
    format_location,
    pass_reason,
    format_totals,
    judging_terms,
    not_judged_summary,
)
from welldone.drawing.columns import format_table, wrap_text

Paint: TypeAlias = Callable[[str, str], str]
"""A text in the colour of its kind: a verdict, a severity, or `dim`."""

_DEFAULT_WIDTH = 100  # of the names of probes that are joined, where no terminal has a width
_MAX_PROBES_NAMED = 3  # probes that also heard a rule broken
_UNWRAPPED_LABELS = ("again", "curl", "trace", "more")
"""What is copied into a shell: it stays in one line, however long."""


def render_terminal(report: Report, paint: Paint, *, is_verbose: bool = False, width: int | None = None) -> list[str]:
    """The report, line by line. What is well is said briefly, unless `is_verbose`. Texts are wrapped at `width`."""
    report = sanitize_report(report)
    drawn = [*_terminal_heading(report, width), *_probe_lines(report, paint, width, is_verbose=is_verbose), ""]
    sentences = {rule.id: rule.summary for rule in report.rules}
    for rule, findings in report.root_causes.items():
        named = len(findings) if is_verbose else _MAX_PROBES_NAMED
        following = consequences_of(report, rule)
        drawn += finding_lines(findings, sentences.get(rule, ""), named, paint, consequences=following, width=width)
        drawn.append("")
    if is_verbose:
        drawn += _not_judged_lines(report.rules, paint, width)
    return drawn + _closing_lines(report, paint, width, is_verbose=is_verbose)


def _terminal_heading(report: Report, width: int | None) -> list[str]:
    who = f"{report.model} at {report.url}" + (f" ({report.server})" if report.server else "")
    measure = judging_terms(report)
    return wrap_text("", who + (f", {measure}" if measure else ""), width)


def _probe_lines(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    probes = report.probes
    if is_verbose:
        return _probe_table(probes, paint, width)
    alike = _group_same_violations(probes)
    shown = [
        probe
        for probe in probes
        if probe.verdict not in (Verdict.PASS, Verdict.TIMED_OUT) and _root_rules(probe) not in alike
    ]
    return [
        *_passed_lines(probes, paint, width),
        *_timed_out_lines(report, paint, width),
        *_probe_table(shown, paint, width),
        *_same_violation_lines(alike, paint, width),
    ]


def _probe_table(probes: Sequence[ProbeResult], paint: Paint, width: int | None) -> list[str]:
    return _verdict_table([(probe.name, probe.verdict, probe_summary(probe)) for probe in probes], paint, width)


def _verdict_table(rows: Sequence[tuple[str, Verdict, str]], paint: Paint, width: int | None) -> list[str]:
    """Rows whose second column is a verdict, in its colour."""

    def colour(row: int, column: int, cell: str) -> str:
        return paint(cell, _verdict_style(rows[row][1])) if column == 1 else cell

    return format_table(rows, width, paint=colour) if rows else []


def _passed_lines(probes: Sequence[ProbeResult], paint: Paint, width: int | None) -> list[str]:
    """The probes that are right. A group that is right as a whole is one word."""
    groups: dict[str, list[ProbeResult]] = {}
    for probe in probes:
        groups.setdefault(probe.name.partition("-")[0], []).append(probe)
    words: list[str] = []
    for group, members in groups.items():
        right = [probe.name for probe in members if probe.verdict is Verdict.PASS]
        words += [f"{group} ({len(right)})"] if 1 < len(right) == len(members) else right
    return _verdict_lines(Verdict.PASS, ", ".join(words), paint, width) if words else []


def _timed_out_lines(report: Report, paint: Paint, width: int | None) -> list[str]:
    """The probes that timed out, and what to do."""
    late = [probe.name for probe in report.probes if probe.verdict is Verdict.TIMED_OUT]
    text = f"after {report.timeout_s:g} s: {', '.join(late)}; {SLOW_SERVER_HINT}"
    return _verdict_lines(Verdict.TIMED_OUT, text, paint, width) if late else []


def _group_same_violations(probes: Sequence[ProbeResult]) -> dict[tuple[str, ...], list[ProbeResult]]:
    """Probes that heard the same rules broken and nothing else, where they are many: what is wrong in every stream."""
    by_rules: dict[tuple[str, ...], list[ProbeResult]] = {}
    for probe in probes:
        if probe.broken and not probe.is_incomplete:
            by_rules.setdefault(_root_rules(probe), []).append(probe)
    # One that has more to say keeps its row, and so do those like it.
    told = {_root_rules(probe) for probe in probes if probe.is_incomplete}
    return {rules: found for rules, found in by_rules.items() if len(found) > _MAX_PROBES_NAMED and rules not in told}


def _root_rules(probe: ProbeResult) -> tuple[str, ...]:
    return probe.causes or probe.broken


def _same_violation_lines(
    groups: dict[tuple[str, ...], list[ProbeResult]], paint: Paint, width: int | None
) -> list[str]:
    drawn: list[str] = []
    for rules, probes in groups.items():
        names = ", ".join(probe.name for probe in probes)
        drawn += _verdict_lines(probes[0].verdict, f"{', '.join(rules)}: in {names}", paint, width)
    return drawn


def _verdict_lines(verdict: Verdict, text: str, paint: Paint, width: int | None) -> list[str]:
    """A verdict on many."""
    first, *rest = wrap_text(f"{verdict}  ", text, width or _DEFAULT_WIDTH)
    return [first.replace(verdict, paint(verdict, _verdict_style(verdict)), 1), *rest]


def _verdict_style(verdict: Verdict) -> str:
    return verdict if verdict in JUDGED_VERDICTS else "dim"


def finding_lines(
    findings: Sequence[Finding],
    sentence: str,
    max_probes: int,
    paint: Paint,
    *,
    consequences: str = "",
    width: int | None = None,
) -> list[str]:
    """A broken rule: where it was found first, what, which rules follow, whom that hurts, and how to see it again."""
    first = findings[0]
    known = "" if any(finding.is_new for finding in findings) else ", known"
    where = f"{first.severity}  {format_location(first)}{other_occurrences(findings, max_probes)}{known}"
    heading = wrap_text(f"x {first.rule}  ", where, width)
    heading[0] = heading[0].replace(f"  {first.severity}", f"  {paint(first.severity, first.severity)}", 1)
    labelled = [("heard", first.observed), ("wanted", first.expected), ("causes", consequences)]
    labelled += [("from", first.cause or "")]
    labelled += zip(["hurts", *[""] * len(first.affects)], first.affects, strict=False)
    labelled += [("again", first.reproduce), ("curl", first.curl or ""), ("trace", first.trace or "")]
    labelled += [("more", f"welldone rules {first.rule}")]
    drawn = [*heading, *(wrap_text("  ", sentence, width) if sentence else [])]
    for label, text in labelled:
        if text:
            drawn += wrap_text(f"  {label:<6}  ", text, None if label in _UNWRAPPED_LABELS else width)
    return drawn


def _not_judged_lines(rules: Sequence[RuleResult], paint: Paint, width: int | None) -> list[str]:
    silent = [rule for rule in rules if rule.verdict not in JUDGED_VERDICTS]
    rows = _verdict_table([(rule.id, rule.verdict, rule.reason) for rule in silent], paint, width)
    return [*rows, ""] if rows else []


def _closing_lines(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    first, *rest = wrap_text("", f"{format_totals(report)}: {verdict_summary(report)}", width)
    verdict = f": {report.verdict}"
    drawn = [first.replace(verdict, f": {paint(report.verdict, _verdict_style(report.verdict))}", 1), *rest]
    silent = not_judged_summary(report)
    if silent:
        drawn += wrap_text("  ", f"{silent}{'' if is_verbose else '; --verbose says why'}", width)
    why = pass_reason(report)
    return [*drawn, *wrap_text("  ", why, width)] if why else drawn
