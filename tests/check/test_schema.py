"""The JSON schema of a report: jsonschema accepts every report, and rejects invalid ones."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.check.reports import HOSTILE, failing_report, hostile_report, passing_report
from tests.table import table
from welldone.check.report import Report
from welldone.check.reports import machine

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "check-report.schema.json").read_text("utf-8"))


def schema_errors(report: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(report)]


def test_the_documented_schema_is_valid_and_current() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert machine.report_schema() == SCHEMA


@table("report", [passing_report(), failing_report(), *map(hostile_report, HOSTILE)])
def test_every_report_matches_the_schema(report: Report) -> None:
    assert schema_errors(json.loads(machine.render_json(report))) == []


@table(
    "change",
    [{"verdict": "fine"}, {"passed": "yes"}, {"url": None}, {"findings": [{}]}, {"cost": {"requests": -0.5}}],
)
def test_an_invalid_report_does_not_match_the_schema(change: dict[str, Any]) -> None:
    assert schema_errors({**json.loads(machine.render_json(failing_report())), **change}) != []
