"""`welldone check`: output, report files and exit codes."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check.background import served, without_done
from tests.cli.live import Live
from tests.cli.run import LIMIT_S, Run, run_python
from tests.cli.test_mock import Mock, mocking
from welldone.check.reports import RENDERERS
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES

FEW = ("--only", "text,usage,mistakes-json")


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with mocking(cwd=tmp_path_factory.mktemp("mock")) as running:
        yield running


def _url(mock: Mock) -> str:
    return f"http://127.0.0.1:{mock.port}/v1"


def test_the_output_for_a_correct_server_is_short(here: Run, mock: Mock) -> None:
    ran = here("check", _url(mock), *FEW)
    assert (ran.code, ran.notes) == (0, "")
    lines = ran.out.decode().splitlines()
    assert len(lines) < 10
    assert lines[0] == lines[-1] == "passed: no rule broken"


def test_a_url_needs_no_path_and_no_scheme(here: Run, mock: Mock) -> None:
    assert here("check", f"127.0.0.1:{mock.port}", "--only", "text").code == 0


def test_a_finding_includes_commands_that_reproduce_it(here: Run) -> None:
    with served(without_done()) as url:
        ran = here("check", url, "--only", "text", "--rule", "end-done-sent")
        shown = ran.out.decode()
        assert ran.code == 1
        assert "x end-done-sent  breaks, specified  text" in shown
        assert f"  reproduce  welldone check {url} --model ideal --only text --rule end-done-sent" in shown
        assert f"  curl       curl -siN --raw {url}/chat/completions" in shown


def test_a_finding_of_the_baseline_does_not_fail(here: Run, tmp_path: Path) -> None:
    before = str(tmp_path / "before.json")
    with served(without_done()) as url:
        assert here("check", url, "--only", "text", "--report", before).code == 1
        assert here("check", url, "--only", "text", "--baseline", before).code == 0


def test_a_finding_of_the_baseline_that_is_gone_fails(here: Run, mock: Mock, tmp_path: Path) -> None:
    before = str(tmp_path / "before.json")
    with served(without_done()) as url:
        here("check", url, "--only", "text", "--report", before)
    ran = here("check", _url(mock), "--only", "text", "--baseline", before)
    assert ran.code == 1
    assert ran.out.startswith(b"failed: no longer broken, but still listed as known: end-done-sent\n")
    assert here("check", _url(mock), "--only", "models", "--baseline", before).code == 0


def test_a_report_that_cannot_be_written_does_not_hide_the_result(here: Run, mock: Mock, tmp_path: Path) -> None:
    (tmp_path / "full.json").symlink_to("/dev/full")
    reports = ("--report", str(tmp_path / "full.json"), "--report", str(tmp_path / "check.json"))
    ran = here("check", _url(mock), "--only", "text", *reports)
    assert (ran.code, ran.notes) == (2, f"cannot write {tmp_path / 'full.json'}: no space left on device\n")
    assert ran.out.startswith(b"passed: no rule broken\n")
    assert json.loads((tmp_path / "check.json").read_bytes())["passed"]


def test_the_format_of_a_report_follows_its_extension(here: Run, mock: Mock, tmp_path: Path) -> None:
    names = ["check.json", "check.xml", "check.md", "check.html", "check.sarif", "check.svg"]
    paths = [tmp_path / name for name in names]
    ran = here("check", _url(mock), *FEW, *(word for path in paths for word in ("--report", str(path))))
    assert ran.code == 0
    assert all(path.stat().st_size > 100 for path in paths)
    shown = here("check", _url(mock), *FEW, "--json")
    assert json.loads(shown.out)["verdict"] == json.loads(paths[0].read_bytes())["verdict"] == "pass"


def test_lint_reads_the_traces(here: Run, mock: Mock, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert here("check", _url(mock), "--only", "text", "--record", str(folder)).code == 0
    traces = sorted(folder.glob("*.json"))
    assert traces
    assert [here("lint", str(path)).code for path in traces] == [0] * len(traces)


def test_a_header_can_come_from_the_environment(here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TEAM", "the search team")
    monkeypatch.setenv("MY_KEY", "a-key-of-some-length")
    reference, seen = ReferenceServer(), list[MockHttpRequest]()

    def answer(request: MockHttpRequest) -> MockReply:
        seen.append(request)
        return reference.answer(request)

    with served(answer) as url:
        words = ("--header", "X-Team: env:MY_TEAM", "--api-key", "env:MY_KEY", "--only", "text")
        assert here("check", url, *words).code == 0
        assert {request.headers["x-team"] for request in seen} == {"the search team"}
        assert {request.headers["authorization"] for request in seen} == {"Bearer a-key-of-some-length"}
    with served(without_done()) as url:
        shown = here("check", url, *words).out.decode()
    assert " --api-key env:MY_KEY --header 'X-Team: env:MY_TEAM'" in shown
    assert "the search team" not in shown
    ran = here("check", url, "--header", "X-Team: env:NO_SUCH_VARIABLE")
    assert ran.notes == "the header X-Team names the environment variable NO_SUCH_VARIABLE, which is not set\n"


def test_an_unset_environment_variable_for_the_key_is_an_error(here: Run, mock: Mock) -> None:
    ran = here("check", _url(mock), "--api-key", "env:NO_SUCH_VARIABLE")
    assert (ran.code, ran.notes) == (2, "--api-key names the environment variable NO_SUCH_VARIABLE, which is not set\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "welldone check needs the URL of a server: welldone check http://127.0.0.1:8000/v1"),
        ("ftp://127.0.0.1/v1", "The URL must start with http:// or https://."),
        (
            "http://me:secret@127.0.0.1/v1",
            "the URL holds a user name or password, which would end up in logs; use --api-key instead",
        ),
        ("URL --only tex", "there is no probe 'tex' (did you mean 'text'?); --list shows them"),
        (
            "URL --rule end-done",
            "there is no rule 'end-done' (did you mean",
        ),
        ("URL --report check.pdf", "check.pdf: a report file must end in one of"),
        ("URL --report none/check.json", "cannot write none/check.json: no such folder: none"),
        ("URL --report -", "-: a report file must end in one of"),
        ("URL --record right.txt", "cannot write traces into right.txt: file exists"),
        ("URL --baseline none.json", "cannot read none.json: no such file or directory"),
        ("URL --baseline right.txt", "right.txt is not a report of this version of welldone check; write one with"),
        ("URL --extra [1]", "welldone check: argument --extra: not a JSON object"),
        (r'URL --extra {"a":"\ud800"}', "welldone check: argument --extra: not a JSON object"),
        ('URL --extra {"top_k":1,"stream":false}', "welldone check: argument --extra: stream is set by the probes"),
        ('URL --extra {"model":"m"}', "welldone check: argument --extra: model is set by the probes"),
        ("URL --header secret", "welldone check: argument --header: not a header"),
        ("URL --jobs 0", "welldone check: argument --jobs: '0' is not a whole number from 1 to 64"),
        ("URL --timeout never", "welldone check: argument --timeout: 'never' is not a time from 0.001s to 24h"),
        ("URL --endpoint embeddings", "welldone check: argument --endpoint: invalid choice: 'embeddings'"),
        ("URL --endpoint responses --only stops", "there is no probe 'stops' of responses"),
        ("URL --profile netscape", "there is no profile 'netscape'"),
        ("URL --modle x", "welldone check: unknown option '--modle' (did you mean '--model'?)"),
    ],
)
def test_a_usage_error_is_one_line_that_tells_what_to_do(here: Run, words: str, message: str) -> None:
    ran = here("check", *words.replace("URL", "http://127.0.0.1:9/v1").split())
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes.startswith(message)
    assert ran.notes.count("\n") == 1
    assert "me:secret" not in ran.notes


def test_an_unreachable_server_is_one_line(here: Run) -> None:
    ran = here("check", "http://127.0.0.1:9/v1")  # the port of `discard`, without a listener
    assert (ran.code, ran.out) == (3, b"")
    assert ran.notes == (
        "welldone check: http://127.0.0.1:9/v1: no connection to the server; is the server running there?\n"
    )


def test_a_report_file_must_not_be_a_folder(here: Run, tmp_path: Path) -> None:
    folder = tmp_path / "check.json"
    folder.mkdir()
    ran = here("check", "http://127.0.0.1:9/v1", "--report", str(folder))
    assert (ran.code, ran.notes) == (2, f"cannot write {folder}: is a folder\n")


def test_filters_that_leave_nothing_to_judge_do_not_pass(here: Run, mock: Mock) -> None:
    ran = here("check", _url(mock), "--only", "text", "--rule", "tool-id-once")
    assert (ran.code, ran.notes) == (4, "nothing to judge: no rule was judged: no reply to which the rule applies\n")


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_another_endpoint_can_be_checked(here: Run, mock: Mock, endpoint: str) -> None:
    ran = here("check", _url(mock), "--endpoint", endpoint, "--only", "text,tools")
    assert (ran.code, ran.notes) == (0, "")
    assert f"/v1/{endpoint}\n" in ran.out.decode()


def test_a_broken_rule_of_another_endpoint_is_found(here: Run, tmp_path: Path) -> None:
    with mocking("--break", "msg-start-full", cwd=tmp_path) as breaking:
        url = _url(breaking)
        ran = here("check", url, "--endpoint", "messages", "--only", "text")
        assert ran.code == 1
        assert f"welldone check {url} --model mock --endpoint messages --only text --rule" in ran.out.decode()
        assert here("check", url, "--only", "text").code == 0


def test_an_endpoint_that_the_server_does_not_have_is_reported(here: Run) -> None:
    reference = ReferenceServer()

    def chat_only(request: MockHttpRequest) -> MockReply:
        return reference.answer(
            MockHttpRequest(request.method, request.path.replace("responses", "nothing"), request.headers, request.body)
        )

    with served(chat_only) as url:
        ran = here("check", url, "--endpoint", "responses")
    assert (ran.code, ran.out) == (3, b"")
    assert ran.notes.startswith(f"welldone check: not offered: {url} has no /responses (404: ")
    assert ran.notes.count("\n") == 1


def test_the_probes_of_another_endpoint_are_listed(here: Run) -> None:
    assert "\ncount-tokens " in here("check", "--list", "--endpoint", "messages").out.decode()


def test_probes_are_listed(here: Run) -> None:
    ran = here("check", "--list")
    assert ran.code == 0
    assert "\ntools-required " in ran.out.decode()


def test_check_needs_no_optional_packages(tmp_path: Path) -> None:
    """The packages of `serve` are not imported."""
    code = "import sys, welldone.cli.check; print({'httptools', 'rich', 'uvloop'} & set(sys.modules))"
    assert run_python(code, cwd=tmp_path).out == b"set()\n"


@pytest.mark.parametrize(
    ("number", "notes"), [(signal.SIGINT, ""), (signal.SIGTERM, "welldone check: stopped by SIGTERM\n")]
)
def test_an_interrupt_ends_with_the_report_so_far(number: int, notes: str, tmp_path: Path) -> None:
    started = threading.Event()
    reference = ReferenceServer()

    def answer(request: MockHttpRequest) -> MockReply:
        if "(text-whole)" not in request.headers.get("user-agent", ""):
            return reference.answer(request)
        started.set()
        return FAULT_REPLIES["hang-first"]

    with served(answer) as url:
        reports = [word for suffix in RENDERERS for word in ("--report", f"check{suffix}")]
        with Live("check", url, "--only", "text,text-whole", "--jobs", "1", *reports, cwd=tmp_path) as live:
            assert started.wait(LIMIT_S)
            live.process.send_signal(number)
            ran = live.end()
    assert (ran.code, ran.notes) == (130, notes)
    assert ran.out.decode().startswith("partial: the check was interrupted before all probes had run\n")
    report = json.loads((tmp_path / "check.json").read_bytes())
    assert (report["is_interrupted"], report["is_partial"], report["passed"]) == (True, True, False)
    assert {probe["name"]: probe["verdict"] for probe in report["probes"]}["text"] == "pass"
    for suffix in RENDERERS:
        shown = (tmp_path / f"check{suffix}").read_text("utf-8")
        assert ("interrupted" if suffix == ".svg" else "partial: the check was interrupted") in shown
    assert len(list(tmp_path.iterdir())) == len(RENDERERS)


def test_an_interrupt_before_the_first_reply_leaves_a_report(tmp_path: Path) -> None:
    started = threading.Event()

    def answer(_: MockHttpRequest) -> MockReply:
        started.set()
        return FAULT_REPLIES["hang-first"]

    with served(answer) as url, Live("check", url, "--report", "check.json", cwd=tmp_path) as live:
        assert started.wait(LIMIT_S)
        live.process.send_signal(signal.SIGINT)
        ran = live.end()
    assert (ran.code, ran.notes) == (130, "")
    assert ran.out.startswith(b"partial: ")
    assert len(ran.out.splitlines()) < 20
    assert json.loads((tmp_path / "check.json").read_bytes())["is_partial"]


def test_timed_out_replies_are_not_broken_rules_for_the_exit_code(here: Run) -> None:
    reference = ReferenceServer()

    def answer(request: MockHttpRequest) -> MockReply:
        return FAULT_REPLIES["hang"] if "(text)" in request.headers.get("user-agent", "") else reference.answer(request)

    with served(answer) as url:
        ran = here("check", url, "--only", "text,mistakes-json", "--timeout", "1s")
    assert ran.code == 3
    assert "timed out after 1 s; the server may be slow or busy: raise --timeout" in ran.out.decode()
