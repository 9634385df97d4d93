"""The report as JSON, and the schema of that."""

from typing import Any

import msgspec

from welldone.check.report import VERSION, Report
from welldone.check.reports.words import sanitize_report


def render_json(report: Report) -> str:
    """All of the report."""
    return msgspec.json.format(msgspec.json.encode(sanitize_report(report)), indent=2).decode()


def report_schema() -> dict[str, Any]:
    """What every report of this version keeps to. New members may come: a reader leaves aside what it does not know."""
    # As JSON has it: a default that is an empty tuple is a list there.
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Report)))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"welldone check report, version {VERSION}",
        **made,
    }
