"""The chat view: what is shown, what is sent to the model, what the browser stores."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.support.faults import chat_once, small_server
from tests.support.server import KEY, Running
from tests.web.browser import Visit
from tests.web.conftest import Visiting
from tests.web.stage import DONE, ROLE, STOP, Stage, delta, saying, staged, usage
from welldone.mock.script import MockChunk, MockReply, json_reply

STALLS = MockReply((ROLE, delta({"content": "Once upon"})), end="hang")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"ci'}}
CALLS = MockReply(
    (
        ROLE,
        delta({"tool_calls": [CALL]}),
        delta({"tool_calls": [{"index": 0, "function": {"arguments": 'ty":"Oslo"}'}}]}),
        delta({}, "tool_calls"),
        usage(9, 5),
        DONE,
    )
)
STORED = """async () => {
  const found = [location.href, document.cookie, JSON.stringify(localStorage)];
  for (const { name } of await indexedDB.databases()) {
    const base = await new Promise((done, fail) => {
      const opening = indexedDB.open(name);
      opening.onsuccess = () => done(opening.result);
      opening.onerror = fail;
    });
    for (const store of base.objectStoreNames)
      found.push(await new Promise((done, fail) => {
        const asking = base.transaction(store).objectStore(store).getAll();
        asking.onsuccess = () => done(JSON.stringify(asking.result));
        asking.onerror = fail;
      }));
    base.close();
  }
  return found.join("\\n");
}"""
"""Everything that the browser stores for this page beyond the life of a tab."""


def settings(page: Visit) -> Locator:
    """The settings panel, opened."""
    panel = page.page.get_by_role("region", name="Settings").or_(page.page.get_by_role("dialog", name="Settings"))
    if not panel.is_visible():
        page.chat.get_by_role("button", name="Settings", exact=True).click()
    expect(panel).to_be_visible()
    return panel


def setting(page: Visit, name: str, value: str) -> None:
    """Set one of the settings."""
    settings(page).get_by_label(name, exact=True).fill(value)


def give_key(page: Visit, key: str = KEY) -> None:
    """Enter the key in the dialog."""
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_label("Key", exact=True).fill(key)
    page.page.keyboard.press("Enter")


def roles(stage: Stage) -> list[tuple[str, Any]]:
    """Role and content of the messages in the latest request to the upstream."""
    return [(one["role"], one.get("content")) for one in stage.last_request()["messages"]]


# Answers.


def test_the_default_model_answers_and_the_answer_is_stored(visit: Visiting, server: Running) -> None:
    page = visit(server.root)
    page.allow("status of 401")
    give_key(page)
    expect(page.chat.get_by_role("combobox", name="Model", exact=True)).to_contain_text(server.model)
    setting(page, "Max tokens", "24")
    setting(page, "Temperature", "0")
    page.page.keyboard.press("Escape")
    page.send("Say hello.")
    page.settle()
    body = page.answer.locator(".markdown").first
    expect(body).not_to_be_empty()
    text = body.inner_text()
    page.open()
    expect(page.articles("You")).to_contain_text(["Say hello."])
    expect(page.answer.locator(".markdown").first).to_have_text(text, use_inner_text=True)


def test_text_is_shown_while_the_answer_streams(page: Visit, stage: Stage) -> None:
    stage.set_replies(STALLS)
    page.send("Tell me a story")
    expect(page.answer).to_contain_text("Once upon")
    expect(page.chat.get_by_role("button", name="Stop", exact=True)).to_be_visible()


def test_stop_disconnects_from_the_upstream_and_keeps_the_text(page: Visit, stage: Stage) -> None:
    stage.set_replies(STALLS)
    page.send("Tell me a story")
    expect(page.answer).to_contain_text("Once upon")
    page.chat.get_by_role("button", name="Stop", exact=True).click()
    page.settle()
    stage.upstream.wait_until(lambda one: one.requests[-1].end == "left")
    expect(page.answer).to_contain_text("Once upon")
    expect(page.answer).to_contain_text("stopped", ignore_case=True)


def test_a_stop_frees_the_only_slot_of_a_model(visit: Visiting, tiny_model: Path) -> None:
    with small_server(tiny_model, key=None) as running:
        page = visit(running.root)
        page.send("Hello")
        # The answer has started, and would take long.
        expect(page.answer.locator(".markdown").first).not_to_be_empty()
        page.chat.get_by_role("button", name="Stop", exact=True).click()
        page.settle()
        assert chat_once(running, max_tokens=4).choice.finish == "length"


def test_retry_sends_the_same_request_again(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("one"), saying("two"))
    page.send("Hello")
    expect(page.answer).to_contain_text("one")
    page.settle()
    first = roles(stage)
    page.answer.get_by_role("button", name="Retry").click()
    expect(page.answer).to_contain_text("two")
    page.settle()
    expect(page.articles("Assistant")).to_have_count(1)
    assert roles(stage) == first == [("user", "Hello")]


def test_an_edit_drops_later_messages_and_requests_a_new_answer(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("to the first"), saying("to the second"), saying("to the edit"))
    page.send("First")
    expect(page.answer).to_contain_text("to the first")
    page.settle()
    page.send("Second")
    expect(page.answer).to_contain_text("to the second")
    page.settle()
    assert roles(stage) == [("user", "First"), ("assistant", "to the first"), ("user", "Second")]
    mine = page.articles("You").first
    mine.get_by_role("button", name="Edit").click()
    mine.get_by_role("textbox").fill("Edited")
    mine.get_by_role("button", name="Save and send").click()
    expect(page.answer).to_contain_text("to the edit")
    page.settle()
    assert roles(stage) == [("user", "Edited")]
    expect(page.articles("You")).to_have_count(1)


def test_a_message_is_copied_as_source(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("some *Markdown*"))
    page.send("Hello")
    expect(page.answer).to_contain_text("some Markdown")
    page.settle()
    page.answer.get_by_role("button", name="Copy", exact=True).first.click()
    page.page.wait_for_function("async () => (await navigator.clipboard.readText()) === 'some *Markdown*'")


# Requests.


def test_only_settings_that_are_set_are_sent(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("fine"))
    page.choose_model("other")
    page.send("Plain")
    expect(page.answer).to_contain_text("fine")
    page.settle()
    plain = stage.last_request()
    assert set(plain) <= {"model", "messages", "stream", "stream_options"}
    assert plain["model"] == "other"
    for name, value in {
        "System prompt": "Be brief.",
        "Temperature": "0.5",
        "Top p": "0.9",
        "Max tokens": "77",
        "Stop": "END\nSTOP",
        "Seed": "42",
    }.items():
        setting(page, name, value)
    settings(page).get_by_label("Reasoning effort", exact=True).select_option("low")
    page.page.keyboard.press("Escape")
    page.send("Set")
    expect(page.articles("Assistant")).to_have_count(2)
    page.settle()
    request = stage.last_request()
    assert roles(stage)[0] == ("system", "Be brief.")
    assert {name: request[name] for name in ("temperature", "top_p", "stop", "seed", "reasoning_effort")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END", "STOP"],
        "seed": 42,
        "reasoning_effort": "low",
    }
    assert request.get("max_completion_tokens", request.get("max_tokens")) == 77


def test_the_result_of_a_tool_call_is_sent_back(page: Visit, stage: Stage) -> None:
    stage.set_replies(CALLS, saying("It is cold."))
    setting(page, "Tools (JSON)", json.dumps([TOOL]))
    page.page.keyboard.press("Escape")
    page.send("How is the weather in Oslo?")
    expect(page.answer).to_contain_text("get_weather")
    expect(page.answer).to_contain_text("Oslo")
    page.settle()
    assert stage.last_request()["tools"] == [TOOL]
    page.chat.get_by_role("textbox", name="Result").fill('{"degrees": -3}')
    page.chat.get_by_role("button", name="Send results").click()
    expect(page.answer).to_contain_text("It is cold.")
    page.settle()
    _, called, result = stage.last_request()["messages"]
    assert [(call["id"], call["function"]["arguments"]) for call in called["tool_calls"]] == [
        ("call_1", '{"city":"Oslo"}')
    ]
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "call_1", '{"degrees": -3}')


def test_tools_that_are_not_json_are_reported_and_not_sent(page: Visit, stage: Stage) -> None:
    setting(page, "Tools (JSON)", '[{"type": "function",')
    expect(settings(page).get_by_label("Tools (JSON)", exact=True)).to_have_attribute("aria-invalid", "true")
    page.page.keyboard.press("Escape")
    before = len(stage.upstream.posts())
    page.message.fill("Hello")
    page.message.press("Enter")
    expect(page.page.get_by_role("alert").or_(page.page.get_by_role("status")).filter(has_text="Tools")).to_be_visible()
    assert len(stage.upstream.posts()) == before


def test_a_json_schema_is_sent(page: Visit, stage: Stage) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    stage.set_replies(saying('{"city":', '"Oslo"}'))
    setting(page, "JSON schema", json.dumps(schema))
    page.page.keyboard.press("Escape")
    page.send("Where?")
    expect(page.answer).to_contain_text('"Oslo"')
    page.settle()
    request = stage.last_request()["response_format"]
    assert (request["type"], request["json_schema"]["schema"]) == ("json_schema", schema)


def test_reasoning_is_collapsed_above_the_answer(page: Visit, stage: Stage) -> None:
    thoughts = [delta({"reasoning_content": text}) for text in ("Let me ", "think.")]
    stage.set_replies(MockReply((ROLE, *thoughts, delta({"content": "Forty-two."}), STOP, DONE)))
    page.send("Why?")
    expect(page.answer).to_contain_text("Forty-two.")
    page.settle()
    thought = page.answer.get_by_text("Let me think.")
    expect(thought).to_be_hidden()
    page.answer.locator("summary").filter(has_text="Reasoning").or_(
        page.answer.locator("details summary").first
    ).first.click()
    expect(thought).to_be_visible()


# Failures.


def test_the_error_message_of_the_upstream_is_shown(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        page.allow("status of 400")
        stage.set_replies(
            json_reply({"error": {"message": "That is far too long.", "type": "invalid_request_error"}}, 400)
        )
        page.send("Hello")
        expect(page.chat.get_by_role("alert")).to_contain_text("That is far too long.")
        stage.set_replies(saying("better"))
        page.chat.get_by_role("button", name="Retry").last.click()
        expect(page.answer).to_contain_text("better")


# The pause flushes the text: an error right after it would become the status of the response.
FAILS = MockChunk('data: {"error":{"message":"No memory left."}}\n\n', after_s=1.0)


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (MockReply((ROLE, delta({"content": "Once upon"}), FAILS)), "No memory left."),
        (MockReply((ROLE, delta({"content": "Once upon"})), end="reset"), ""),
    ],
    ids=["told", "cut"],
)
def test_an_interrupted_answer_keeps_its_text(visit: Visiting, tmp_path: Path, reply: MockReply, word: str) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        stage.set_replies(reply)
        page.send("Hello")
        expect(page.chat.get_by_role("alert")).to_contain_text(word)
        expect(page.answer).to_contain_text("Once upon")
        page.settle()


def test_an_unreachable_server_is_reported(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        page = visit(stage.server.root)
        expect(page.chat.get_by_role("combobox", name="Model", exact=True)).to_contain_text("scripted")
        page.allow("ERR_CONNECTION_REFUSED")
        assert stage.server.end() == 0
        page.send("Hello")
        expect(page.chat.get_by_role("alert").last).to_contain_text("cannot be reached")


# The key.


def test_the_key_is_asked_for_once_per_tab_and_not_stored_beyond_it(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path, key=KEY) as stage:
        page = visit(stage.server.root)
        page.allow("status of 401")
        give_key(page)
        stage.set_replies(saying("one"), saying("two"))
        page.send("Hello")
        expect(page.answer).to_contain_text("one")
        page.settle()
        page.send("Again")
        expect(page.answer).to_contain_text("two")
        page.settle()
        page.go("Server")
        expect(page.server.get_by_text("scripted").first).to_be_visible()
        expect(page.page.get_by_role("dialog")).to_be_hidden()
        stored = page.page.evaluate(STORED)
        assert "Again" in stored  # conversations are stored, so the check covers the storage
        assert KEY not in stored
        assert KEY not in page.page.content()
        assert [url for url in page.urls if KEY in url] == []
        page.open()
        expect(page.chat.get_by_role("combobox", name="Model", exact=True)).to_contain_text("scripted")
        expect(page.page.get_by_role("dialog")).to_be_hidden()
        page.page.get_by_role("button", name="Key", exact=True).click()
        page.page.get_by_role("button", name="Remove key").click()
        expect(page.page.get_by_text("The key was removed.")).to_be_visible()
        assert KEY not in page.page.evaluate("JSON.stringify(sessionStorage)")
        tab = page.context.new_page()
        tab.goto(page.origin)
        expect(tab.get_by_role("dialog")).to_be_visible()


def test_a_wrong_key_is_reported_and_asked_for_again(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path, key=KEY) as stage:
        page = visit(stage.server.root)
        page.allow("status of 401")
        give_key(page, "wrong")
        dialog = page.page.get_by_role("dialog")
        expect(dialog.get_by_label("Key", exact=True)).to_have_value("")
        expect(dialog).to_contain_text("key")
        give_key(page)
        expect(page.chat.get_by_role("combobox", name="Model", exact=True)).to_contain_text("scripted")


# Conversations.


def test_conversations_are_separate(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("to one"), saying("to two"))
    page.send("First talk")
    expect(page.answer).to_contain_text("to one")
    page.settle()
    page.chat.get_by_role("button", name="New conversation").click()
    expect(page.articles("Assistant")).to_have_count(0)
    page.send("Second talk")
    expect(page.answer).to_contain_text("to two")
    page.settle()
    assert roles(stage) == [("user", "Second talk")]
    page.chat.get_by_role("list", name="Conversations").get_by_text("First talk").click()
    expect(page.answer).to_contain_text("to one")


def test_an_export_can_be_imported_in_another_browser(
    visit: Visiting, page: Visit, stage: Stage, tmp_path: Path
) -> None:
    stage.set_replies(saying("an answer"))
    page.send("A question")
    expect(page.answer).to_contain_text("an answer")
    page.settle()
    with page.page.expect_download() as download:
        page.chat.get_by_role("button", name="Export").click()
    file = tmp_path / "exported.json"
    download.value.save_as(file)
    assert "A question" in json.dumps(json.loads(file.read_text(encoding="utf-8")))
    other = visit(stage.server.root)
    import_file(other, file)
    other.chat.get_by_role("list", name="Conversations").get_by_text("A question").first.click()
    expect(other.answer).to_contain_text("an answer")


def test_an_invalid_import_changes_nothing(page: Visit, tmp_path: Path) -> None:
    file = tmp_path / "wrong.json"
    file.write_text('{"conversations": [{"messages": 7}]}', encoding="utf-8")
    import_file(page, file)
    expect(page.page.get_by_role("alert").or_(page.page.get_by_role("status")).last).not_to_be_empty()
    expect(page.articles("You")).to_have_count(0)


def import_file(page: Visit, file: Path) -> None:
    """Import a file."""
    with page.page.expect_file_chooser() as chooser:
        page.chat.get_by_role("button", name="Import").click()
    chooser.value.set_files(file)
