"""The report for programs: SVG badge, JSON with its schema, JUnit XML and SARIF."""

from collections.abc import Sequence
from pathlib import PurePath
from pkgutil import get_data
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, indent

import msgspec

from welldone.check.report import VERSION, Finding, Report, RuleResult, Verdict
from welldone.check.reports import text
from welldone.check.reports.text import JUDGED_VERDICTS, format_location, sanitize_report
from welldone.reporting import as_xml, element, pluralize

# ---- SVG badge


_GREY = "#757575"
_VERDICT_COLORS = {Verdict.PASS: "#2e7d32", Verdict.WARN: "#b26a00", Verdict.FAIL: "#c62828"}
_BADGE_MARGIN = 6  # on each side of a text
_CHAR_WIDTHS = dict.fromkeys("mwMW", 10) | dict.fromkeys("ijlftr.,: '|1I", 4)
_DEFAULT_CHAR_WIDTH = 7  # of a letter in 11 px Verdana, the usual font of badges


def render_badge(report: Report) -> str:
    """Badge for a README. Its width is estimated from the text, so no font is loaded."""
    result, color = _badge_text(report)
    left, right = _text_width("welldone"), _text_width(result)
    # Browsers fit a wider or narrower font into the length of a text.
    name_length, text_length = left - 2 * _BADGE_MARGIN, right - 2 * _BADGE_MARGIN
    texts = {"text": result, "name_length": name_length, "text_length": text_length, "color": color}
    places = {"left": left, "right": right, "width": left + right, "name_x": left / 2, "text_x": left + right / 2}
    return (get_data("welldone.check.reports", "badge.svg") or b"").decode().rstrip().format(**texts, **places)


def _badge_text(report: Report) -> tuple[str, str]:
    """Text and colour of the right half. The text is not from the server."""
    if report.verdict is Verdict.FAIL:
        return f"{pluralize(len(report.root_causes), 'rule')} broken", _VERDICT_COLORS[Verdict.FAIL]
    if report.hang or report.failed_answers:
        failures = f"{report.failed_answers} of {pluralize(report.answers, 'answer')} failed"
        return "stopped answering" if report.hang else failures, _VERDICT_COLORS[Verdict.FAIL]
    if report.is_interrupted:
        return "interrupted", _GREY
    if any(probe.is_timed_out for probe in report.probes):
        return Verdict.TIMED_OUT.label, _GREY
    if any(probe.is_incomplete for probe in report.probes):
        return "no complete reply", _GREY
    return report.verdict.label, _VERDICT_COLORS.get(report.verdict, _GREY)


def _text_width(label: str) -> int:
    return sum(_CHAR_WIDTHS.get(char, _DEFAULT_CHAR_WIDTH) for char in label) + 2 * _BADGE_MARGIN


# ---- JSON


def render_json(report: Report) -> str:
    """The complete report."""
    return msgspec.json.format(msgspec.json.encode(sanitize_report(report)), indent=2).decode()


def report_schema() -> dict[str, Any]:
    """JSON schema of this report version. Readers ignore unknown fields: new ones may come."""
    # Encoded once, so that a default that is an empty tuple becomes a list.
    schema: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Report)))
    title = f"welldone check report, version {VERSION}"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


# ---- JUnit XML


def render_junit(report: Report) -> str:
    """One suite with a case for each probe and each rule. Findings that do not fail the check are output of a case."""
    report = sanitize_report(report)
    cases = [*_probe_cases(report), *_rule_cases(report)]
    tag = "failure" if text.is_failed(report) else "error"
    causes = "\n\n".join(f"{cause.sentence}\n{cause.change}\n{cause.command or ''}" for cause in report.causes)
    failure = [] if report.passed else [element(tag, causes, message=text.headline(report), type=report.verdict)]
    cases.insert(0, element("testcase", *failure, classname="welldone", name="result", time="0"))
    values = {"url": report.url, "model": report.model, "server": report.server, "welldone": report.tool}
    outcomes = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(sum(case.find(outcome) is not None for case in cases)) for name, outcome in outcomes.items()}
    properties = (element("property", name=name, value=value) for name, value in values.items())
    suite = element(
        "testsuite",
        element("properties", *properties),
        *cases,
        name="welldone check",
        tests=str(len(cases)),
        **counts,
        time=f"{report.cost.seconds:.3f}",
        timestamp=report.date[:19],  # JUnit timestamps have no time zone
    )
    root = element("testsuites", suite)
    indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{as_xml(root)}'


