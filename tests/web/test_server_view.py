"""The server view: what the server knows of itself, and never what people said."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.live.faults import LINUX, LONG, begin, engine_of, small
from tests.live.raw import judged
from tests.live.server import Running
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
    """A part of the view."""
    return page.server.get_by_role("region", name=name, exact=True)


def cell(page: Visit, room: str, row: str, column: str) -> Locator:
    """What a table says of something."""
    return section(page, room).get_by_role("row").filter(has_text=row).first.locator(f'[data-label="{column}"]')


def said(server: Running, text: str = SECRET) -> None:
    """Somebody else has asked, and was answered."""
    with begin(server, text, model="scripted") as line:
        judged(line.reply())


@pytest.fixture
def viewed(page: Visit) -> Visit:
    """The server view of the stage."""
    page.go("Server")
    expect(page.server).to_be_visible()
    return page


def test_a_model_is_loaded_and_unloaded_by_hand(visit: Visiting, tiny_model: Path) -> None:
    with small(tiny_model, key=None) as running:
        page = visit(running.root)
        page.go("Server")
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("ready")
        section(page, "Models").get_by_role("button", name="Unload tiny").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("unloaded")
        section(page, "Models").get_by_role("button", name="Load tiny").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("ready")
        expect(cell(page, "Models", "tiny", "Slots busy")).to_contain_text("0 of 1")


@LINUX
def test_who_would_end_answers_is_asked_first(visit: Visiting, tiny_model: Path) -> None:
    with (
        small(tiny_model, key=None) as running,
        begin(running, max_tokens=LONG) as line,
        engine_of(running) as engine,
    ):
        line.wait(b"data: ")
        engine.hold()
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
        engine.go()
        dialog.get_by_role("button", name="Unload").click()
        expect(cell(page, "Models", "tiny", "State")).to_contain_text("unloaded")


def test_an_upstream_is_shown_with_what_it_does(viewed: Visit, stage: Stage) -> None:
    stage.will(MockReply(saying("no end").pieces[:-1]))
    said(stage.server)
    expect(cell(viewed, "Upstreams", "scripted", "Health")).to_contain_text("answers")
    expect(cell(viewed, "Upstreams", "scripted", "Breaker")).to_contain_text("closed")
    expect(cell(viewed, "Upstreams", "scripted", "Running")).to_contain_text("0 of")
    expect(cell(viewed, "Upstreams", "scripted", "Repairs").get_by_role("button").first).to_be_visible()


def test_the_rule_behind_a_repair_opens_its_page(viewed: Visit, stage: Stage) -> None:
    stage.will(MockReply(saying("no end").pieces[:-1]))
    said(stage.server)
    link = cell(viewed, "Upstreams", "scripted", "Repairs").get_by_role("button").first
    name = link.inner_text()
    link.click()
    expect(viewed.page.get_by_role("dialog")).to_contain_text(name)


def test_a_request_that_waits_is_counted(viewed: Visit, stage: Stage) -> None:
    stage.will(MockReply((ROLE, delta({"content": "Once"})), end="hang"))
    with begin(stage.server, model="scripted") as line:
        line.wait(b"Once")
        expect(cell(viewed, "Upstreams", "scripted", "Running")).to_contain_text("1 of")
    expect(cell(viewed, "Upstreams", "scripted", "Running")).to_contain_text("0 of")


def test_an_upstream_that_fails_is_shown_with_its_breaker(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.go("Server")
        expect(cell(page, "Upstreams", "scripted", "Breaker")).to_contain_text("closed")
        stage.upstream.stop()
        for _ in range(20):
            with begin(stage.server, model="scripted") as line:
                line.reply()
        expect(cell(page, "Upstreams", "scripted", "Breaker")).to_contain_text("open")


def test_an_upstream_that_can_be_reached_and_fails_every_request_is_not_green(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.go("Server")
        health = cell(page, "Upstreams", "scripted", "Health")
        expect(health.locator(".badge.good")).to_have_text("answers")
        stage.will(json_reply({"error": {"message": "forbidden"}}, 403))
        for _ in range(3):
            with begin(stage.server, model="scripted") as line:
                assert line.reply().status == 502
        expect(health.locator(".badge.bad")).to_have_text("requests fail")
        expect(health).to_contain_text("the last: 403")
        stage.will(saying("fine"))
        said(stage.server)
        expect(health.locator(".badge.good")).to_have_text("answers")


def test_a_server_that_went_away_is_told_and_found_again(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.allow("ERR_CONNECTION_REFUSED")
        page.go("Server")
        expect(cell(page, "Upstreams", "scripted", "Health")).to_be_visible()
        assert stage.server.end() == 0
        expect(page.server.get_by_role("alert").or_(page.server.get_by_role("status")).first).to_contain_text("server")


def test_recent_requests_are_listed_without_what_was_said(viewed: Visit, stage: Stage) -> None:
    stage.will(saying("Polly wants a cracker", counts=(11, 22)))
    said(stage.server)
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


def test_a_failed_request_tells_its_error_and_not_its_words(viewed: Visit, stage: Stage) -> None:
    stage.will(json_reply({"error": {"message": "Polly is too long"}}, 400))
    with begin(stage.server, SECRET, model="scripted") as line:
        assert line.reply().status == 400
    recent = section(viewed, "Recent requests")
    expect(recent.get_by_role("row").nth(1).locator('[data-label="Status"]')).to_contain_text("400")
    assert "parrot" not in recent.inner_text()


def test_charts_grow_while_they_are_looked_at(viewed: Visit, stage: Stage) -> None:
    stage.will(saying("fine"))
    said(stage.server)
    charts = section(viewed, "Charts")
    expect(charts.locator("figure").first).to_be_visible()
    # A line needs two points, and they come by themselves.
    viewed.page.wait_for_function(
        "() => [...document.querySelectorAll('figure path.line')].some((line) => line.getAttribute('d').includes('L'))"
    )


def test_nothing_is_asked_while_nobody_looks(page: Visit) -> None:
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
    """A stage for an admin and a guest."""
    with staged(tmp_path_factory.mktemp("guarded"), more=KEYS) as made:
        yield made


def entered(visit: Visiting, stage: Stage, key: str) -> Visit:
    """The server view of who has this key, after one chat."""
    page = visit(stage.server.root)
    page.allow("status of 401")
    give_key(page, key)
    stage.will(saying("fine", counts=(30, 12)))
    page.choose_model("scripted")
    page.send("Hello")
    expect(page.answer).to_contain_text("fine")
    page.settle()
    page.go("Server")
    return page


def test_the_usage_of_keys_is_counted(visit: Visiting, guarded: Stage) -> None:
    page = entered(visit, guarded, GUEST)
    expect(cell(page, "Keys", "guest", "Requests")).not_to_have_text("0")
    expect(cell(page, "Keys", "guest", "Requests left")).to_contain_text("of 100")
    expect(cell(page, "Keys", "guest", "Tokens left")).to_contain_text("of 10,000")


def test_a_guest_sees_less_than_an_admin(visit: Visiting, guarded: Stage) -> None:
    boss = entered(visit, guarded, BOSS)
    guest = entered(visit, guarded, GUEST)
    expect(section(guest, "Keys").get_by_role("row").filter(has_text="guest")).to_have_count(1)
    expect(section(guest, "Keys").get_by_role("row").filter(has_text="boss")).to_have_count(0)
    expect(section(guest, "Upstreams")).to_be_hidden()
    expect(section(guest, "Recent requests").get_by_role("row").filter(has_text="boss")).to_have_count(0)
    expect(section(boss, "Upstreams")).to_be_visible()
    expect(section(boss, "Keys").get_by_role("row").filter(has_text="guest")).to_have_count(1)


def test_a_recorded_request_opens_in_the_inspector(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path, "--record", str(tmp_path / "recorded")) as stage:
        stage.will(saying("kept for later"))
        said(stage.server)
        page = visit(stage.server.root)
        page.go("Server")
        section(page, "Recent requests").get_by_role("button", name="Open in the inspector").first.click()
        expect(page.inspector).to_contain_text("kept for later")
