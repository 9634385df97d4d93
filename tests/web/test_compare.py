"""The same prompt side by side: direct and through welldone, or two models."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.support.server import Running
from tests.support.upstream import Upstream, gateway, upstream
from tests.web.browser import DESKTOP, PHONE, Size, Visit
from tests.web.conftest import Visiting
from tests.web.stage import ROLE, STOP, Stage, delta, saying
from tests.web.test_access import overflow, violations, with_axe
from tests.web.test_chat import give_key
from tests.web.test_inspector import BROKEN
from welldone.mock.script import MockReply, json_reply
from welldone.mock.server import MockHttpRequest

pytestmark = pytest.mark.tier3

REPLIES = {
    "good": saying("a ", "good ", "answer"),
    "flawed": BROKEN,
    "slow": MockReply((ROLE, delta({"content": "Once upon"})), end="hang"),
    "down": json_reply({"error": {"message": "out of memory"}}, 500),
    "cut": MockReply((ROLE, delta({"content": "half of"})), end="cut"),
    "unfinished": MockReply((ROLE, delta({"content": "no reason"}))),
}


def reply_to(request: MockHttpRequest) -> MockReply:
    """The reply of the model that a request names."""
    return REPLIES[json.loads(request.body)["model"]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Upstream]]:
    """A gateway with a model for each kind of reply."""
    with upstream(reply_to) as made:
        folder = tmp_path_factory.mktemp("models")
        with gateway(folder, made.url, each={"models": list(REPLIES)}, key=None) as server:
            yield server, made


@pytest.fixture
def compared(visit: Visiting, models: tuple[Running, Upstream]) -> Visit:
    """The view, opened."""
    return opened(visit(models[0].root))


def opened(page: Visit) -> Visit:
    """Open the view."""
    page.go("Compare")
    expect(view(page).get_by_role("combobox", name="Model", exact=True)).to_be_enabled()
    return page


def view(page: Visit) -> Locator:
    """The view."""
    return page.page.get_by_role("region", name="Compare", exact=True)


def column(page: Visit, name: str) -> Locator:
    """One of the columns: Left or Right."""
    return view(page).get_by_role("region", name=name, exact=True)


def total(page: Visit, name: str, label: str) -> Locator:
    """One of the figures of a column."""
    return column(page, name).locator(f"dt:text-is('{label}') + dd")


def compare(page: Visit, model: str, other: str = "", prompt: str = "Hello") -> None:
    """Start a comparison: with the upstream itself, or with another model."""
    if other:
        view(page).get_by_label("Columns").select_option("Two models")
        view(page).get_by_label("Second model").select_option(other)
    view(page).get_by_label("Model", exact=True).select_option(model)
    view(page).get_by_label("Prompt", exact=True).fill(prompt)
    view(page).get_by_role("button", name="Compare", exact=True).click()


def test_both_wires_of_one_request_are_shown_beside_each_other(
    compared: Visit, models: tuple[Running, Upstream]
) -> None:
    before = len(models[1].posts())
    compare(compared, "flawed")
    expect(view(compared)).to_contain_text("Both columns have the same text.")
    assert len(models[1].posts()) == before + 1
    left, right = column(compared, "Left"), column(compared, "Right")
    expect(left.get_by_role("heading", level=3)).to_contain_text("Direct")
    expect(right.get_by_role("heading", level=3)).to_have_text("Through welldone")
    expect(left).to_contain_text("The stream ended without [DONE].")
    expect(total(compared, "Left", "Outcome")).to_have_text("broken")
    expect(total(compared, "Right", "Outcome")).to_have_text("whole")
    for name in ("Left", "Right"):
        expect(column(compared, name).get_by_role("region", name=f"{name}: answer")).to_have_text("It is fine.")
        for label in ("TTFT", "Time"):
            expect(total(compared, name, label)).to_have_text(re.compile(r"^[\d.]+ (µs|ms|s)$"))
        expect(total(compared, name, "Tokens in + out")).to_have_text("7 + 3")
    sent = right.get_by_role("grid")
    expect(sent).to_contain_text("[DONE]")
    expect(left.get_by_role("grid")).not_to_contain_text("[DONE]")
    expect(total(compared, "Left", "Bytes")).to_have_text(f"{len(BROKEN.body)} B")
    # Repairs are grouped by rule, and lead to the upstream's frame.
    item = right.get_by_role("listitem").filter(has=compared.page.get_by_role("button", name="delta-role-once"))
    expect(item).to_contain_text("\u00d7 2")
    item.get_by_role("button", name="upstream's frame").click()
    expect(left.get_by_role("region", name="Frame", exact=True)).to_contain_text("delta-role-once")


def test_a_correct_stream_is_the_same_on_both_sides(compared: Visit) -> None:
    compare(compared, "good")
    expect(view(compared)).to_contain_text("Both columns have the same text.")
    for name in ("Left", "Right"):
        expect(total(compared, name, "Outcome")).to_have_text("whole")
        expect(total(compared, name, "Frames")).to_have_text(str(len(REPLIES["good"].pieces)))
    expect(column(compared, "Right")).to_contain_text("Nothing to repair: the stream was correct.")


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("down", "The upstream returned 500"),
        ("cut", "The stream was cut off"),
        ("unfinished", "The stream ended without a finish_reason."),
    ],
)
def test_what_is_wrong_with_the_upstream_is_named_in_its_column(compared: Visit, model: str, text: str) -> None:
    compared.allow("status of 50")
    compare(compared, model)
    expect(column(compared, "Left")).to_contain_text(text)
    expect(total(compared, "Left", "Outcome")).to_have_text("broken")
    expect(view(compared).get_by_role("button", name="Compare", exact=True)).to_be_visible()


def test_a_retry_is_named_and_direct_is_the_first_attempt(visit: Visiting, tmp_path: Path) -> None:
    with upstream(lambda _: REPLIES["down"]) as down, upstream(lambda _: REPLIES["good"]) as good:
        each = {"models": ["good"], "weight": 1}
        with gateway(tmp_path, down.url, good.url, each=each, key=None) as server:
            page = opened(visit(server.root))
            # Whichever upstream is tried first, one of two requests begins with the one that fails.
            for _ in range(8):
                compare(page, "good")
                expect(total(page, "Right", "Outcome")).to_have_text("whole")
                expect(view(page)).to_contain_text(re.compile("same text|The first attempt failed"))
                if "The first attempt failed" in view(page).inner_text():
                    break
            expect(total(page, "Left", "Status")).to_have_text("500")
            expect(total(page, "Left", "Outcome")).to_have_text("broken")
            answer = column(page, "Right").get_by_role("region", name="Right: answer")
            expect(answer).to_have_text("a good answer")


def test_two_models_answer_at_the_same_time(compared: Visit, models: tuple[Running, Upstream]) -> None:
    before = len(models[1].posts())
    compare(compared, "flawed", "good", "Which is better?")
    expect(view(compared)).to_contain_text("Both columns have ended.")
    left, right = column(compared, "Left"), column(compared, "Right")
    expect(left.get_by_role("region", name="Left: answer")).to_have_text("It is fine.")
    expect(right.get_by_role("region", name="Right: answer")).to_have_text("a good answer")
    expect(left.get_by_role("button", name="delta-role-once")).to_be_visible()
    expect(right).to_contain_text("Nothing to repair")
    posts = [json.loads(post.body) for post in models[1].posts()[before:]]
    assert sorted(post["model"] for post in posts) == ["flawed", "good"]
    assert posts[0]["messages"] == posts[1]["messages"] == [{"role": "user", "content": "Which is better?"}]
    # Each column has both of its wires.
    expect(left.get_by_role("grid")).to_contain_text("[DONE]")
    left.get_by_role("group", name="Frames of").get_by_role("button", name="Upstream").click()
    expect(left.get_by_role("grid")).not_to_contain_text("[DONE]")


def test_an_error_in_one_column_leaves_the_other_alone(compared: Visit) -> None:
    compared.allow("status of 50")
    compare(compared, "down", "good")
    expect(column(compared, "Right").get_by_role("region", name="Right: answer")).to_have_text("a good answer")
    expect(total(compared, "Right", "Outcome")).to_have_text("whole")
    expect(total(compared, "Left", "Outcome")).to_have_text("failed")
    expect(column(compared, "Left").get_by_role("status")).to_contain_text("500")


def test_one_column_can_be_stopped_and_the_other_ends(compared: Visit, models: tuple[Running, Upstream]) -> None:
    compare(compared, "slow", "good")
    expect(column(compared, "Left").get_by_role("region", name="Left: answer")).to_have_text("Once upon")
    expect(total(compared, "Right", "Outcome")).to_have_text("whole")
    column(compared, "Left").get_by_role("button", name="Stop", exact=True).click()
    expect(total(compared, "Left", "Outcome")).to_have_text("stopped")
    models[1].wait_until(lambda one: any(request.end == "left" for request in one.requests))
    expect(view(compared)).to_contain_text("Both columns have ended.")


def test_escape_stops_both_columns_and_the_prompt_is_sent_by_keyboard(compared: Visit) -> None:
    view(compared).get_by_label("Model", exact=True).select_option("slow")
    prompt = view(compared).get_by_label("Prompt", exact=True)
    prompt.fill("Tell a story")
    prompt.press("Control+Enter")
    expect(column(compared, "Left").get_by_role("region", name="Left: answer")).to_have_text("Once upon")
    compared.page.keyboard.press("Escape")
    expect(total(compared, "Right", "Outcome")).to_have_text("stopped")
    expect(view(compared).get_by_role("button", name="Compare", exact=True)).to_be_visible()


def test_settings_are_sent_and_invalid_ones_are_not(visit: Visiting, stage: Stage) -> None:
    page = opened(visit(stage.server.root))
    view(page).get_by_text("Settings").click()
    view(page).get_by_label("System prompt").fill("Be brief.")
    view(page).get_by_label("Temperature").fill("warm")
    compare(page, "scripted")
    expect(page.page.get_by_role("alert").get_by_text("not a number")).to_be_visible()
    expect(view(page).get_by_label("Temperature")).to_be_focused()
    assert stage.upstream.posts() == []
    view(page).get_by_label("Temperature").fill("0.5")
    stage.set_replies(MockReply((ROLE, delta({"content": "brief"}), STOP)))
    compare(page, "scripted")
    expect(view(page)).to_contain_text("Both columns have the same text.")
    sent = stage.last_request()
    assert sent["temperature"] == 0.5
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE, (320, 700)], ids=["desktop", "phone", "narrow"])
def test_the_view_is_accessible_and_fits(
    visit: Visiting, models: tuple[Running, Upstream], size: Size, is_dark: bool
) -> None:
    page = with_axe(opened(visit(models[0].root, size=size, is_dark=is_dark)))
    assert violations(page) == [], "empty"
    compare(page, "flawed")
    expect(view(page)).to_contain_text("Both columns have the same text.")
    assert violations(page) == [], "direct"
    assert overflow(page) == 0
    wide: int = view(page).evaluate("(element) => element.scrollWidth - element.clientWidth")
    assert wide == 0


def test_the_default_model_is_compared_with_its_engine(visit: Visiting, server: Running) -> None:
    page = visit(server.root)
    page.allow("status of 401")
    give_key(page)
    opened(page)
    view(page).get_by_text("Settings").click()
    view(page).get_by_label("Max tokens").fill("16")
    compare(page, server.model, prompt="Say hello.")
    expect(view(page)).to_contain_text("Both columns have the same text.")
    expect(total(page, "Left", "Frames")).not_to_have_text("0")


def test_a_path_of_the_view_is_an_address(visit: Visiting, models: tuple[Running, Upstream]) -> None:
    page = visit(models[0].root)
    page.open("/#compare")
    expect(view(page)).to_be_visible()
    page.page.keyboard.press("Alt+1")
    expect(page.chat).to_be_visible()
    page.page.keyboard.press("Alt+3")
    expect(view(page)).to_be_visible()
