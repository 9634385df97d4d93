"""Conversations: drafts, presets, versions of an answer, images and highlighted code."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.support.faults import small_server
from tests.web.browser import PHONE, Visit
from tests.web.conftest import Visiting
from tests.web.stage import DONE, ROLE, STOP, Stage, delta, saying
from tests.web.test_access import overflow, violations, with_axe
from tests.web.test_chat import import_file, roles, setting, settings
from welldone.mock.script import MockReply

pytestmark = pytest.mark.tier3

PASTE = """([name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  const event = new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
  document.getElementById("message").dispatchEvent(event);
}"""
SHOWN = "(canvas) => canvas.width > 1 && canvas.getContext('2d').getImageData(2, 2, 1, 1).data[0]"


def png(width: int, height: int, *, is_noisy: bool = False) -> bytes:
    """A red picture, or one that cannot be compressed."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    row = b"\xff\x00\x00" * width
    seed = bytes((place * place * 31 + place * 7) % 251 for place in range(3 * width))
    rows = [b"\0" + (bytes(one ^ (n * 37 % 256) for one in seed) if is_noisy else row) for n in range(height)]
    level = 0 if is_noisy else 9
    body = zlib.compress(b"".join(rows), level)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def paste(page: Visit, data: bytes, name: str = "red.png", kind: str = "image/png") -> None:
    """Paste a file into the message."""
    page.page.evaluate(PASTE, [name, kind, base64.b64encode(data).decode()])


def attached(page: Visit) -> Locator:
    """The images of the message that is being written."""
    return page.chat.get_by_role("list", name="Attached images").get_by_role("listitem")


def answered(page: Visit, text: str) -> None:
    """Wait for an answer."""
    expect(page.answer).to_contain_text(text)
    page.settle()


# Drafts and presets.


def test_a_draft_survives_a_reload_in_its_tab(page: Visit, stage: Stage) -> None:
    page.message.fill("Half a thought")
    page.open()
    expect(page.message).to_have_value("Half a thought")
    other = page.context.new_page()
    other.goto(page.origin)
    expect(other.get_by_role("textbox", name="Message", exact=True)).to_have_value("")
    stage.set_replies(saying("heard"))
    page.send("Half a thought")
    answered(page, "heard")
    page.open()
    expect(page.message).to_have_value("")


def test_the_inspector_is_closed_until_it_is_opened(page: Visit) -> None:
    expect(page.inspector).to_be_hidden()
    page.open_inspector()
    expect(page.inspector).to_be_visible()
    page.open()
    expect(page.inspector).to_be_visible()


def test_a_preset_is_saved_and_used_for_new_conversations(page: Visit, stage: Stage) -> None:
    setting(page, "System prompt", "Be brief.")
    setting(page, "Temperature", "0.5")
    settings(page).get_by_role("button", name="Save as preset").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("A preset needs a name.")
    dialog.get_by_label("Name").fill("Brief")
    page.page.keyboard.press("Enter")
    preset = settings(page).get_by_label("Preset")
    expect(preset).to_have_value("Brief")
    settings(page).get_by_label("Use for new conversations").check()
    page.open()
    expect(settings(page).get_by_label("System prompt")).to_have_value("Be brief.")
    stage.set_replies(saying("yes"))
    page.page.keyboard.press("Escape")
    page.send("Hello")
    answered(page, "yes")
    assert roles(stage) == [("system", "Be brief."), ("user", "Hello")]
    assert stage.last_request()["temperature"] == 0.5
    page.page.keyboard.press("Alt+N")
    expect(settings(page).get_by_label("Temperature")).to_have_value("0.5")
    # Selecting none empties the settings, which can be undone.
    preset.select_option("none")
    expect(settings(page).get_by_label("Temperature")).to_have_value("")
    page.page.get_by_role("button", name="Undo").click()
    expect(settings(page).get_by_label("Temperature")).to_have_value("0.5")
    settings(page).get_by_role("button", name="Delete").click()
    expect(preset.get_by_role("option")).to_have_text(["none"])
    page.open()
    page.page.keyboard.press("Alt+N")
    expect(settings(page).get_by_label("Temperature")).to_have_value("")


# Versions.


def test_a_retry_keeps_the_earlier_answer_as_a_version(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("first"), saying("follow-up"), saying("second"), saying("third"))
    page.send("Hello")
    answered(page, "first")
    page.send("And?")
    answered(page, "follow-up")
    page.articles("Assistant").first.get_by_role("button", name="Retry").click()
    answered(page, "second")
    expect(page.articles("You")).to_have_count(1)
    versions = page.answer.get_by_role("group", name="Versions of the answer")
    expect(versions).to_have_text("\u20392/2\u203a")
    expect(versions.get_by_role("button", name="Next version")).to_be_disabled()
    # The first version still has the messages that followed it.
    versions.get_by_role("button", name="Previous version").click()
    expect(page.articles("Assistant")).to_have_count(2)
    expect(page.articles("Assistant").first).to_contain_text("first")
    expect(page.answer).to_contain_text("follow-up")
    page.open()
    expect(page.articles("Assistant").first).to_contain_text("1/2")
    page.articles("Assistant").first.get_by_role("button", name="Next version").click()
    expect(page.answer).to_contain_text("second")
    page.answer.get_by_role("button", name="Retry").click()
    answered(page, "third")
    expect(page.answer).to_contain_text("3/3")
    # Only the version that is shown is sent.
    stage.set_replies(saying("done"))
    page.send("Go on")
    answered(page, "done")
    assert roles(stage) == [("user", "Hello"), ("assistant", "third"), ("user", "Go on")]


def test_versions_are_exported_and_imported(visit: Visiting, page: Visit, stage: Stage, tmp_path: Path) -> None:
    stage.set_replies(saying("first"), saying("second"))
    page.send("Hello")
    answered(page, "first")
    page.answer.get_by_role("button", name="Retry").click()
    answered(page, "second")
    with page.page.expect_download() as download:
        page.chat.get_by_role("button", name="Export").click()
    file = tmp_path / "exported.json"
    download.value.save_as(file)
    other = visit(stage.server.root)
    import_file(other, file)
    expect(other.answer).to_contain_text("2/2")
    other.answer.get_by_role("button", name="Previous version").click()
    expect(other.answer).to_contain_text("first")
    whole: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    whole["conversations"][0]["messages"][1]["place"] = 7
    file.write_text(json.dumps(whole), encoding="utf-8")
    import_file(other, file)
    expect(other.page.get_by_role("alert").get_by_text("place is not that of a version")).to_be_visible()


# Images.


def test_a_pasted_image_is_sent_and_shown(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("It is red."))
    picture = png(8, 8)
    paste(page, picture)
    expect(attached(page)).to_have_count(1)
    page.send("What is it?")
    answered(page, "It is red.")
    (message,) = stage.last_request()["messages"]
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    assert message["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    expect(attached(page)).to_have_count(0)
    image = page.articles("You").get_by_role("img", name="Image 1")
    page.page.wait_for_function(SHOWN, arg=image.element_handle())
    page.open()
    expect(page.articles("You").get_by_role("img", name="Image 1")).to_be_visible()


def test_an_image_can_be_picked_removed_and_sent_without_text(page: Visit, stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(png(8, 8))
    for _ in range(2):
        with page.page.expect_file_chooser() as chooser:
            page.chat.get_by_role("button", name="Attach an image").click()
        chooser.value.set_files(file)
    expect(attached(page)).to_have_count(2)
    page.chat.get_by_role("button", name="Remove image 1").click()
    expect(attached(page)).to_have_count(1)
    stage.set_replies(saying("red"))
    page.message.press("Enter")
    answered(page, "red")
    (message,) = stage.last_request()["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url"]


def test_a_large_image_is_reduced(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("big"))
    paste(page, png(3000, 600))
    expect(attached(page)).to_have_count(1)
    page.send("Look")
    answered(page, "big")
    (message,) = stage.last_request()["messages"]
    url: str = message["content"][1]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,/9j/")
    data = base64.b64decode(url.partition(",")[2])
    frame = data.index(b"\xff\xc0")
    assert struct.unpack_from(">HH", data, frame + 5) == (410, 2048)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"%PDF-1.7 not an image", "application/pdf", "is not an image"),
        (png(8, 8)[:40], "image/png", "is damaged"),
        (b"\x89PNG\r\n\x1a\n" + bytes(21 * 2**20), "image/png", "is too large"),
    ],
    ids=["no image", "damaged", "too large"],
)
def test_what_cannot_be_sent_is_refused_with_a_reason(page: Visit, data: bytes, kind: str, reason: str) -> None:
    paste(page, data, "thing", kind)
    expect(page.page.get_by_role("alert").get_by_text(reason)).to_be_visible()
    expect(attached(page)).to_have_count(0)


