"""Where a reply comes from does not change what is said of it, and the commands agree with each other."""

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
def test_a_trace_from_standard_input_finds_its_body_in_the_folder_one_is_in(
    command: str, here: Run, folder: Path
) -> None:
    assert run(command, stdin=FILES["trace.json"], cwd=folder) == here(command, "trace.json")


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_a_trace_finds_its_body_beside_it_from_any_folder(
    command: str, here: Run, folder: Path, tmp_path: Path
) -> None:
    assert run(command, str(folder / "trace.json"), cwd=tmp_path) == here(command, "trace.json")


def test_a_request_may_be_a_whole_trace(here: Run) -> None:
    told = here("lint", "used.txt", "--request", "request-usage.json")
    assert here("lint", "used.txt", "--request", "trace.json") == told


def test_the_request_that_the_user_names_counts_more_than_that_of_the_trace(here: Run) -> None:
    assert here("lint", "trace.json", "--rule", "use-only-if-asked").code == 0
    told = here("lint", "trace.json", "--rule", "use-only-if-asked", "--request", "request.json")
    assert told.code == 1


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.startswith(("right", "roles", "calls", "completions", "used"))]
)
def test_line_ends_of_crlf_make_no_difference_to_what_is_repaired(name: str, here: Run, folder: Path) -> None:
    stdin = FILES[name].replace(b"\n", b"\r\n")
    ran = run("fix", "--request", "request.json", stdin=stdin, cwd=folder)
    plain = here("fix", name, "--request", "request.json")
    assert (ran.code, _without_calls(ran.out)) == (plain.code, _without_calls(plain.out))
    assert "sse-lf-only" in ran.notes


def _without_calls(out: bytes) -> list[bytes]:
    """The frames without those that have an id made for a call, which is another in every run."""
    return [frame for frame in out.split(b"\n\n") if b'"name":"put"' not in frame]


def test_a_right_stream_is_not_touched_by_fix(here: Run) -> None:
    assert here("fix", "right.txt").out == RIGHT


@pytest.mark.tier3
@pytest.mark.parametrize("suffix", [".json", ".body"])
@pytest.mark.parametrize("name", QUOTED)
def test_lint_finds_nothing_wrong_in_what_fix_has_repaired(name: str, suffix: str, here: Run, folder: Path) -> None:
    fixed = here("fix", f"{name}{suffix}")
    assert fixed.code == 0
    ran = run("lint", stdin=fixed.out, cwd=folder)
    assert ran.code == 0
    assert ran.out.startswith(b"right: ")


@pytest.mark.tier3
@pytest.mark.parametrize("name", QUOTED)
def test_lint_finds_nothing_wrong_in_what_fix_has_repaired_for_the_request(name: str, here: Run, folder: Path) -> None:
    fixed = here("fix", f"{name}.json")
    ran = run("lint", "--request", f"{name}.json", stdin=fixed.out, cwd=folder)
    assert ran.code == 0
    assert ran.out.startswith(b"right: ")


@pytest.mark.parametrize("name", QUOTED)
def test_what_is_fixed_twice_is_what_is_fixed_once(name: str, here: Run, folder: Path) -> None:
    once = here("fix", f"{name}.json")
    again = run("fix", "--request", f"{name}.json", stdin=once.out, cwd=folder)
    assert (again.code, again.out, again.notes) == (0, once.out, "fix: nothing to mend\n")


@pytest.mark.tier3
@pytest.mark.parametrize("name", ["calls.txt", "cut.txt", "failed.txt", "whole-wrong.json", "error.json"])
def test_what_is_fixed_twice_is_fixed_once_also_where_it_ends_with_an_error(name: str, here: Run, folder: Path) -> None:
    once = here("fix", name)
    again = run("fix", stdin=once.out, cwd=folder)
    assert (again.code, again.out) == (once.code, once.out)


@pytest.mark.parametrize("name", ["cut.txt", "failed.txt", "garbage.txt", "error.json", "whole-wrong.json"])
def test_lint_finds_nothing_wrong_in_an_answer_that_could_not_be_made_whole(name: str, folder: Path) -> None:
    ran = run("lint", stdin=run("fix", name, cwd=folder).out, cwd=folder)
    assert ran.code == 0
    assert ran.out.startswith(b"right: ")


SAVED = {
    "endpoint": "/v1/chat/completions",
    "request": {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]},
    "status": "HTTP/1.1 200 OK",
    "headers": [["content-type", "text/event-stream"]],
    "body_complete": True,
    "pieces": [[0.25, 40], [0.5, 20]],
}
"""A trace as the page saves it, but for its body."""


@pytest.mark.parametrize("command", ["lint", "fix"])
@pytest.mark.parametrize("is_text", [True, False], ids=["text", "base64"])
def test_a_trace_may_hold_its_body(command: str, is_text: bool, folder: Path, tmp_path: Path) -> None:
    body = FILES["roles.txt"]
    held = {"body_text": body.decode()} if is_text else {"body_base64": base64.b64encode(body).decode()}
    (tmp_path / "saved.json").write_text(json.dumps(SAVED | held))
    (tmp_path / "named.json").write_text(json.dumps(SAVED | {"body": "named.body"}))
    (tmp_path / "named.body").write_bytes(body)
    ran = run(command, "saved.json", cwd=tmp_path)
    assert ran == run(command, "named.json", cwd=tmp_path)
    assert "delta-role-once" in ran.notes + ran.out.decode()


def test_a_trace_whose_body_is_broken_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_text(json.dumps(SAVED | {"body_base64": "%"}))
    ran = run("lint", "saved.json", cwd=tmp_path)
    assert ran.code == 2
    assert "the body in the trace saved.json cannot be read" in ran.notes
