"""The report as a self-contained HTML page: no scripts, fonts, images or network requests."""

from collections.abc import Sequence
from pkgutil import get_data
from xml.etree.ElementTree import Element

from welldone.check.report import Cause, Finding, ProbeResult, Report, RuleResult, Verdict, group_by
from welldone.check.reports import text
from welldone.reporting import code, element, html_document, html_section, html_table, pluralize, table_row


def render_html(report: Report) -> str:
    """Page with the verdict, the findings, the probes and the verdict on each rule."""
    report = text.sanitize_report(report)
    broken = [_html_finding(report, findings) for findings in report.root_causes.values()]
    families = group_by(report.rules, lambda rule: rule.id.partition("-")[0])
    body = element(
        "body",
        _html_header(report),
        *([html_section("Causes", *map(_html_cause, report.causes))] if report.causes else []),
        *([html_section(f"{pluralize(len(broken), 'rule')} broken", *broken)] if broken else []),
        *_html_clients(report),
        html_section(pluralize(len(report.probes), "probe"), _html_probes(report.probes)),
        html_section(
            pluralize(len(report.rules), "rule"),
            *(_html_rule_family(report, family, rules) for family, rules in families.items()),
        ),
    )
    style = (get_data("welldone.check.reports", "report.css") or b"").decode()
    return html_document(f"welldone check: {report.verdict.label}, {report.model}", style, body)


def _html_header(report: Report) -> Element:
    facts = [text.format_totals(report), text.judging_terms(report), text.not_judged_summary(report)]
    verdict = element("span", text.headline(report), class_=_verdict_class(report.verdict))
    return element(
        "header",
        element("h1", "welldone check ", verdict),
        element("p", *text.about_server(report)),
        element("p", "; ".join(filter(None, facts))),
        element("p", f"{report.date}, welldone {report.tool}", class_="quiet"),
    )


def _html_probes(probes: Sequence[ProbeResult]) -> Element:
    cards = [
        element(
            "div",
            element("h3", probe.name, " ", element("span", probe.verdict.label, class_=_verdict_class(probe.verdict))),
            element("p", probe.description),
            element("p", text.probe_summary(probe), class_="quiet"),
            class_="card",
        )
        for probe in probes
    ]
    return element("div", *cards, class_="grid")


def _html_cause(cause: Cause) -> Element:
    rules, command = element("p", ", ".join(cause.rules), class_="quiet"), element("pre", cause.command or "")
    return element("article", element("h3", cause.sentence), element("p", cause.change), rules, command, class_="card")


def _html_finding(report: Report, findings: Sequence[Finding]) -> Element:
    first = findings[0]
    consequences = report.consequences(first.rule)
    quotes = [_labelled_quote("observed", first.observed), _labelled_quote("expected", first.expected)]
    known = "" if any(finding.is_new for finding in findings) else ", known"
    severity = element("span", first.label, class_=f"severity {first.severity}")
    clients = element("ul", *(element("li", client) for client in first.affects))
    affects = [element("div", "affects", class_="label"), clients] if first.affects else []
    commands = [("reproduce", first.reproduce), ("curl", first.curl), ("trace", first.trace)]
    return element(
        "article",
        element("h3", _html_rule(report, first.rule), " ", severity, known),
        element("p", report.rule_summary(first.rule)),
        element("p", text.format_location(first) + text.other_occurrences(findings, len(findings)), class_="quiet"),
        element("div", *quotes, class_="pair"),
        *([element("p", "Causes: ", code(consequences))] if consequences else []),
        *affects,
        *(_labelled_quote(label, command) for label, command in commands if command),
        class_="card",
    )


def _labelled_quote(label: str, quote: str) -> Element:
    return element("div", element("div", label, class_="label"), element("pre", quote))


def _html_rule(report: Report, rule: str) -> Element:
    """The id of a rule, as a link to its page where the address is known."""
    url = report.rule_url(rule)
    return element("a", code(rule), href=url) if url else code(rule)


def _html_clients(report: Report) -> list[Element]:
    """A table of the affected clients and the broken rules."""
    clients = text.rules_by_client(report)
    if not clients:
        return []
    rules = list(report.root_causes)
    rows = [
        table_row((client, *("affected" if rule in broken else "" for rule in rules)))
        for client, broken in clients.items()
    ]
    table = html_table(("client", *(_html_rule(report, rule) for rule in rules)), rows)
    return [html_section(f"{pluralize(len(clients), 'client')} affected", table)]


def _html_rule_family(report: Report, family: str, rules: Sequence[RuleResult]) -> Element:
    verdicts = [rule.verdict for rule in rules]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict.label}" for verdict in dict.fromkeys(verdicts))
    rows = [
        element(
            "tr",
            element("td", _html_rule(report, rule.id)),
            element("td", rule.verdict.label, class_=_verdict_class(rule.verdict)),
            element("td", rule.severity),
            element("td", rule.summary, *([element("div", rule.reason, class_="quiet")] if rule.reason else [])),
        )
        for rule in rules
    ]
    table = html_table(("rule", "verdict", "severity", "description"), rows)
    return element("details", element("summary", code(family), f" {counts}"), table)


def _verdict_class(verdict: Verdict) -> str:
    return f"verdict {text.verdict_style(verdict)}".replace("dim", "quiet")
