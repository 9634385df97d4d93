"""The schema of a report: an outside judge finds that reports keep to it, and that others do not."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.check.reports import HOSTILE, hostile, right, wrong
from tests.table import table
from welldone.check.report import Report
from welldone.check.reports import machine

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "check-report.schema.json").read_text("utf-8"))


def faults(report: object) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(report)]


def test_the_schema_in_the_documents_is_a_schema_and_fresh() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert machine.report_schema() == SCHEMA


@table("report", [right(), wrong(), *map(hostile, HOSTILE)])
def test_every_report_keeps_to_it(report: Report) -> None:
    assert faults(json.loads(machine.render_json(report))) == []


@table(
    "change",
    [{"verdict": "fine"}, {"passed": "yes"}, {"url": None}, {"findings": [{}]}, {"cost": {"requests": -0.5}}],
)
def test_what_is_no_report_does_not(change: dict[str, Any]) -> None:
    assert faults({**json.loads(machine.render_json(wrong())), **change}) != []
