"""API keys in the server view: admins list, add and remove those of the key file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.live.keys_command import chat_status, has_status
from tests.support.server import KEY
from tests.support.upstream import eventually
from tests.web.browser import DESKTOP, PHONE, Size, Visit
from tests.web.conftest import Visiting
from tests.web.stage import Stage, saying, staged
from tests.web.test_access import overflow, violations, with_axe
from tests.web.test_chat import give_key
from tests.web.test_server_view import GUEST, KEYS, section

pytestmark = pytest.mark.tier3


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Stage]:
    """A gateway with a plain key, named keys in its settings, and an empty key file."""
    (tmp_path / "keys.json").write_text("{}", "utf-8")
    with staged(tmp_path, "--keys-file", str(tmp_path / "keys.json"), key=KEY, more=KEYS) as stage:
        stage.set_replies(saying("fine"))
        yield stage


def opened(visit: Visiting, stage: Stage, key: str = KEY, *, size: Size = DESKTOP, is_dark: bool = False) -> Visit:
    """The server view."""
    page = visit(stage.server.root, size=size, is_dark=is_dark)
    page.allow("status of 4(01|09)")
    give_key(page, key)
    page.go("Server")
    expect(section(page, "Keys")).to_be_visible()
    return page


def panel(page: Visit) -> Locator:
    """The section of stored keys."""
    return section(page, "API keys")


def test_a_key_is_added_shown_once_used_and_removed(visit: Visiting, kept: Stage, tmp_path: Path) -> None:
    page = opened(visit, kept)
    expect(panel(page)).to_contain_text("There are no stored keys yet.")
    panel(page).get_by_role("button", name="Add key").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog.get_by_label("Name")).to_be_focused()
    dialog.get_by_label("Name").fill("not a name")
    page.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("1 to 64 letters")
    dialog.get_by_label("Name").fill("ci")
    dialog.get_by_label("Models", exact=True).fill("scripted, q*")
    dialog.get_by_label("Requests per minute").fill("60")
    dialog.get_by_label("Tokens per minute").fill("0")
    page.page.keyboard.press("Enter")
    shown = dialog.get_by_label("Key of ci")
    key = shown.input_value()
    assert key.startswith("wd-")
    dialog.get_by_role("button", name="Copy the key").click()
    page.page.wait_for_function("async (key) => (await navigator.clipboard.readText()) === key", arg=key)
    dialog.get_by_role("button", name="Close").click()
    row = panel(page).get_by_role("row").filter(has_text="ci")
    expect(row).to_contain_text("scripted, q*")
    expect(row).to_contain_text("60")
    expect(row).to_contain_text("no limit")
    eventually(lambda: chat_status(kept.server, key, model="scripted") == 200)
    assert chat_status(kept.server, key, model="other") == 403
    for text in (page.page.content(), (tmp_path / "keys.json").read_text("utf-8"), kept.server.log.join()):
        assert key not in text
    assert json.loads((tmp_path / "keys.json").read_text("utf-8")).popitem()[1]["models"] == ["scripted", "q*"]
    row.get_by_role("button", name="Remove the key of ci").click()
    page.page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(panel(page)).to_contain_text("There are no stored keys yet.")
    eventually(lambda: has_status(kept.server, key, 401))


def test_a_taken_name_is_reported_and_the_form_keeps_its_values(visit: Visiting, kept: Stage) -> None:
    page = opened(visit, kept)
    panel(page).get_by_role("button", name="Add key").click()
    dialog = page.page.get_by_role("dialog")
    page.allow("status of 400")
    dialog.get_by_label("Name").fill("guest")
    dialog.get_by_label("Models", exact=True).fill("scripted")
    page.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("key in the settings")
    expect(dialog.get_by_label("Models", exact=True)).to_have_value("scripted")
    page.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_only_admins_of_a_server_with_a_store_see_the_panel(visit: Visiting, kept: Stage, stage: Stage) -> None:
    expect(panel(opened(visit, kept, GUEST))).to_be_hidden()
    page = visit(stage.server.root)
    page.go("Server")
    expect(section(page, "Keys")).to_be_visible()
    expect(panel(page)).to_be_hidden()


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_panel_is_accessible_and_fits(visit: Visiting, kept: Stage, size: Size, is_dark: bool) -> None:
    page = with_axe(opened(visit, kept, size=size, is_dark=is_dark))
    panel(page).get_by_role("button", name="Add key").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert violations(page) == [], "the form"
    dialog.get_by_label("Name").fill("ci")
    page.page.keyboard.press("Enter")
    expect(dialog.get_by_label("Key of ci")).to_be_visible()
    assert violations(page) == [], "the key"
    page.page.keyboard.press("Escape")
    expect(panel(page).get_by_role("button", name="Remove the key of ci")).to_be_visible()
    assert violations(page) == [], "the list"
    assert overflow(page) == 0
