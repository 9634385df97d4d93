"""`welldone check` as a process: its screen, its files and its exit code."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check.background import served, without_done
from tests.cli.live import Live
from tests.cli.run import LIMIT_S, Run, run_python
from tests.cli.test_mock import Mock
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

FEW = ("--only", "text,usage,mistakes-json")


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[Mock]:
    with Live("mock", "--port", "0", cwd=tmp_path) as live:
        yield Mock(live)


def _url(mock: Mock) -> str:
    return f"http://127.0.0.1:{mock.port}/v1"


def test_a_right_server_is_a_short_screen(here: Run, mock: Mock) -> None:
    ran = here("check", _url(mock), *FEW)
    assert (ran.code, ran.notes) == (0, "")
    lines = ran.out.decode().splitlines()
    assert len(lines) < 8
    assert ": right" in ran.out.decode()


def test_an_address_needs_no_path_and_no_scheme(here: Run, mock: Mock) -> None:
    assert here("check", f"127.0.0.1:{mock.port}", "--only", "text").code == 0


def test_a_wrong_server_is_told_with_how_to_see_it_again(here: Run, tmp_path: Path) -> None:
    with Live("mock", "--port", "0", "--fault", "no-done", cwd=tmp_path) as live:
        url = _url(Mock(live))
        ran = here("check", url, "--only", "text", "--rule", "end-done-sent")
        shown = ran.out.decode()
        assert ran.code == 1
        assert "x end-done-sent  breaks  text" in shown
        assert f"  again   welldone check {url} --model mock --only text --rule end-done-sent" in shown
        assert f"  curl    curl -siN --raw {url}/chat/completions" in shown


def test_what_is_not_new_does_not_fail(here: Run, tmp_path: Path) -> None:
    before = str(tmp_path / "before.json")
    with Live("mock", "--port", "0", "--fault", "no-done", cwd=tmp_path) as live:
        url = _url(Mock(live))
        assert here("check", url, "--only", "text", "--report", before).code == 1
        assert here("check", url, "--only", "text", "--baseline", before).code == 0


def test_reports_are_written_by_their_names(here: Run, mock: Mock, tmp_path: Path) -> None:
    names = ["check.json", "check.xml", "check.md", "check.html", "check.sarif", "check.svg"]
    paths = [tmp_path / name for name in names]
    ran = here("check", _url(mock), *FEW, *(word for path in paths for word in ("--report", str(path))))
    assert ran.code == 0
    assert all(path.stat().st_size > 100 for path in paths)
    shown = here("check", _url(mock), *FEW, "--json")
    assert json.loads(shown.out)["verdict"] == json.loads(paths[0].read_bytes())["verdict"] == "right"


def test_lint_reads_the_traces(here: Run, mock: Mock, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    assert here("check", _url(mock), "--only", "text", "--record", str(folder)).code == 0
    traces = sorted(folder.glob("*.json"))
    assert traces
    assert [here("lint", str(path)).code for path in traces] == [0] * len(traces)


def test_a_header_comes_from_the_environment_by_its_name(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TEAM", "the search team")
    monkeypatch.setenv("MY_KEY", "a-key-of-some-length")
    ideal, seen = ReferenceServer(), list[MockHttpRequest]()

    def choose(one: MockHttpRequest) -> MockReply:
        seen.append(one)
        return ideal.answer(one)

    with served(choose) as url:
        words = ("--header", "X-Team: env:MY_TEAM", "--api-key", "env:MY_KEY", "--only", "text")
        assert here("check", url, *words).code == 0
        assert {one.headers["x-team"] for one in seen} == {"the search team"}
        assert {one.headers["authorization"] for one in seen} == {"Bearer a-key-of-some-length"}
    with served(without_done()) as url:
        shown = here("check", url, *words).out.decode()
    assert " --api-key env:MY_KEY --header 'X-Team: env:MY_TEAM'" in shown
    assert "the search team" not in shown
    ran = here("check", url, "--header", "X-Team: env:NO_SUCH_VARIABLE")
    assert ran.notes == "the header X-Team names the environment variable NO_SUCH_VARIABLE, which is not set\n"


def test_a_key_comes_from_the_environment_by_its_name(here: Run, mock: Mock) -> None:
    ran = here("check", _url(mock), "--api-key", "env:NO_SUCH_VARIABLE")
    assert (ran.code, ran.notes) == (2, "--api-key names the environment variable NO_SUCH_VARIABLE, which is not set\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "welldone check wants the address of a server: welldone check http://127.0.0.1:8000/v1"),
        ("ftp://127.0.0.1/v1", "A URL begins with http:// or https://."),
        ("http://me:secret@127.0.0.1/v1", "a password in an address ends up in logs; use --api-key"),
        ("URL --only tex", "there is no probe 'tex' (did you mean 'text'?); --list shows them"),
        (
            "URL --rule end-done",
            "there is no rule 'end-done' (did you mean",
        ),
        ("URL --report check.pdf", "check.pdf: the name of a report ends in one of"),
        ("URL --report none/check.json", "cannot write none/check.json: there is no folder none"),
        ("URL --report -", "-: the name of a report ends in one of"),
        ("URL --record right.txt", "cannot write traces into right.txt: file exists"),
        ("URL --baseline none.json", "cannot read none.json: no such file or directory"),
        ("URL --baseline right.txt", "right.txt is no report of welldone check; make one with --report right.txt"),
        ("URL --extra [1]", "welldone check: argument --extra: is no JSON object"),
        (r'URL --extra {"a":"\ud800"}', "welldone check: argument --extra: is no JSON object"),
        ('URL --extra {"top_k":1,"stream":false}', "welldone check: argument --extra: stream is what the probes set"),
        ('URL --extra {"model":"m"}', "welldone check: argument --extra: model is what the probes set"),
        ("URL --header secret", "welldone check: argument --header: is no header"),
        ("URL --jobs 0", "welldone check: argument --jobs: '0' is no whole number from 1 to 64"),
        ("URL --timeout never", "welldone check: argument --timeout: 'never' is no time above 0 and up to 24h"),
        ("URL --endpoint embeddings", "welldone check: argument --endpoint: invalid choice: 'embeddings'"),
        ("URL --endpoint responses --only stops", "there is no probe 'stops' of responses"),
        ("URL --profile netscape", "there is no profile 'netscape'"),
        ("URL --modle x", "welldone check does not know '--modle' (did you mean '--model'?)"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(here: Run, words: str, said: str) -> None:
    ran = here("check", *words.replace("URL", "http://127.0.0.1:9/v1").split())
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes.startswith(said)
    assert ran.notes.count("\n") == 1
    assert "me:secret" not in ran.notes


def test_nobody_there_is_one_line(here: Run) -> None:
    ran = here("check", "http://127.0.0.1:9/v1")  # the port of `discard`: nobody listens there
    assert (ran.code, ran.out) == (3, b"")
    assert ran.notes == (
        "welldone check: http://127.0.0.1:9/v1: no connection to the server; is the server running there?\n"
    )


def test_the_file_of_a_report_may_not_be_a_folder(here: Run, tmp_path: Path) -> None:
    folder = tmp_path / "check.json"
    folder.mkdir()
    ran = here("check", "http://127.0.0.1:9/v1", "--report", str(folder))
    assert (ran.code, ran.notes) == (2, f"cannot write {folder}: it is a folder\n")


def test_filters_that_leave_nothing_are_no_pass(here: Run, mock: Mock) -> None:
    ran = here("check", _url(mock), "--only", "text", "--rule", "tool-id-once")
    assert (ran.code, ran.notes) == (4, "nothing to judge: no rule had a say: no reply gave an occasion\n")


@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_another_endpoint_is_checked_where_it_is_named(here: Run, mock: Mock, endpoint: str) -> None:
    ran = here("check", _url(mock), "--endpoint", endpoint, "--only", "text,tools")
    assert (ran.code, ran.notes) == (0, "")
    assert f"/v1/{endpoint}\n" in ran.out.decode()


def test_a_rule_of_another_endpoint_is_broken_by_the_mock_and_found(here: Run, tmp_path: Path) -> None:
    with Live("mock", "--port", "0", "--break", "msg-start-full", cwd=tmp_path) as live:
        url = _url(Mock(live))
        ran = here("check", url, "--endpoint", "messages", "--only", "text")
        assert ran.code == 1
        assert f"welldone check {url} --model mock --endpoint messages --only text --rule" in ran.out.decode()
        assert here("check", url, "--only", "text").code == 0


def test_an_endpoint_that_a_server_does_not_have_is_not_offered(here: Run) -> None:
    ideal = ReferenceServer()

    def chat_only(seen: MockHttpRequest) -> MockReply:
        return ideal.answer(
            MockHttpRequest(seen.method, seen.path.replace("responses", "nothing"), seen.headers, seen.body)
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


def test_it_needs_the_core_alone(tmp_path: Path) -> None:
    """What `serve` needs is not loaded: the check runs where only the core is installed."""
    code = "import sys, welldone.cli.check; print({'aiohttp', 'httptools', 'rich', 'uvloop'} & set(sys.modules))"
    assert run_python(code, cwd=tmp_path).out == b"set()\n"


def test_an_interrupt_ends_with_the_report_so_far(tmp_path: Path) -> None:
    begun = threading.Event()
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if "(text-whole)" not in seen.headers.get("user-agent", ""):
            return ideal.answer(seen)
        begun.set()
        return FAULT_REPLIES["hang-first"]

    with served(choose) as url:
        words = ("check", url, "--only", "text,text-whole", "--jobs", "1", "--report", "check.json")
        with Live(*words, cwd=tmp_path) as live:
            assert begun.wait(LIMIT_S)
            live.process.send_signal(signal.SIGINT)
            ran = live.end()
    assert ran.code == 130
    assert "not passed: the check was interrupted" in ran.out.decode()
    report = json.loads((tmp_path / "check.json").read_bytes())
    assert (report["is_interrupted"], report["passed"]) == (True, False)
    assert {probe["name"]: probe["verdict"] for probe in report["probes"]}["text"] == "right"


def test_an_interrupt_before_the_first_reply_is_one_line(tmp_path: Path) -> None:
    begun = threading.Event()

    def choose(_: MockHttpRequest) -> MockReply:
        begun.set()
        return FAULT_REPLIES["hang-first"]

    with served(choose) as url, Live("check", url, cwd=tmp_path) as live:
        assert begun.wait(LIMIT_S)
        live.process.send_signal(signal.SIGINT)
        ran = live.end()
    assert (ran.code, ran.out, ran.notes) == (130, b"", "welldone check: interrupted before anything was judged\n")


def test_replies_that_time_out_are_no_violation_for_the_exit_code(here: Run) -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        return FAULT_REPLIES["hang"] if "(text)" in seen.headers.get("user-agent", "") else ideal.answer(seen)

    with served(choose) as url:
        ran = here("check", url, "--only", "text,mistakes-json", "--timeout", "1s")
    assert ran.code == 3
    assert "timed out after 1 s; the server may be slow or busy: raise --timeout" in ran.out.decode()
