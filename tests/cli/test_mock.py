"""`welldone mock`: banner, answers, faults, broken rules, traces, and Ctrl-C."""

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from tests.cli.captures import USED
from tests.cli.live import Live
from tests.cli.run import LIMIT_S, Run
from welldone.mock.variants import ALL_FAULTS
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

CHAT: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
USAGE_ERRORS = {
    "--fault ctu": "there is no fault 'ctu' (did you mean 'cut'?); welldone mock --list shows them",
    "--trace right.txt": "right.txt is not a trace: JSON that holds the body, or the name of the body's file",
    "--trace trace-gone.json": "cannot read gone.body: no such file or directory",
    "--fault cut --trace trace.json": (
        "--trace and --fault exclude each other: a trace is replayed as it was recorded"
    ),
    "--fault cut --gap 1s": "a fault has a text of its own: omit --text, --tokens and --gap",
    "--trace trace.json --text hi": "a trace has a text of its own: omit --text, --tokens and --gap",
    "--break delta-role-one": (
        "there is no rule 'delta-role-one' (did you mean 'delta-role-once'?); welldone rules lists them"
    ),
    "--break ns-leading-space-ok": (
        "ns-leading-space-ok cannot be broken here: it permits something, so it cannot be broken"
    ),
    "--break end-done-sent --fault cut": (
        "--break excludes --trace and --fault: the rule is broken in answers that are otherwise correct"
    ),
    "--break end-done-sent --gap 1s": "a broken rule has a text of its own: omit --text, --tokens and --gap",
    "--falt cut": "welldone mock: unknown option '--falt' (did you mean '--fault'?); see welldone mock --help",
}


