"""What all forms of a report say in the same words: places, counts, facts.

What a server sent stands in a report as it came. `inert` makes it fit to be drawn.
"""

from collections.abc import Sequence

from welldone.check.desk import SLOW_SERVER_HINT
from welldone.check.report import RunCost, Finding, ProbeResult, Report, RuleResult, Verdict
from welldone.drawing import texts
from welldone.drawing.texts import pluralize

JUDGED_VERDICTS = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
"""The verdicts of what had a say."""
_MAX_NAMES = 5  # probes in a line
MAX_REPORT_TEXT_CHARS = 10_000
"""Characters of one text. What is quoted of a server is far shorter; a curl line may be some thousand."""


def sanitize_report(report: Report) -> Report:
    """The report with every text printable, in one line, and not too long."""
    return texts.sanitize(report, MAX_REPORT_TEXT_CHARS)


def format_location(finding: Finding) -> str:
    """Where it was heard."""
    parts = [finding.probe]
    if finding.request > 1:
        parts.append(f"request {finding.request}")
    if finding.frame is not None:
        parts += [f"frame {finding.frame}", f"byte {finding.byte}"]
    return ", ".join(parts)


def other_occurrences(findings: Sequence[Finding], max_probes: int) -> str:
    """How often else the rule was heard broken, and in which probes; so many of them are named."""
    first, others = findings[0], findings[1:]
    times = sum(finding.count for finding in findings) - 1
    if times < 1:
        return ""
    if not others:
        return f", and {times:,} more"
    probes = ([first.probe] if first.count > 1 else []) + [finding.probe for finding in others]
    named = ", ".join(probes[:max_probes]) + (", …" if len(probes) > max_probes else "")
    return f", and {times:,} more in {named}"


def probe_summary(probe: ProbeResult) -> str:
    """What a probe came to, in a few words."""
    if probe.broken:
        causes = probe.causes or probe.broken
        others = len(probe.broken) - len(causes)
        following = f" (and {others} that {_follow_verb(others)})" if others else ""
        end = f"; {probe.reason}" if probe.is_incomplete else ""
        return f"{len(causes)} of {pluralize(probe.rules, 'rule')}: {', '.join(causes)}{following}{end}"
    return pluralize(probe.rules, "rule") if probe.verdict in JUDGED_VERDICTS else probe.reason


def _follow_verb(number: int) -> str:
    return "follows" if number == 1 else "follow"


def consequences_of(report: Report, cause: str) -> str:
    """The rules that are broken only because of that one, or nothing."""
    return ", ".join(report.consequences(cause))


def is_failing(report: Report, finding: Finding) -> bool:
    """Whether the finding is one for which the check does not pass."""
    return finding.is_new and (report.is_strict or finding.severity == "breaks")


def judged_rules(report: Report) -> list[RuleResult]:
    """The rules that had a say."""
    return [rule for rule in report.rules if rule.verdict in JUDGED_VERDICTS]


def format_totals(report: Report) -> str:
    """What was done: probes, rules, requests, tokens, seconds."""
    cost = report.cost
    parts = [
        pluralize(len(report.probes), "probe"),
        pluralize(len(judged_rules(report)), "rule"),
        pluralize(cost.requests, "request"),
    ]
    return ", ".join([*parts, format_tokens(cost), format_seconds(cost.seconds)])


def format_tokens(cost: RunCost) -> str:
    """What the answers cost; `about` where the server did not count them all."""
    number = pluralize(cost.prompt_tokens + cost.completion_tokens, "token")
    return number if cost.is_counted else f"about {number}"


def format_seconds(number: float) -> str:
    """A time, as exact as it is of use."""
    return f"{number:.1f} s" if number < 9.95 else f"{number:,.0f} s"


def verdict_summary(report: Report) -> str:
    """The verdict, with what stands behind it."""
    broken = report.root_causes
    if not broken:
        return f"{report.verdict}"
    others = len(report.findings_by_rule) - len(broken)
    following = (
        f", and {others} that {_follow_verb(others)} from {'it' if len(broken) == 1 else 'them'}" if others else ""
    )
    severities = [findings[0].severity for findings in broken.values()]
    by_severity = ", ".join(f"{severities.count(severity)} {severity}" for severity in dict.fromkeys(severities))
    known = sum(not any(finding.is_new for finding in findings) for findings in broken.values())
    counts = f"{pluralize(len(broken), 'rule')} broken ({by_severity}{f'; {known} known' if known else ''})"
    return f"{report.verdict}, {counts}{following}"


def not_judged_summary(report: Report) -> str:
    """How many rules had no say, or nothing."""
    parts = [
        f"{report.count(verdict)} {verdict}"
        for verdict in (Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE)
        if report.count(verdict)
    ]
    return f"{' and '.join(parts)} of {pluralize(len(report.rules), 'rule')}" if parts else ""


def pass_reason(report: Report) -> str:
    """Why it passes, or does not, where the verdict alone does not say."""
    if report.is_interrupted:
        return "not passed: the check was interrupted, and the probes that were left did not run"
    late = [probe.name for probe in report.probes if probe.is_timed_out]
    if late:
        return f"not passed: {_join_names(late)} timed out after {report.timeout_s:g} s; {SLOW_SERVER_HINT}"
    lost = [probe.name for probe in report.probes if probe.is_incomplete]
    if lost:
        return f"not passed: no whole reply to {_join_names(lost)}"
    if not report.passed and report.verdict is Verdict.WARN:
        return "not passed: with --strict every broken rule counts"
    if report.passed and report.findings and not any(finding.is_new for finding in report.findings):
        return "passed: nothing is broken that was not broken before"
    return ""


def _join_names(probes: Sequence[str]) -> str:
    return ", ".join(probes[:_MAX_NAMES]) + (", …" if len(probes) > _MAX_NAMES else "")


def judging_terms(report: Report) -> str:
    """By which measure it was judged, where it is not the usual one."""
    parts = [f"/v1/{report.endpoint}"] if report.endpoint != "chat" else []
    parts += [f"judged for {report.profile} alone"] if report.profile else []
    return ", ".join([*parts, "strict"] if report.is_strict else parts)
