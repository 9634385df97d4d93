"""The report as SARIF 2.1.0, which code hosts show beside the code."""

from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import msgspec

from welldone.check.report import Finding, Report, Ruled
from welldone.check.reports.words import inert, place, reason

_LEVELS = {"breaks": "error", "tolerated": "warning", "style": "note"}


def draw(report: Report) -> str:
    """One run with all rules, and a result for each finding."""
    report = inert(report)
    numbers = {rule.id: number for number, rule in enumerate(report.rules)}
    driver = {"name": "welldone", "version": report.tool, "rules": [_rule(rule) for rule in report.rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": [_result(finding, numbers) for finding in report.findings],
        "properties": {"url": report.url, "model": report.model, "server": report.server, "verdict": report.verdict},
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode()


def _invocation(report: Report) -> dict[str, Any]:
    """Whether the run came to its end, and the probes that did not."""
    unheard = [probe for probe in report.probes if probe.is_given_up]
    notes = [{"level": "error", "message": {"text": f"{probe.name}: {probe.why}"}} for probe in unheard]
    if report.is_interrupted:
        notes.append({"level": "error", "message": {"text": reason(report)}})
    return {"executionSuccessful": not notes, "toolExecutionNotifications": notes}


def _rule(rule: Ruled) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.rule},
        "help": {"text": f"{rule.rule}\n\nwelldone rules {rule.id} shows examples."},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, numbers: dict[str, int]) -> dict[str, Any]:
    said = [f"{place(finding)}: heard {finding.heard}", f"wanted {finding.wanted}"]
    said += [f"hurts {who}" for who in finding.hurts] + [f"again: {finding.again}"]
    said += [f"follows from {finding.cause}"] if finding.cause else []
    known = {} if finding.is_new else {"baselineState": "unchanged"}
    number = {"ruleIndex": numbers[finding.rule]} if finding.rule in numbers else {}
    return {
        "ruleId": finding.rule,
        **number,
        "level": _LEVELS[finding.severity],
        # In a message, [words](target) is a link. What a server sent makes none.
        "message": {"text": "\n".join(said).replace("](", "] (")},
        "locations": [_location(finding)],
        "partialFingerprints": {"welldoneRuleAndProbe/v1": f"{finding.rule} {finding.probe}"},
        "occurrenceCount": finding.count,
        **known,
    }


def _location(finding: Finding) -> dict[str, Any]:
    """The probe, and the file of the trace. Code hosts refuse a report if one result has no file and no line."""
    artifact: dict[str, Any] = {"uri": quote(finding.probe), "description": {"text": "a probe; it was not recorded"}}
    if finding.trace is not None:
        artifact = {"uri": quote(PurePath(finding.trace).as_posix())}
    return {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}},
        "logicalLocations": [{"name": finding.probe, "fullyQualifiedName": place(finding), "kind": "function"}],
    }