def test_a_message_has_at_most_four_images(page: Visit) -> None:
    for place in range(4):
        paste(page, png(8, 8))
        expect(attached(page)).to_have_count(place + 1)
    paste(page, png(8, 8))
    expect(page.page.get_by_role("alert").get_by_text("4 images")).to_be_visible()
    expect(attached(page)).to_have_count(4)


def test_images_are_not_sent_to_a_model_that_cannot_see(visit: Visiting, tiny_model: Path) -> None:
    with small_server(tiny_model, key=None) as running:
        page = visit(running.root)
        expect(page.chat.get_by_role("combobox", name="Model", exact=True)).to_be_enabled()
        paste(page, png(8, 8))
        expect(page.page.get_by_text("does not accept images").first).to_be_visible()
        expect(attached(page)).to_have_count(0)
        expect(page.chat.get_by_role("button", name="Attach an image")).to_have_attribute("aria-disabled", "true")


# Code.

COLOURS = "(code) => [...code.querySelectorAll('[class^=hl-]')].map((one) => `${one.className} ${one.textContent}`)"
SOURCE = 'def hello(name):  # greet\n    """Say\n    hello."""\n    print(f"<b>{name}</b>", 42)\n'


def test_code_is_highlighted_while_it_streams_and_stays_the_same_text(page: Visit, stage: Stage) -> None:
    whole = f"```python\n{SOURCE}```\n"
    pieces = [delta({"content": whole[at : at + 7]}) for at in range(0, len(whole), 7)]
    stage.set_replies(MockReply((ROLE, *pieces, STOP, DONE)))
    page.send("Code, please")
    expect(page.answer.locator(".hl-number")).to_have_text(["42"])
    page.settle()
    code = page.answer.locator("pre code")
    assert code.evaluate("(one) => one.textContent.trimEnd()") == SOURCE.rstrip()
    expect(page.answer.locator(".hl-keyword")).to_have_text(["def"])
    expect(page.answer.locator(".hl-comment")).to_have_text(["# greet"])
    expect(page.answer.locator(".hl-string").first).to_have_text('"""Say')
    page.answer.get_by_role("button", name="Copy code").click()
    page.page.wait_for_function(
        "async (text) => (await navigator.clipboard.readText()) === text", arg=SOURCE.removesuffix("\n")
    )
    # Stored code looks the same.
    before = code.evaluate(COLOURS)
    page.open()
    expect(page.answer.locator(".hl-number")).to_have_text(["42"])
    assert code.evaluate(COLOURS) == before


