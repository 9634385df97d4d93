"""The server view: state of the server, without the content of conversations."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.support.faults import LINUX, LONG_ANSWER, engine_of, small_server, start_chat
from tests.support.raw import parse_valid
from tests.support.server import Running
from tests.web.browser import Visit
from tests.web.conftest import Visiting
from tests.web.stage import ROLE, Stage, delta, saying, staged
from tests.web.test_chat import give_key
from welldone.mock.script import MockReply, json_reply

pytestmark = pytest.mark.tier3

SECRET = "the parrot is called Polly"
KEYS = """
[keys.boss]
key = "wd-boss-0123456789abcdef"
admin = true

[keys.guest]
key = "wd-guest-0123456789abcdef"
models = ["scripted"]
requests_per_minute = 100
tokens_per_minute = 10000
"""
MINUTE_MS = 60_000
BOSS, GUEST = "wd-boss-0123456789abcdef", "wd-guest-0123456789abcdef"


def section(page: Visit, name: str) -> Locator:
    """A section of the view."""
    return page.server.get_by_role("region", name=name, exact=True)


def cell(page: Visit, section_name: str, row: str, column: str) -> Locator:
    """A cell of a table."""
    return section(page, section_name).get_by_role("row").filter(has_text=row).first.locator(f'[data-label="{column}"]')


def complete_request(server: Running, text: str = SECRET) -> None:
    """Complete a request of another client."""
    with start_chat(server, text, model="scripted") as line:
        parse_valid(line.reply())


@pytest.fixture
def viewed(page: Visit) -> Visit:
    """The server view, opened."""
    page.go("Server")
    expect(page.server).to_be_visible()
    return page


def test_a_model_is_loaded_and_unloaded_with_buttons(visit: Visiting, tiny_model: Path) -> None:
    with small_server(tiny_model, key=None) as running:
        page = visit(running.root)
        page.go("Server")
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("ready")
        section(page, "Models").get_by_role("button", name="Unload tiny").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("unloaded")
        section(page, "Models").get_by_role("button", name="Load tiny").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("ready")
        expect(cell(page, "Models", "tiny", "Slots busy")).to_contain_text("0 of 1")


@LINUX
def test_unloading_a_busy_model_needs_confirmation(visit: Visiting, tiny_model: Path) -> None:
    with (
        small_server(tiny_model, key=None) as running,
        start_chat(running, max_tokens=LONG_ANSWER) as line,
        engine_of(running) as engine,
    ):
        line.wait(b"data: ")
        engine.suspend()
        page = visit(running.root)
        page.allow("status of 409")
        page.go("Server")
        expect(cell(page, "Models", "tiny", "Slots busy")).to_contain_text("1 of 1")
        unload = section(page, "Models").get_by_role("button", name="Unload tiny")
        dialog = page.page.get_by_role("dialog")
        unload.click()
        dialog.get_by_role("button", name="Cancel").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("ready")
        unload.click()
        expect(dialog).to_be_visible()
        engine.resume()
        dialog.get_by_role("button", name="Unload").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("unloaded")


def test_an_upstream_is_shown_with_its_state(viewed: Visit, stage: Stage) -> None:
    stage.set_replies(MockReply(saying("no end").pieces[:-1]))
    complete_request(stage.server)
    expect(cell(viewed, "Upstreams", "scripted", "Health")).to_contain_text("healthy")
    expect(cell(viewed, "Upstreams", "scripted", "Breaker")).to_contain_text("closed")
    expect(cell(viewed, "Upstreams", "scripted", "Running")).to_contain_text("0 of")
    expect(cell(viewed, "Upstreams", "scripted", "Repairs").get_by_role("button").first).to_be_visible()


def test_a_repair_links_to_the_page_of_its_rule(viewed: Visit, stage: Stage) -> None:
    stage.set_replies(MockReply(saying("no end").pieces[:-1]))
    complete_request(stage.server)
    link = cell(viewed, "Upstreams", "scripted", "Repairs").get_by_role("button").first
    name = link.inner_text()
    link.click()
    expect(viewed.page.get_by_role("dialog")).to_contain_text(name)


def test_a_running_request_is_counted(viewed: Visit, stage: Stage) -> None:
    stage.set_replies(MockReply((ROLE, delta({"content": "Once"})), end="hang"))
    with start_chat(stage.server, model="scripted") as line:
        line.wait(b"Once")
        expect(cell(viewed, "Upstreams", "scripted", "Running")).to_contain_text("1 of")
    expect(cell(viewed, "Upstreams", "scripted", "Running")).to_contain_text("0 of")


def test_the_circuit_breaker_of_a_failing_upstream_is_shown(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.go("Server")
        expect(cell(page, "Upstreams", "scripted", "Breaker")).to_contain_text("closed")
        stage.upstream.stop()
        for _ in range(20):
            with start_chat(stage.server, model="scripted") as line:
                line.reply()
        expect(cell(page, "Upstreams", "scripted", "Breaker")).to_contain_text("open")


def test_an_upstream_that_fails_every_request_is_not_shown_as_healthy(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.go("Server")
        health = cell(page, "Upstreams", "scripted", "Health")
        expect(health.locator(".badge.good")).to_have_text("healthy")
        stage.set_replies(json_reply({"error": {"message": "forbidden"}}, 403))
        for _ in range(3):
            with start_chat(stage.server, model="scripted") as line:
                assert line.reply().status == 502
        expect(health.locator(".badge.bad")).to_have_text("requests fail")
        expect(health).to_contain_text("the last: 403")
        stage.set_replies(saying("fine"))
        complete_request(stage.server)
        expect(health.locator(".badge.good")).to_have_text("healthy")


def test_error_and_repair_rates_of_the_last_minutes_are_shown(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.go("Server")
        errors = cell(page, "Upstreams", "scripted", "Errors, 5 min")
        repaired = cell(page, "Upstreams", "scripted", "Repaired, 5 min")
        expect(errors).to_have_text("\u2013")
        complete_request(stage.server)
        expect(errors.locator(".badge.good")).to_have_text("0 %")
        expect(errors).to_contain_text("0 of 1")
        stage.set_replies(MockReply(saying("no end").pieces[:-1]))
        complete_request(stage.server)
        expect(repaired.locator(".badge.warn")).to_have_text("50 %")
        expect(repaired).to_contain_text("1 would break clients")
        findings = cell(page, "Upstreams", "scripted", "Repairs")
        expect(findings.get_by_role("listitem").filter(has_text="end-done-sent")).to_contain_text("breaks")
        stage.set_replies(json_reply({"error": {"message": "no memory"}}, 500))
        with start_chat(stage.server, model="scripted") as line:
            assert line.reply().status >= 500
        expect(errors.locator(".badge.bad")).to_have_text(re.compile(r"^\d+ %$"))


def test_an_unreachable_server_is_reported(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.allow("ERR_CONNECTION_REFUSED")
        page.go("Server")
        expect(cell(page, "Upstreams", "scripted", "Health")).to_be_visible()
        assert stage.server.end() == 0
        expect(page.server.get_by_role("alert").or_(page.server.get_by_role("status")).first).to_contain_text("server")


def test_recent_requests_are_listed_without_content(viewed: Visit, stage: Stage) -> None:
    stage.set_replies(saying("Polly wants a cracker", counts=(11, 22)))
    complete_request(stage.server)
    row = section(viewed, "Recent requests").get_by_role("row").filter(has_text="/v1/chat/completions").first
    expect(row.locator('[data-label="Model"]')).to_have_text("scripted")
    expect(row.locator('[data-label="Status"]')).to_contain_text("200")
    expect(row.locator('[data-label="In"]')).to_have_text("11")
    expect(row.locator('[data-label="Out"]')).to_have_text("22")
    expect(row.locator('[data-label="Upstream"]')).to_contain_text("a")
    shown = viewed.page.evaluate("document.body.textContent")
    assert "Polly" not in shown
    assert SECRET not in shown
    section(viewed, "Recent requests").get_by_label("Status").select_option(label="5xx: failed")
    expect(row).to_have_count(0)


def test_a_failed_request_is_listed_without_the_message_of_the_upstream(viewed: Visit, stage: Stage) -> None:
    stage.set_replies(json_reply({"error": {"message": "Polly is too long"}}, 400))
    with start_chat(stage.server, SECRET, model="scripted") as line:
        assert line.reply().status == 400
    recent = section(viewed, "Recent requests")
    expect(recent.get_by_role("row").nth(1).locator('[data-label="Status"]')).to_contain_text("400")
    assert "parrot" not in recent.inner_text()


def test_charts_are_updated_while_they_are_visible(viewed: Visit, stage: Stage) -> None:
    stage.set_replies(saying("fine"))
    complete_request(stage.server)
    charts = section(viewed, "Charts")
    expect(charts.locator("figure").first).to_be_visible()
    # A line needs two points, from two polls.
    viewed.page.wait_for_function(
        "() => [...document.querySelectorAll('figure path.line')].some((line) => line.getAttribute('d').includes('L'))"
    )


def test_nothing_is_polled_while_the_view_is_hidden(page: Visit) -> None:
    clock = page.page.clock
    clock.install()
    page.open()
    page.go("Server")
    expect(cell(page, "Upstreams", "scripted", "Health")).to_be_visible()
    with page.page.expect_request("**/page/api/state"):
        clock.run_for(MINUTE_MS)
    page.go("Chat")
    expect(page.chat).to_be_visible()
    before = len(page.urls)
    clock.run_for(MINUTE_MS)
    assert page.urls[before:] == []


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway with keys for an admin and a guest."""
    with staged(tmp_path_factory.mktemp("guarded"), more=KEYS) as made:
        yield made


