"""HTML report: contents, escaping of hostile texts, and finite numbers in all plots."""

import math
import re
from array import array
from html.parser import HTMLParser
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.bench.reports import HOSTILE, OTHER, against, bare, empty, failed, hostile, record, rich, step
from tests.table import table
from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.report import BenchReport, Distribution, MetricComparison
from welldone.bench.reports import html
from welldone.bench.reports.plots import (
    PlotLine,
    bar_plot,
    format_number,
    format_percent,
    format_seconds,
    histogram,
    line_plot,
    linear_axis,
    log_axis,
)
from welldone.bench.reports.step_plots import timeline

VOID = ("meta",)
OURS = {"html", "head", "meta", "title", "style", "body", "header", "section", "details", "summary", "figure"}
OURS |= {"figcaption", "h1", "h2", "p", "div", "span", "ul", "li", "code", "table", "tr", "th", "td"}
OURS |= {"svg", "g", "path", "text"}
NUMBERS = ("d", "x", "y", "viewbox")
"""Attributes with coordinates."""


class Tags(HTMLParser):
    """The elements of a page, and whether they are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.met: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self.captions: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.met.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self.open and self.open[-1] == "figcaption":
            self.captions.append(data)


def tags(text: str) -> Tags:
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.met <= OURS
    for name, value in parser.attributes:
        assert name not in NUMBERS or re.fullmatch(r"[-0-9. MLHVhvlmaz]+", value), (name, value)
    return parser


def words(report: BenchReport) -> str:
    return " ".join(tags(html.render_html(report)).text)


def drawn(tree: Element) -> Tags:
    """Parse the figure as XML and as HTML."""
    ElementTree.fromstring(ElementTree.tostring(tree))
    return tags(ElementTree.tostring(tree, encoding="unicode", method="html"))


def changed(report: BenchReport, **changes: object) -> BenchReport:
    return msgspec.structs.replace(report, **changes)


# Contents.


def test_the_heading_counts_the_assertions() -> None:
    assert "2 of 3 assertions failed" in words(rich())
    assert "1 assertion passed" in words(rich(assertion_results=rich().assertion_results[:1]))
    assert "assertion" not in words(rich(assertion_results=()))


def test_an_assertion_without_enough_samples_fails() -> None:
    said = words(rich(assertion_results=rich().assertion_results[2:]))
    assert "too few samples" in said
    assert "1 of 1 assertion failed" in said


def test_each_step_has_a_row_and_plots() -> None:
    parser = tags(html.render_html(rich()))
    said = " ".join(parser.text)
    for one in rich().steps:
        assert said.count(one.id) >= 2
    assert parser.captions.count("Time to first token") == len(rich().steps)
    assert parser.captions.count("Requests") == len(rich().steps)


def test_warnings_come_first() -> None:
    said = words(rich())
    assert "constant@1.20req/s: this client was the bottleneck (93 % of a core, 12 late starts" in said
    assert "constant@1.20req/s: 5 of 45 requests were skipped, because 128 were in flight." in said
    said = words(failed())
    assert "Ended early: stopped by Ctrl-C." in said
    assert "constant@8.00req/s: no request succeeded." in said


def test_failures_are_shown_with_their_reason_and_rule() -> None:
    said = re.sub(r"\s+", " ", words(rich()))
    assert "timed out 1" in said
    assert "429: too many requests 1" in said
    assert "delta-role-once 1" in said


def test_a_run_without_a_step_is_a_valid_page() -> None:
    said = words(empty())
    assert "No step ran." in said
    assert "Ended early: nothing answers there." in said


def test_a_step_without_records_has_placeholders_for_plots() -> None:
    parser = tags(html.render_html(bare()))
    assert "svg" not in parser.met
    assert parser.text.count("No samples.") == 4 * len(bare().steps)
    assert parser.text.count("No requests.") == len(bare().steps)


def test_several_rates_become_curves_with_the_maximum_throughput() -> None:
    steps = [step(f"constant@{rate}.00req/s", [record(number) for number in range(30)]) for rate in (1, 2, 3)]
    most = step("throughput", [record(number) for number in range(30)])
    said = words(rich(steps=(most, *steps)))
    assert "Results by load" in said
    assert "maximum: " in said
    assert "p50: " in said
    assert "at 2 requests/s (target)" in said
    assert "Results by load" not in words(rich(steps=(most, *steps[:1])))


def test_several_numbers_of_users_become_curves_of_both_servers() -> None:
    made = [[record(number) for number in range(30)] for _ in range(2)]
    steps = [
        step(f"concurrency@{level}", made[second], max_vus=level, target=target)
        for level in (1, 8)
        for second, target in enumerate((against().url, OTHER))
    ]
    said = words(changed(against(), steps=tuple(steps)))
    assert "concurrent users" in said
    assert "p50, second" in said
    assert "second server: " in said


@table(
    ("metric", "low", "high", "verdict"),
    [
        ("throughput ttft.p50", 0.9, 1.1, "no difference"),
        ("constant@1.20req/s ttft.p50", 1.1, 1.3, "the second is better"),
        ("throughput ttft.p50", 0.7, 0.9, "the first is better"),
        ("constant@1.20req/s token_rate", 1.1, 1.3, "the first is better"),
        ("throughput success_rate", 0.7, 0.9, "the second is better"),
        ("throughput ttft.p50", math.nan, math.nan, "no difference"),
    ],
)
def test_a_ratio_is_judged_by_its_interval_and_its_metric(metric: str, low: float, high: float, verdict: str) -> None:
    one = MetricComparison(metric=metric, first=1.0, second=1.0, ratio=(low + high) / 2, low=low, high=high)
    said = words(changed(against(), comparisons=(one,)))
    assert verdict in said.replace("tells no difference", "")


def test_compared_values_have_the_units_of_their_metrics() -> None:
    said = words(against())
    assert "First / second: concurrency@8" in said
    assert "71.00/s" in said
    assert "152 ms" in said


def test_at_most_forty_steps_are_drawn_and_the_others_are_counted() -> None:
    steps = tuple(step(f"constant@{rate}.00req/s", [record(0)]) for rate in range(1, 46))
    parser = tags(html.render_html(rich(steps=steps)))
    assert parser.captions.count("Requests") == 40
    assert "5 more steps are in the table only." in parser.text


# Robustness.


@table("text", HOSTILE)
def test_a_hostile_text_is_escaped_everywhere(text: str) -> None:
    made = html.render_html(hostile(text))
    parser = tags(made)
    assert not {name for name, _ in parser.attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert "<script" not in made
    assert made.replace("\n", "").isprintable()
    assert len(made.encode()) < 2_000_000


def test_the_page_needs_no_network_and_allows_none() -> None:
    made = html.render_html(rich())
    assert "default-src 'none'; style-src 'unsafe-inline'" in made
    assert "url(" not in made
    assert "@import" not in made


@pytest.mark.tier3
def test_the_size_of_the_page_is_limited_for_many_requests() -> None:
    some = [record(number) for number in range(100)]
    some[7] = record(7, outcome=RequestOutcome.CUT, error="the connection was lost")
    many = tuple(some[number % 100] for number in range(100_000))
    one = msgspec.structs.replace(step("throughput", some), records=many)
    made = html.render_html(rich(steps=(one, one)))
    assert len(made) < 4_000_000
    said = " ".join(tags(made).text)
    assert "Of 100,000 requests, every 50th successful one and each other one is drawn." in said
    assert ", of one request in " in said


def test_rare_failed_requests_are_drawn() -> None:
    many = [record(0)] * 5_000
    bad = record(9, outcome=RequestOutcome.CUT, error="the connection was lost")
    said = drawn(timeline("Requests", [*many, bad], linear_axis([10.0]), ends_s=10.0, max_bars=100)).text
    assert [text for text in said if text.startswith("cut: the connection was lost; ")]


numbers = st.floats() | st.floats(min_value=0, max_value=100)


@st.composite
def records(draw: st.DrawFn) -> BenchRecord:
    """Return a request with arbitrary floats as times."""
    times = array("d", draw(st.lists(numbers, max_size=4)))
    due, begun, ended, first = (draw(numbers) for _ in range(4))
    end = draw(st.sampled_from(RequestOutcome))
    tokens = draw(st.none() | st.integers(0, 10**6))
    return BenchRecord(
        target=0, due_s=due, sent_s=begun, ended_s=ended, content_s=first, times=times, outcome=end, tokens=tokens
    )


@given(st.lists(records(), max_size=5), numbers, st.lists(numbers, min_size=5, max_size=5))
@example(
    [record(0, times=array("d", [math.nan, 1.0])), record(1, times=array("d", [-1.0, 1e308]))], 0.0, [math.inf] * 5
)
def test_plots_contain_finite_numbers_only(made: list[BenchRecord], seconds: float, odd: list[float]) -> None:
    named = {"p50": odd[0], "p90": odd[1], "p99": odd[2]}
    spread = Distribution(count=1, mean=odd[3], minimum=odd[0], maximum=odd[1], percentiles=named)
    times = dict.fromkeys(("ttft", "itl", "gap", "e2e"), spread)
    steps = [
        msgspec.structs.replace(
            step(f"constant@{rate}.00req/s", []), records=tuple(made), seconds=seconds, token_rate=odd[4], times=times
        )
        for rate in (1, 2)
    ]
    tags(html.render_html(rich(steps=tuple(steps))))


@given(st.lists(numbers, max_size=30), st.lists(st.tuples(st.just("p50"), numbers), max_size=3))
@example([math.inf, 1.0, math.nan], [("p50", math.nan)])
def test_a_histogram_counts_every_finite_sample(samples: list[float], marks: list[tuple[str, float]]) -> None:
    said = drawn(histogram("Times", samples, marks)).text
    bars = [int(found[1].replace(",", "")) for text in said if (found := re.search(r": ([\d,]+), ", text))]
    assert sum(bars) == sum(math.isfinite(sample) for sample in samples)


@given(st.lists(st.tuples(numbers, numbers), max_size=300), st.booleans())
def test_lines_have_a_point_for_each_finite_pair(points: list[tuple[float, float]], has_points: bool) -> None:
    line = PlotLine(name="p50", style=5, points=points, has_points=has_points)
    said = drawn(line_plot("Curve", [line], x=linear_axis([1.0]), y="tokens/s")).text
    sound = sum(math.isfinite(x) and math.isfinite(y) for x, y in points)
    found = sum(text.startswith("p50: ") for text in said)
    assert found == (sound if sound <= 200 else -(-sound // 2)) * has_points


@given(st.lists(numbers, max_size=10), numbers, st.lists(st.tuples(numbers, numbers, numbers), max_size=4))
def test_bars_and_ratios_accept_any_numbers(
    values: list[float], ends_s: float, bands: list[tuple[float, float, float]]
) -> None:
    drawn(bar_plot("Tokens", values, linear_axis([10.0]), bar_s=1.0, ends_s=ends_s, y="tokens/s"))
    ratios = [MetricComparison(metric="x", first=1.0, second=1.0, ratio=a, low=b, high=c) for a, b, c in bands]
    drawn(html.ratio_plot("Ratios", ratios))


# Axes.


@given(st.lists(numbers, max_size=5), st.booleans(), st.booleans(), st.booleans())
def test_an_axis_covers_its_values_and_has_few_ticks(
    values: list[float], is_time: bool, is_from_zero: bool, is_tight: bool
) -> None:
    even = linear_axis(values, is_time=is_time, is_from_zero=is_from_zero, is_tight=is_tight)
    for axis in (even, log_axis(values, is_time=is_time)):
        assert axis.low < axis.high
        assert 1 <= len(axis.ticks) <= 8
        for value in values:
            assert 0 <= axis.position(value) <= 1
        for tick, _ in axis.ticks:
            assert axis.value_at(axis.position(tick)) == pytest.approx(tick, rel=1e-6, abs=1e-6 * axis.high)


@pytest.mark.parametrize(
    ("values", "ticks", "unit"),
    [
        ([0.0, 0.18], ["0", "50", "100", "150", "200"], "ms"),
        ([7.3], ["0", "2", "4", "6", "8"], "s"),
        ([0.0004], ["0", "100", "200", "300", "400"], "µs"),
    ],
)
def test_ticks_are_round_and_in_a_suitable_unit(values: list[float], ticks: list[str], unit: str) -> None:
    axis = linear_axis(values, is_time=True)
    assert [name for _, name in axis.ticks] == ticks
    assert axis.unit == unit


def test_a_logarithmic_axis_counts_by_one_two_and_five() -> None:
    assert [name for _, name in log_axis([0.03, 0.9], is_time=True).ticks] == [
        "20 ms",
        "50 ms",
        "100 ms",
        "200 ms",
        "500 ms",
        "1 s",
    ]
    assert [name for _, name in log_axis([0.001, 900.0], is_time=True).ticks] == [
        "1 ms",
        "100 ms",
        "10 s",
        "1,000 s",
    ]


@table(
    ("said", "is_"),
    [
        (format_number(None), "-"),
        (format_number(math.nan), "-"),
        (format_number(1234.4), "1,234"),
        (format_number(12.34), "12.3"),
        (format_number(1e300), "1.00e+300"),
        (format_seconds(0.00012), "120 µs"),
        (format_seconds(0.1234), "123 ms"),
        (format_seconds(math.inf), "-"),
        (format_seconds(0.0), "0 ms"),
        (format_percent(0.125), "12.5 %"),
        (format_percent(None), "-"),
    ],
)
def test_numbers_are_formatted_shortly(said: str, is_: str) -> None:
    assert said == is_


def test_a_request_keeps_its_row_until_it_ends() -> None:
    both = [record(0, due_s=0.0, sent_s=0.0, ended_s=2.0), record(1, due_s=1.0, sent_s=1.0, ended_s=3.0)]
    after = record(2, due_s=2.5, sent_s=2.5, ended_s=4.0)
    parser = drawn(timeline("Requests", [after, *both], linear_axis([4.0]), ends_s=4.0, max_bars=10))
    tops = [value.split("h")[0].split()[1] for name, value in parser.attributes if name == "d" and value.endswith("z")]
    assert len(set(tops)) == 3  # two rows, and the legend
