"""The report for a pull request: the verdict, a table of what is broken, and the rest folded away.

Whatever a server says would mean something in Markdown. So the tables are HTML, in which Markdown lets everything
stand up to the next empty line, and there is none in it.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from xml.etree.ElementTree import Element

from welldone.check.report import Finding, Probed, Report
from welldone.check.reports.terminal import finding_lines
from welldone.check.reports.words import follows, gist, inert, more, outcome, place, reason, sums, terms, unheard
from welldone.drawing.elements import as_html, code, element

LIMIT = 60_000
"""Characters. A comment on GitHub may have 65,536."""
_NAMED = 3  # probes that also heard a rule broken


def draw(report: Report) -> str:
    """What fits into a comment: rows, and then findings, are left out where it gets too long."""
    report = inert(report)
    begin = f"{_summary(report)}\n\n{_broken(report)}{_probes(report.probes)}"
    return (begin + _findings(report, LIMIT - len(begin))).rstrip()


def _summary(report: Report) -> str:
    about: list[str | Element] = [code(report.model), " at ", code(report.url)]
    if report.server:
        about += [" (", code(report.server), ")"]
    said = [text for text in (sums(report), terms(report), unheard(report), reason(report)) if text]
    heading = element("h3", f"welldone check: {outcome(report)}")
    return f"{as_html(heading)}\n{as_html(element('p', *about, element('br'), '; '.join(said)))}"


def _broken(report: Report) -> str:
    rows = [
        _row(
            "td",
            _named(report, first.rule),
            first.severity,
            place(first) + more(findings, _NAMED),
            code(first.heard),
            element("ul", *(element("li", who) for who in first.hurts)) if first.hurts else "",
        )
        for findings in report.causes.values()
        for first in findings[:1]
    ]
    return _table(("rule", "severity", "where", "heard", "hurts"), rows) + "\n\n" if rows else ""


def _named(report: Report, rule: str) -> Element:
    """A rule, and those that follow from it."""
    following = follows(report, rule)
    if not following:
        return code(rule)
    return element("div", code(rule), element("br"), element("small", f"from it follow: {following}"))


def _probes(probes: Iterable[Probed]) -> str:
    rows = [_row("td", code(probe.name), probe.verdict, code(gist(probe))) for probe in probes]
    return _folded("The probes", [_table(("probe", "verdict", "rules"), rows)])


def _findings(report: Report, room: int) -> str:
    sentences = {rule.id: rule.rule for rule in report.rules}
    texts = [
        _finding(findings, sentences.get(rule, ""), follows(report, rule)) for rule, findings in report.causes.items()
    ]
    fitting = _fitting(texts, room)
    left = _left(texts, fitting)
    return _folded("The findings", [*fitting, *([as_html(element("p", left))] if left else [])]) if texts else ""


def _finding(findings: Sequence[Finding], sentence: str, following: str) -> str:
    lines = finding_lines(findings, sentence, _NAMED, lambda text, _: text, following=following)
    return as_html(element("pre", "\n".join(lines)))


def _folded(summary: str, inside: Iterable[str]) -> str:
    return "\n".join(["<details>", as_html(element("summary", summary)), *inside, "</details>"]) + "\n\n"


def _table(heading: tuple[str, ...], rows: list[Element]) -> str:
    texts = [as_html(row) for row in rows]
    fitting = _fitting(texts, LIMIT // 3)
    left = _left(texts, fitting)
    last = [as_html(_row("td", left))] if left else []
    return "\n".join(["<table>", as_html(_row("th", *heading)), *fitting, *last, "</table>"])


def _fitting(texts: list[str], room: int) -> list[str]:
    """As many as there is room for."""
    sizes = accumulate(map(len, texts))
    return [text for text, size in zip(texts, sizes, strict=True) if size <= room]


def _left(texts: list[str], fitting: list[str]) -> str:
    left = len(texts) - len(fitting)
    return f"{left} more did not fit in here; the other forms of the report have them" if left else ""


def _row(kind: str, *cells: str | Element) -> Element:
    return element("tr", *(element(kind, cell) for cell in cells))
