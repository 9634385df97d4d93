"""The report for a person at a terminal: a row for each probe, each broken rule once, and one line that says it all."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias
from xml.etree.ElementTree import Element

from welldone import reporting
from welldone.check.probe_client import SLOW_SERVER_HINT
from welldone.check.report import Finding, ProbeResult, Report, RuleResult, RunCost, Verdict
from welldone.reporting import as_html, code, element, format_table, pluralize, wrap_text

# What all forms of a report say in the same words: places, counts, facts.
#
# What a server sent stands in a report as it came. `inert` makes it fit to be drawn.


JUDGED_VERDICTS = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
"""The verdicts of what had a say."""
_MAX_NAMES = 5  # probes in a line
MAX_REPORT_TEXT_CHARS = 10_000
"""Characters of one text. What is quoted of a server is far shorter; a curl line may be some thousand."""


def sanitize_report(report: Report) -> Report:
    """The report with every text printable, in one line, and not too long."""
    return reporting.sanitize(report, MAX_REPORT_TEXT_CHARS)


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


# The report for a pull request: the verdict, a table of what is broken, and the rest folded away.
#
# Whatever a server says would mean something in Markdown. So the tables are HTML, in which Markdown lets everything
# stand up to the next empty line, and there is none in it.


MAX_COMMENT_CHARS = 60_000
"""Characters. A comment on GitHub may have 65,536."""
_MAX_PROBES_IN_CELL = 3  # probes that also heard a rule broken


def render_markdown(report: Report) -> str:
    """What fits into a comment: rows, and then findings, are left out where it gets too long."""
    report = sanitize_report(report)
    begin = f"{_markdown_summary(report)}\n\n{_violations_table(report)}{_probes_section(report.probes)}"
    return (begin + _findings_section(report, MAX_COMMENT_CHARS - len(begin))).rstrip()


def _markdown_summary(report: Report) -> str:
    about: list[str | Element] = [code(report.model), " at ", code(report.url)]
    if report.server:
        about += [" (", code(report.server), ")"]
    said = [
        text
        for text in (format_totals(report), judging_terms(report), not_judged_summary(report), pass_reason(report))
        if text
    ]
    heading = element("h3", f"welldone check: {verdict_summary(report)}")
    return f"{as_html(heading)}\n{as_html(element('p', *about, element('br'), '; '.join(said)))}"


def _violations_table(report: Report) -> str:
    rows = [
        _html_row(
            "td",
            _rule_cell(report, first.rule),
            first.severity,
            format_location(first) + other_occurrences(findings, _MAX_PROBES_IN_CELL),
            code(first.observed),
            element("ul", *(element("li", who) for who in first.affects)) if first.affects else "",
        )
        for findings in report.root_causes.values()
        for first in findings[:1]
    ]
    return _html_table(("rule", "severity", "where", "heard", "hurts"), rows) + "\n\n" if rows else ""


def _rule_cell(report: Report, rule: str) -> Element:
    """A rule, and those that follow from it."""
    following = consequences_of(report, rule)
    if not following:
        return code(rule)
    return element("div", code(rule), element("br"), element("small", f"from it follow: {following}"))


def _probes_section(probes: Iterable[ProbeResult]) -> str:
    rows = [_html_row("td", code(probe.name), probe.verdict, code(probe_summary(probe))) for probe in probes]
    return _details("The probes", [_html_table(("probe", "verdict", "rules"), rows)])


def _findings_section(report: Report, max_chars: int) -> str:
    sentences = {rule.id: rule.summary for rule in report.rules}
    texts = [
        _finding_block(findings, sentences.get(rule, ""), consequences_of(report, rule))
        for rule, findings in report.root_causes.items()
    ]
    fitting = _fit(texts, max_chars)
    left = _omitted_note(texts, fitting)
    return _details("The findings", [*fitting, *([as_html(element("p", left))] if left else [])]) if texts else ""


def _finding_block(findings: Sequence[Finding], sentence: str, consequences: str) -> str:
    lines = finding_lines(findings, sentence, _MAX_PROBES_IN_CELL, lambda text, _: text, consequences=consequences)
    return as_html(element("pre", "\n".join(lines)))


def _details(summary: str, inside: Iterable[str]) -> str:
    return "\n".join(["<details>", as_html(element("summary", summary)), *inside, "</details>"]) + "\n\n"


def _html_table(heading: tuple[str, ...], rows: list[Element]) -> str:
    texts = [as_html(row) for row in rows]
    fitting = _fit(texts, MAX_COMMENT_CHARS // 3)
    left = _omitted_note(texts, fitting)
    last = [as_html(_html_row("td", left))] if left else []
    return "\n".join(["<table>", as_html(_html_row("th", *heading)), *fitting, *last, "</table>"])


def _fit(texts: list[str], max_chars: int) -> list[str]:
    """As many as there is room for."""
    sizes = accumulate(map(len, texts))
    return [text for text, size in zip(texts, sizes, strict=True) if size <= max_chars]


def _omitted_note(texts: list[str], fitting: list[str]) -> str:
    left = len(texts) - len(fitting)
    return f"{left} more did not fit in here; the other forms of the report have them" if left else ""


def _html_row(kind: str, *cells: str | Element) -> Element:
    return element("tr", *(element(kind, cell) for cell in cells))
