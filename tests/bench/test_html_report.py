"""HTML report: what is in the page. `tests/web/test_bench_report.py` draws it in a browser."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser

import msgspec
import pytest

from tests.bench.reports import HOSTILE, against, bare, empty, failed, hostile, record, rich, step
from tests.table import table
from welldone.bench.report import BenchRecord, BenchReport, RequestOutcome
from welldone.bench.reports.data import parse_report, render_json
from welldone.bench.reports.html import render_html
from welldone.bench.reports.text import report_lines

ELEMENTS = {"html", "head", "meta", "title", "style", "body", "main", "pre", "script"}


class Page(HTMLParser):
    """The elements of a page, each with its attributes and text."""

    def __init__(self, report: BenchReport) -> None:
        super().__init__()
        self.source = render_html(report)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.is_inside = False
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        self.is_inside = True

    def handle_endtag(self, tag: str) -> None:
        self.is_inside = False

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.texts[-1] += data

    def of(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        """The attributes and the texts of all elements of a kind."""
        return [(found, text) for (name, found), text in zip(self.elements, self.texts, strict=True) if name == tag]

    @property
    def policy(self) -> dict[str, list[str]]:
        """The sources by directive of the Content-Security-Policy."""
        (text,) = (found["content"] for found, _ in self.of("meta") if found.get("http-equiv"))
        return {name: sources for name, *sources in (part.split() for part in (text or "").split(";"))}

    @property
    def each(self) -> int:
        return int(self.of("script")[0][0]["data-each"] or 0)

    @property
    def report(self) -> BenchReport:
        return parse_report(self.of("script")[0][1])


@table("report", lambda: [rich(), against(), failed(), bare(), empty()])
def test_the_page_holds_the_json_of_the_run_and_its_text(report: BenchReport) -> None:
    page = Page(report)
    assert page.each == 1
    assert render_json(page.report) == render_json(report)
    assert page.of("pre")[0][1] == "\n".join(report_lines(report, 120))


def test_the_policy_allows_the_scripts_and_the_style_of_the_page_only() -> None:
    page = Page(rich())
    assert set(page.policy) == {"default-src", "base-uri", "form-action", "style-src", "script-src"}
    assert [page.policy[name] for name in ("default-src", "base-uri", "form-action")] == [["'none'"]] * 3
    scripts = [text for found, text in page.of("script") if found.get("type") != "application/json"]
    for directive, texts in (("script-src", scripts), ("style-src", [text for _, text in page.of("style")])):
        hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in texts]
        assert page.policy[directive] == [f"'sha256-{one}'" for one in hashes]


def test_the_page_loads_nothing() -> None:
    page = Page(rich())
    assert not [name for _, found in page.elements for name in found if name in ("src", "href", "srcset", "action")]
    (style,) = (text for _, text in page.of("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"^import\b", page.of("script")[2][1], re.MULTILINE)


def test_the_page_has_the_licence_of_the_library_that_it_contains() -> None:
    source = render_html(rich())
    assert "Permission is hereby granted, free of charge" in source
    assert "Copyright (c) 2022 Leon Sorokin" in source


@table("text", HOSTILE)
def test_a_hostile_text_is_no_markup(text: str) -> None:
    page = Page(hostile(text))
    assert {name for name, _ in page.elements} == ELEMENTS
    assert len(page.of("script")) == 3
    assert "<" not in page.of("script")[0][1]
    assert page.source.replace("\n", "").replace("\t", "").isprintable()
    assert len(page.source) < 2_000_000
    assert render_json(page.report) == render_json(hostile(text))


# The size of the page.


def _with_records(*records: BenchRecord) -> BenchReport:
    return rich(steps=(msgspec.structs.replace(step("throughput", records[:100]), records=records),))


def test_of_many_requests_a_sample_is_in_the_page_with_all_rare_failures() -> None:
    good = [record(number % 100) for number in range(20_000)]
    bad = [record(number, outcome=RequestOutcome.CUT, error="the connection was lost") for number in range(3)]
    (shown,) = Page(_with_records(*good[:9_000], *bad, *good[9_000:])).report.steps
    assert 4_000 < len(shown.records) <= 8_000
    assert sum(one.outcome is RequestOutcome.CUT for one in shown.records) == 3
    assert sum(shown.outcomes.values()) == 100  # the numbers of the step are those of the run


def test_a_small_step_keeps_its_requests_beside_a_large_one() -> None:
    large = _with_records(*[record(number % 100) for number in range(20_000)]).steps[0]
    small = step("warmup", [record(number) for number in range(150)])
    counts = [len(one.records) for one in Page(rich(steps=(small, large))).report.steps]
    assert counts[0] == 150
    assert 5_000 < counts[1] <= 8_000


def test_many_failed_requests_leave_room_for_successful_ones() -> None:
    records = [record(n % 100, outcome=RequestOutcome.CUT if n % 10 else RequestOutcome.OK) for n in range(20_000)]
    (shown,) = Page(_with_records(*records)).report.steps
    assert sum(one.outcome is RequestOutcome.OK for one in shown.records) == 2_000


def test_of_many_chunks_every_nth_request_has_all_and_the_others_keep_first_and_last() -> None:
    long = record(0, times=type(record(0).times)("d", [0.1 + number / 1000 for number in range(1_000)]))
    page = Page(_with_records(*[long] * 500))
    (shown,) = page.report.steps
    assert page.each == 5
    assert [len(one.times) for one in shown.records[:6]] == [1_000, 201, 201, 201, 201, 1_000]
    assert {(one.times[0], one.times[-1]) for one in shown.records} == {(0.1, 1.099)}


def test_at_most_forty_steps_have_their_requests_in_the_page() -> None:
    steps = tuple(step(f"constant@{rate}.00req/s", [record(0)]) for rate in range(1, 46))
    shown = Page(rich(steps=steps)).report.steps
    assert [len(one.records) for one in shown] == [1] * 40 + [0] * 5
    assert [one.outcomes for one in shown] == [one.outcomes for one in steps]


@pytest.mark.tier3
def test_the_size_of_the_page_is_limited() -> None:
    some = [record(number) for number in range(100)]
    one = msgspec.structs.replace(step("throughput", some), records=tuple(some) * 1_000)
    assert len(render_html(rich(steps=(one, one)))) < 6_000_000
