"""Servers whose answers end in an error: the run fails, and every format has that in its first line."""

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
from welldone.check.applicability import UNCOVERED
from welldone.check.report import Report, Verdict
from welldone.check.reports import html, machine, text
from welldone.check.run import check
from welldone.check.settings import DIALECTS, CheckSettings
from welldone.cli import check as check_command
from welldone.core import sse
from welldone.core.catalog import RULES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES, error_reply

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


FAILING: dict[str, tuple[Callable[[Json], object], str]] = {
    "all": (lambda _: True, ", in all {failed} replies"),
    "some": (lambda request: request.get("temperature") != 0 or request.get("stop"), ", in {failed} of {all} replies"),
    "only streamed": (_is_streamed, ", in all {failed} streams; the same requests unstreamed are right"),
    "only unstreamed": (
        lambda request: not _is_streamed(request),
        ", in all {failed} replies that are not streamed; the same requests streamed are right",
    ),
    "only tool requests": (lambda request: request.get("tools"), ", in all {failed} replies with tools"),
}
"""Which requests fail, and how the cause describes them."""


def _end_in_an_error(reply: MockReply, endpoint: str) -> MockReply:
    """An error after the first chunk, or status 500."""
    if "stream" not in str(reply.headers):
        return json_reply(ERROR, 500)
    return MockReply((*reply.pieces[:1], MockChunk(STREAMED_ERRORS[endpoint])), headers=dict(sse.HEADERS))


def _with_status_200(reply: MockReply, endpoint: str) -> MockReply:
    if "stream" not in str(reply.headers):
        return json_reply({"error": MESSAGE})
    return MockReply((MockChunk(STREAMED_ERRORS[endpoint]),), headers=dict(sse.HEADERS))


def failing(
    is_failing: Callable[[Json], object],
    endpoint: str = "chat",
    fail: Callable[[MockReply, str], MockReply] = _end_in_an_error,
) -> Handler:
    """A reference server that fails valid requests."""
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply, request = ideal.answer(http_request), request_json(http_request)
        is_answer = http_request.path.partition("?")[0].endswith(POST_PATHS) and reply.status == 200
        return fail(reply, endpoint) if is_answer and is_failing(request) else reply

    return handler


def _after_discovery(handler: Handler) -> Handler:
    """The same server, but the first request is answered."""
    ideal = ReferenceServer()
    return lambda request: (ideal.answer if "discovery" in request.headers["user-agent"] else handler)(request)


def _check(handler: Handler, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(handler) as url:
            return await check(CheckSettings(url=url, timeouts=TEST_TIMEOUTS, skip=("leaving", "long"), **settings))

    return run(work())


@table("name", FAILING)
def test_a_server_that_fails_requests_that_must_succeed_does_not_pass(name: str) -> None:
    is_failing, where = FAILING[name]
    report = _check(failing(is_failing), only=("text", "choices", "stops", "same", "tools", "models"))
    assert not report.passed
    assert report.verdict in (Verdict.ERROR, Verdict.FAIL)
    count = f"failed: {report.failed_answers} of {report.answers} answers ended in an error: {MESSAGE}"
    assert report.headline.startswith(count)
    assert (report.failed_answers == report.answers) is (name == "all")
    counts = {"failed": report.failed_answers, "all": report.answers}
    assert report.causes[0].sentence == f"answers end in an error{where.format(**counts)}"
    for probe in report.probes:
        if probe.failed_answers:
            assert probe.verdict in (Verdict.ERROR, Verdict.FAIL)
            assert probe.reason == f"the answer ended in an error: {MESSAGE}"
        assert probe.rules or probe.verdict is not Verdict.PASS
    unheard = [rule for rule in report.rules if rule.verdict is Verdict.NOT_APPLICABLE and rule.id not in UNCOVERED]
    assert unheard
    assert all("ended in an error" in rule.reason for rule in unheard)


@table(
    ("fail", "message"),
    [
        (_end_in_an_error, MESSAGE),
        (lambda *_: json_reply(ERROR, 500), MESSAGE),
        (_with_status_200, MESSAGE),
        (lambda *_: MockReply((MockChunk(MESSAGE),), 502, framing="length"), MESSAGE),
        (lambda *_: MockReply((), 500, framing="length"), "status 500"),
        (lambda *_: FAULT_REPLIES["close-first"], "the connection was lost before the reply was complete"),
    ],
    ids=["at the end", "500", "200", "plain text", "empty", "no reply"],
)
def test_no_form_of_failure_passes(fail: Callable[[MockReply, str], MockReply], message: str) -> None:
    only = ("text", "usage", "same", "tools", "requests", "completions", "mistakes-json")
    report = _check(_after_discovery(failing(lambda _: True, fail=fail)), only=only)
    assert report.headline.startswith(f"failed: {report.answers} of {report.answers} answers ended in an error: ")
    assert report.failures == (message,)
    passed = {probe.name.partition("-")[0] for probe in report.probes if probe.verdict is Verdict.PASS}
    assert passed <= {"mistakes"}
    kept = {rule.id.partition("-")[0] for rule in report.rules if rule.verdict is Verdict.PASS}
    assert kept <= {"err", "ns", "http"}
    # The requests are valid: a missing refusal is not the mistake.
    assert "err-refused-4xx" not in report.findings_by_rule


def test_a_server_that_fails_every_answer_has_true_reasons() -> None:
    report = _check(failing(lambda _: True, fail=lambda *_: json_reply(ERROR, 500)))
    rules = {rule.id: rule.reason for rule in report.rules}
    also = f"; {report.answers} answers ended in an error"
    assert rules["tool-id-first"] == f"no reply had a tool call{also}"
    assert rules["cmpl-text-string"] == f"the completions endpoint sent no answer{also}"
    assert rules["live-no-special-tokens"] == f"the answer ended in an error: {MESSAGE}"
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


@table("status", [400, 404, 500, 501])
def test_a_refusal_of_a_plain_text_is_a_failure(status: int) -> None:
    """Some servers send 400 for every exception."""
    message = "Failed to parse messages"  # llama.cpp refuses a request with it
    handler = _after_discovery(failing(_is_streamed, fail=lambda *_: error_reply(status, message)))
    report = _check(handler, only=("text", "tools-auto"))
    assert report.headline.startswith(f"failed: 2 of {report.answers} answers ended in an error: {message}")
    verdicts = {probe.name: probe.verdict for probe in report.probes}
    assert (verdicts["text"], verdicts["text-emoji"]) == (Verdict.ERROR, Verdict.ERROR)
    assert verdicts["text-whole"] is Verdict.PASS
    assert verdicts["tools-auto"] in (Verdict.UNSUPPORTED, Verdict.WARN)  # a 5xx is the wrong status


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


@table("name", FAILING)
def test_the_exit_code_of_failures_is_1(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    with served(failing(FAILING[name][0])) as url:
        assert check_command.run([url, "--only", "tools,text,choices", "--report", str(path)]) == 1
    output = capsys.readouterr().out
    assert output.startswith("failed: ")
    assert f"answers ended in an error: {MESSAGE}\n" in output
    assert json.loads(path.read_text("utf-8"))["headline"] == output.splitlines()[0]


def test_no_baseline_permits_failed_answers() -> None:
    report = _check(failing(lambda request: request.get("tools")), only=("tools", "text"), known=frozenset(RULES))
    assert report.headline.startswith(f"failed: 8 of {report.answers} answers ended in an error: {MESSAGE}")
    assert (report.passed, report.stale) == (False, ())
