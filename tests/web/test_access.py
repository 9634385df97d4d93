"""Accessibility: axe-core, keyboard, phone size, dark theme."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.browser import DESKTOP, HOME, PHONE, Size, Visit
from tests.web.conftest import Visiting
from tests.web.stage import DONE, ROLE, STOP, Stage, delta, usage
from welldone.mock.script import MockReply

pytestmark = pytest.mark.tier3

AXE = HOME / "node_modules" / "axe-core" / "axe.min.js"
RICH = MockReply(
    (
        ROLE,
        delta({"reasoning_content": "Let me think."}),
        delta({"content": "# Title\n\nSome *text* with `code` and a [link](https://example.com/).\n\n"}),
        delta({"content": "```python\nprint('hello')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"}),
        delta({"content": "> quoted\n\n- one\n- two\n\n$$\\sqrt{2}$$\n"}),
        STOP,
        usage(7, 40),
        DONE,
    )
)
THEMES = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
TABS = ("Frames", "Repairs", "Timeline", "Request", "Lint")
MANY = 60  # more tab stops than the page has


def violations(visit: Visit) -> list[str]:
    """Return serious violations that axe-core finds."""
    found: dict[str, Any] = visit.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def with_axe(visit: Visit) -> Visit:
    """Inject axe-core."""
    if not AXE.is_file():
        pytest.skip("run: npm ci --prefix tests/web")
    visit.page.evaluate(AXE.read_text(encoding="utf-8"))
    return visit


def overflow(visit: Visit) -> int:
    """Return by how many pixels the page overflows horizontally."""
    width: int = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width


@SIZES
@THEMES
def test_axe_finds_no_serious_violations(visit: Visiting, stage: Stage, size: Size, is_dark: bool) -> None:
    page = with_axe(visit(stage.server.root, size=size, is_dark=is_dark))
    assert violations(page) == [], "an empty chat"
    stage.set_replies(RICH)
    page.send("Hello")
    expect(page.answer).to_contain_text("quoted")
    page.settle()
    page.chat.get_by_role("button", name="Settings", exact=True).click()
    assert violations(page) == [], "a chat and its settings"
    page.page.keyboard.press("Escape")
    page.page.get_by_role("button", name="Keyboard shortcuts").click()
    expect(page.page.get_by_role("dialog")).to_be_visible()
    assert violations(page) == [], "the shortcuts"
    page.page.keyboard.press("Escape")
    for tab in TABS:
        page.tab(tab)
        assert violations(page) == [], tab
    page.page.get_by_role("button", name="Inspector", exact=True).click()
    page.go("Server")
    expect(page.server.get_by_text("scripted").first).to_be_visible()
    assert violations(page) == [], "the server view"


def focused(page: Visit) -> str:
    """Accessible name of the focused element."""
    name: str = page.page.evaluate(
        """() => {
          const at = document.activeElement;
          return at?.getAttribute("aria-label") || at?.labels?.[0]?.textContent.trim() || at?.textContent.trim() || "";
        }"""
    )
    return name


def tab_to(page: Visit, name: str) -> None:
    """Press Tab until an element with this name has the focus."""
    stops = []
    for _ in range(MANY):
        page.page.keyboard.press("Tab")
        stops.append(focused(page))
        if stops[-1] == name:
            return
    raise AssertionError(f"{name} was not among {stops}")


def test_the_chat_works_by_keyboard(page: Visit, stage: Stage) -> None:
    stage.set_replies(RICH)
    if focused(page) != "Message":
        tab_to(page, "Message")
    keyboard = page.page.keyboard
    keyboard.type("First line")
    keyboard.press("Shift+Enter")
    keyboard.type("second line")
    keyboard.press("Enter")
    expect(page.answer).to_contain_text("quoted")
    page.settle()
    assert stage.last_request()["messages"][-1]["content"] == "First line\nsecond line"
    expect(page.message).to_be_focused()
    expect(page.message).to_have_value("")
    keyboard.press("Alt+2")
    expect(page.server).to_be_visible()
    keyboard.press("Alt+1")
    expect(page.chat).to_be_visible()
    tab_to(page, "Keyboard shortcuts")
    keyboard.press("Enter")
    expect(page.page.get_by_role("dialog")).to_be_visible()
    keyboard.press("Escape")
    expect(page.page.get_by_role("dialog")).to_be_hidden()
    assert focused(page) == "Keyboard shortcuts"


def test_escape_stops_an_answer(page: Visit, stage: Stage) -> None:
    stage.set_replies(MockReply((ROLE, delta({"content": "Once"})), end="hang"))
    page.send("Hello")
    expect(page.answer).to_contain_text("Once")
    page.page.keyboard.press("Escape")
    page.settle()
    stage.upstream.wait_until(lambda one: one.requests[-1].end == "left")


@pytest.mark.parametrize("width", [320, 768, 1280])
def test_the_page_never_overflows_horizontally(visit: Visiting, stage: Stage, width: int) -> None:
    page = visit(stage.server.root, size=(width, 800))
    assert overflow(page) == 0
    stage.set_replies(
        MockReply((ROLE, delta({"content": "w" * 5000 + "\n\n```\n" + "c" * 5000 + "\n```\n"}), STOP, DONE))
    )
    page.send("u" * 5000)
    page.settle()
    assert overflow(page) == 0
    page.go("Server")
    expect(page.server.get_by_text("scripted").first).to_be_visible()
    assert overflow(page) == 0
