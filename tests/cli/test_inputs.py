"""The source of a reply does not change the result, and lint and fix agree."""

import base64
import json
from pathlib import Path

import pytest

from tests.cli.captures import FILES, QUOTED, RIGHT
from tests.cli.run import Run, run


@pytest.mark.tier3
@pytest.mark.parametrize("command", ["lint", "fix"])
@pytest.mark.parametrize("name", ["right.txt", "roles.txt", "curl-raw.txt", "crlf.txt", "whole.json", "empty.txt"])
def test_a_file_and_standard_input_are_the_same(command: str, name: str, here: Run, folder: Path) -> None:
    from_file = here(command, name)
    assert run(command, stdin=FILES[name], cwd=folder) == from_file
    assert run(command, "-", stdin=FILES[name], cwd=folder) == from_file


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_a_trace_from_standard_input_reads_its_body_from_the_current_folder(command: str, here: Run) -> None:
    assert here(command, stdin=FILES["trace.json"]) == here(command, "trace.json")


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_a_trace_file_reads_its_body_from_its_own_folder(command: str, here: Run, folder: Path, tmp_path: Path) -> None:
    assert here(command, str(folder / "trace.json"), cwd=tmp_path) == here(command, "trace.json")


def test_a_request_may_be_a_whole_trace(here: Run) -> None:
    linted = here("lint", "used.txt", "--request", "request-usage.json")
    assert here("lint", "used.txt", "--request", "trace.json") == linted


def test_the_request_option_overrides_the_request_of_the_trace(here: Run) -> None:
    assert here("lint", "trace.json", "--rule", "use-only-if-asked").code == 0
    linted = here("lint", "trace.json", "--rule", "use-only-if-asked", "--request", "request.json")
    assert linted.code == 1


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.startswith(("right", "roles", "calls", "completions", "used"))]
)
def test_crlf_line_ends_do_not_change_the_repaired_stream(name: str, here: Run) -> None:
    stdin = FILES[name].replace(b"\n", b"\r\n")
    ran = here("fix", "--request", "request.json", stdin=stdin)
    plain = here("fix", name, "--request", "request.json")
    assert (ran.code, _without_calls(ran.out)) == (plain.code, _without_calls(plain.out))
    assert "sse-lf-only" in ran.notes


def _without_calls(out: bytes) -> list[bytes]:
    """Return the frames without those that have a generated call id, which differs between runs."""
    return [frame for frame in out.split(b"\n\n") if b'"name":"put"' not in frame]


def test_fix_does_not_change_a_correct_stream(here: Run) -> None:
    assert here("fix", "right.txt").out == RIGHT


@pytest.mark.tier3
@pytest.mark.parametrize("suffix", [".json", ".body"])
@pytest.mark.parametrize("name", QUOTED)
def test_a_repaired_stream_passes_lint(name: str, suffix: str, here: Run) -> None:
    fixed = here("fix", f"{name}{suffix}")
    assert fixed.code == 0
    ran = here("lint", stdin=fixed.out)
    assert ran.code == 0
    assert ran.out.startswith(b"pass: ")


@pytest.mark.tier3
@pytest.mark.parametrize("name", QUOTED)
def test_a_stream_repaired_for_its_request_passes_lint(name: str, here: Run) -> None:
    fixed = here("fix", f"{name}.json")
    ran = here("lint", "--request", f"{name}.json", stdin=fixed.out)
    assert ran.code == 0
    assert ran.out.startswith(b"pass: ")


@pytest.mark.parametrize("name", QUOTED)
def test_fix_is_idempotent(name: str, here: Run) -> None:
    once = here("fix", f"{name}.json")
    again = here("fix", "--request", f"{name}.json", stdin=once.out)
    assert (again.code, again.out, again.notes) == (0, once.out, "fix: nothing to repair\n")


@pytest.mark.tier3
@pytest.mark.parametrize("name", ["calls.txt", "cut.txt", "failed.txt", "whole-wrong.json", "error.json"])
def test_fix_is_idempotent_for_a_stream_that_ends_with_an_error(name: str, here: Run) -> None:
    once = here("fix", name)
    again = here("fix", stdin=once.out)
    assert (again.code, again.out) == (once.code, once.out)


@pytest.mark.parametrize("name", ["cut.txt", "failed.txt", "garbage.txt", "error.json", "whole-wrong.json"])
def test_an_incomplete_answer_passes_lint_after_fix(name: str, here: Run) -> None:
    ran = here("lint", stdin=here("fix", name).out)
    assert ran.code == 0
    assert ran.out.startswith(b"pass: ")


SAVED = {
    "endpoint": "/v1/chat/completions",
    "request": {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]},
    "status": "HTTP/1.1 200 OK",
    "headers": [["content-type", "text/event-stream"]],
    "body_complete": True,
    "pieces": [[0.25, 40], [0.5, 20]],
}
"""A trace as the inspector saves it, without its body."""


@pytest.mark.parametrize("command", ["lint", "fix"])
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "base64"])
def test_a_trace_may_hold_its_body(command: str, is_text: bool, here: Run, tmp_path: Path) -> None:
    body = FILES["roles.txt"]
    inline = {"body_text": body.decode()} if is_text else {"body_base64": base64.b64encode(body).decode()}
    (tmp_path / "saved.json").write_text(json.dumps(SAVED | inline))
    (tmp_path / "named.json").write_text(json.dumps(SAVED | {"body": "named.body"}))
    (tmp_path / "named.body").write_bytes(body)
    ran = here(command, "saved.json", cwd=tmp_path)
    assert ran == here(command, "named.json", cwd=tmp_path)
    assert "delta-role-once" in ran.notes + ran.out.decode()


def test_a_trace_whose_body_cannot_be_decoded_is_a_usage_error(here: Run, tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(json.dumps(SAVED | {"body_base64": "%"}))
    ran = here("lint", "saved.json", cwd=tmp_path)
    assert ran.code == 2
    assert "the body in the trace saved.json cannot be read" in ran.notes


ELEMENT = b'{"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"},"finishReason":"STOP","index":0}]}'


@pytest.mark.parametrize("capture", [b"data: %b\n\n", b"[%b]", b"%b"], ids=["events", "array", "whole"])
def test_a_capture_of_gemini_is_judged_and_repaired_unless_it_is_an_array(capture: bytes, here: Run) -> None:
    detected = here("lint", stdin=capture % ELEMENT)
    assert (detected.code, here("lint", "--endpoint", "gemini", stdin=capture % ELEMENT)) == (0, detected)
    assert here("lint", stdin=capture % ELEMENT.replace(b'"STOP"', b"1")).code == 1
    fixed = here("fix", stdin=capture % ELEMENT)
    assert ("as a JSON array is not repaired" in fixed.notes) is capture.startswith(b"[")
    assert fixed.out.strip() == (b"" if capture.startswith(b"[") else (capture % ELEMENT).strip())
