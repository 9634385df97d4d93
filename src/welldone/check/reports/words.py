"""What all forms of a report say in the same words: places, counts, facts.

What a server sent stands in a report as it came. `inert` makes it fit to be drawn.
"""

from collections.abc import Sequence

from welldone.check.desk import SLOW
from welldone.check.report import Cost, Finding, Probed, Report, Ruled, Verdict
from welldone.drawing import texts
from welldone.drawing.texts import count

JUDGED = (Verdict.RIGHT, Verdict.LAX, Verdict.WRONG)
"""The verdicts of what had a say."""
_NAMED = 5  # probes in a line
LONGEST = 10_000
"""Characters of one text. What is quoted of a server is far shorter; a curl line may be some thousand."""


def inert(report: Report) -> Report:
    """The report with every text printable, in one line, and not too long."""
    return texts.inert(report, LONGEST)


def place(finding: Finding) -> str:
    """Where it was heard."""
    parts = [finding.probe]
    if finding.request > 1:
        parts.append(f"request {finding.request}")
    if finding.frame is not None:
        parts += [f"frame {finding.frame}", f"byte {finding.byte}"]
    return ", ".join(parts)


def more(findings: Sequence[Finding], names: int) -> str:
    """How often else the rule was heard broken, and in which probes; so many of them are named."""
    first, others = findings[0], findings[1:]
    times = sum(finding.count for finding in findings) - 1
    if times < 1:
        return ""
    if not others:
        return f", and {times:,} more"
    probes = ([first.probe] if first.count > 1 else []) + [finding.probe for finding in others]
    named = ", ".join(probes[:names]) + (", …" if len(probes) > names else "")
    return f", and {times:,} more in {named}"


def gist(probe: Probed) -> str:
    """What a probe came to, in a few words."""
    if probe.broken:
        causes = probe.causes or probe.broken
        others = len(probe.broken) - len(causes)
        following = f" (and {others} that {_verb(others)})" if others else ""
        end = f"; {probe.why}" if probe.is_given_up else ""
        return f"{len(causes)} of {count(probe.rules, 'rule')}: {', '.join(causes)}{following}{end}"
    return count(probe.rules, "rule") if probe.verdict in JUDGED else probe.why


def _verb(number: int) -> str:
    return "follows" if number == 1 else "follow"


def follows(report: Report, cause: str) -> str:
    """The rules that are broken only because of that one, or nothing."""
    return ", ".join(report.following(cause))


def fails(report: Report, finding: Finding) -> bool:
    """Whether the finding is one for which the check does not pass."""
    return finding.is_new and (report.is_strict or finding.severity == "breaks")


def judged(report: Report) -> list[Ruled]:
    """The rules that had a say."""
    return [rule for rule in report.rules if rule.verdict in JUDGED]


def sums(report: Report) -> str:
    """What was done: probes, rules, requests, tokens, seconds."""
    cost = report.cost
    parts = [count(len(report.probes), "probe"), count(len(judged(report)), "rule"), count(cost.requests, "request")]
    return ", ".join([*parts, tokens(cost), seconds(cost.seconds)])


def tokens(cost: Cost) -> str:
    """What the answers cost; `about` where the server did not count them all."""
    number = count(cost.prompt_tokens + cost.completion_tokens, "token")
    return number if cost.is_counted else f"about {number}"


def seconds(number: float) -> str:
    """A time, as exact as it is of use."""
    return f"{number:.1f} s" if number < 9.95 else f"{number:,.0f} s"


def outcome(report: Report) -> str:
    """The verdict, with what stands behind it."""
    broken = report.causes
    if not broken:
        return f"{report.verdict}"
    others = len(report.broken) - len(broken)
    following = f", and {others} that {_verb(others)} from {'it' if len(broken) == 1 else 'them'}" if others else ""
    severities = [findings[0].severity for findings in broken.values()]
    by_severity = ", ".join(f"{severities.count(severity)} {severity}" for severity in dict.fromkeys(severities))
    known = sum(not any(finding.is_new for finding in findings) for findings in broken.values())
    counts = f"{count(len(broken), 'rule')} broken ({by_severity}{f'; {known} known' if known else ''})"
    return f"{report.verdict}, {counts}{following}"


def unheard(report: Report) -> str:
    """How many rules had no say, or nothing."""
    parts = [
        f"{report.count(verdict)} {verdict}"
        for verdict in (Verdict.NOT_OFFERED, Verdict.NOT_HEARD)
        if report.count(verdict)
    ]
    return f"{' and '.join(parts)} of {count(len(report.rules), 'rule')}" if parts else ""


def reason(report: Report) -> str:
    """Why it passes, or does not, where the verdict alone does not say."""
    if report.is_interrupted:
        return "not passed: the check was interrupted, and the probes that were left did not run"
    late = [probe.name for probe in report.probes if probe.is_timed_out]
    if late:
        return f"not passed: {_named(late)} timed out after {report.timeout_s:g} s; {SLOW}"
    lost = [probe.name for probe in report.probes if probe.is_given_up]
    if lost:
        return f"not passed: no whole reply to {_named(lost)}"
    if not report.passed and report.verdict is Verdict.LAX:
        return "not passed: with --strict every broken rule counts"
    if report.passed and report.findings and not any(finding.is_new for finding in report.findings):
        return "passed: nothing is broken that was not broken before"
    return ""


def _named(probes: Sequence[str]) -> str:
    return ", ".join(probes[:_NAMED]) + (", …" if len(probes) > _NAMED else "")


def terms(report: Report) -> str:
    """By which measure it was judged, where it is not the usual one."""
    parts = [f"/v1/{report.endpoint}"] if report.endpoint != "chat" else []
    parts += [f"judged for {report.profile} alone"] if report.profile else []
    return ", ".join([*parts, "strict"] if report.is_strict else parts)
