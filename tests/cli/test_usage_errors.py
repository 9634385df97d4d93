"""Usage errors: one line that tells what to do, exit code 2, and nothing on standard output."""

import json
from pathlib import Path

import pytest

from tests.cli.run import Run, run

USAGE_ERRORS = {
    "lnit": "welldone has no command 'lnit' (did you mean 'lint'?); see welldone --help",
    "xyzzy": "welldone has no command 'xyzzy'; see welldone --help",
    "--versoin": "welldone has no command '--versoin'; see welldone --help",
    "lint --jsn": "welldone lint: unknown option '--jsn' (did you mean '--json'?); see welldone lint --help",
    "lint --js": "welldone lint: unknown option '--js' (did you mean '--json'?); see welldone lint --help",
    "fix --reprot=x": "welldone fix: unknown option '--reprot' (did you mean '--report'?); see welldone fix --help",
    "fix --json": "welldone fix: unknown option '--json'; see welldone fix --help",
    "rules --quux": "welldone rules: unknown option '--quux'; see welldone rules --help",
    "lint right.txt cut.txt": "welldone lint: unknown argument 'cut.txt'; see welldone lint --help",
    "fix right.txt cut.txt": "welldone fix: unknown argument 'cut.txt'; see welldone fix --help",
    "rules tool use": "welldone rules: unknown argument 'use'; see welldone rules --help",
    "lint --rule delta-role-onc right.txt": (
        "there is no rule 'delta-role-onc' (did you mean 'delta-role-once'?); welldone rules lists them"
    ),
    "lint --rule end-done-sent --rule 12345 right.txt": "there is no rule '12345'; welldone rules lists them",
    "lint --rule end-done-sent --rule live-stop-not-leaked right.txt": (
        "live-stop-not-leaked cannot be judged from a captured reply; welldone check tests a server for it"
    ),
    "rules delta-role-onec": (
        "there is no rule 'delta-role-onec' (did you mean 'delta-role-once'?); welldone rules lists them"
    ),
    "rules tol": "there is no rule 'tol' (did you mean 'tool'?); welldone rules lists them",
    "rules tol --json": "there is no rule 'tol' (did you mean 'tool'?); welldone rules lists them",
    "lint gone.txt": "cannot read gone.txt: no such file or directory",
    "fix gone.txt": "cannot read gone.txt: no such file or directory",
    "lint .": "cannot read .: is a directory",
    "fix .": "cannot read .: is a directory",
    "lint right.txt --request gone.json": "cannot read gone.json: no such file or directory",
    "fix right.txt --request gone.json": "cannot read gone.json: no such file or directory",
    "lint right.txt --request .": "cannot read .: is a directory",
    "lint right.txt --request request-list.json": (
        "request-list.json does not hold a JSON object; it must hold the body of the request"
    ),
    "fix right.txt --request request-list.json": (
        "request-list.json does not hold a JSON object; it must hold the body of the request"
    ),
    "lint trace-gone.json": "cannot read gone.body: no such file or directory",
    "fix trace-gone.json": "cannot read gone.body: no such file or directory",
    "lint trace-path.json": "the trace has '../right.txt' as its body; it must name a file in the folder of the trace",
    "fix trace-path.json": "the trace has '../right.txt' as its body; it must name a file in the folder of the trace",
    "fix right.txt --report .": "cannot write .: is a directory",
    "fix right.txt --report gone/report.json": "cannot write gone/report.json: no such file or directory",
}


@pytest.mark.parametrize("words", USAGE_ERRORS)
def test_a_usage_error_is_one_line_that_tells_what_to_do(words: str, here: Run) -> None:
    ran = here(*words.split())
    assert (ran.code, ran.out, ran.notes) == (2, b"", USAGE_ERRORS[words] + "\n")


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_an_unknown_endpoint_is_reported_with_the_known_ones(command: str, here: Run) -> None:
    ran = here(command, "right.txt", "--endpoint", "ollama")
    problem, choices = ran.notes.split("(choose from ")  # some versions of Python put the names in quotes
    assert (ran.code, ran.out) == (2, b"")
    assert problem == f"welldone {command}: argument --endpoint: invalid choice: 'ollama' "
    names = "chat, completions, responses, messages, gemini"
    assert choices.replace("'", "") == f"{names}); see welldone {command} --help\n"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("lint right.txt --endpoint caht", ["--endpoint", "'caht'", "chat", "completions", "welldone lint --help"]),
        ("fix right.txt --endpoint caht", ["--endpoint", "'caht'", "chat", "completions", "welldone fix --help"]),
        ("lint right.txt --rule", ["--rule", "expected one argument", "welldone lint --help"]),
        ("fix right.txt --report", ["--report", "expected one argument", "welldone fix --help"]),
        ("lint right.txt --json=yes", ["--json", "'yes'", "welldone lint --help"]),
        (
            "lint right.txt --request request-broken.json",
            ["request-broken.json is not JSON", "body of the request"],
        ),
        ("fix right.txt --request request-broken.json", ["request-broken.json is not JSON", "body of the request"]),
        ("lint right.txt --request empty.txt", ["empty.txt is not JSON", "the body of the request"]),
        ("lint right.txt --request roles.txt", ["roles.txt is not JSON", "the body of the request"]),
    ],
)
def test_a_usage_error_that_python_words_is_one_line_too(words: str, parts: list[str], here: Run) -> None:
    ran = here(*words.split())
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes.count("\n") == 1
    assert [word for word in parts if word not in ran.notes] == []


