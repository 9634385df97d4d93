"""The report for a pull request: the verdict, a table of what is broken, and the rest folded away.

Whatever a server says would mean something in Markdown. So the tables are HTML, in which Markdown lets everything
stand up to the next empty line, and there is none in it.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from xml.etree.ElementTree import Element

from welldone.check.report import Finding, ProbeResult, Report
from welldone.check.reports.terminal import finding_lines
from welldone.check.reports.words import (
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
from welldone.drawing.elements import as_html, code, element

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
