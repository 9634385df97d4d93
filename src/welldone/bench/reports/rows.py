"""The requests as CSV, a row for each: for a spreadsheet or a data frame. Times are seconds of the step."""

import csv
import io

from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.bench.report import BenchReport
from welldone.bench.stats import METRICS
from welldone.drawing.texts import sanitize

CSV_COLUMNS = (
    *("step", "target", "end", "status", "finish", "ttft", "itl", "stall", "e2e", "rate", "due_s", "begun_s", "head_s"),
    *("role_s", "reasoning_s", "content_s", "tool_s", "first_s", "last_s", "ended_s", "chunks", "prompt_tokens"),
    *("limit_tokens", "tokens", "counted", "rules", "why"),
)
"""What is measured (of requests that ended well), then when everything came, then counts and reasons."""
_CSV_METRICS = ("ttft", "itl", "stall", "e2e", "rate")
_FORMULA_PREFIXES = ("=", "+", "-", "@")
_CSV_TIME_DIGITS = 6  # of a second, as in our JSON


def render_csv(report: BenchReport) -> str:
    """All requests, step by step."""
    report = sanitize(report)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for step in report.steps:
        table.writerows(
            [_csv_cell(value) for value in (step.id, step.target, *_csv_values(record))] for record in step.records
        )
    return text.getvalue().removesuffix("\n")


def _csv_values(record: BenchRecord) -> list[object]:
    measured = [METRICS[name](record) if record.outcome is RequestOutcome.OK else None for name in _CSV_METRICS]
    first, last = (record.times[0], record.times[-1]) if record.times else (None, None)
    sent = (record.due_s, record.sent_s, record.head_s, record.role_s)
    heard = (record.reasoning_s, record.content_s, record.tool_s, first, last, record.ended_s)
    tokens = (record.prompt_tokens, record.max_tokens, record.tokens, record.tokenizer_tokens)
    said = (" ".join(record.rules), record.error)
    came = (str(record.outcome), record.status, record.finish_reason)
    return [*came, *measured, *sent, *heard, len(record.times), *tokens, *said]


def _csv_cell(value: object) -> object:
    """The value, so that no spreadsheet takes a text of a server for a formula."""
    match value:
        case float():
            return round(value, _CSV_TIME_DIGITS)
        case str() if value.startswith(_FORMULA_PREFIXES):
            return f"'{value}"
        case _:
            return value
