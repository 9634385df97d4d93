"""Probes of /v1/responses/compact and of responses over a WebSocket."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import TEST_TIMEOUTS, Handler, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.probes.http import RESPONSE_ENDPOINT_PROBES
from welldone.check.report import ProbeResult, Report, Verdict
from welldone.check.run import check
from welldone.check.settings import CheckSettings
from welldone.http.recording_client import record_response
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, is_handshake, json_reply
from welldone.mock.server import MockHttpRequest

KEY = "a-key-of-some-length"
COMPACT, SOCKET = RESPONSE_ENDPOINT_PROBES
NOT_FOUND = json_reply({"error": {"message": "no such path", "type": "invalid_request_error"}}, 404)


def _report(handler: Handler, name: str, **options: Any) -> Report:  # noqa: ANN401 - of `check`
    async def work() -> Report:
        async with serving(handler) as url:
            settings = CheckSettings(
                url=url, endpoint="responses", key=KEY, timeouts=TEST_TIMEOUTS, only=("text", name)
            )
            return await check(settings, **options)

    return run(work())


def _result(report: Report, name: str) -> ProbeResult:
    return next(probe for probe in report.probes if probe.name == name)


def _on(is_changed: Callable[[MockHttpRequest], bool], change: Callable[[MockReply], MockReply]) -> Handler:
    """A correct server with other replies to some requests."""
    ideal = ReferenceServer(key=KEY)

    def answer(http_request: MockHttpRequest) -> MockReply:
        reply = ideal.answer(http_request)
        return change(reply) if is_changed(http_request) else reply

    return answer


def _is_compaction(http_request: MockHttpRequest) -> bool:
    return http_request.path == "/v1/responses/compact"


def _is_handshake(http_request: MockHttpRequest) -> bool:
    return http_request.method == "GET" and is_handshake(http_request.headers)


def _is_message(http_request: MockHttpRequest) -> bool:
    return http_request.method == "POST" and is_handshake(http_request.headers)


def _edited(**members: object) -> Callable[[MockReply], MockReply]:
    return lambda reply: json_reply(msgspec.json.decode(reply.body) | members)


# ---- what is not offered


@table("status", [404, 405, 501])
def test_a_server_without_compaction_has_no_findings(status: int) -> None:
    refusal = msgspec.structs.replace(NOT_FOUND, status=status)
    report = _report(_on(_is_compaction, lambda _: refusal), "compact")
    assert report.findings == ()
    assert report.passed
    assert _result(report, "compact").verdict in (Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE)


@table("status", [200, 400, 404, 405, 426, 501])
def test_a_server_without_websockets_has_no_findings(status: int) -> None:
    refusal = msgspec.structs.replace(NOT_FOUND, status=status)
    report = _report(_on(_is_handshake, lambda _: refusal), "socket")
    assert report.findings == ()
    assert report.passed
    assert _result(report, "socket").verdict in (Verdict.UNSUPPORTED, Verdict.NOT_APPLICABLE)
    assert str(status) in _result(report, "socket").reason


@table(
    ("reply", "reason"),
    [
        (MockReply(end="cut", raw=True), "no HTTP response to the handshake"),
        (MockReply((MockChunk("HTTP/1.1 x\r\n\r\n"),), raw=True, end="cut"), "the reply is not HTTP"),
        (MockReply((MockChunk("HTTP/1.1 404 x\r\n\r\nno"),), raw=True, end="cut"), "404: no"),
    ],
)
def test_a_handshake_without_a_response_is_no_finding(reply: MockReply, reason: str) -> None:
    report = _report(_on(_is_handshake, lambda _: reply), "socket")
    assert report.findings == ()
    assert reason in _result(report, "socket").reason


def test_an_application_in_this_process_gets_no_websocket() -> None:
    async def recorder(*words: Any, **options: Any) -> Any:  # noqa: ANN401 - those of record_response
        return await record_response(*words, **options)

    report = _report(ReferenceServer(key=KEY).answer, "socket", record_response=recorder)
    assert (report.findings, report.passed) == ((), True)
    assert _result(report, "socket").reason == "WebSockets are checked over the network only"


# ---- compaction


@table(
    ("change", "observed"),
    [
        (_edited(id=None), "id is not a non-empty string"),
        (_edited(object="response"), "object is not 'response.compaction'"),
        (_edited(created_at="now"), "created_at is not an integer"),
        (_edited(usage=None), "usage is not an object"),
        (_edited(output=[]), "output has no item of type 'compaction'"),
        (_edited(output=[{"type": "compaction"}]), "a compaction has no encrypted_content"),
    ],
)
def test_a_wrong_compaction_is_found(change: Callable[[MockReply], MockReply], observed: str) -> None:
    (finding,) = _report(_on(_is_compaction, change), "compact").findings
    assert (finding.rule, finding.observed) == ("resp-compact", observed)


def test_a_compaction_that_its_server_does_not_accept_is_found() -> None:
    unknown = _edited(output=[{"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}, {"type": "unknown"}])
    (finding,) = _report(_on(_is_compaction, unknown), "compact").findings
    assert finding.rule == "resp-compact"
    assert finding.observed.startswith("400:")


# ---- WebSocket


def test_the_events_of_a_websocket_are_judged_like_a_stream() -> None:
    def without_first(reply: MockReply) -> MockReply:
        return msgspec.structs.replace(reply, pieces=reply.pieces[1:])

    report = _report(_on(_is_message, without_first), "socket")
    assert "resp-created-first" in report.findings_by_rule
    (finding, *_) = report.findings
    assert finding.probe == "socket"
    assert finding.curl is None
    ideal = _report(ReferenceServer(key=KEY).answer, "socket")
    assert ideal.findings == ()
    assert _result(ideal, "socket").requests == 3


def _stream(*lines: str) -> MockReply:
    return MockReply(tuple(MockChunk(f"data: {line}\n\n") for line in lines))


@table(
    ("is_changed", "change", "observed"),
    [
        (
            _is_handshake,
            lambda reply: msgspec.structs.replace(
                reply, pieces=(MockChunk(reply.body.decode().replace("Accept: ", "Accept: x")),)
            ),
            "another value",
        ),
        (_is_message, lambda _: _stream('"data: {}"'), 'a text message: "data: {}"'),
        (_is_message, lambda _: _stream("[1]"), "a text message: [1]"),
        (_is_message, lambda _: MockReply(end="close"), "the server closed the connection"),
        (_is_message, lambda reply: msgspec.structs.replace(reply, end="close"), "the server closed the connection"),
    ],
)
def test_a_wrong_websocket_is_found(
    is_changed: Callable[[MockHttpRequest], bool], change: Callable[[MockReply], MockReply], observed: str
) -> None:
    (finding,) = _report(_on(is_changed, change), "socket").findings
    assert (finding.rule, finding.observed) == ("resp-socket", observed)


def test_a_response_that_cannot_be_continued_is_found() -> None:
    ideal = ReferenceServer(key=KEY)

    def answer(http_request: MockHttpRequest) -> MockReply:
        body = http_request.body.replace("resp_ideal", "resp_other")
        return ideal.answer(msgspec.structs.replace(http_request, body=body))

    (finding,) = _report(answer, "socket").findings
    assert (finding.rule, finding.observed[:4]) == ("resp-socket", "400:")


def test_a_response_that_does_not_end_makes_the_check_incomplete() -> None:
    timeouts = msgspec.structs.replace(TEST_TIMEOUTS, reply_s=2.0)

    def endless(reply: MockReply) -> MockReply:
        late = msgspec.structs.replace(reply.pieces[-1], after_s=60.0)
        return msgspec.structs.replace(reply, pieces=(*reply.pieces[:-1], late))

    async def work() -> Report:
        async with serving(_on(_is_message, endless)) as url:
            settings = CheckSettings(url=url, endpoint="responses", key=KEY, timeouts=timeouts, only=("socket",))
            return await check(settings)

    report = run(work())
    assert not report.passed
    assert _result(report, "socket").is_timed_out


@pytest.mark.parametrize("message", ["7", '{"type":"session.update"}', '{"type":"response.create","input":7}'])
def test_the_reference_server_answers_wrong_messages_with_error_events(message: str) -> None:
    headers = {"upgrade": "websocket"}
    reply = ReferenceServer().answer(MockHttpRequest("POST", "/v1/responses", headers, message))
    assert reply.status == 400