def _probe_cases(report: Report) -> list[Element]:
    cases = []
    for probe in report.probes:
        findings = [finding for finding in report.findings if finding.probe == probe.name]
        message = f"{pluralize(len(probe.broken), 'rule')} broken: {', '.join(probe.broken)}"
        outcome = _case_outcome(report, probe.verdict, probe.reason, findings, message)
        is_failed = any(child.tag == "failure" for child in outcome)
        if probe.is_incomplete and not is_failed:
            # In JUnit an error means that the test could not be completed.
            tag = "error" if probe.is_timed_out else "failure"
            outcome = [element(tag, message=probe.reason or message, type=probe.verdict)]
        time = f"{probe.seconds:.3f}"
        cases.append(element("testcase", *outcome, classname="welldone.probe", name=probe.name, time=time))
    return cases


def _rule_cases(report: Report) -> list[Element]:
    broken, cases = report.findings_by_rule, []
    for rule in report.rules:
        findings = broken.get(rule.id, [])
        message = f"{rule.summary}: {'; '.join(map(format_location, findings))}"
        outcome = _case_outcome(report, rule.verdict, rule.reason, findings, message)
        if rule.id in report.stale:
            outcome = [element("failure", message="no longer broken, but still listed as known", type="stale")]
        cases.append(element("testcase", *outcome, classname="welldone.rule", name=rule.id, time="0"))
    return cases


def _case_outcome(
    report: Report, verdict: Verdict, reason: str, findings: Sequence[Finding], message: str
) -> list[Element]:
    if verdict is Verdict.ERROR:
        return [element("failure", message=reason, type=verdict)]
    if verdict not in JUDGED_VERDICTS:
        return [element("skipped", message=f"{verdict.label}: {reason}" if reason else verdict.label)]
    output = "\n\n".join("\n".join(text.finding_lines(report, [finding], 0)) for finding in findings)
    if any(text.is_failing(report, finding) for finding in findings):
        return [element("failure", output, message=message, type=verdict)]
    return [element("system-out", output)] if output else []


# ---- SARIF 2.1.0


_SARIF_LEVELS = {"breaks": "error", "tolerated": "warning", "style": "note"}


def render_sarif(report: Report) -> str:
    """SARIF log of one run, with all rules and a result for each finding."""
    report = sanitize_report(report)
    numbers = {rule.id: number for number, rule in enumerate(report.rules)}
    driver = {"name": "welldone", "version": report.tool, "rules": [_sarif_rule(rule, report) for rule in report.rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_sarif_invocation(report)],
        "results": [_sarif_result(finding, numbers) for finding in report.findings],
        "properties": {"url": report.url, "model": report.model, "server": report.server, "verdict": report.verdict},
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode()


def _sarif_invocation(report: Report) -> dict[str, Any]:
    """Whether the run was complete, with a notification for each incomplete probe."""
    incomplete = [probe for probe in report.probes if probe.is_incomplete]
    notes = [{"level": "error", "message": {"text": f"{probe.name}: {probe.reason}"}} for probe in incomplete]
    if report.is_partial or report.failed_answers or report.stale:
        notes.insert(0, {"level": "error", "message": {"text": text.headline(report)}})
    return {"executionSuccessful": not notes, "toolExecutionNotifications": notes}


def _sarif_rule(rule: RuleResult, report: Report) -> dict[str, Any]:
    url = report.rule_url(rule.id)
    return {
        "id": rule.id,
        **({"helpUri": url} if url else {}),
        "shortDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}\n\nwelldone rules {rule.id} shows examples."},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.severity]},
    }


def _sarif_result(finding: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    lines = [f"{format_location(finding)}: observed {finding.observed}", f"expected {finding.expected}"]
    lines += [f"affects {client}" for client in finding.affects] + [f"reproduce: {finding.reproduce}"]
    lines += [f"caused by {finding.cause}"] if finding.cause else []
    return {
        "ruleId": finding.rule,
        **({"ruleIndex": numbers[finding.rule]} if finding.rule in numbers else {}),
        "level": _SARIF_LEVELS[finding.severity],
        # SARIF 3.11.6: [text](target) in a message is a link. Text from a server must not become one.
        "message": {"text": "\n".join(lines).replace("](", "] (")},
        "locations": [_sarif_location(finding)],
        "partialFingerprints": {"welldoneRuleAndProbe/v1": f"{finding.rule} {finding.probe}"},
        "occurrenceCount": finding.count,
        **({} if finding.is_new else {"baselineState": "unchanged"}),
    }


def _sarif_location(finding: Finding) -> dict[str, Any]:
    """Probe and trace file. GitHub rejects a log in which a result has no file and line."""
    artifact: dict[str, Any] = {"uri": quote(finding.probe), "description": {"text": "name of a probe (no trace file)"}}
    if finding.trace is not None:
        artifact = {"uri": quote(PurePath(finding.trace).as_posix())}
    logical = {"name": finding.probe, "fullyQualifiedName": format_location(finding), "kind": "function"}
    physical = {"artifactLocation": artifact, "region": {"startLine": 1}}
    return {"physicalLocation": physical, "logicalLocations": [logical]}
