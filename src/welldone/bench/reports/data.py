"""The report as JSON in our own form, with every request; the schema of that; and the report that such a file holds."""

from array import array
from typing import Any

import msgspec

from welldone.bench.report import REPORT_VERSION, BenchReport
from welldone.drawing.texts import sanitize

_TIME_DIGITS = 6
"""Of a second: microseconds, which is finer than any clock of a network. Long files of times are mostly digits."""


def render_json(report: BenchReport) -> str:
    """All of the report, in one line: with the times of every chunk a line for each would be a million lines."""
    return msgspec.json.encode(sanitize(report), enc_hook=_encode_array).decode()


def parse_report(text: bytes | str) -> BenchReport:
    """The report that was drawn so.

    Raises:
        ValueError: it is none, or of another version.
    """
    report = msgspec.json.decode(text, type=BenchReport, dec_hook=_decode_array)
    if report.version != REPORT_VERSION:
        raise ValueError(f"it is a report of version {report.version}, and this is known: {REPORT_VERSION}")
    return report


def report_schema() -> dict[str, Any]:
    """What every report of this version keeps to. New members may come: a reader leaves aside what it does not know."""
    made = msgspec.json.schema(BenchReport, schema_hook=_array_schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"welldone bench report, version {REPORT_VERSION}",
        **made,
    }


def _encode_array(value: object) -> list[float]:
    if isinstance(value, array):
        return [round(time, _TIME_DIGITS) for time in value]
    raise NotImplementedError


def _decode_array(kind: type, value: Any) -> Any:  # noqa: ANN401 - JSON
    return array("d", value) if kind is array else value


def _array_schema(kind: type) -> dict[str, Any]:
    if kind is array:
        return {"type": "array", "items": {"type": "number"}}
    if kind is object:
        return {"description": "A setting, or a fact about the machine."}
    raise NotImplementedError
