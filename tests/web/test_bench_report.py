"""HTML report of the load test in Chromium: tables, plots, a second report, hostile texts, accessibility, print."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

from tests.bench.reports import HOSTILE, OTHER, URL, against, bare, empty, failed, hostile, record, rich, step
from tests.web.browser import DESKTOP, LIMIT_MS, PHONE, Size
from tests.web.test_access import AXE
from tests.web.test_hostile import OWNED
from welldone.bench.report import BenchReport, MetricComparison
from welldone.bench.reports.data import render_json
from welldone.bench.reports.html import render_html

EVIL = (f'"></script><img src=x onerror="{OWNED}"><script>{OWNED}</script><!--', *HOSTILE[2:5:2])
INKED = """(figure) => {
  const canvas = figure.querySelector("canvas");
  return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte > 0);
}"""
VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} by ${event.blockedURI}`));"""


class Opening(Protocol):
    """Opens a report in a page of its own."""

    def __call__(self, report: BenchReport, *, size: Size = DESKTOP, is_dark: bool = False) -> Page: ...


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Opening]:
    """Open reports from files; assert at the end that no page complained or requested anything."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def open_report(report: BenchReport, *, size: Size = DESKTOP, is_dark: bool = False) -> Page:
        file = tmp_path / f"{len(contexts)}.html"
        file.write_text(render_html(report), "utf-8")
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if is_dark else "light"
        )
        contexts.append(context)
        context.set_default_timeout(LIMIT_MS)
        context.add_init_script(VIOLATIONS)

        def on_console(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                complaints.append(message.text)

        context.on("console", on_console)
        context.on("weberror", lambda error: complaints.append(f"uncaught: {error.error}"))
        context.on("request", lambda request: None if request.url == file.as_uri() else complaints.append(request.url))
        page = context.new_page()
        page.goto(file.as_uri())
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        return page

    try:
        yield open_report
        assert complaints == []
    finally:
        for context in contexts:
            context.close()


def captions(page: Page) -> list[str]:
    return [text.replace("logarithmic", "").strip() for text in page.locator("figcaption").all_text_contents()]


def plot(page: Page, title: str, number: int = 0) -> Locator:
    """A figure by its title, as soon as it is drawn."""
    figure = page.locator("figure").filter(has=page.locator("figcaption", has_text=re.compile(f"^{title}"))).nth(number)
    figure.scroll_into_view_if_needed()
    expect(figure.locator("canvas")).to_be_visible()
    return figure


def hover(page: Page, figure: Locator, x: float, y: float = 0.5) -> None:
    """Move the pointer to a place of the plotting area."""
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])


def rows(page: Page, section: str) -> list[str]:
    found = (
        page.locator("section").filter(has=page.get_by_role("heading", name=section, exact=True)).locator("tbody tr")
    )
    return [" ".join(cells.split("\t")) for cells in found.all_inner_texts()]


def sweep(seed: int = 7, **changes: Any) -> BenchReport:  # noqa: ANN401 - fields of a report
    """Return a sweep of three rates, whose maximum is known."""
    steps = [step(f"constant@{rate}.00req/s", [record(n, seed) for n in range(30)]) for rate in (1, 2, 3)]
    return rich(steps=(step("throughput", [record(n, seed) for n in range(30)]), *steps), **changes)


# Contents.


def test_the_heading_counts_the_assertions(show: Opening) -> None:
    expect(show(rich()).get_by_role("heading", level=1)).to_have_text("welldone bench: sweep, 2 of 3 assertions failed")
    one = rich(assertion_results=rich().assertion_results[:1])
    expect(show(one).get_by_role("heading", level=1)).to_have_text("welldone bench: sweep, 1 assertion passed")
    expect(show(rich(assertion_results=())).get_by_role("heading", level=1)).to_have_text("welldone bench: sweep")


def test_assertions_are_shown_with_their_values(show: Opening) -> None:
    assert rows(show(rich()), "Assertions") == [
        "ttft.p50<800ms throughput 151 ms passed",
        "token_rate>100 throughput 79.3/s failed",
        "ttft.p99<800ms constant@1.20req/s too few samples failed",
    ]


def test_warnings_come_first(show: Opening) -> None:
    notes = show(rich()).locator(".note")
    expect(notes.nth(0)).to_have_text(
        "constant@1.20req/s: this client was the bottleneck (93 % of a core, 12 late starts, the latest by 31.5 ms). "
        "Its numbers say more about the client than about the server."
    )
    expect(notes.nth(1)).to_have_text("constant@1.20req/s: 5 of 45 requests were skipped, because 128 were in flight.")
    dead = show(failed())
    expect(dead.locator(".note").nth(0)).to_have_text("Ended early: stopped by Ctrl-C.")
    expect(dead.get_by_text("constant@8.00req/s: no request succeeded.")).to_be_visible()


def test_each_step_is_a_row_with_its_statistics(show: Opening) -> None:
    _, row, _ = rows(show(rich()), "Steps")
    start = "throughput closed, 128 users 3.84 77.1 121 of 125 159 ms 166 ms 231 ms - 20.1 ms"
    assert row.startswith(start)
    assert row.endswith("0 110 1 202 20 9 % of a core")


def test_a_run_without_a_step_is_a_page(show: Opening) -> None:
    page = show(empty())
    expect(page.get_by_text("No step ran.")).to_be_visible()
    expect(page.get_by_text("Ended early: nothing answers there.")).to_be_visible()
    assert captions(page) == []


def test_the_settings_and_the_text_are_shown_on_request(show: Opening) -> None:
    page = show(rich())
    page.get_by_text("Settings, and the machine of this client").click()
    expect(
        page.get_by_role("cell", name="num_tokens=200, min_tokens=180, max_tokens=220, variance=10").first
    ).to_be_visible()
    page.get_by_text("As text").click()
    expect(page.locator("pre")).to_contain_text("│ Max VUs")


def test_without_scripts_the_page_shows_the_text(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(render_html(rich()), "utf-8")
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto((tmp_path / "report.html").as_uri())
        expect(page.locator("pre")).to_contain_text("ttft.p50<800ms   passed")
    finally:
        context.close()


@pytest.mark.parametrize(
    ("metric", "low", "high", "verdict"),
    [
        ("throughput ttft.p50", 0.9, 1.1, "no difference"),
        ("constant@1.20req/s ttft.p50", 1.1, 1.3, "the second is better"),
        ("throughput ttft.p50", 0.7, 0.9, "the first is better"),
        ("constant@1.20req/s token_rate", 1.1, 1.3, "the first is better"),
        ("throughput success_rate", 0.7, 0.9, "the second is better"),
    ],
)
def test_a_ratio_is_judged_by_its_interval_and_its_metric(
    show: Opening, metric: str, low: float, high: float, verdict: str
) -> None:
    one = MetricComparison(metric=metric, first=1.0, second=1.0, ratio=(low + high) / 2, low=low, high=high)
    (row,) = rows(show(msgspec.structs.replace(against(), comparisons=(one,))), "Comparison")
    assert row.endswith(verdict)


# Plots.


def test_each_step_has_its_plots(show: Opening) -> None:
    page = show(rich())
    expect(page.locator("figure")).to_have_count(6 * 3)
    assert captions(page)[:6] == [
        *("Time to first token", "Time between tokens, per request", "Time between chunks, over all requests"),
        *("Time of the complete answer", "Requests", "Tokens over time"),
    ]
    for number in range(6 * 3):
        figure = page.locator("figure").nth(number)
        expect(figure.locator("canvas")).to_be_visible()
        assert figure.evaluate(INKED)


def test_failures_are_listed_with_their_reason_and_rule(show: Opening) -> None:
    items = show(rich()).locator("details:has(> ul)").get_by_role("listitem").all_inner_texts()
    assert items == [
        *("cut 1", "timed out 1", "refused 1", "unfinished 1"),
        *("the stream ended without a finish reason 1", "no whole answer within 300 s 1", "429: too many requests 1"),
        *("unfinished 1", "delta-role-once 1"),
    ]


def test_a_step_without_requests_has_no_plots(show: Opening) -> None:
    page = show(bare())
    expect(page.get_by_text("No samples.")).to_have_count(4 * 3)
    expect(page.get_by_text("No requests.")).to_have_count(3)
    expect(page.locator("canvas")).to_have_count(0)


def test_several_rates_become_curves_with_the_maximum(show: Opening) -> None:
    page = show(sweep())
    figure = plot(page, "Tokens", 0)
    figure.get_by_text("Values").click()
    assert figure.locator("thead").inner_text().strip().split("\t") == [
        "requests/s (target)",
        "measured",
        "maximum: 75.9",
    ]
    expect(figure.locator("details tbody tr")).to_have_count(3)
    assert "p50" in plot(page, "Time to first token").locator(".u-legend").inner_text()
    expect(show(rich()).get_by_text("Results by load")).to_have_count(0)


def test_curves_of_two_servers_are_drawn_together(show: Opening) -> None:
    steps = [
        step(f"concurrency@{level}", [record(n, seed) for n in range(30)], max_vus=level, target=target)
        for level in (1, 8)
        for seed, target in enumerate((URL, OTHER))
    ]
    page = show(msgspec.structs.replace(against(), steps=tuple(steps)))
    legend = plot(page, "Time to first token").locator(".u-legend").inner_text()
    assert "concurrent users" in legend
    assert "p50, first server" in legend
    assert "p50, second server" in legend
    expect(page.get_by_text("First / second: concurrency@8")).to_be_visible()


def test_the_values_under_the_pointer_are_shown(show: Opening) -> None:
    page = show(rich(steps=rich().steps[1:2]))
    histogram = plot(page, "Time to first token")
    hover(page, histogram, 0.5)
    expect(histogram.locator(".u-legend")).to_contain_text(re.compile(r"from\d+ ms.*[\d.]+ %.*[\d.]+ %"))
    requests = plot(page, "Requests")
    hover(page, requests, 0.97, 0.97)
    words = requests.locator(".hover")
    found = set()
    for x in range(60, 100):
        for y in (0.1, 0.3, 0.5, 0.7, 0.9):
            hover(page, requests, x / 100, y)
            found.add(words.inner_text().split(",")[0].strip())
    assert "ok" in found
    assert found & {"cut: the stream ended without a finish reason", "refused: 429: too many requests"}


def test_dragging_zooms_and_a_double_click_shows_all(show: Opening) -> None:
    page = show(rich(steps=rich().steps[1:2]))
    figure = plot(page, "Time to first token")

    def leftmost() -> str:
        hover(page, figure, 0.001)
        return figure.locator(".u-value").first.inner_text()

    before = leftmost()
    hover(page, figure, 0.5)
    page.mouse.down()
    hover(page, figure, 0.8)
    page.mouse.up()
    assert leftmost() != before
    figure.locator(".u-over").dblclick()
    assert leftmost() == before


def test_an_axis_can_be_logarithmic(show: Opening) -> None:
    slow = record(0, content_s=20.0)  # so far from the others that the axis starts logarithmic
    page = show(rich(steps=(step("throughput", [*(record(n) for n in range(1, 60)), slow]),)))
    toggle = plot(page, "Time to first token").get_by_role("checkbox", name="logarithmic")
    expect(toggle).to_be_checked()
    figure = plot(page, "Time of the complete answer")
    expect(figure.get_by_role("checkbox")).not_to_be_checked()
    hover(page, figure, 0.5)
    even = figure.locator(".u-value").first.inner_text()
    figure.get_by_role("checkbox", name="logarithmic").check()
    hover(page, figure, 0.5)
    expect(figure.locator(".u-value").first).not_to_have_text(even)


def test_of_many_steps_the_last_is_open_and_the_others_are_drawn_on_request(show: Opening) -> None:
    page = show(sweep())
    expect(page.locator("figure")).to_have_count(6 + 6)
    page.locator("summary").get_by_text("constant@2.00req/s").click()
    expect(page.locator("figure")).to_have_count(6 + 6 + 6)
    assert plot(page, "Tokens over time").evaluate(INKED)


# A second report.


def choose(page: Page, text: str | bytes) -> None:
    content = text.encode() if isinstance(text, str) else text
    page.get_by_label("Compare with another report").set_input_files(
        {"name": "other.json", "mimeType": "application/json", "buffer": content}
    )


def test_another_report_is_drawn_beside_the_first(show: Opening) -> None:
    page = show(sweep())
    choose(page, render_json(sweep(seed=9)))
    table = rows(page, "This run and the other run")
    assert len(table) == 4 * (2 + 3 * 2)  # rates, and mean and p50 of three times, of four steps
    assert re.fullmatch(r"throughput ttft\.p50 \d+ ms \d+ ms [\d.]+", table[3])
    assert "p50, other run" in plot(page, "Time to first token", 0).locator(".u-legend").inner_text()
    assert "below, other run" in plot(page, "Time to first token", 1).locator(".u-legend").inner_text()


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"version": 2}', '{"version": 2, "steps": [{}]}', '{"version": 1, "steps": []}', "\0"]
)
def test_a_file_that_is_no_report_is_rejected(show: Opening, text: str) -> None:
    page = show(rich())
    choose(page, text)
    expect(page.get_by_role("status")).to_contain_text("The file cannot be shown: ")
    expect(page.get_by_role("heading", name="Steps", exact=True)).to_be_visible()
    expect(page.get_by_text("This run and the other run")).to_have_count(0)
    choose(page, render_json(rich()))
    expect(page.get_by_role("status")).to_be_empty()
    expect(page.get_by_text("This run and the other run")).to_be_visible()


# Hostile texts.


def is_clean(page: Page) -> bool:
    return bool(
        page.evaluate(
            """() => window.owned === undefined && ({}).owned === undefined && document.scripts.length === 3 &&
            !document.querySelector("img, iframe, svg, form, link, base, object, a") &&
            ![...document.querySelectorAll("*")].some((one) => one.getAttributeNames().some((it) => /^on/.test(it)))"""
        )
    )


def open_all(page: Page) -> None:
    """Open all that is closed, also within what was closed."""
    page.wait_for_function(
        """() => {
          const closed = [...document.querySelectorAll("details:not([open])")];
          for (const details of closed) details.open = true;
          return !closed.length;
        }"""
    )


@pytest.mark.parametrize("text", EVIL)
def test_texts_of_a_server_stay_text(show: Opening, text: str) -> None:
    page = show(hostile(text))
    open_all(page)
    assert is_clean(page)


def test_texts_of_another_report_stay_text(show: Opening) -> None:
    page = show(rich())
    evil = render_json(rich()).replace("throughput", "__proto__")
    evil = evil.replace(r"qwen3-0.6b", f"<img src=x onerror={OWNED}>").replace(
        "429: too many", f"<script>{OWNED}</script>"
    )
    choose(page, evil)
    expect(page.get_by_text(f"<img src=x onerror={OWNED}>")).to_be_visible()
    open_all(page)
    assert is_clean(page)


# Accessibility, print.


@pytest.mark.tier3
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("report", [rich, against, sweep, failed], ids=["rich", "against", "sweep", "failed"])
def test_the_page_is_accessible(show: Opening, report: Callable[[], BenchReport], size: Size, is_dark: bool) -> None:
    if not AXE.is_file():
        pytest.skip("run: npm ci --prefix tests/web")
    page = show(report(), size=size, is_dark=is_dark)
    open_all(page)
    page.evaluate(AXE.read_text("utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_dark_page_is_printed_in_light_colours(show: Opening) -> None:
    page = show(rich(steps=rich().steps[1:2]), is_dark=True)
    plot(page, "Tokens over time")
    before = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--text')")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--text')") != before
    assert plot(page, "Tokens over time").evaluate(INKED)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--text')") == before
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_table_of_steps_fits_a_printed_page(show: Opening) -> None:
    page = show(rich(), size=(720, 1000))
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth <= 720")
    assert page.evaluate("document.querySelectorAll('.scroll table').length > 1")
    assert page.evaluate("[...document.querySelectorAll('.scroll table')].every((table) => table.offsetWidth <= 720)")
