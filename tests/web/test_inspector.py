"""The stream inspector, compared with the bytes on the wire, the scripted upstream and `welldone lint`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.cli.run import run as command
from tests.support.faults import small_server
from tests.support.server import LIMIT_S
from tests.support.upstream import gateway, upstream
from tests.web.browser import Visit
from tests.web.conftest import Visiting
from tests.web.stage import DONE, ROLE, STOP, Stage, delta, saying, staged, usage
from tests.web.tap import tapped
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, json_reply

BROKEN = MockReply(
    (
        MockChunk(": hello\r\n\r\n"),
        delta({"role": "assistant", "content": "It "}),
        delta({"role": "assistant", "content": "is "}),
        MockChunk("data: \n\n"),
        delta({"role": "assistant", "content": "fine."}),
        STOP,
        usage(7, 3),
    )
)
"""Repeats its role, has an empty frame and no `[DONE]`."""
BAD_STREAM = BROKEN.body.decode()
MAX_ROWS = 200
"""Rows in the document, however long the stream is."""
MANY = 10_000


UNMARKED = """(element) => {
  let text = "";
  for (const { classList, textContent, previousSibling } of element.childNodes) {
    if (classList?.contains("eol")) text += (/\\\\r|\u240d/.test(textContent) ? "\\r" : "") +
      (/\\\\n|\u240a/.test(textContent) ? "\\n" : "");
    else if (!previousSibling?.classList?.contains("eol")) text += textContent;
    else text += textContent.slice(1);
  }
  return text;
}"""
"""The displayed bytes, with line-end marks replaced by line ends."""


def wire_text(shown: Locator) -> str:
    """Return the displayed bytes; empty if there are none."""
    text: str = shown.evaluate(UNMARKED) if shown.count() else ""
    return text


def grid(page: Visit, name: str = "Frames") -> Locator:
    """A list of frames."""
    return page.inspector.get_by_role("grid", name=name, exact=True)


def count(page: Visit) -> int:
    """Number of listed frames; the header is a row too."""
    return int(grid(page).get_attribute("aria-rowcount") or 0) - 1


def detail(page: Visit) -> Locator:
    """Details of the selected frame."""
    return page.inspector.get_by_role("region", name="Frame", exact=True).locator("visible=true")


def column(page: Visit, name: str) -> Locator:
    """The bytes of one side."""
    return detail(page).locator(".detail-column").filter(has=page.page.get_by_role("heading", name=name)).locator("pre")


def frames(page: Visit) -> Iterator[int]:
    """Select all frames by keyboard; yields the number of each while it is selected."""
    grid(page).focus()
    page.page.keyboard.press("Home")
    for number in range(1, count(page) + 1):
        expect(detail(page).get_by_role("heading", level=3)).to_contain_text(f"Frame {number}:")
        yield number
        page.page.keyboard.press("ArrowDown")


def ask(page: Visit, text: str = "Hello") -> None:
    """Send a message and wait for the complete answer."""
    page.open_inspector()
    page.send(text)
    expect(page.inspector.get_by_role("group", name="Totals")).to_contain_text("whole")
    page.settle()


# Frames.


@pytest.mark.parametrize(
    "reply",
    [
        saying("Hello", " w\u00f6rld ", "\U0001f44b", "\n"),
        BROKEN,
        MockReply((ROLE, delta({"reasoning_content": "Hm."}), delta({"content": "Yes"}), STOP, DONE)),
    ],
    ids=["good", "bad", "reasoning"],
)
def test_rows_are_the_bytes_on_the_wire(visit: Visiting, stage: Stage, reply: MockReply) -> None:
    stage.set_replies(reply)
    with tapped(stage.server.port) as tap:
        page = visit(tap.root)
        ask(page)
        shown = [wire_text(column(page, "Sent to you")) for _ in frames(page)]
        (body,) = tap.streams()
    assert "".join(shown).encode() == body
    assert [one.encode() for one in shown] == [frame + b"\n\n" for frame in body.split(b"\n\n")[:-1]]


def test_copy_copies_the_whole_stream(visit: Visiting, stage: Stage) -> None:
    stage.set_replies(BROKEN)
    with tapped(stage.server.port) as tap:
        page = visit(tap.root)
        ask(page)
        page.inspector.get_by_role("button", name="Copy", exact=True).click()
        expect(
            page.inspector.get_by_role("button", name="Copied").or_(page.page.get_by_role("status"))
        ).not_to_have_count(0)
        copied: str = page.page.evaluate("navigator.clipboard.readText()")
        (body,) = tap.streams()
    assert copied.encode() == body


def test_totals_match_the_stream(visit: Visiting, stage: Stage) -> None:
    stage.set_replies(saying("one ", "two ", "three", counts=(1234, 56)))
    with tapped(stage.server.port) as tap:
        page = visit(tap.root)
        ask(page)
        expect(page.total("Status")).to_have_text("200")
        expect(page.total("Tokens in + out")).to_have_text("1,234 + 56")
        (body,) = tap.streams()
        expect(page.total("Frames")).to_have_text(str(body.count(b"\n\n")))
        expect(page.total("Bytes")).to_have_text(f"{len(body) / 1024:.1f} KiB")
        expect(page.total("Repairs")).to_have_text("0")


def test_frames_are_shown_while_the_stream_runs(page: Visit, stage: Stage) -> None:
    page.open_inspector()
    stage.set_replies(MockReply((ROLE, delta({"content": "Once"})), end="hang"))
    page.send("Hello")
    expect(grid(page)).to_contain_text("Once")
    expect(page.inspector.get_by_role("group", name="Totals")).to_contain_text("streaming")
    page.chat.get_by_role("button", name="Stop", exact=True).click()
    expect(page.inspector.get_by_role("group", name="Totals")).to_contain_text("stopped")


# Repairs.


def test_repairs_are_listed_with_rules_and_changes(page: Visit, stage: Stage) -> None:
    stage.set_replies(BROKEN)
    ask(page)
    expect(page.total("Repairs")).not_to_have_text("0")
    panel = page.tab("Repairs")
    for rule in ("delta-role-once", "end-done-sent"):
        expect(panel.get_by_role("button", name=rule, exact=True)).to_be_visible()
    panel.get_by_role("button", name="delta-role-once", exact=True).click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog).to_contain_text("delta-role-once")
    page.page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    item = panel.get_by_role("listitem").filter(has=page.page.get_by_role("button", name="delta-role-once"))
    item.get_by_role("button", name="upstream's frame").click()
    # Now the frame of the upstream is shown, with both sides and the changes.
    expect(column(page, "Upstream")).to_contain_text('"role":"assistant"')
    expect(column(page, "Sent to you")).not_to_contain_text('"role"')
    expect(detail(page)).to_contain_text("delta-role-once")


def test_all_bytes_of_the_upstream_are_shown(page: Visit, stage: Stage) -> None:
    stage.set_replies(BROKEN)
    ask(page)
    page.inspector.get_by_role("button", name="Upstream").click()
    expect(page.total("Repairs")).not_to_have_text("0")
    received, sent = [], []
    for _ in frames(page):
        received.append(wire_text(column(page, "Upstream")))
        sent.append(wire_text(column(page, "Sent to you")))
    assert "".join(received).encode() == BROKEN.body
    assert "".join(sent).endswith("data: [DONE]\n\n")
    assert "" in sent  # the empty frame was dropped


def test_a_correct_stream_has_nothing_to_repair(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("all is well"))
    ask(page)
    expect(page.tab("Repairs")).to_contain_text("Nothing to repair: the stream was correct.")


FAILED = {
    "cut": (MockReply((ROLE, delta({"content": "It is"})), end="cut"), "The stream was cut off: "),
    "an error event": (
        MockReply((ROLE, delta({"content": "It"}), MockChunk('data: {"error":{"message":"out of memory"}}\n\n'))),
        # If everything arrives at once, nothing was sent yet, and the status is 502.
        "(The stream was cut off|The upstream failed, and the server returned 502): out of memory",
    ),
    "no response": (MockReply(raw=True, end="cut"), "The upstream failed, and the server returned 502: "),
    "500": (json_reply({"error": {"message": "oops"}}, 500), "The upstream returned 500: "),
    "400": (
        json_reply({"error": {"message": "too long", "type": "invalid_request_error"}}, 400),
        "returned 400: too long",
    ),
}


@pytest.mark.parametrize(("reply", "message"), FAILED.values(), ids=FAILED.keys())
def test_a_failed_stream_is_never_shown_as_correct(
    visit: Visiting, tmp_path: Path, reply: MockReply, message: str
) -> None:
    with staged(tmp_path) as stage:
        stage.set_replies(reply)
        page = visit(stage.server.root)
        page.allow("Failed to load resource")
        page.send("Hello")
        expect(page.total("Outcome")).to_have_text(re.compile("failed|broken"))
        panel = page.tab("Repairs")
        expect(panel).to_contain_text(re.compile(message))
        expect(panel).not_to_contain_text("Nothing to repair")
        expect(page.inspector.get_by_role("combobox")).to_contain_text(re.compile("failed|broken"))
        expect(panel.locator("p.is-error")).to_be_visible()


def test_a_stopped_stream_is_not_shown_as_correct(page: Visit, stage: Stage) -> None:
    page.open_inspector()
    stage.set_replies(MockReply((ROLE, delta({"content": "Once"})), end="hang"))
    page.send("Hello")
    expect(grid(page)).to_contain_text("Once")
    page.chat.get_by_role("button", name="Stop", exact=True).click()
    panel = page.tab("Repairs")
    expect(panel).to_contain_text("You stopped this stream before its end.")
    expect(panel).not_to_contain_text("Nothing to repair")


def test_only_frames_that_break_clients_are_marked(page: Visit, stage: Stage) -> None:
    # A changing `created` is of severity style; a missing [DONE] breaks clients.
    clocks = [MockChunk(delta({"content": f"{n} "}).text.replace('"created":1', f'"created":{n}')) for n in range(2, 7)]
    stage.set_replies(MockReply((ROLE, *clocks, STOP, usage(7, 3), DONE)))
    ask(page)
    expect(page.total("Repairs")).to_have_text("1 rule")
    expect(grid(page).locator(".is-repaired")).to_have_count(0)
    panel = page.tab("Repairs")
    expect(panel.get_by_role("listitem")).to_have_count(1)
    expect(panel).to_contain_text("\u00d7 5")
    stage.set_replies(BROKEN)
    ask(page)
    page.tab("Frames")
    expect(grid(page).locator(".is-repaired")).not_to_have_count(0)


def test_failed_attempts_are_listed(visit: Visiting, tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(upstream(lambda _: json_reply({}, 503)))
        second = stack.enter_context(upstream(lambda _: HELLO_REPLY))
        each = {"models": ["hello"]}
        server = stack.enter_context(gateway(tmp_path, first.url, second.url, each=each, key=None))
        page = visit(server.root)
        attempts = page.inspector.get_by_role("list", name="Attempts")
        # The gateway chooses which of the two comes first.
        for _ in range(8):
            ask(page)
            expect(attempts.get_by_role("listitem").first).to_be_visible()
            if attempts.get_by_role("listitem").count() == 2:
                break
        expect(attempts.get_by_role("listitem").first).to_contain_text("503")
        expect(attempts.get_by_role("listitem").last).to_contain_text("200")


@pytest.mark.tier3
def test_the_engine_of_a_local_model_is_shown_as_upstream(visit: Visiting, tiny_thinking_model: Path) -> None:
    with small_server(tiny_thinking_model, key=None) as running:
        page = visit(running.root)
        ask(page)
        expect(page.inspector.get_by_role("list", name="Attempts")).to_contain_text("local model")
        page.inspector.get_by_role("button", name="Upstream").click()
        expect(grid(page).get_by_role("row").nth(1)).to_be_visible()


def test_a_chat_with_a_local_model_shows_no_repairs(visit: Visiting, default_model: Path) -> None:
    with small_server(default_model, "-n", "16", key=None) as running:
        page = visit(running.root)
        ask(page)
        expect(page.total("Repairs")).to_have_text("0")
        assert grid(page).locator(".is-repaired").count() == 0
        panel = page.tab("Repairs")
        expect(panel).to_contain_text("The stream was correct")
        known = panel.get_by_role("group")
        expect(known).to_contain_text("known deviation")
        expect(known.get_by_role("listitem").first).to_be_hidden()
        known.locator("summary").click()
        expect(known.get_by_role("listitem").first).to_be_visible()
        page.go("Server")
        expect(page.server.get_by_role("row", name="/v1/chat/completions")).to_be_visible()
        expect(page.server.get_by_role("row", name="/v1/chat/completions").locator(".badge.warn")).to_have_count(0)


def test_the_timeline_has_a_text_summary(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("one ", "two ", "three"))
    ask(page)
    panel = page.tab("Timeline")
    expect(panel).to_contain_text(f"{len(saying('one ', 'two ', 'three').pieces)} frames")
    expect(panel.get_by_role("row", name="Upstream")).to_be_visible()


# The request as code.


def snippet(page: Visit, name: str) -> str:
    """The request in another language."""
    page.tab("Request")
    page.inspector.get_by_role("tab", name=name, exact=True).click()
    text: str = page.inspector.get_by_label(name, exact=True).locator("visible=true").last.inner_text()
    return text


AWKWARD = 'It\'s "quoted", $HOME `id` \\n \\ and\na second line: \u00e9\U0001f44b'


def test_the_curl_command_sends_the_same_request(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying("fine"))
    ask(page, AWKWARD)
    request = stage.last_request()
    text = snippet(page, "curl")
    ran = subprocess.run(["bash", "-c", text], capture_output=True, timeout=LIMIT_S, env=key_environment())
    assert b"fine" in ran.stdout, ran.stderr
    assert stage.last_request() == request
    assert request["messages"][-1]["content"] == AWKWARD


@pytest.mark.tier3
def test_the_python_program_sends_the_same_request(page: Visit, stage: Stage, tmp_path: Path) -> None:
    stage.set_replies(saying("fine"))
    ask(page, AWKWARD)
    request = stage.last_request()
    program = tmp_path / "request.py"
    program.write_text(snippet(page, "Python"), encoding="utf-8")
    ran = subprocess.run([sys.executable, program], capture_output=True, timeout=LIMIT_S, env=key_environment())
    assert b"fine" in ran.stdout, ran.stderr
    assert stage.last_request() == request


def key_environment() -> dict[str, str]:
    """An environment with a key."""
    return {**os.environ, "OPENAI_API_KEY": "sk-none"}


def test_the_key_is_in_no_snippet(visit: Visiting, tmp_path: Path) -> None:
    key = "wd-secret-0123456789"
    with staged(tmp_path, key=key) as stage:
        page = visit(stage.server.root)
        page.allow("status of 401")
        page.page.get_by_role("dialog").get_by_label("Key", exact=True).fill(key)
        page.page.keyboard.press("Enter")
        stage.set_replies(saying("fine"))
        ask(page)
        for name in ("JSON", "curl", "Python", "JavaScript"):
            text = snippet(page, name)
            assert key not in text
            assert name == "JSON" or "OPENAI_API_KEY" in text


# Captured streams.


def test_a_pasted_stream_is_linted_and_fixed(page: Visit, tmp_path: Path) -> None:
    panel = page.tab("Lint")
    panel.get_by_role("textbox", name="Captured stream").fill(BAD_STREAM)
    panel.get_by_role("button", name="Lint and fix").click()
    findings = panel.get_by_role("list", name="Findings")
    for rule in ("delta-role-once", "end-done-sent"):
        expect(findings.get_by_role("button", name=rule, exact=True)).to_be_visible()
    with page.page.expect_download() as download:
        panel.get_by_role("button", name="Save fixed").click()
    file = tmp_path / "fixed.sse"
    download.value.save_as(file)
    ran = command("lint", str(file), cwd=tmp_path)
    assert ran.code == 0, ran.out


DROP = """(element, [name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  for (const kind of ["dragover", "drop"])
    element.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def test_a_dropped_file_is_linted_unchanged(page: Visit) -> None:
    page.open_inspector()
    page.inspector.evaluate(DROP, ["capture.sse", BAD_STREAM])
    panel = page.inspector.get_by_role("tabpanel").locator("visible=true")
    expect(panel.get_by_role("list", name="Findings")).to_contain_text("delta-role-once")
    expect(panel).to_contain_text("capture.sse")


@pytest.mark.parametrize(("capture", "verdict"), [(saying("fine").body.decode(), "Pass"), ("not a stream", "Fail")])
def test_the_verdict_of_a_pasted_stream_is_shown(page: Visit, capture: str, verdict: str) -> None:
    panel = page.tab("Lint")
    panel.get_by_role("textbox", name="Captured stream").fill(capture)
    panel.get_by_role("button", name="Lint and fix").click()
    expect(panel).to_contain_text(f"{verdict}:")


@pytest.mark.parametrize("side", ["Sent to you", "Upstream"])
def test_welldone_lint_reads_a_saved_trace(page: Visit, stage: Stage, tmp_path: Path, side: str) -> None:
    stage.set_replies(BROKEN)
    ask(page)
    expect(page.total("Repairs")).not_to_have_text("\u2013")
    page.inspector.get_by_role("button", name=side).click()
    with page.page.expect_download() as download:
        page.inspector.get_by_role("button", name="Save trace").click()
    file = tmp_path / "saved.json"
    download.value.save_as(file)
    assert json.loads(file.read_text(encoding="utf-8"))["request"]["messages"]
    ran = command("lint", str(file), cwd=tmp_path)
    is_repaired = side == "Sent to you"
    assert ran.code == (0 if is_repaired else 1), ran.out
    assert (b"delta-role-once" in ran.out) is not is_repaired


# Long streams.


@pytest.mark.tier3
def test_of_ten_thousand_frames_only_visible_rows_are_in_the_document(page: Visit, stage: Stage) -> None:
    stage.set_replies(saying(*[f"{number} " for number in range(MANY)]))
    ask(page)
    frame_count = len(saying(*["x"] * MANY).pieces)
    expect(page.total("Frames")).to_have_text(f"{frame_count:,}")
    expect(grid(page)).to_have_attribute("aria-rowcount", str(frame_count + 1))
    assert grid(page).get_by_role("row").count() < MAX_ROWS
    grid(page).focus()
    page.page.keyboard.press("End")
    expect(detail(page)).to_contain_text(f"Frame {frame_count:,}")
    page.page.keyboard.press("Home")
    expect(detail(page)).to_contain_text("Frame 1:")
    assert grid(page).get_by_role("row").count() < MAX_ROWS
    assert page.page.evaluate("document.querySelectorAll('*').length") < 20 * MANY
