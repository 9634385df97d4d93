"""The report as text: for a terminal, and as Markdown for a pull request.

The functions before `render_terminal` format counts, positions and summaries for all report formats.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias
from xml.etree.ElementTree import Element

from welldone import reporting
from welldone.check.probe_client import SLOW_SERVER_HINT
from welldone.check.report import Finding, ProbeResult, Report, Verdict, affected_clients, group_by
from welldone.reporting import as_html, code, element, follow_summary, format_table, pluralize, table_row, wrap_text

JUDGED_VERDICTS = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
_MAX_NAMES = 5  # probe names in a line
_MAX_FAILURES = 2  # error messages in a line
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
    return f", and {times:,} more in {_join_names(probes, max_probes)}"


def probe_summary(probe: ProbeResult) -> str:
    """One-line result of a probe."""
    if probe.broken:
        causes = probe.causes or probe.broken
        others = len(probe.broken) - len(causes)
        consequences = f" (and {others} that {'follows' if others == 1 else 'follow'})" if others else ""
        reason = f"; {probe.reason}" if probe.is_incomplete or probe.failed_answers else ""
        return f"{len(causes)} of {pluralize(probe.rules, 'rule')}: {', '.join(causes)}{consequences}{reason}"
    return pluralize(probe.rules, "rule") if probe.verdict in JUDGED_VERDICTS else probe.reason


def rules_by_client(report: Report) -> dict[str, list[str]]:
    """Broken rules that are root causes, by the clients that they affect, the most affected one first."""
    by_client: dict[str, list[str]] = {}
    for rule, findings in report.root_causes.items():
        for client in sorted(affected_clients(effect for finding in findings for effect in finding.affects)):
            by_client.setdefault(client, []).append(rule)
    return dict(sorted(by_client.items(), key=lambda item: -len(item[1])))


def is_failing(report: Report, finding: Finding) -> bool:
    """Whether the finding makes the check fail."""
    return finding.is_new and (report.is_strict or finding.kind != "advice")


def format_totals(report: Report) -> str:
    """Number of probes, judged rules, requests, tokens and seconds, with `about` where tokens are estimated."""
    cost = report.cost
    parts = [
        pluralize(len(report.probes), "probe"),
        pluralize(sum(rule.verdict in JUDGED_VERDICTS for rule in report.rules), "rule"),
        pluralize(cost.requests, "request"),
        ("" if cost.is_counted else "about ") + pluralize(cost.prompt_tokens + cost.completion_tokens, "token"),
        f"{cost.seconds:.1f} s" if cost.seconds < 9.95 else f"{cost.seconds:,.0f} s",
    ]
    return ", ".join(parts)


def broken_summary(report: Report) -> str:
    """The number of broken rules by kind."""
    broken = report.root_causes
    if not broken:
        return "no rule broken"
    others = len(report.findings_by_rule) - len(broken)
    kinds = [findings[0].kind for findings in broken.values()]
    by_kind = ", ".join(f"{kinds.count(rule_kind)} {rule_kind}" for rule_kind in dict.fromkeys(kinds))
    known = sum(not any(finding.is_new for finding in findings) for findings in broken.values())
    counts = f"{pluralize(len(broken), 'rule')} broken ({by_kind}{f'; {known} known' if known else ''})"
    return f"{counts}{follow_summary(others, len(broken))}"


def not_judged_summary(report: Report) -> str:
    """The number of unsupported and not applicable rules; empty if there are none."""
    counts = {verdict: report.count(verdict) for verdict in (Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE)}
    parts = [f"{count} {verdict.label}" for verdict, count in counts.items() if count]
    return f"{' and '.join(parts)} of {pluralize(len(report.rules), 'rule')}" if parts else ""


def is_failed(report: Report) -> bool:
    """Whether the server has failed the check, unlike a run that is incomplete."""
    return bool(report.hang or report.failed_answers or report.stale) or any(
        is_failing(report, finding) for finding in report.findings
    )


def headline(report: Report) -> str:
    """The result in a line: whether the check passed, and all that decided it."""
    outcome = "passed" if report.passed else "failed" if is_failed(report) else "not passed"
    outcome = "partial" if report.is_interrupted else outcome
    return reporting.sanitize_text(f"{outcome}: {'; '.join(_outcome_reasons(report))}")


def _outcome_reasons(report: Report) -> Iterator[str]:
    if report.hang:
        yield report.hang
    if report.is_interrupted:
        yield "the check was interrupted before all probes had run"
    if report.failed_answers:
        shown = "; ".join(report.failures[:_MAX_FAILURES]) + ("; …" if len(report.failures) > _MAX_FAILURES else "")
        yield f"{report.failed_answers:,} of {pluralize(report.answers, 'answer')} ended in an error: {shown}"
    if report.findings or report.passed:
        yield broken_summary(report)
    if report.findings and not any(finding.is_new for finding in report.findings):
        yield "every broken rule is in the baseline"
    if not report.passed and report.is_strict and report.verdict is Verdict.WARN:
        yield "with --strict every broken rule counts"
    if report.stale:
        yield f"no longer broken, but still listed as known: {', '.join(report.stale)}"
    if report.hang:
        return
    if timed_out := [probe.name for probe in report.probes if probe.is_timed_out]:
        yield f"{_join_names(timed_out)} timed out after {report.timeout_s:g} s; {SLOW_SERVER_HINT}"
    if incomplete := [probe.name for probe in report.probes if probe.is_incomplete and not probe.is_timed_out]:
        yield f"no complete reply to {_join_names(incomplete)}"


def _join_names(probes: Sequence[str], limit: int = _MAX_NAMES) -> str:
    return ", ".join(probes[:limit]) + (", …" if len(probes) > limit else "")


def judging_terms(report: Report) -> str:
    """Endpoint, profile and strictness, where they differ from the defaults."""
    name = "Gemini" if report.endpoint == "gemini" else f"/v1/{report.endpoint}"
    parts = [name] if report.endpoint != "chat" else []
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
    lines = [*_headline_lines(report, paint, width), *wrap_text("", heading + (f", {terms}" if terms else ""), width)]
    lines += [*_cause_lines(report, width), "", *_probe_lines(report, paint, width, is_verbose=is_verbose), ""]
    for findings in report.root_causes.values():
        named = len(findings) if is_verbose else _MAX_PROBES_NAMED
        lines += [*finding_lines(report, findings, named, paint, width), ""]
    if clients := rules_by_client(report):
        table = [("affected client", "rules"), *((client, ", ".join(rules)) for client, rules in clients.items())]
        lines += [*format_table(table, width), ""]
    if is_verbose:
        rows = [(rule.id, rule.verdict, rule.reason) for rule in report.rules if rule.verdict not in JUDGED_VERDICTS]
        lines += [*_verdict_table(rows, paint, width), ""] if rows else []
    lines += wrap_text("", format_totals(report), width)
    if not_judged := not_judged_summary(report):
        lines += wrap_text("  ", f"{not_judged}{'' if is_verbose else '; --verbose shows the reasons'}", width)
    return lines + _headline_lines(report, paint, width)


def _cause_lines(report: Report, width: int | None) -> list[str]:
    lines = []
    for number, cause in enumerate(report.causes, start=1):
        lines += ["", *wrap_text(f"{number}. ", cause.sentence, width)]
        labelled = ("change", cause.change), ("rules", ", ".join(cause.rules)), ("try", cause.command or "")
        for label, shown in labelled:
            lines += wrap_text(f"   {label:<6}  ", shown, None if label == "try" else width) if shown else []
    return lines


def _probe_lines(report: Report, paint: Paint, width: int | None, *, is_verbose: bool) -> list[str]:
    results = [(probe, (probe.name, probe.verdict, probe_summary(probe))) for probe in report.probes]
    if is_verbose:
        return _verdict_table([row for _, row in results], paint, width)
    lines = _passed_lines(report.probes, paint, width)
    timed_out = [probe.name for probe in report.probes if probe.verdict is Verdict.TIMED_OUT]
    if timed_out:
        hint = "" if report.hang else f"; {SLOW_SERVER_HINT}"
        text = f"after {report.timeout_s:g} s: {', '.join(timed_out)}{hint}"
        lines += _verdict_lines(Verdict.TIMED_OUT, text, paint, width)
    listed = [(probe, row) for probe, row in results if probe.verdict not in (Verdict.PASS, Verdict.TIMED_OUT)]
    alike = group_by(listed, lambda item: _shared_result(item[0])).items()
    # Large groups of probes with the same result take one line: a violation in every stream, a reason of a partial run.
    large = {shared for shared, probes in alike if len(probes) > _MAX_PROBES_NAMED}
    lines += _verdict_table([row for probe, row in listed if _shared_result(probe) not in large], paint, width)
    for (verdict, result), probes in alike:
        if (verdict, result) in large:
            names = _join_names([probe.name for probe, _ in probes])
            lines += _verdict_lines(verdict, f"{pluralize(len(probes), 'probe')} ({names}): {result}", paint, width)
    return lines


def _verdict_table(rows: Sequence[tuple[str, Verdict, str]], paint: Paint, width: int | None) -> list[str]:
    """Table whose second column is a coloured verdict."""

    def paint_verdict(row: int, column: int, cell: str) -> str:
        return paint(cell, verdict_style(rows[row][1])) if column == 1 else cell

    labelled = [(name, verdict.label, text) for name, verdict, text in rows]
    return format_table(labelled, width, paint=paint_verdict) if rows else []


def _passed_lines(probes: Sequence[ProbeResult], paint: Paint, width: int | None) -> list[str]:
    """Names of the passed probes. A group that passed completely is printed as its name and size."""
    names: list[str] = []
    for group, members in group_by(probes, lambda probe: probe.name.partition("-")[0]).items():
        passed = [probe.name for probe in members if probe.verdict is Verdict.PASS]
        names += [f"{group} ({len(passed)})"] if 1 < len(passed) == len(members) else passed
    return _verdict_lines(Verdict.PASS, ", ".join(names), paint, width) if names else []


def _shared_result(probe: ProbeResult) -> tuple[Verdict, str]:
    """The verdict with the root causes, or with the reason."""
    rules = ", ".join(probe.causes or probe.broken)
    reason = "" if rules and not (probe.is_incomplete or probe.failed_answers) else probe.reason
    return probe.verdict, "; ".join(filter(None, (rules, reason)))


def _verdict_lines(verdict: Verdict, text: str, paint: Paint, width: int | None) -> list[str]:
    first, *rest = wrap_text(f"{verdict.label}  ", text, width or _DEFAULT_WIDTH)
    return [first.replace(verdict.label, paint(verdict.label, verdict_style(verdict)), 1), *rest]


def verdict_style(verdict: Verdict) -> str:
    """The style of a verdict: its name, or `dim` where nothing was judged."""
    return "fail" if verdict is Verdict.ERROR else verdict.value if verdict in JUDGED_VERDICTS else "dim"


def finding_lines(
    report: Report,
    findings: Sequence[Finding],
    max_probes: int,
    paint: Paint = lambda text, _: text,
    width: int | None = None,
) -> list[str]:
    """A broken rule: position, observed and expected value, consequences, affected clients, and commands."""
    first = findings[0]
    known = "" if any(finding.is_new for finding in findings) else ", known"
    where = f"{first.label}  {format_location(first)}{other_occurrences(findings, max_probes)}{known}"
    heading = wrap_text(f"x {first.rule}  ", where, width)
    heading[0] = heading[0].replace(f"  {first.label}", f"  {paint(first.label, first.severity)}", 1)
    labelled = [
        *(("observed", first.observed), ("expected", first.expected)),
        *(("causes", report.consequences(first.rule)), ("caused by", first.cause)),
        *zip(["affects", *[""] * len(first.affects)], first.affects, strict=False),
        *(("reproduce", first.reproduce), ("curl", first.curl), ("trace", first.trace)),
        ("more", f"welldone rules {first.rule}"),
    ]
    summary = report.rule_summary(first.rule)
    lines = [*heading, *(wrap_text("  ", summary, width) if summary else [])]
    for label, text in labelled:
        if text:
            wrap_width = None if label in _UNWRAPPED_LABELS else width
            lines += wrap_text(f"  {label:<{_LABEL_WIDTH}}  ", text, wrap_width)
    return lines


def _headline_lines(report: Report, paint: Paint, width: int | None) -> list[str]:
    first, *rest = wrap_text("", headline(report), width)
    word, colon, text = first.partition(":")
    return [f"{paint(word, 'pass' if report.passed else 'fail')}{colon}{text}", *rest]


# ---- Markdown
#
# Text from a server could contain Markdown. So the tables are HTML: a Markdown HTML block extends to the next empty
# line (CommonMark 4.6), and there is none in it.


MAX_COMMENT_CHARS = 60_000
"""A comment on GitHub has at most 65,536 characters."""


def render_markdown(report: Report) -> str:
    """The report as a comment of limited length: table rows, then findings, are omitted where it is too long."""
    report = sanitize_report(report)
    facts = (format_totals(report), judging_terms(report), not_judged_summary(report))
    heading = element("h3", f"welldone check {headline(report)}")
    paragraph = element("p", *about_server(report), element("br"), "; ".join(filter(None, facts)))
    rows = [table_row((code(probe.name), probe.verdict.label, code(probe_summary(probe)))) for probe in report.probes]
    probes = _details("Probes", [_html_table(("probe", "verdict", "rules"), rows)])
    causes = [
        as_html(element("li", cause.sentence, element("br"), cause.change, element("br"), code(cause.command or "")))
        for cause in report.causes
    ]
    listed = f"<ol>{''.join(_fit(causes, MAX_COMMENT_CHARS // 3)[0])}</ol>\n" if causes else ""
    begin = f"{as_html(heading)}\n{as_html(paragraph)}\n{listed}\n{_violations_table(report)}{probes}"
    return (begin + _findings_section(report, MAX_COMMENT_CHARS - len(begin))).rstrip()


def about_server(report: Report) -> list[str | Element]:
    """Model, URL and kind of the server, as content of an HTML element."""
    server = (" (", code(report.server), ")") if report.server else ()
    return [code(report.model), " at ", code(report.url), *server]


def _violations_table(report: Report) -> str:
    rows = []
    for rule, findings in report.root_causes.items():
        first, consequences = findings[0], report.consequences(rule)
        causes = [element("br"), element("small", f"causes: {consequences}")] if consequences else []
        position = format_location(first) + other_occurrences(findings, _MAX_PROBES_NAMED)
        affects = element("ul", *(element("li", client) for client in first.affects)) if first.affects else ""
        rule_cell = element("div", code(rule), *causes) if causes else code(rule)
        rows.append(table_row((rule_cell, first.label, position, code(first.observed), affects)))
    return _html_table(("rule", "severity", "position", "observed", "affects"), rows) + "\n\n" if rows else ""


def _findings_section(report: Report, max_chars: int) -> str:
    texts = [
        as_html(element("pre", "\n".join(finding_lines(report, findings, _MAX_PROBES_NAMED))))
        for findings in report.root_causes.values()
    ]
    fitting, note = _fit(texts, max_chars)
    return _details("Findings", [*fitting, *([as_html(element("p", note))] if note else [])]) if texts else ""


def _details(summary: str, inside: Iterable[str]) -> str:
    return "\n".join(["<details>", as_html(element("summary", summary)), *inside, "</details>"]) + "\n\n"


def _html_table(heading: tuple[str, ...], rows: list[Element]) -> str:
    fitting, note = _fit([as_html(row) for row in rows], MAX_COMMENT_CHARS // 3)
    last = [as_html(table_row((note,)))] if note else []
    return "\n".join(["<table>", as_html(table_row(heading, "th")), *fitting, *last, "</table>"])


def _fit(texts: list[str], max_chars: int) -> tuple[list[str], str]:
    """The longest prefix of `texts` with at most `max_chars` characters, and a note where some are omitted."""
    sizes = accumulate(map(len, texts))
    fitting = [text for text, size in zip(texts, sizes, strict=True) if size <= max_chars]
    omitted = len(texts) - len(fitting)
    note = f"{omitted} more omitted for length; the other report formats are complete" if omitted else ""
    return fitting, note
