"""Servers whose answers end in an error: the run fails, and every format says so in its first line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.check.background import served
from tests.check.serving import TEST_TIMEOUTS, Handler, Json, request_json, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.report import Report, Verdict
from welldone.check.reports import html, machine, text
from welldone.check.run import check
from welldone.check.settings import DIALECTS, CheckSettings
from welldone.cli import check as check_command
from welldone.mock.faults import error_reply
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.protocol import sse

MESSAGE = "CUDA out of memory"
ERROR = {"error": {"message": MESSAGE, "type": "server_error", "param": None, "code": None}}
STREAMED_ERRORS: dict[str, str] = {
    "chat": f"data: {json.dumps(ERROR, separators=(',', ':'))}\n\ndata: [DONE]\n\n",
    "messages": f'event: error\ndata: {{"type":"error","error":{{"type":"api_error","message":"{MESSAGE}"}}}}\n\n',
    "responses": f'event: error\ndata: {{"type":"error","code":"server_error","message":"{MESSAGE}","param":null}}\n\n',
    "gemini": f'data: {{"error":{{"code":500,"message":"{MESSAGE}","status":"INTERNAL"}}}}\n\n',
}
POST_PATHS = ("/completions", "/responses", "/messages", ":generateContent", ":streamGenerateContent")


def _is_streamed(request: Json) -> bool:
    return request.get("stream") is True


FAILING: dict[str, Callable[[Json], object]] = {
    "all": lambda _: True,
    "some": lambda request: request.get("temperature") != 0 or request.get("stop"),
    "only streamed": _is_streamed,
    "only unstreamed": lambda request: not _is_streamed(request),
    "only tool requests": lambda request: request.get("tools"),
}


def failing(is_failing: Callable[[Json], object], endpoint: str = "chat", status: int = 500) -> Handler:
    """A reference server that answers valid requests with an error: after the first chunk, or with a status."""
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply, request = ideal.answer(http_request), request_json(http_request)
        is_answer = http_request.path.partition("?")[0].endswith(POST_PATHS) and reply.status == 200
        if not is_answer or not is_failing(request):
            return reply
        if "stream" in str(reply.headers):
            pieces = (*reply.pieces[:1], MockChunk(STREAMED_ERRORS[endpoint]))
            return MockReply(pieces, headers=dict(sse.HEADERS))
        return json_reply(ERROR, status)

    return handler


def _check(handler: Handler, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(handler) as url:
            return await check(CheckSettings(url=url, timeouts=TEST_TIMEOUTS, skip=("leaving", "long"), **settings))

    return run(work())


@table("name", FAILING)
def test_a_server_that_fails_requests_that_must_succeed_does_not_pass(name: str) -> None:
    report = _check(failing(FAILING[name]))
    assert not report.passed
    assert report.verdict in (Verdict.ERROR, Verdict.FAIL)
    count = f"failed: {report.failed_answers} of {report.answers} answers ended in an error: {MESSAGE}"
    assert report.headline.startswith(count)
    assert (report.failed_answers == report.answers) is (name == "all")
    for probe in report.probes:
        assert probe.verdict is not Verdict.PASS or not probe.failed_answers


def test_a_server_that_fails_every_answer_passes_no_probe_that_needs_one() -> None:
    report = _check(failing(lambda _: True))
    passed = {probe.name.partition("-")[0] for probe in report.probes if probe.verdict is Verdict.PASS}
    assert passed <= {"mistakes", "models", "http"}
    rules = {rule.id: rule for rule in report.rules}
    assert rules["tool-id-first"].reason == (f"no reply had a tool call; {report.answers} answers ended in an error")
    auto = next(probe for probe in report.probes if probe.name == "tools-auto")
    assert (auto.verdict, auto.reason) == (Verdict.ERROR, f"the answer ended in an error: {MESSAGE}")


@table("endpoint", DIALECTS)
def test_errors_of_every_dialect_are_failures(endpoint: str) -> None:
    report = _check(failing(lambda _: True, endpoint), endpoint=endpoint)
    assert report.headline.startswith(f"failed: {report.answers} of {report.answers} answers ended in an error:")
    assert MESSAGE in report.failures


def test_a_failed_response_is_a_failure() -> None:
    response = {"id": "resp_1", "object": "response", "status": "failed", "error": {"code": "x", "message": MESSAGE}}
    handler = failing(lambda _: False)
    report = _check(
        lambda request: json_reply(response) if request.path == "/v1/responses" else handler(request),
        endpoint="responses",
        only=("text-whole",),
    )
    assert report.failures == (MESSAGE,)


def test_a_refusal_stays_unsupported() -> None:
    def refuse(status: int, message: str) -> Handler:
        ideal = ReferenceServer()
        return lambda request: (
            error_reply(status, message) if request_json(request).get("n") == 2 else ideal.answer(request)
        )

    # llama.cpp refuses some requests with 500.
    for status, message in ((400, "one only"), (501, "one only"), (500, "Only one completion choice is allowed")):
        report = _check(refuse(status, message), only=("choices",))
        assert {probe.verdict for probe in report.probes} <= {Verdict.UNSUPPORTED, Verdict.WARN}
        assert (report.passed, report.failed_answers) == (True, 0)


def test_an_overloaded_server_does_not_pass() -> None:
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        is_probe = "(text)" in http_request.headers["user-agent"]
        return error_reply(429, "too many", "60") if is_probe else ideal.answer(http_request)

    report = _check(handler, only=("text",))
    assert (report.passed, report.failed_answers) == (False, 0)
    assert report.headline == "not passed: no complete reply to text"


def test_the_first_line_of_every_format_has_the_failures() -> None:
    report = _check(failing(lambda _: True), only=("text", "tools"))
    line = report.headline
    assert line == f"failed: {report.answers} of {report.answers} answers ended in an error: {MESSAGE}"
    assert text.render_terminal(report, lambda text, _: text)[0] == line
    assert text.render_markdown(report).startswith(f"<h3>welldone check {line}</h3>")
    assert line in html.render_html(report)
    assert json.loads(machine.render_json(report))["headline"] == line
    invocation = json.loads(machine.render_sarif(report))["runs"][0]["invocations"][0]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == line
    suite = ElementTree.fromstring(machine.render_junit(report)).find("testsuite")
    assert suite is not None
    failure = suite.findall("testcase")[0].find("failure")
    assert failure is not None
    assert failure.get("message") == line
    assert f"{report.answers} of {report.answers} answers failed" in machine.render_badge(report)


def test_the_exit_code_of_failures_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    with served(failing(lambda request: request.get("tools"))) as url:
        assert check_command.run([url, "--only", "tools,text", "--report", str(path)]) == 1
    output = capsys.readouterr().out
    assert output.startswith("failed: ")
    assert json.loads(path.read_text("utf-8"))["headline"] == output.splitlines()[0]
