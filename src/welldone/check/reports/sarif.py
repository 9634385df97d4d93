"""The report as SARIF 2.1.0, which code hosts show beside the code."""

from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import msgspec

from welldone.check.report import Finding, Report, RuleResult
from welldone.check.reports.words import sanitize_report, format_location, pass_reason

_SARIF_LEVELS = {"breaks": "error", "tolerated": "warning", "style": "note"}


def render_sarif(report: Report) -> str:
    """One run with all rules, and a result for each finding."""
    report = sanitize_report(report)
    numbers = {rule.id: number for number, rule in enumerate(report.rules)}
    driver = {"name": "welldone", "version": report.tool, "rules": [_sarif_rule(rule) for rule in report.rules]}
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
    """Whether the run came to its end, and the probes that did not."""
    unheard = [probe for probe in report.probes if probe.is_incomplete]
    notes = [{"level": "error", "message": {"text": f"{probe.name}: {probe.reason}"}} for probe in unheard]
    if report.is_interrupted:
        notes.append({"level": "error", "message": {"text": pass_reason(report)}})
    return {"executionSuccessful": not notes, "toolExecutionNotifications": notes}


def _sarif_rule(rule: RuleResult) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}\n\nwelldone rules {rule.id} shows examples."},
        "defaultConfiguration": {"level": _SARIF_LEVELS[rule.severity]},
    }


def _sarif_result(finding: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    said = [f"{format_location(finding)}: heard {finding.observed}", f"wanted {finding.expected}"]
    said += [f"hurts {who}" for who in finding.affects] + [f"again: {finding.reproduce}"]
    said += [f"follows from {finding.cause}"] if finding.cause else []
    known = {} if finding.is_new else {"baselineState": "unchanged"}
    number = {"ruleIndex": numbers[finding.rule]} if finding.rule in numbers else {}
    return {
        "ruleId": finding.rule,
        **number,
        "level": _SARIF_LEVELS[finding.severity],
        # In a message, [words](target) is a link. What a server sent makes none.
        "message": {"text": "\n".join(said).replace("](", "] (")},
        "locations": [_sarif_location(finding)],
        "partialFingerprints": {"welldoneRuleAndProbe/v1": f"{finding.rule} {finding.probe}"},
        "occurrenceCount": finding.count,
        **known,
    }


def _sarif_location(finding: Finding) -> dict[str, Any]:
    """The probe, and the file of the trace. Code hosts refuse a report if one result has no file and no line."""
    artifact: dict[str, Any] = {"uri": quote(finding.probe), "description": {"text": "a probe; it was not recorded"}}
    if finding.trace is not None:
        artifact = {"uri": quote(PurePath(finding.trace).as_posix())}
    return {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}},
        "logicalLocations": [
            {"name": finding.probe, "fullyQualifiedName": format_location(finding), "kind": "function"}
        ],
    }
