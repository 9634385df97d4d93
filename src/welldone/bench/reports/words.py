"""What all forms of a report say in the same words: times, counts, who failed.

What a server sent stands in a report as it came; `welldone.drawing.texts` makes it fit to be drawn.
"""

from itertools import takewhile

import msgspec

from welldone.bench.record import End
from welldone.bench.report import BenchReport, Compared, Step
from welldone.bench.settings import BenchSettings
from welldone.drawing.texts import inert

NO_FAULT = (End.OK, End.UNFINISHED)
"""Ends that are not held against a server."""
_RATES = ("token_rate", "request_rate", "rate")
_SHARES = ("error_rate", "success_rate", "goodput")


def brief(report: BenchReport) -> BenchReport:
    """The report with every text printable, and without its requests, of which there may be very many."""
    steps = tuple(msgspec.structs.replace(step, records=()) for step in report.steps)
    return inert(msgspec.structs.replace(report, steps=steps))


def told(report: BenchReport) -> BenchSettings:
    """The settings of the run, as far as the report has them."""
    return msgspec.convert(
        {"url": report.url, **report.config}, BenchSettings, dec_hook=lambda kind, value: kind(value)
    )


def parts(compared: Compared) -> tuple[str, str]:
    """The step that it is about, and the metric: `throughput ttft.p50` has both."""
    step, _, metric = compared.metric.rpartition(" ")
    return step, metric


def failed(step: Step) -> int:
    """How many requests ended badly. Those that were left at the end of the step are none of them."""
    return sum(count for end, count in step.ends.items() if end not in NO_FAULT)


def over(step: Step) -> int:
    """How many requests came to an end, good or bad."""
    return step.ok + failed(step)


def duration(seconds: float) -> str:
    """A time with three digits that count."""
    if seconds < 0.9995:
        value, unit = seconds * 1000, "ms"
    else:
        value, unit = seconds, "s"
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f} {unit}"


def value(metric: str, number: float) -> str:
    """The number of a metric such as `ttft.p99`, or of what is said of it, in its unit."""
    kind = "".join(takewhile(lambda char: char.isalnum() or char == "_", metric))
    if kind in _SHARES:
        return f"{number:.1%}"
    return f"{number:,.2f}/s" if kind in _RATES else duration(number)
