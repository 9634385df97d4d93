"""The report as JUnit XML: a case for each probe, and one for each rule."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, indent

from welldone.check.report import Finding, Report, Verdict
from welldone.check.reports.terminal import finding_lines
from welldone.check.reports.words import JUDGED_VERDICTS, is_failing, consequences_of, sanitize_report, format_location
from welldone.drawing.elements import as_xml, element
from welldone.drawing.texts import pluralize


def render_junit(report: Report) -> str:
    """One suite. What does not let the check fail is told as the output of its case."""
    report = sanitize_report(report)
    cases = [*_probe_cases(report), *_rule_cases(report)]
    suite = element(
        "testsuite",
        _junit_properties(report),
        *cases,
        name="welldone check",
        tests=str(len(cases)),
        failures=_count_cases(cases, "failure"),
        errors=_count_cases(cases, "error"),
        skipped=_count_cases(cases, "skipped"),
        time=f"{report.cost.seconds:.3f}",
        timestamp=report.date[:19],  # the form knows no time zones
    )
    root = element("testsuites", suite)
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{as_xml(root)}'


def _junit_properties(report: Report) -> Element:
    told = {"url": report.url, "model": report.model, "server": report.server, "welldone": report.tool}
    return element("properties", *(element("property", name=name, value=value) for name, value in told.items()))


def _probe_cases(report: Report) -> list[Element]:
    cases = []
    for probe in report.probes:
        findings = [finding for finding in report.findings if finding.probe == probe.name]
        message = f"{pluralize(len(probe.broken), 'rule')} broken: {', '.join(probe.broken)}"
        end = _case_outcome(report, probe.verdict, probe.reason, findings, message)
        is_failed = any(one.tag == "failure" for one in end)
        if probe.is_incomplete and not is_failed:  # nothing is known of it, and that is no pass
            # An error is no failure of what is tested: the test could not be made.
            kind = "error" if probe.is_timed_out else "failure"
            end = [element(kind, message=probe.reason or message, type=probe.verdict)]
        time = f"{probe.seconds:.3f}"
        cases.append(element("testcase", *end, classname="welldone.probe", name=probe.name, time=time))
    return cases


def _rule_cases(report: Report) -> list[Element]:
    broken, cases = report.findings_by_rule, []
    for rule in report.rules:
        findings = broken.get(rule.id, [])
        message = f"{rule.summary}: {'; '.join(map(format_location, findings))}"
        end = _case_outcome(report, rule.verdict, rule.reason, findings, message)
        cases.append(element("testcase", *end, classname="welldone.rule", name=rule.id, time="0"))
    return cases


def _case_outcome(
    report: Report, verdict: Verdict, reason: str, findings: Sequence[Finding], message: str
) -> list[Element]:
    if verdict not in JUDGED_VERDICTS:
        return [element("skipped", message=f"{verdict}: {reason}" if reason else verdict)]
    sentences = {rule.id: rule.summary for rule in report.rules}
    text = "\n\n".join("\n".join(_finding_text(report, finding, sentences)) for finding in findings)
    if any(is_failing(report, finding) for finding in findings):
        return [element("failure", text, message=message, type=verdict)]
    return [element("system-out", text)] if text else []


def _finding_text(report: Report, finding: Finding, sentences: dict[str, str]) -> list[str]:
    following = consequences_of(report, finding.rule)
    return finding_lines([finding], sentences.get(finding.rule, ""), 0, lambda text, _: text, consequences=following)


def _count_cases(cases: list[Element], end: str) -> str:
    return str(sum(case.find(end) is not None for case in cases))