@pytest.mark.parametrize("command", ["lint", "fix"])
@pytest.mark.parametrize("body", ["", ".", "..", "a\\b", "/etc/hosts"])
def test_a_trace_may_only_name_a_body_in_its_own_folder(command: str, body: str, here: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"body": body}), "utf-8")
    ran = here(command, "trace.json", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes == f"the trace has {body!r} as its body; it must name a file in the folder of the trace\n"


@pytest.mark.parametrize("body", ["a\0b", "\ud800"], ids=["zero byte", "half a character"])
def test_a_trace_with_an_impossible_file_name_is_a_usage_error(body: str, here: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"body": body}), "utf-8")
    ran = here("lint", "trace.json", cwd=tmp_path)
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes.count("\n") == 1


def test_a_report_does_not_overwrite_the_capture(here: Run, tmp_path: Path, folder: Path) -> None:
    capture = (folder / "roles.txt").read_bytes()
    (tmp_path / "roles.txt").write_bytes(capture)
    ran = here("fix", "roles.txt", "--report", "roles.txt", cwd=tmp_path)
    assert ran.code == 2
    assert (tmp_path / "roles.txt").read_bytes() == capture


@pytest.mark.parametrize("words", ["lnit", "lint --jsn", "fix gone.txt"])
def test_a_usage_error_ends_the_process_with_code_2(words: str, folder: Path) -> None:
    ran = run(*words.split(), cwd=folder)
    assert (ran.code, ran.out, ran.notes) == (2, b"", USAGE_ERRORS[words] + "\n")


NOTHING_TO_DO = {
    "lint empty.txt": "nothing to judge: the capture is empty",
    "lint white.txt": "nothing to judge: the capture is empty",
    "lint empty.txt --json": "nothing to judge: the capture is empty",
    "fix empty.txt": "nothing to fix: the capture is empty",
    "fix white.txt": "nothing to fix: the capture is empty",
    "fix head-only.txt": "nothing to fix: the capture is empty",
    "lint used.txt --rule use-only-if-asked": (
        "nothing to judge: use-only-if-asked cannot be judged from this capture alone"
    ),
    "lint used.txt --json --rule use-only-if-asked": (
        "nothing to judge: use-only-if-asked cannot be judged from this capture alone"
    ),
    "lint used.txt --rule use-only-if-asked --rule http-cache-control": (
        "nothing to judge: use-only-if-asked and http-cache-control cannot be judged from this capture alone"
    ),
    "lint right.txt --rule cmpl-done": "nothing to judge: cmpl-done cannot be judged from this capture alone",
}


@pytest.mark.parametrize("words", NOTHING_TO_DO)
def test_without_anything_to_examine_the_exit_code_is_4(words: str, here: Run) -> None:
    ran = here(*words.split())
    assert (ran.code, ran.out, ran.notes) == (4, b"", NOTHING_TO_DO[words] + "\n")


def test_a_head_without_a_body_is_judged(here: Run) -> None:
    assert here("lint", "head-only.txt", "--rule", "err-empty-stream").code == 1


@pytest.mark.parametrize(
    ("stdin", "line"),
    [
        (b"\x1f\x8b\x08\0", "the capture is compressed; capture it again with curl --compressed\n"),
        (b"\xff\xfed\0a\0", "the capture is UTF-16, as some shells write it; save it as UTF-8\n"),
    ],
    ids=["gzip", "UTF-16"],
)
@pytest.mark.parametrize("command", ["lint", "fix"])
def test_compressed_or_reencoded_captures_are_usage_errors(command: str, stdin: bytes, line: str, here: Run) -> None:
    ran = here(command, stdin=stdin)
    assert (ran.code, ran.out, ran.notes) == (2, b"", line)


@pytest.mark.parametrize(("command", "job"), [("lint", "judge"), ("fix", "fix")])
def test_without_anything_in_the_pipe_the_exit_code_is_4(command: str, job: str, folder: Path) -> None:
    ran = run(command, stdin=b"", cwd=folder)
    assert (ran.code, ran.out, ran.notes) == (4, b"", f"nothing to {job}: the capture is empty\n")


def test_rules_that_can_be_judged_are_judged_beside_those_that_cannot(here: Run) -> None:
    ran = here("lint", "used.txt", "--rule", "use-only-if-asked", "--rule", "end-done-sent")
    assert (ran.code, ran.out) == (0, b"pass: 5 frames, 1 rule judged, no rule broken\n")
