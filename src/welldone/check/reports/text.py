"""The report as text: for a terminal, and as Markdown for a pull request.

The functions before `render_terminal` format counts, positions and summaries for all report formats.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TypeAlias
from xml.etree.ElementTree import Element

from welldone import reporting
from welldone.check.probe_client import SLOW_SERVER_HINT
from welldone.check.report import Finding, ProbeResult, Report, RunCost, Verdict
from welldone.reporting import as_html, code, element, format_table, pluralize, wrap_text

JUDGED_VERDICTS = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
_MAX_NAMES = 5  # probe names in a line
MAX_REPORT_TEXT_CHARS = 10_000
"""Limit of one text. Quotes of a reply are far shorter; a curl command has up to some thousand characters."""


def sanitize_report(report: Report) -> Report:
    """Copy of the report in which every text is printable, a single line, and of limited length.

    A report contains text from the server. Every renderer must sanitize it first.
    """
    return reporting.sanitize(report, MAX_REPORT_TEXT_CHARS)


def format_location(finding: Finding) -> str:
    """Probe, request, frame and byte offset of a finding."""
    parts = [finding.probe]
    if finding.request > 1:
        parts.append(f"request {finding.request}")
    if finding.frame is not None:
        parts += [f"frame {finding.frame}", f"byte {finding.byte}"]
    return ", ".join(parts)


def other_occurrences(findings: Sequence[Finding], max_probes: int) -> str:
    """The number of further violations, with the names of at most `max_probes` probes."""
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
    """One-line result of a probe."""
    if probe.broken:
        causes = probe.causes or probe.broken
        others = len(probe.broken) - len(causes)
        consequences = f" (and {others} that {_follow_verb(others)})" if others else ""
        reason = f"; {probe.reason}" if probe.is_incomplete else ""
        return f"{len(causes)} of {pluralize(probe.rules, 'rule')}: {', '.join(causes)}{consequences}{reason}"
    return pluralize(probe.rules, "rule") if probe.verdict in JUDGED_VERDICTS else probe.reason


def _follow_verb(number: int) -> str:
    return "follows" if number == 1 else "follow"


def consequences_of(report: Report, cause: str) -> str:
    """Ids of the rules that are broken only as a consequence of `cause`, comma-separated."""
    return ", ".join(report.consequences(cause))


def is_failing(report: Report, finding: Finding) -> bool:
    """Whether the finding makes the check fail."""
    return finding.is_new and (report.is_strict or finding.severity == "breaks")


def format_totals(report: Report) -> str:
    """Number of probes, judged rules, requests, tokens and seconds."""
    parts = [
        pluralize(len(report.probes), "probe"),
        pluralize(sum(rule.verdict in JUDGED_VERDICTS for rule in report.rules), "rule"),
        pluralize(report.cost.requests, "request"),
    ]
    return ", ".join([*parts, format_tokens(report.cost), format_seconds(report.cost.seconds)])


def format_tokens(cost: RunCost) -> str:
    """Tokens of the run; with `about` where some are estimated."""
    number = pluralize(cost.prompt_tokens + cost.completion_tokens, "token")
    return number if cost.is_counted else f"about {number}"


def format_seconds(number: float) -> str:
    """Seconds, with a decimal below ten."""
    return f"{number:.1f} s" if number < 9.95 else f"{number:,.0f} s"


def verdict_summary(report: Report) -> str:
    """The verdict, with the number of broken rules by severity."""
    broken = report.root_causes
    if not broken:
        return report.verdict.label
    others = len(report.findings_by_rule) - len(broken)
    consequences = (
        f", and {others} that {_follow_verb(others)} from {'it' if len(broken) == 1 else 'them'}" if others else ""
    )
    severities = [findings[0].severity for findings in broken.values()]
    by_severity = ", ".join(f"{severities.count(severity)} {severity}" for severity in dict.fromkeys(severities))
    known = sum(not any(finding.is_new for finding in findings) for findings in broken.values())
    counts = f"{pluralize(len(broken), 'rule')} broken ({by_severity}{f'; {known} known' if known else ''})"
    return f"{report.verdict.label}, {counts}{consequences}"


def not_judged_summary(report: Report) -> str:
    """The number of unsupported and not applicable rules; empty if there are none."""
    parts = [
        f"{report.count(verdict)} {verdict.label}"
        for verdict in (Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE)
        if report.count(verdict)
    ]
    return f"{' and '.join(parts)} of {pluralize(len(report.rules), 'rule')}" if parts else ""


def pass_reason(report: Report) -> str:
    """Why the check passes or not, where the verdict alone does not explain it."""
    if report.is_interrupted:
        return "not passed: the check was interrupted before all probes had run"
    timed_out = [probe.name for probe in report.probes if probe.is_timed_out]
    if timed_out:
        return f"not passed: {_join_names(timed_out)} timed out after {report.timeout_s:g} s; {SLOW_SERVER_HINT}"
    incomplete = [probe.name for probe in report.probes if probe.is_incomplete]
    if incomplete:
        return f"not passed: no complete reply to {_join_names(incomplete)}"
    if not report.passed and report.verdict is Verdict.WARN:
        return "not passed: with --strict every broken rule counts"
    if report.passed and report.findings and not any(finding.is_new for finding in report.findings):
        return "passed: every broken rule is in the baseline"
    return ""


def _join_names(probes: Sequence[str]) -> str:
    return ", ".join(probes[:_MAX_NAMES]) + (", …" if len(probes) > _MAX_NAMES else "")


def judging_terms(report: Report) -> str:
    """Endpoint, profile and strictness, where they differ from the defaults."""
    parts = [f"/v1/{report.endpoint}"] if report.endpoint != "chat" else []
    parts += [f"only rules that affect {report.profile}"] if report.profile else []
    return ", ".join([*parts, "strict"] if report.is_strict else parts)


Paint: TypeAlias = Callable[[str, str], str]
"""Colours a text in the style of a verdict or a severity, or `dim`."""

_DEFAULT_WIDTH = 100  # columns for lists of probe names, where there is no terminal
_MAX_PROBES_NAMED = 3  # names of further probes in which a rule is broken
_LABEL_WIDTH = 9  # of "reproduce", the longest
_UNWRAPPED_LABELS = ("reproduce", "curl", "trace", "more")
"""Commands and file names are copied into a shell, so they are never wrapped."""


def render_terminal(report: Report, paint: Paint, *, is_verbose: bool = False, width: int | None = None) -> list[str]:
    """The report as lines, wrapped at `width`. `is_verbose` also lists passed probes and rules that do not apply."""
    report = sanitize_report(report)
    heading = f"{report.model} at {report.url}" + (f" ({report.server})" if report.server else "")
    terms = judging_terms(report)
    lines = wrap_text("", heading + (f", {terms}" if terms else ""), width)
    lines += [*_probe_lines(report, paint, width, is_verbose=is_verbose), ""]
    summaries = {rule.id: rule.summary for rule in report.rules}
    for rule, findings in report.root_causes.items():
        named = len(findings) if is_verbose else _MAX_PROBES_NAMED
        consequences = consequences_of(report, rule)
        lines += finding_lines(findings, summaries.get(rule, ""), named, paint, consequences=consequences, width=width)
        lines.append("")
    if is_verbose:
        rows = [(rule.id, rule.verdict, rule.reason) for rule in report.rules if rule.verdict not in JUDGED_VERDICTS]
        lines += [*_verdict_table(rows, paint, width), ""] if rows else []
    return lines + _closing_lines(report, paint, width, is_verbose=is_verbose)


def _probe_lines(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    if is_verbose:
        rows = [(probe.name, probe.verdict, probe_summary(probe)) for probe in report.probes]
        return _verdict_table(rows, paint, width)
    lines = _passed_lines(report.probes, paint, width)
    timed_out = [probe.name for probe in report.probes if probe.verdict is Verdict.TIMED_OUT]
    if timed_out:
        text = f"after {report.timeout_s:g} s: {', '.join(timed_out)}; {SLOW_SERVER_HINT}"
        lines += _verdict_lines(Verdict.TIMED_OUT, text, paint, width)
    grouped = _group_same_violations(report.probes)
    rows = [
        (probe.name, probe.verdict, probe_summary(probe))
        for probe in report.probes
        if probe.verdict not in (Verdict.PASS, Verdict.TIMED_OUT) and _root_rules(probe) not in grouped
    ]
    lines += _verdict_table(rows, paint, width)
    for rules, probes in grouped.items():
        names = ", ".join(probe.name for probe in probes)
        lines += _verdict_lines(probes[0].verdict, f"{', '.join(rules)}: in {names}", paint, width)
    return lines


def _verdict_table(rows: Sequence[tuple[str, Verdict, str]], paint: Paint, width: int | None) -> list[str]:
    """Table whose second column is a coloured verdict."""

    def paint_verdict(row: int, column: int, cell: str) -> str:
        return paint(cell, _verdict_style(rows[row][1])) if column == 1 else cell

    labelled = [(name, verdict.label, text) for name, verdict, text in rows]
    return format_table(labelled, width, paint=paint_verdict) if rows else []


def _passed_lines(probes: Sequence[ProbeResult], paint: Paint, width: int | None) -> list[str]:
    """Names of the passed probes. A group that passed completely is printed as its name and size."""
    groups: dict[str, list[ProbeResult]] = {}
    for probe in probes:
        groups.setdefault(probe.name.partition("-")[0], []).append(probe)
    names: list[str] = []
    for group, members in groups.items():
        passed = [probe.name for probe in members if probe.verdict is Verdict.PASS]
        names += [f"{group} ({len(passed)})"] if 1 < len(passed) == len(members) else passed
    return _verdict_lines(Verdict.PASS, ", ".join(names), paint, width) if names else []


def _group_same_violations(probes: Sequence[ProbeResult]) -> dict[tuple[str, ...], list[ProbeResult]]:
    """Large groups of probes that break the same rules: a violation in every stream takes one line."""
    by_rules: dict[tuple[str, ...], list[ProbeResult]] = {}
    for probe in probes:
        if probe.broken and not probe.is_incomplete:
            by_rules.setdefault(_root_rules(probe), []).append(probe)
    # Rows with a reason are not grouped, nor are other rows with the same rules.
    listed = {_root_rules(probe) for probe in probes if probe.is_incomplete}
    return {rules: found for rules, found in by_rules.items() if len(found) > _MAX_PROBES_NAMED and rules not in listed}


def _root_rules(probe: ProbeResult) -> tuple[str, ...]:
    return probe.causes or probe.broken


def _verdict_lines(verdict: Verdict, text: str, paint: Paint, width: int | None) -> list[str]:
    first, *rest = wrap_text(f"{verdict.label}  ", text, width or _DEFAULT_WIDTH)
    return [first.replace(verdict.label, paint(verdict.label, _verdict_style(verdict)), 1), *rest]


def _verdict_style(verdict: Verdict) -> str:
    return verdict.value if verdict in JUDGED_VERDICTS else "dim"


def finding_lines(
    findings: Sequence[Finding],
    summary: str,
    max_probes: int,
    paint: Paint,
    *,
    consequences: str = "",
    width: int | None = None,
) -> list[str]:
    """A broken rule: position, observed and expected value, consequences, affected clients, and commands."""
    first = findings[0]
    known = "" if any(finding.is_new for finding in findings) else ", known"
    where = f"{first.severity}  {format_location(first)}{other_occurrences(findings, max_probes)}{known}"
    heading = wrap_text(f"x {first.rule}  ", where, width)
    heading[0] = heading[0].replace(f"  {first.severity}", f"  {paint(first.severity, first.severity)}", 1)
    labelled = [("observed", first.observed), ("expected", first.expected), ("causes", consequences)]
    labelled += [("caused by", first.cause or "")]
    labelled += zip(["affects", *[""] * len(first.affects)], first.affects, strict=False)
    labelled += [("reproduce", first.reproduce), ("curl", first.curl or ""), ("trace", first.trace or "")]
    labelled += [("more", f"welldone rules {first.rule}")]
    lines = [*heading, *(wrap_text("  ", summary, width) if summary else [])]
    for label, text in labelled:
        if text:
            wrap_width = None if label in _UNWRAPPED_LABELS else width
            lines += wrap_text(f"  {label:<{_LABEL_WIDTH}}  ", text, wrap_width)
    return lines


def _closing_lines(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    first, *rest = wrap_text("", f"{format_totals(report)}: {verdict_summary(report)}", width)
    label = report.verdict.label
    lines = [first.replace(f": {label}", f": {paint(label, _verdict_style(report.verdict))}", 1), *rest]
    not_judged = not_judged_summary(report)
    if not_judged:
        lines += wrap_text("  ", f"{not_judged}{'' if is_verbose else '; --verbose shows the reasons'}", width)
    reason = pass_reason(report)
    return [*lines, *wrap_text("  ", reason, width)] if reason else lines


# ---- Markdown
#
# Text from a server could contain Markdown. So the tables are HTML: a Markdown HTML block extends to the next empty
# line (CommonMark 4.6), and there is none in it.


MAX_COMMENT_CHARS = 60_000
"""A comment on GitHub has at most 65,536 characters."""
_MAX_PROBES_IN_CELL = 3  # names of further probes in which a rule is broken


def render_markdown(report: Report) -> str:
    """The report as a comment of limited length: table rows, then findings, are omitted where it is too long."""
    report = sanitize_report(report)
    begin = f"{_markdown_summary(report)}\n\n{_violations_table(report)}{_probes_section(report.probes)}"
    return (begin + _findings_section(report, MAX_COMMENT_CHARS - len(begin))).rstrip()


def _markdown_summary(report: Report) -> str:
    about: list[str | Element] = [code(report.model), " at ", code(report.url)]
    if report.server:
        about += [" (", code(report.server), ")"]
    facts = (format_totals(report), judging_terms(report), not_judged_summary(report), pass_reason(report))
    heading = element("h3", f"welldone check: {verdict_summary(report)}")
    paragraph = element("p", *about, element("br"), "; ".join(filter(None, facts)))
    return f"{as_html(heading)}\n{as_html(paragraph)}"


def _violations_table(report: Report) -> str:
    rows = [
        _html_row(
            "td",
            _rule_cell(report, first.rule),
            first.severity,
            format_location(first) + other_occurrences(findings, _MAX_PROBES_IN_CELL),
            code(first.observed),
            element("ul", *(element("li", client) for client in first.affects)) if first.affects else "",
        )
        for findings in report.root_causes.values()
        for first in findings[:1]
    ]
    return _html_table(("rule", "severity", "position", "observed", "affects"), rows) + "\n\n" if rows else ""


def _rule_cell(report: Report, rule: str) -> Element:
    consequences = consequences_of(report, rule)
    if not consequences:
        return code(rule)
    return element("div", code(rule), element("br"), element("small", f"causes: {consequences}"))


def _probes_section(probes: Iterable[ProbeResult]) -> str:
    rows = [_html_row("td", code(probe.name), probe.verdict.label, code(probe_summary(probe))) for probe in probes]
    return _details("Probes", [_html_table(("probe", "verdict", "rules"), rows)])


def _findings_section(report: Report, max_chars: int) -> str:
    summaries = {rule.id: rule.summary for rule in report.rules}
    texts = []
    for rule, findings in report.root_causes.items():
        lines = finding_lines(
            findings,
            summaries.get(rule, ""),
            _MAX_PROBES_IN_CELL,
            lambda text, _: text,
            consequences=consequences_of(report, rule),
        )
        texts.append(as_html(element("pre", "\n".join(lines))))
    fitting = _fit(texts, max_chars)
    note = _omitted_note(texts, fitting)
    return _details("Findings", [*fitting, *([as_html(element("p", note))] if note else [])]) if texts else ""


def _details(summary: str, inside: Iterable[str]) -> str:
    return "\n".join(["<details>", as_html(element("summary", summary)), *inside, "</details>"]) + "\n\n"


def _html_table(heading: tuple[str, ...], rows: list[Element]) -> str:
    texts = [as_html(row) for row in rows]
    fitting = _fit(texts, MAX_COMMENT_CHARS // 3)
    note = _omitted_note(texts, fitting)
    last = [as_html(_html_row("td", note))] if note else []
    return "\n".join(["<table>", as_html(_html_row("th", *heading)), *fitting, *last, "</table>"])


def _fit(texts: list[str], max_chars: int) -> list[str]:
    """The longest prefix of `texts` with at most `max_chars` characters."""
    sizes = accumulate(map(len, texts))
    return [text for text, size in zip(texts, sizes, strict=True) if size <= max_chars]


def _omitted_note(texts: list[str], fitting: list[str]) -> str:
    omitted = len(texts) - len(fitting)
    return f"{omitted} more omitted for length; the other report formats are complete" if omitted else ""


def _html_row(kind: str, *cells: str | Element) -> Element:
    return element("tr", *(element(kind, cell) for cell in cells))
