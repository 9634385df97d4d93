"""The report as JSON in our own form, with every request; the schema of that; and the report that such a file holds."""

from array import array
from typing import Any

import msgspec

from welldone.bench.report import VERSION, BenchReport
from welldone.drawing.texts import inert

_PLACES = 6
"""Of a second: microseconds, which is finer than any clock of a network. Long files of times are mostly digits."""


def draw(report: BenchReport) -> str:
    """All of the report, in one line: with the times of every chunk a line for each would be a million lines."""
    return msgspec.json.encode(inert(report), enc_hook=_plain).decode()


def read(text: bytes | str) -> BenchReport:
    """The report that was drawn so.

    Raises:
        ValueError: it is none, or of another version.
    """
    report = msgspec.json.decode(text, type=BenchReport, dec_hook=_read)
    if report.version != VERSION:
        raise ValueError(f"it is a report of version {report.version}, and this is known: {VERSION}")
    return report


def schema() -> dict[str, Any]:
    """What every report of this version keeps to. New members may come: a reader leaves aside what it does not know."""
    made = msgspec.json.schema(BenchReport, schema_hook=_schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"welldone bench report, version {VERSION}",
        **made,
    }


def _plain(value: object) -> list[float]:
    if isinstance(value, array):
        return [round(time, _PLACES) for time in value]
    raise NotImplementedError


def _read(kind: type, value: Any) -> Any:  # noqa: ANN401 - JSON
    return array("d", value) if kind is array else value


def _schema(kind: type) -> dict[str, Any]:
    if kind is array:
        return {"type": "array", "items": {"type": "number"}}
    if kind is object:
        return {"description": "A setting, or a fact about the machine."}
    raise NotImplementedError
