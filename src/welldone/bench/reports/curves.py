"""What became of throughput and latency as the load grew: the steps of a run as points of lines."""

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.report import BenchReport, Step
from welldone.bench.reports.plots import Line, lines
from welldone.bench.reports.scales import linear, short, span
from welldone.bench.reports.words import failed
from welldone.drawing.elements import element

_LATENCIES = {"ttft": "Time to the first token", "itl": "Time between tokens", "e2e": "Time of the whole answer"}
_STATISTICS = ("mean", "p50", "p90", "p99")


def curves(report: BenchReport) -> list[Element]:
    """The section with the curves; nothing where fewer than two loads were tried."""
    name = "users at once" if report.kind == "concurrency" else "requests/s asked for"
    loads = [(load, step) for step in report.steps if (load := _load(report.kind, step)) is not None]
    if len({load for load, _ in loads}) < 2:
        return []
    targets = list(dict.fromkeys(step.target for _, step in loads))[:2]  # there are never more
    several = [[one for one in loads if one[1].target == target] for target in targets]
    x = msgspec.structs.replace(linear([load for load, _ in loads]), unit=name)
    rates = [
        lines("Tokens", [*_measured(several, _tokens), *_most(report, loads)], x=x, y="tokens/s"),
        lines("Requests that ended well", _measured(several, _requests), x=x, y="requests/s"),
        lines("Requests that ended badly, or were skipped", _measured(several, _lost), x=x, y="% of those due"),
    ]
    times = [lines(title, _latencies(several, metric), x=x, y="", words=span) for metric, title in _LATENCIES.items()]
    plots = [part for pair in zip(rates, times, strict=True) for part in pair]
    return [element("section", element("h2", "As the load grows"), element("div", *plots, class_="plots"))]


_Loads = Sequence[tuple[float, Step]]


def _load(kind: str, step: Step) -> float | None:
    if step.id == "warmup":
        return None
    return float(step.max_vus) if kind == "concurrency" else step.rate


def _tokens(step: Step) -> float:
    return step.token_rate


def _requests(step: Step) -> float:
    return step.request_rate


def _lost(step: Step) -> float:
    return 100 * (failed(step) + step.skipped) / step.due if step.due else 0.0


def _measured(several: Sequence[_Loads], measure: Callable[[Step], float]) -> list[Line]:
    names = ["first server", "second server"] if len(several) > 1 else ["measured"]
    return [
        Line(name=name, look=look, points=[(load, measure(step)) for load, step in loads], is_dashed=look > 0)
        for look, (name, loads) in enumerate(zip(names, several, strict=True))
    ]


def _most(report: BenchReport, loads: _Loads) -> list[Line]:
    """What the server made at most, for the eye."""
    ends = sorted(load for load, _ in loads)
    return [
        Line(
            name=f"as much as it takes: {short(step.token_rate)}",
            look=2,
            points=[(ends[0], step.token_rate), (ends[-1], step.token_rate)],
            is_dashed=True,
            has_points=False,
        )
        for step in report.steps
        if step.id == "throughput" and step.target == report.url
    ]


def _latencies(several: Sequence[_Loads], metric: str) -> list[Line]:
    made = []
    for second, loads in enumerate(several):
        for look, statistic in enumerate(_STATISTICS):
            points = [(load, value) for load, step in loads if (value := _value(step, metric, statistic)) is not None]
            name = f"{statistic}, {'second' if second else 'first'}" if len(several) > 1 else statistic
            made.append(Line(name=name, look=look, points=points, is_dashed=bool(second)))
    return made


def _value(step: Step, metric: str, statistic: str) -> float | None:
    times = step.times.get(metric)
    if times is None:
        return None
    return times.mean if statistic == "mean" else times.percentiles.get(statistic)
