"""The report as JUnit XML: a case for each probe, and one for each rule."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, indent

from welldone.check.report import Finding, Report, Verdict
from welldone.check.reports.terminal import finding_lines
from welldone.check.reports.words import JUDGED, fails, follows, inert, place
from welldone.drawing.elements import as_xml, element
from welldone.drawing.texts import count


def draw(report: Report) -> str:
    """One suite. What does not let the check fail is told as the output of its case."""
    report = inert(report)
    cases = [*_probes(report), *_rules(report)]
    suite = element(
        "testsuite",
        _properties(report),
        *cases,
        name="welldone check",
        tests=str(len(cases)),
        failures=_having(cases, "failure"),
        errors=_having(cases, "error"),
        skipped=_having(cases, "skipped"),
        time=f"{report.cost.seconds:.3f}",
        timestamp=report.date[:19],  # the form knows no time zones
    )
    root = element("testsuites", suite)
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{as_xml(root)}'


def _properties(report: Report) -> Element:
    told = {"url": report.url, "model": report.model, "server": report.server, "welldone": report.tool}
    return element("properties", *(element("property", name=name, value=value) for name, value in told.items()))


def _probes(report: Report) -> list[Element]:
    cases = []
    for probe in report.probes:
        findings = [finding for finding in report.findings if finding.probe == probe.name]
        message = f"{count(len(probe.broken), 'rule')} broken: {', '.join(probe.broken)}"
        end = _end(report, probe.verdict, probe.why, findings, message)
        is_failed = any(one.tag == "failure" for one in end)
        if probe.is_given_up and not is_failed:  # nothing is known of it, and that is no pass
            # An error is no failure of what is tested: the test could not be made.
            kind = "error" if probe.is_timed_out else "failure"
            end = [element(kind, message=probe.why or message, type=probe.verdict)]
        time = f"{probe.seconds:.3f}"
        cases.append(element("testcase", *end, classname="welldone.probe", name=probe.name, time=time))
    return cases


def _rules(report: Report) -> list[Element]:
    broken, cases = report.broken, []
    for rule in report.rules:
        findings = broken.get(rule.id, [])
        message = f"{rule.rule}: {'; '.join(map(place, findings))}"
        end = _end(report, rule.verdict, rule.why, findings, message)
        cases.append(element("testcase", *end, classname="welldone.rule", name=rule.id, time="0"))
    return cases


def _end(report: Report, verdict: Verdict, why: str, findings: Sequence[Finding], message: str) -> list[Element]:
    if verdict not in JUDGED:
        return [element("skipped", message=f"{verdict}: {why}" if why else verdict)]
    sentences = {rule.id: rule.rule for rule in report.rules}
    text = "\n\n".join("\n".join(_lines(report, finding, sentences)) for finding in findings)
    if any(fails(report, finding) for finding in findings):
        return [element("failure", text, message=message, type=verdict)]
    return [element("system-out", text)] if text else []


def _lines(report: Report, finding: Finding, sentences: dict[str, str]) -> list[str]:
    following = follows(report, finding.rule)
    return finding_lines([finding], sentences.get(finding.rule, ""), 0, lambda text, _: text, following=following)


def _having(cases: list[Element], end: str) -> str:
    return str(sum(case.find(end) is not None for case in cases))
