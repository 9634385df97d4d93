"""What became of throughput and latency as the load grew: the steps of a run as points of lines."""

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element

import msgspec

from welldone.bench.report import BenchReport, StepResult
from welldone.bench.reports.plots import PlotLine, line_plot
from welldone.bench.reports.scales import linear_axis, format_number, format_seconds
from welldone.bench.reports.words import failed_count
from welldone.drawing.elements import element

_LATENCY_TITLES = {"ttft": "Time to the first token", "itl": "Time between tokens", "e2e": "Time of the whole answer"}
_CURVE_STATISTICS = ("mean", "p50", "p90", "p99")


def load_curves(report: BenchReport) -> list[Element]:
    """The section with the curves; nothing where fewer than two loads were tried."""
    name = "users at once" if report.kind == "concurrency" else "requests/s asked for"
    loads = [(load, step) for step in report.steps if (load := _load_level(report.kind, step)) is not None]
    if len({load for load, _ in loads}) < 2:
        return []
    targets = list(dict.fromkeys(step.target for _, step in loads))[:2]  # there are never more
    several = [[one for one in loads if one[1].target == target] for target in targets]
    x = msgspec.structs.replace(linear_axis([load for load, _ in loads]), unit=name)
    rates = [
        line_plot(
            "Tokens", [*_target_lines(several, _token_rate), *_max_throughput_lines(report, loads)], x=x, y="tokens/s"
        ),
        line_plot("Requests that ended well", _target_lines(several, _request_rate), x=x, y="requests/s"),
        line_plot(
            "Requests that ended badly, or were skipped", _target_lines(several, _lost_percent), x=x, y="% of those due"
        ),
    ]
    times = [
        line_plot(title, _latency_lines(several, metric), x=x, y="", format_value=format_seconds)
        for metric, title in _LATENCY_TITLES.items()
    ]
    plots = [part for pair in zip(rates, times, strict=True) for part in pair]
    return [element("section", element("h2", "As the load grows"), element("div", *plots, class_="plots"))]


_LoadPoints = Sequence[tuple[float, StepResult]]


def _load_level(kind: str, step: StepResult) -> float | None:
    if step.id == "warmup":
        return None
    return float(step.max_vus) if kind == "concurrency" else step.rate


def _token_rate(step: StepResult) -> float:
    return step.token_rate


def _request_rate(step: StepResult) -> float:
    return step.request_rate


def _lost_percent(step: StepResult) -> float:
    return 100 * (failed_count(step) + step.skipped) / step.due if step.due else 0.0


def _target_lines(several: Sequence[_LoadPoints], measure: Callable[[StepResult], float]) -> list[PlotLine]:
    names = ["first server", "second server"] if len(several) > 1 else ["measured"]
    return [
        PlotLine(name=name, style=look, points=[(load, measure(step)) for load, step in loads], is_dashed=look > 0)
        for look, (name, loads) in enumerate(zip(names, several, strict=True))
    ]


def _max_throughput_lines(report: BenchReport, loads: _LoadPoints) -> list[PlotLine]:
    """What the server made at most, for the eye."""
    ends = sorted(load for load, _ in loads)
    return [
        PlotLine(
            name=f"as much as it takes: {format_number(step.token_rate)}",
            style=2,
            points=[(ends[0], step.token_rate), (ends[-1], step.token_rate)],
            is_dashed=True,
            has_points=False,
        )
        for step in report.steps
        if step.id == "throughput" and step.target == report.url
    ]


def _latency_lines(several: Sequence[_LoadPoints], metric: str) -> list[PlotLine]:
    made = []
    for second, loads in enumerate(several):
        for look, statistic in enumerate(_CURVE_STATISTICS):
            points = [
                (load, value)
                for load, step in loads
                if (value := _latency_statistic(step, metric, statistic)) is not None
            ]
            name = f"{statistic}, {'second' if second else 'first'}" if len(several) > 1 else statistic
            made.append(PlotLine(name=name, style=look, points=points, is_dashed=bool(second)))
    return made


def _latency_statistic(step: StepResult, metric: str, statistic: str) -> float | None:
    times = step.times.get(metric)
    if times is None:
        return None
    return times.mean if statistic == "mean" else times.percentiles.get(statistic)