def open_with_key(visit: Visiting, stage: Stage, key: str) -> Visit:
    """The server view with this key, after one chat."""
    page = visit(stage.server.root)
    page.allow("status of 401")
    give_key(page, key)
    stage.set_replies(saying("fine", counts=(30, 12)))
    page.choose_model("scripted")
    page.send("Hello")
    expect(page.answer).to_contain_text("fine")
    page.settle()
    page.go("Server")
    return page


def test_the_usage_of_keys_is_counted(visit: Visiting, guarded: Stage) -> None:
    page = open_with_key(visit, guarded, GUEST)
    expect(cell(page, "Keys", "guest", "Requests")).not_to_have_text("0")
    expect(cell(page, "Keys", "guest", "Requests left")).to_contain_text("of 100")
    expect(cell(page, "Keys", "guest", "Tokens left")).to_contain_text("of 10,000")


def test_a_client_without_admin_rights_sees_only_its_own_data(visit: Visiting, guarded: Stage) -> None:
    boss = open_with_key(visit, guarded, BOSS)
    guest = open_with_key(visit, guarded, GUEST)
    expect(section(guest, "Keys").get_by_role("row").filter(has_text="guest")).to_have_count(1)
    expect(section(guest, "Keys").get_by_role("row").filter(has_text="boss")).to_have_count(0)
    expect(section(guest, "Upstreams")).to_be_hidden()
    expect(section(guest, "Recent requests").get_by_role("row").filter(has_text="boss")).to_have_count(0)
    expect(section(boss, "Upstreams")).to_be_visible()
    expect(section(boss, "Keys").get_by_role("row").filter(has_text="guest")).to_have_count(1)


def test_a_recorded_request_opens_in_the_inspector(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path, "--record", str(tmp_path / "recorded")) as stage:
        stage.set_replies(saying("kept for later"))
        complete_request(stage.server)
        page = visit(stage.server.root)
        page.go("Server")
        section(page, "Recent requests").get_by_role("button", name="Open in the inspector").first.click()
        expect(page.inspector).to_contain_text("kept for later")
