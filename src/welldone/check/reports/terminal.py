"""The report for a person at a terminal: a row for each probe, each broken rule once, and one line that says it all."""

import textwrap
from collections.abc import Callable, Sequence
from typing import TypeAlias

from welldone.check.report import Finding, Probed, Report, Ruled, Verdict
from welldone.check.reports.words import JUDGED, gist, inert, more, outcome, place, reason, sums, terms, unheard

Paint: TypeAlias = Callable[[str, str], str]
"""A text in the colour of its kind: a verdict, a severity, or `dim`."""

_WIDTH = 100  # of the names of probes that are joined; the rest is as long as it is
_NAMED = 3  # probes that also heard a rule broken
_VERDICT = max(len(verdict) for verdict in Verdict)


def lines(report: Report, paint: Paint, *, is_verbose: bool = False) -> list[str]:
    """The report, line by line. What is well is said briefly, unless `is_verbose`."""
    report = inert(report)
    drawn = [*_heading(report), *_probes(report.probes, paint, is_verbose=is_verbose), ""]
    sentences = {rule.id: rule.rule for rule in report.rules}
    for rule, findings in report.broken.items():
        named = len(findings) if is_verbose else _NAMED
        drawn += [*finding_lines(findings, sentences.get(rule, ""), named, paint), ""]
    if is_verbose:
        drawn += _silent(report.rules, paint)
    return drawn + _end(report, paint, is_verbose=is_verbose)


def _heading(report: Report) -> list[str]:
    who = f"{report.model} at {report.url}" + (f" ({report.server})" if report.server else "")
    measure = terms(report)
    return [who + (f", {measure}" if measure else "")]


def _probes(probes: Sequence[Probed], paint: Paint, *, is_verbose: bool) -> list[str]:
    if is_verbose:
        return _rows(probes, paint)
    alike = _alike(probes)
    shown = [probe for probe in probes if probe.verdict is not Verdict.RIGHT and probe.broken not in alike]
    return [*_right(probes, paint), *_rows(shown, paint), *_broken_alike(alike, paint)]


def _rows(probes: Sequence[Probed], paint: Paint) -> list[str]:
    width = max((len(probe.name) for probe in probes), default=0)
    return [f"{probe.name:<{width}}  {_verdict(probe.verdict, paint)}  {gist(probe)}".rstrip() for probe in probes]


def _right(probes: Sequence[Probed], paint: Paint) -> list[str]:
    """The probes that are right. A group that is right as a whole is one word."""
    groups: dict[str, list[Probed]] = {}
    for probe in probes:
        groups.setdefault(probe.name.partition("-")[0], []).append(probe)
    words: list[str] = []
    for group, members in groups.items():
        right = [probe.name for probe in members if probe.verdict is Verdict.RIGHT]
        words += [f"{group} ({len(right)})"] if 1 < len(right) == len(members) else right
    return _wrapped(Verdict.RIGHT, ", ".join(words), paint) if words else []


def _alike(probes: Sequence[Probed]) -> dict[tuple[str, ...], list[Probed]]:
    """Probes that heard the same rules broken and nothing else, where they are many: what is wrong in every stream."""
    by_rules: dict[tuple[str, ...], list[Probed]] = {}
    for probe in probes:
        if probe.broken and not probe.is_given_up:
            by_rules.setdefault(probe.broken, []).append(probe)
    # One that has more to say keeps its row, and so do those like it.
    told = {probe.broken for probe in probes if probe.is_given_up}
    return {rules: found for rules, found in by_rules.items() if len(found) > _NAMED and rules not in told}


def _broken_alike(alike: dict[tuple[str, ...], list[Probed]], paint: Paint) -> list[str]:
    drawn: list[str] = []
    for rules, probes in alike.items():
        names = ", ".join(probe.name for probe in probes)
        drawn += _wrapped(probes[0].verdict, f"{', '.join(rules)}: in {names}", paint)
    return drawn


def _wrapped(verdict: Verdict, text: str, paint: Paint) -> list[str]:
    """A verdict on many."""
    first, *rest = textwrap.wrap(
        f"{verdict}  {text}",
        _WIDTH,
        subsequent_indent=" " * (len(verdict) + 2),
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [first.replace(verdict, paint(verdict, _kind(verdict)), 1), *rest]


def _verdict(verdict: Verdict, paint: Paint) -> str:
    return paint(f"{verdict:<{_VERDICT}}", _kind(verdict))


def _kind(verdict: Verdict) -> str:
    return verdict if verdict in JUDGED else "dim"


def finding_lines(findings: Sequence[Finding], sentence: str, named: int, paint: Paint) -> list[str]:
    """A broken rule: where it was heard first, what, whom that hurts, and how to hear it again."""
    first = findings[0]
    known = "" if any(finding.is_new for finding in findings) else ", known"
    heading = f"x {first.rule}  {paint(first.severity, first.severity)}  {place(first)}{more(findings, named)}{known}"
    labelled = [("heard", first.heard), ("wanted", first.wanted)]
    labelled += zip(["hurts", *[""] * len(first.hurts)], first.hurts, strict=False)
    labelled += [("again", first.again), ("curl", first.curl or ""), ("trace", first.trace or "")]
    labelled += [("more", f"welldone rules {first.rule}")]
    told = [f"  {sentence}", *(f"  {label:<6}  {text}" for label, text in labelled if text)]
    return [heading, *(line for line in told if line.strip())]


def _silent(rules: Sequence[Ruled], paint: Paint) -> list[str]:
    silent = [rule for rule in rules if rule.verdict not in JUDGED]
    width = max((len(rule.id) for rule in silent), default=0)
    rows = [f"{rule.id:<{width}}  {_verdict(rule.verdict, paint)}  {rule.why}".rstrip() for rule in silent]
    return [*rows, ""] if rows else []


def _end(report: Report, paint: Paint, *, is_verbose: bool) -> list[str]:
    said = outcome(report)
    drawn = [f"{sums(report)}: {paint(report.verdict, _kind(report.verdict))}{said.removeprefix(report.verdict)}"]
    silent = unheard(report)
    if silent:
        drawn.append(f"  {silent}{'' if is_verbose else '; --verbose says why'}")
    why = reason(report)
    return [*drawn, f"  {why}"] if why else drawn
