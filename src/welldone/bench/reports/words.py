"""What all forms of a report say in the same words: times, counts, who failed.

What a server sent stands in a report as it came; `welldone.drawing.texts` makes it fit to be drawn.
"""

from itertools import takewhile

import msgspec

from welldone.bench.record import RequestOutcome
from welldone.bench.report import BenchReport, MetricComparison, StepResult
from welldone.bench.settings import BenchSettings
from welldone.drawing.texts import sanitize

NEUTRAL_OUTCOMES = (RequestOutcome.OK, RequestOutcome.UNFINISHED)
"""Ends that are not held against a server."""
_RATE_METRICS = ("token_rate", "request_rate", "rate")
_SHARE_METRICS = ("error_rate", "success_rate", "goodput")


def without_records(report: BenchReport) -> BenchReport:
    """The report with every text printable, and without its requests, of which there may be very many."""
    steps = tuple(msgspec.structs.replace(step, records=()) for step in report.steps)
    return sanitize(msgspec.structs.replace(report, steps=steps))


def settings_of_report(report: BenchReport) -> BenchSettings:
    """The settings of the run, as far as the report has them."""
    return msgspec.convert(
        {"url": report.url, **report.config}, BenchSettings, dec_hook=lambda kind, value: kind(value)
    )


def split_metric(comparison: MetricComparison) -> tuple[str, str]:
    """The step that it is about, and the metric: `throughput ttft.p50` has both."""
    step, _, metric = comparison.metric.rpartition(" ")
    return step, metric


def failed_count(step: StepResult) -> int:
    """How many requests ended badly. Those that were left at the end of the step are none of them."""
    return sum(count for end, count in step.outcomes.items() if end not in NEUTRAL_OUTCOMES)


def finished_count(step: StepResult) -> int:
    """How many requests came to an end, good or bad."""
    return step.ok + failed_count(step)


def format_duration(seconds: float) -> str:
    """A time with three digits that count."""
    if seconds < 0.9995:
        value, unit = seconds * 1000, "ms"
    else:
        value, unit = seconds, "s"
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f} {unit}"


def format_metric(metric: str, number: float) -> str:
    """The number of a metric such as `ttft.p99`, or of what is said of it, in its unit."""
    kind = "".join(takewhile(lambda char: char.isalnum() or char == "_", metric))
    if kind in _SHARE_METRICS:
        return f"{number:.1%}"
    return f"{number:,.2f}/s" if kind in _RATE_METRICS else format_duration(number)