class Mock:
    """A running mock."""

    def __init__(self, live: Live) -> None:
        self.live = live
        assert live.process.stdout is not None
        self.banner = ""
        while "Ctrl-C" not in self.banner:
            line = live.process.stdout.readline().decode()
            assert line, live.end().notes
            self.banner += line
        match = re.search(r"on http://127\.0\.0\.\d:(\d+)/v1\n", self.banner)
        assert match is not None, self.banner
        self.port = int(match[1])

    def ask(self, body: dict[str, Any] | None = None, path: str = "/v1/chat/completions") -> Trace:
        """Send a request, a GET without a body; return the reply."""
        with self.send(body, path) as reply:
            headers = tuple(reply.headers.items())
            return Trace(body=reply.read(), request=body, status=reply.status, headers=headers, complete=True)

    @contextmanager
    def send(self, body: dict[str, Any] | None, path: str = "/v1/chat/completions") -> Iterator[HTTPResponse]:
        """Send a request; yield its response before the body is read."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            with connection.getresponse() as reply:
                yield reply
        finally:
            connection.close()

    def interrupt(self, number: int = signal.SIGINT) -> int:
        """Send a signal and return the exit code."""
        self.live.process.send_signal(number)
        return self.live.process.wait(LIMIT_S)


@contextmanager
def mocking(*words: str, cwd: Path) -> Iterator[Mock]:
    """Run a mock on a free port."""
    with Live("mock", "--port", "0", *words, cwd=cwd) as live:
        yield Mock(live)


@pytest.fixture(scope="module")
def mock(folder: Path) -> Iterator[Mock]:
    """A mock without options."""
    with mocking(cwd=folder) as running:
        yield running


@pytest.fixture(scope="module")
def cutting_mock(folder: Path) -> Iterator[Mock]:
    """A mock that cuts its answers off."""
    with mocking("--fault", "cut", cwd=folder) as running:
        yield running


def test_the_mock_answers_correctly_until_it_is_interrupted(folder: Path) -> None:
    with mocking(cwd=folder) as mock:
        assert f"curl -N http://127.0.0.1:{mock.port}/v1/chat/completions" in mock.banner
        stream = mock.ask(CHAT)
        assert judge(stream).findings == ()
        assert b'"content":" help"' in stream.body
        whole = mock.ask(CHAT | {"stream": False})
        assert "Hello! How can I help you today?" in json.loads(whole.body)["choices"][0]["message"]["content"]
        models = json.loads(mock.ask(path="/v1/models").body)
        assert [model["id"] for model in models["data"]] == ["mock"]
        assert json.loads(mock.ask(path="/counts").body)["requests"] == 4
        assert mock.interrupt() == 0
        assert mock.live.end().notes == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_open_stream_does_not_delay_the_end(number: int, folder: Path) -> None:
    with mocking("--gap", "60s", cwd=folder) as mock, mock.send(CHAT) as reply:
        assert reply.readline().startswith(b"data: ")
        assert mock.interrupt(number) == 0
        assert mock.live.end().notes == ""
        with pytest.raises(IncompleteRead):
            reply.read()


def test_the_answer_has_the_given_number_of_tokens(folder: Path) -> None:
    with mocking("--text", "one two", "--tokens", "5", "--gap", "1ms", cwd=folder) as mock:
        text = json.loads(mock.ask(CHAT | {"stream": False}).body)["choices"][0]["message"]["content"]
        assert text == "one two one two one"


def _message(reply: Trace) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(reply.body)["choices"][0]["message"]
    return message


def _request(text: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - request fields
    return CHAT | {"stream": False, "messages": [{"role": "user", "content": text}]} | fields


def test_answers_depend_on_the_prompt_and_not_on_the_model(mock: Mock) -> None:
    assert _message(mock.ask(_request("Say: good day", model="gpt-4o", stop=" day")))["content"] == "good"
    assert _message(mock.ask(_request("Count to 3")))["content"] == "1, 2, 3"
    tool = {"type": "function", "function": {"name": "clock"}}
    call = _message(mock.ask(_request("Use the clock", tools=[tool])))["tool_calls"][0]
    assert call["function"] == {"name": "clock", "arguments": "{}"}
    assert "reasoning_content" in _message(mock.ask(_request("Hi", model="my-thinking")))
    refused = mock.ask(_request("Hi", n=0))
    assert (refused.status, json.loads(refused.body)["error"]["param"]) == (400, "n")


def test_a_given_text_answers_every_request(folder: Path) -> None:
    tool = {"type": "function", "function": {"name": "clock"}}
    with mocking("--text", "one two", cwd=folder) as mock:
        for fields in ({}, {"tools": [tool], "tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
            assert _message(mock.ask(_request("Count", **fields)))["content"] == "one two"
        assert _message(mock.ask(_request("Count", max_tokens=1)))["content"] == "one"
        assert _message(mock.ask(_request("Count", stop="e t")))["content"] == "on"
        reply = mock.ask({"prompt": "Count", "echo": True}, "/v1/completions")
        assert json.loads(reply.body)["choices"][0]["text"] == "Countone two"


def test_a_fault_is_replayed(cutting_mock: Mock) -> None:
    assert "a fault: the connection is closed within a chunk" in cutting_mock.banner
    with pytest.raises(IncompleteRead):
        cutting_mock.ask(CHAT)


@pytest.mark.parametrize("endpoint", ["chat", "responses", "messages"])
def test_an_answer_that_is_cut_off_has_one_cause(endpoint: str, cutting_mock: Mock, here: Run) -> None:
    url = f"http://127.0.0.1:{cutting_mock.port}/v1"
    ran = here("check", url, "--endpoint", endpoint, "--skip", "leaving", "--json")
    report = json.loads(ran.out)
    assert ran.code == 1
    causes = {finding["rule"] for finding in report["findings"] if finding["cause"] is None}
    assert causes == {
        {"responses": "resp-terminal-once", "messages": "msg-no-early-eof"}.get(endpoint, "end-no-early-eof")
    }
    assert {finding["cause"] for finding in report["findings"]} == {None, *causes}


def test_several_broken_rules_alternate(folder: Path) -> None:
    rules = ["delta-role-once", "end-done-sent"]
    with mocking("--break", rules[0], "--break", rules[1], cwd=folder) as mock:
        assert f"correct answers that break one of the rules {', '.join(rules)}\n" in mock.banner
        mock.ask(path="/v1/models")
        assert [[*judge(mock.ask(CHAT)).counts] for _ in range(4)] == [[rule] for rule in rules * 2]


def test_the_mock_listens_on_the_given_address(folder: Path, here: Run) -> None:
    with mocking("--host", "127.0.0.2", cwd=folder) as mock:
        assert f"http://127.0.0.2:{mock.port}/v1" in mock.banner
        with pytest.raises(ConnectionRefusedError):
            mock.ask(CHAT)
    ran = here("mock", "--host", "192.0.2.1", "--port", "0")
    assert (ran.code, ran.notes.count("\n")) == (2, 1)
    assert ran.notes.startswith("cannot listen on 192.0.2.1 port 0: ")


@pytest.mark.parametrize("rule", ["delta-role-once", "http-cache-control"])
def test_break_breaks_one_rule_and_no_other(rule: str, folder: Path) -> None:
    with mocking("--break", rule, cwd=folder) as mock:
        assert f"correct answers that break the rule {rule}\n" in mock.banner
        for fields in ({}, {"stream_options": {"include_usage": True}}):
            assert [*judge(mock.ask(CHAT | fields)).counts] == [rule]
        assert judge(mock.ask(CHAT | {"stream": False})).findings == ()


def test_break_covers_rules_that_need_more_than_one_reply(folder: Path) -> None:
    with mocking("--break", "live-stop-not-leaked", cwd=folder) as mock:
        assert _message(mock.ask(_request("Count to 9", model="any", stop=", 4")))["content"] == "1, 2, 3, 4"
        assert _message(mock.ask(_request("Count to 9", model="any")))["content"] == "1, 2, 3, 4, 5, 6, 7, 8, 9"


def test_traces_are_replayed_in_order_and_the_last_one_is_repeated(folder: Path) -> None:
    names = ["trace.json", "openai_gpt4_0314.json"]
    with mocking("--trace", names[0], "--trace", names[1], "--speed", "0", cwd=folder) as mock:
        assert ", ".join(names) in mock.banner
        last = (folder / names[1]).with_suffix(".body").read_bytes()
        assert [mock.ask(CHAT).body for _ in range(3)] == [USED, last, last]


def test_a_trace_with_an_inline_body_is_replayed(folder: Path, tmp_path: Path) -> None:
    record = json.loads((folder / "trace.json").read_bytes())
    (tmp_path / "saved.json").write_text(json.dumps(record | {"body": None, "body_text": USED.decode()}))
    with mocking("--trace", "saved.json", "--speed", "0", cwd=tmp_path) as mock:
        assert mock.ask(CHAT).body == USED


def test_a_port_in_use_is_reported(mock: Mock, here: Run) -> None:
    port = mock.port
    ran = here("mock", "--port", str(port))
    assert (ran.code, ran.out) == (2, b"")
    assert ran.notes.startswith(f"cannot listen on port {port}: ")
    assert ran.notes.endswith("; choose another with --port\n")


def test_the_faults_are_listed(here: Run) -> None:
    ran = here("mock", "--list")
    lines = ran.out.decode().splitlines()
    assert (ran.code, ran.notes) == (0, "")
    assert [tuple(line.split(maxsplit=1)) for line in lines] == [
        (fault.name, fault.description) for fault in ALL_FAULTS
    ]


@pytest.mark.parametrize("words", USAGE_ERRORS)
def test_a_usage_error_is_one_line(words: str, here: Run) -> None:
    ran = here("mock", *words.split())
    assert (ran.code, ran.out, ran.notes) == (2, b"", USAGE_ERRORS[words] + "\n")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "65536"),
        ("--port", "x"),
        ("--port", "-1"),
        ("--tokens", "0"),
        ("--tokens", "4097"),
        ("--gap", "20"),
        ("--gap", "61s"),
        ("--gap", "ms"),
        ("--speed", "-1"),
        ("--speed", "nan"),
        ("--speed", "fast"),
    ],
)
def test_an_invalid_value_is_named(flag: str, value: str, here: Run) -> None:
    ran = here("mock", f"{flag}={value}")
    assert (ran.code, ran.out, ran.notes.count("\n")) == (2, b"", 1)
    assert flag in ran.notes
    assert f"'{value}'" in ran.notes
