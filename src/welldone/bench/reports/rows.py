"""The requests as CSV, a row for each: for a spreadsheet or a data frame. Times are seconds of the step."""

import csv
import io

from welldone.bench.record import End, Record
from welldone.bench.report import BenchReport
from welldone.bench.stats import MEASURES
from welldone.drawing.texts import inert

COLUMNS = (
    *("step", "target", "end", "status", "finish", "ttft", "itl", "stall", "e2e", "rate", "due_s", "begun_s", "head_s"),
    *("role_s", "reasoning_s", "content_s", "tool_s", "first_s", "last_s", "ended_s", "chunks", "prompt_tokens"),
    *("limit_tokens", "tokens", "counted", "rules", "why"),
)
"""What is measured (of requests that ended well), then when everything came, then counts and reasons."""
_MEASURES = ("ttft", "itl", "stall", "e2e", "rate")
_FORMULA = ("=", "+", "-", "@")
_PLACES = 6  # of a second, as in our JSON


def draw(report: BenchReport) -> str:
    """All requests, step by step."""
    report = inert(report)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for step in report.steps:
        table.writerows([_cell(value) for value in (step.id, step.target, *_values(record))] for record in step.records)
    return text.getvalue().removesuffix("\n")


def _values(record: Record) -> list[object]:
    measured = [MEASURES[name](record) if record.end is End.OK else None for name in _MEASURES]
    first, last = (record.times[0], record.times[-1]) if record.times else (None, None)
    sent = (record.due_s, record.begun_s, record.head_s, record.role_s)
    heard = (record.reasoning_s, record.content_s, record.tool_s, first, last, record.ended_s)
    tokens = (record.prompt_tokens, record.limit_tokens, record.tokens, record.counted)
    said = (" ".join(record.rules), record.why)
    came = (str(record.end), record.status, record.finish)
    return [*came, *measured, *sent, *heard, len(record.times), *tokens, *said]


def _cell(value: object) -> object:
    """The value, so that no spreadsheet takes a text of a server for a formula."""
    match value:
        case float():
            return round(value, _PLACES)
        case str() if value.startswith(_FORMULA):
            return f"'{value}"
        case _:
            return value