def test_a_stalled_line_of_code_is_shown_and_highlighted(page: Visit, stage: Stage) -> None:
    stage.set_replies(MockReply((ROLE, delta({"content": "```js\nconst open = `tem"})), end="hang"))
    page.send("Code, please")
    expect(page.answer.locator(".hl-keyword")).to_have_text(["const"])
    expect(page.answer.locator(".hl-string")).to_have_text(["`tem"])


# Rules.


def test_repairs_lead_to_the_issues_of_their_rule(page: Visit, stage: Stage) -> None:
    again = [delta({"role": "assistant", "content": "x"})] * 3
    stage.set_replies(MockReply((*again, STOP, DONE)))
    page.send("Hello")
    answered(page, "xxx")
    panel = page.tab("Repairs")
    item = panel.get_by_role("listitem").filter(has=page.page.get_by_role("button", name="delta-role-once"))
    expect(item).to_have_count(1)
    expect(item).to_contain_text("\u00d7 2")
    link = item.get_by_role("link", name="ollama/ollama#7626")
    expect(link).to_have_attribute("href", "https://github.com/ollama/ollama/issues/7626")
    item.get_by_role("button", name="delta-role-once").click()
    expect(page.page.get_by_role("dialog").get_by_role("link", name="ollama/ollama#7626")).to_be_visible()


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_versions_images_and_code_are_accessible_on_a_phone(visit: Visiting, stage: Stage, is_dark: bool) -> None:
    page = with_axe(visit(stage.server.root, size=PHONE, is_dark=is_dark))
    coloured = f"```python\n@a\n{SOURCE}```\n```diff\n@@ 1\n+a\n-b\n```\n"
    stage.set_replies(saying(coloured))
    for _ in range(3):
        paste(page, png(600, 200))
    expect(attached(page)).to_have_count(3)
    assert violations(page) == [], "images to send"
    page.send("Hello")
    expect(page.answer.locator(".hl-removed")).to_be_visible()
    page.settle()
    page.answer.get_by_role("button", name="Retry").click()
    expect(page.answer).to_contain_text("2/2")
    page.settle()
    page.chat.get_by_role("button", name="Settings", exact=True).click()
    assert violations(page) == [], "an answer with versions, and presets"
    assert overflow(page) == 0
