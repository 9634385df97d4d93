"""Attacks on the page: markup in names and errors, deeply nested JSON, other sites, theft of the key."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.server import KEY
from tests.web.browser import Visit
from tests.web.conftest import Visiting
from tests.web.stage import DONE, ROLE, STOP, Stage, delta, saying, staged
from tests.web.test_chat import give_key, import_file
from tests.web.test_hostile import FORBIDDEN, OWNED, STRANGE
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply

EVIL = f'"><img src=x onerror="{OWNED}"><script>{OWNED}</script>\x1b[31m\u202e\u200b evil'
DEPTH = 100_000
HIDING = """(forbidden) => {
  const text = document.body.textContent;
  return [...forbidden].filter((character) => text.includes(character));
}"""


def event(value: object) -> MockChunk:
    """A frame with any JSON."""
    return MockChunk(f"data: {json.dumps(value, ensure_ascii=False)}\n\n")


def calling(name: str, arguments: str) -> MockReply:
    """A reply with a tool call."""
    call = {"index": 0, "id": f"call {name}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return MockReply((ROLE, delta({"tool_calls": [call]}), delta({}, "tool_calls"), DONE))


def refusing(status: int, **fields: str) -> MockReply:
    """An error response."""
    return MockReply(
        (MockChunk(json.dumps({"error": {"message": EVIL, **fields}})),), status=status, headers=JSON_HEADERS
    )


def frame(inside: str) -> MockChunk:
    """A chunk with additional fields."""
    return MockChunk('data: {"x":' + inside + ',"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n')


HOSTILE = {
    "a tool call": calling(EVIL, json.dumps({EVIL: EVIL})),
    "thoughts": MockReply((ROLE, delta({"reasoning_content": EVIL}), delta({"content": "x"}), STOP, DONE)),
    "a refusal": MockReply((ROLE, delta({"refusal": EVIL}), STOP, DONE)),
    "why it ends": MockReply((ROLE, delta({"content": "x"}), delta({}, EVIL), DONE)),
    "an error on the way": MockReply(
        (ROLE, delta({"content": "x"}), event({"error": {"message": EVIL, "type": EVIL}}))
    ),
    "an error at once": refusing(400, type=EVIL, code=EVIL),
    "a wish for a key": refusing(401),
    "fields and names": MockReply(
        (
            MockChunk(f"event: {EVIL}\nid: {EVIL}\n: {EVIL}\n\n"),
            ROLE,
            event({EVIL: EVIL, "__proto__": {"owned": 1}, "constructor": {"prototype": {"owned": 1}}, "choices": []}),
            delta({"content": "x", EVIL: 1, "__proto__": {"owned": 1}}),
            STOP,
            DONE,
        )
    ),
}
BOTTOMLESS = {
    "a field": frame("[" * DEPTH + "]" * DEPTH),
    "objects": frame('{"a":' * DEPTH + "1" + "}" * DEPTH),
    "an error": MockChunk('data: {"error":%s}\n\n' % ("[" * DEPTH + "]" * DEPTH)),
    "the text": MockChunk('data: {"choices":[{"index":0,"delta":{"content":%s}}]}\n\n' % ("[" * DEPTH + "]" * DEPTH)),
}


def check(page: Visit) -> None:
    """Assert that nothing became markup and nothing is hidden."""
    assert page.page.evaluate(STRANGE) == []
    assert page.page.evaluate("({}).owned === undefined")
    assert page.page.evaluate(HIDING, FORBIDDEN) == []


def open_all_tabs(page: Visit) -> None:
    """Open everything that the inspector shows of an answer."""
    for side in ("Sent to you", "Upstream"):
        page.tab("Frames")
        page.inspector.get_by_role("group", name="Frames of").get_by_role("button", name=side).click()
        rows = page.inspector.get_by_role("grid", name="Frames").get_by_role("row")
        expect(rows.nth(1)).to_be_visible()
        for place in range(1, min(rows.count(), 6)):
            rows.nth(place).click()
            expect(page.inspector.get_by_role("button", name="Close the frame")).to_be_visible()
            check(page)
    for tab in ("Repairs", "Timeline", "Request"):
        page.tab(tab)
        check(page)


@pytest.mark.parametrize("reply", HOSTILE.values(), ids=HOSTILE.keys())
def test_all_strings_of_a_server_are_shown_as_text(page: Visit, stage: Stage, reply: MockReply) -> None:
    page.allow("status of (400|502)")
    stage.set_replies(reply)
    page.send("Hello")
    expect(page.answer).to_be_visible()
    page.settle()
    expect(page.page.get_by_role("dialog")).to_have_count(0)
    check(page)
    open_all_tabs(page)


@pytest.mark.tier3
@pytest.mark.parametrize("chunk", BOTTOMLESS.values(), ids=BOTTOMLESS.keys())
def test_deeply_nested_json_is_shown_up_to_a_limit(page: Visit, stage: Stage, chunk: MockChunk) -> None:
    page.allow("status of 502")
    stage.set_replies(MockReply((ROLE, chunk, STOP, DONE)))
    page.send("Hello")
    page.settle()
    open_all_tabs(page)
    stage.set_replies(saying("still here"))
    page.send("Again")
    expect(page.answer).to_contain_text("still here")


@pytest.mark.tier3
def test_deeply_nested_tool_arguments_are_shown(page: Visit, stage: Stage) -> None:
    stage.set_replies(calling("f", "[{" * DEPTH))
    page.send("Hello")
    expect(page.answer).to_contain_text("tool call")
    page.settle()
    open_all_tabs(page)


def conversation(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """An exported conversation."""
    options = {"tools": "[" * DEPTH, "__proto__": {"owned": 1}}
    texts = {"title": EVIL, "model": EVIL, "system": EVIL}
    return {**texts, "options": options, "messages": messages, "created_at": 1, "updated_at": 1}


def exported(file: Path, messages: list[dict[str, Any]]) -> Path:
    """Write an export of one conversation."""
    whole = {"format": "welldone.conversations", "version": 1, "conversations": [conversation(messages)]}
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


def test_an_imported_conversation_is_shown_as_text(page: Visit, tmp_path: Path) -> None:
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    answer = {"model": EVIL, "outcome": "broken", "error": EVIL, "finish_reason": EVIL}
    spoken = {"role": "assistant", "content": EVIL, "reasoning_content": EVIL, "refusal": EVIL}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": EVIL},
        {**spoken, "tool_calls": [call], "answer": answer},
        {"role": "tool", "content": EVIL, "tool_call_id": EVIL},
    ]
    import_file(page, exported(tmp_path / 'evil"><b>.json', messages))
    expect(page.answer).to_contain_text("evil")
    check(page)
    page.page.get_by_role("button", name="Delete “").first.click()
    check(page)


def test_a_conversation_that_is_too_large_is_not_imported(page: Visit, tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call] * 900}] * 2
    import_file(page, exported(tmp_path / "many.json", messages))
    expect(page.page.get_by_role("alert").get_by_text("tool calls")).to_be_visible()


# The key.


def test_a_removed_key_is_not_sent_any_more(visit: Visiting, tmp_path: Path) -> None:
    with staged(tmp_path, key=KEY) as stage:
        page = visit(stage.server.root)
        page.allow("status of 401")
        give_key(page)
        stage.set_replies(saying("fine"))
        page.send("Hello")
        expect(page.answer).to_contain_text("fine")
        page.settle()
        page.open_inspector()
        with page.page.expect_download() as trace:
            page.inspector.get_by_role("button", name="Save trace").click()
        with page.page.expect_download() as file:
            page.chat.get_by_role("button", name="Export").click()
        for download in (trace.value, file.value):
            assert KEY not in download.path().read_text(encoding="utf-8")
        page.page.get_by_role("button", name="Key", exact=True).click()
        page.page.get_by_role("button", name="Remove key").click()
        with page.page.expect_request("**/v1/chat/completions") as asked:
            page.send("Again")
        assert "authorization" not in asked.value.all_headers()


# Other sites.

PROBE = """async (target) => {
  const got = [];
  const note = (name, work) => work.then((text) => got.push(`${name}: ${text}`), () => {});
  const paths = ["page/api/state", "page/api/rules/data-json", "metrics", "v1/models", "keys"];
  for (const path of paths) await note(path, fetch(target + path).then((reply) => reply.text()));
  for (const path of ["page/api/lint", "models/unload", "keys"]) {
    const body = '{"capture": "data: 1", "model": "scripted", "name": "evil"}';
    await note(path, fetch(target + path, { method: "POST", body }).then((reply) => reply.text()));
    await note(path, fetch(target + path, { method: "POST", body, headers: { "Content-Type": "application/json" } }));
    await fetch(target + path, { method: "POST", mode: "no-cors", body }).catch(() => {});
  }
  await note("keys/ci", fetch(`${target}keys/ci`, { method: "DELETE" }).then((reply) => reply.text()));
  const frame = document.createElement("iframe");
  frame.src = target;
  const loaded = new Promise((done) => frame.addEventListener("load", done));
  document.body.append(frame);
  await loaded;
  if (frame.contentDocument?.title) got.push("framed");
  return got;
}"""


@contextmanager
def another_site() -> Iterator[str]:
    """A site on another port with an empty page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title>")

        def log_message(self, *_: object) -> None:
            """Do not log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_another_site_can_neither_read_nor_frame_the_page(visit: Visiting, stage: Stage) -> None:
    with another_site() as site:
        page = visit(stage.server.root)
        statuses: list[int] = []
        page.page.on("response", lambda reply: statuses.append(reply.status))
        page.page.goto(site)
        statuses.clear()
        assert page.page.evaluate(PROBE, f"{stage.server.root}/") == []
        # Only the document of the frame was requested, and it is not shown.
        assert set(statuses) <= {200, 403}
        assert statuses.count(200) <= 1
        page.messages.clear()
        page.urls.clear()
