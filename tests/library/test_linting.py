"""Judging from Python: reports, and the assertion for tests with responses of several HTTP clients."""

import asyncio
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import aiohttp
import httpx2
import pytest
import requests
from hypothesis import given
from werkzeug.test import Client
from werkzeug.wrappers import Response

import welldone
from tests.laws.strategies import any_bytes
from tests.table import table
from welldone import (
    RULES,
    STREAM_HEADERS,
    ChatStream,
    InvalidStreamError,
    LintVerdict,
    WelldoneError,
    assert_valid,
    lint,
)

untyped: Any = welldone
REQUEST: dict[str, Any] = {"model": "m", "messages": [], "stream": True}


def right() -> bytes:
    """A right stream."""
    stream = ChatStream("m")
    return stream.text("Hi") + stream.finish()


WRONG = right().replace(b'"role":"assistant",', b"").replace(b'"logprobs":null,', b"")


def test_a_right_stream_has_no_findings() -> None:
    report = lint(right(), request=REQUEST)
    assert (report.verdict, report.findings, report.ok) == (LintVerdict.PASS, (), True)
    assert assert_valid(right(), request=REQUEST, strict=True).ok


def test_a_finding_names_the_rule_the_frame_and_the_clients() -> None:
    report = lint(WRONG)
    assert not report.ok
    finding = next(finding for finding in report.findings if finding.rule == "delta-role-first")
    assert (finding.frame, finding.byte, finding.affects) == (1, 0, RULES["delta-role-first"].affects)


def test_the_endpoint_is_guessed_or_given() -> None:
    message = b'event: message_start\ndata: {"type":"message_start"}\n\n'
    assert lint(message).counts.keys() == lint(message, "messages").counts.keys()
    assert lint(message, "chat").counts.keys() != lint(message).counts.keys()


ELEMENT = b'{"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"},"finishReason":"STOP"}]}'


def test_gemini_is_guessed_or_given_and_its_path_tells_the_form_of_a_stream() -> None:
    assert lint(b"data: %b\n\n" % ELEMENT).findings == lint(b"[%b]" % ELEMENT, "gemini").findings == ()
    assert lint(b"data: [DONE]\n\n", "gemini").counts.keys() == {"gem-no-done", "err-empty-stream"}
    response = httpx2.Response(200, content=b"[%b]" % ELEMENT, headers={"Content-Type": "application/json"})
    response.request = httpx2.Request("POST", "http://localhost/v1beta/models/m:streamGenerateContent?alt=sse")
    with pytest.raises(InvalidStreamError, match="gem-stream-form"):
        assert_valid(response)


def test_rules_status_and_headers_can_be_given() -> None:
    assert lint(WRONG, rules=["fin-always-sent"]).findings == ()
    assert lint(WRONG, rules=["delta-role-first"]).counts == {"delta-role-first": 1}
    plain = lint(right(), status=200, headers={"content-type": "text/plain"})
    assert "http-content-type" in plain.counts
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"
    assert lint(head + right()).counts == plain.counts


@given(data=any_bytes)
def test_no_bytes_raise(data: bytes) -> None:
    lint(data)
    lint(data.decode("utf-8", "surrogateescape"))


@table(
    "use, kind, message",
    [
        (lambda: untyped.lint(None), TypeError, "lint takes bytes, not NoneType"),
        (lambda: untyped.lint(b"", "chats"), ValueError, "unknown endpoint 'chats'"),
        (
            lambda: untyped.lint(b"", rules="fin-closed-enum"),
            TypeError,
            r"rules must be a collection .* write \['fin-closed",
        ),
        (
            lambda: untyped.lint(b"", rules=["fin-closed"]),
            ValueError,
            "unknown rule 'fin-closed' in rules; did you mean",
        ),
        (
            lambda: untyped.lint(b"", rules=["fin-length"]),
            ValueError,
            "fin-length cannot be judged from one reply; welldone",
        ),
        (
            lambda: untyped.assert_valid(3),
            TypeError,
            "takes bytes, or a response with status, headers and a body .*; got int",
        ),
    ],
)
def test_wrong_use_raises_and_says_what_to_do(use: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()


def test_the_message_of_the_assertion_says_what_is_wrong() -> None:
    with pytest.raises(AssertionError) as raised:
        assert_valid(WRONG, "chat")
    assert isinstance(raised.value, InvalidStreamError)
    assert isinstance(raised.value, WelldoneError)
    assert raised.value.report.counts["delta-role-first"] == 1
    message = str(raised.value)
    assert message.startswith("the reply breaks ")
    assert "delta-role-first (breaks), frame 1, byte 0: The first chunk of each choice carries" in message
    assert "\n  observed  " in message
    assert '\n  expected  "delta":{"role":"assistant"' in message
    assert "\n  affects   openai-node .stream(): " in message
    assert "\n  more      welldone rules delta-role-first" in message


def test_violations_that_break_no_client_fail_only_in_strict_mode() -> None:
    tolerated = right().replace(b'"logprobs":null,', b"").replace(b"data: {", b"event: x\ndata: {", 1)
    report = lint(tolerated)
    assert report.verdict is LintVerdict.WARN
    assert assert_valid(tolerated).findings == report.findings
    with pytest.raises(InvalidStreamError):
        assert_valid(tolerated, strict=True)


def test_rules_that_follow_from_others_are_listed_at_the_end() -> None:
    with pytest.raises(InvalidStreamError, match="These follow from the others: err-not-silent"):
        assert_valid(right().partition(b'"finish_reason":"stop"')[0].rpartition(b"data: ")[0])


# Responses of HTTP clients.


@pytest.fixture(scope="module")
def url() -> Any:  # noqa: ANN401 - a generator
    """A server on the loopback that sends a wrong stream."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            for name, value in STREAM_HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(WRONG)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/chat/completions"
    server.shutdown()
    thread.join()
    server.server_close()


def _assert_wrong(response: Any, request: dict[str, Any] | None = None) -> None:  # noqa: ANN401 - any client
    with pytest.raises(InvalidStreamError) as raised:
        assert_valid(response, request=request)
    counts = raised.value.report.counts
    assert "delta-role-first" in counts
    assert not any(rule.startswith("http-") for rule in counts)
    # Status, headers and request are known: only the HTTP framing is missing.
    assert set(raised.value.report.missing) <= {"chunk_sizes", "complete"}


def test_responses_of_httpx_and_requests_are_judged_with_their_request(url: str) -> None:
    with httpx2.Client() as client:
        _assert_wrong(client.post(url, json=REQUEST))
        _assert_wrong(client.post(url, content=(part for part in [b"{}"]), headers={"content-length": "2"}), REQUEST)
    with requests.Session() as session:
        _assert_wrong(session.post(url, json=REQUEST, timeout=60))


def test_a_response_of_aiohttp_is_judged_after_it_was_read(url: str) -> None:
    async def post() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=REQUEST) as response:
            with pytest.raises(TypeError, match=r"got ClientResponse. Read it first \(await response.read\(\)\)"):
                assert_valid(response)
            await response.read()
            _assert_wrong(response, REQUEST)

    asyncio.run(post())


def test_a_response_of_a_wsgi_test_client_is_judged() -> None:
    app = Response(WRONG, headers=dict(STREAM_HEADERS))
    _assert_wrong(Client(app).post("/v1/chat/completions", json=REQUEST))
