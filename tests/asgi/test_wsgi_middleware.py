"""`welldone.wsgi.RepairMiddleware` with plain WSGI applications, checked by the standard library's validator."""

import io
import json
import logging
from collections.abc import Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from tests.asgi.repair_apps import CHAT, CHAT_PATH, JSON, SSE, WRONG_REPLY, WRONG_STREAM
from welldone import InvalidStreamError
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.wsgi import AnswerReport, RepairMiddleware, StartResponse, WSGIApp, WSGIEnvironment


def app_with(
    *parts: bytes, status: str = "200 OK", header: tuple[str, str] = SSE, error: Exception | None = None
) -> WSGIApp:
    """An application that answers every request with these parts, and then raises `error`."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        start_response(status, [header])
        yield from parts
        if error is not None:
            raise error

    return app


class Answer:
    """A response, and what the middleware reported of it."""

    status = ""
    headers: dict[str, str]
    body = b""

    def __init__(self, app: WSGIApp, request: object = CHAT, path: str = CHAT_PATH, **settings: Any) -> None:  # noqa: ANN401
        self.reports: list[AnswerReport] = []
        self.middleware = RepairMiddleware(app, report=self.reports.append, **settings)
        data = json.dumps(request).encode()
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SCRIPT_NAME": "",
            "CONTENT_LENGTH": str(len(data)),
            "wsgi.input": io.BytesIO(data),
        }
        setup_testing_defaults(environ)

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Any:  # noqa: ANN401
            self.status, self.headers = status, {name.lower(): value for name, value in headers}
            return written.append

        written: list[bytes] = []
        parts = validator(self.middleware)(environ, start_response)
        try:
            for part in parts:
                written.append(part)
                self.body = b"".join(written)
        finally:
            self.body = b"".join(written)
            parts.close()  # type: ignore[attr-defined]  # the validator requires it

    @property
    def findings(self) -> list[str]:
        """The rules that the stream breaks."""
        headers = tuple(self.headers.items())
        trace = Trace(body=self.body, request=CHAT, status=int(self.status[:3]), headers=headers)
        return [finding.rule for finding in judge(trace).findings]


def test_a_wrong_stream_comes_out_right() -> None:
    answer = Answer(app_with(*WRONG_STREAM))
    assert answer.findings == []
    assert answer.reports[0].is_stream
    assert answer.reports[0].is_complete
    assert answer.middleware.counters.repairs["end-done-sent"] == 1


def test_a_whole_reply_and_an_error_are_repaired() -> None:
    reply = Answer(app_with(WRONG_REPLY, header=JSON), {**CHAT, "stream": False})
    assert json.loads(reply.body)["object"] == "chat.completion"
    assert int(reply.headers["content-length"]) == len(reply.body)
    error = Answer(app_with(b'{"detail":"no"}', status="404 Nothing here", header=JSON))
    assert error.status == "404 Nothing here"
    assert json.loads(error.body)["error"]["message"] == "no"
    failed = Answer(app_with(b'{"error":{"message":"no","type":"rate_limit_error"}}', header=JSON))
    assert failed.status == "429 Too Many Requests"


def test_other_paths_pass_unchanged() -> None:
    answer = Answer(app_with(b"x", header=("content-type", "text/plain")), path="/other")
    assert (answer.status, answer.body, answer.headers) == ("200 OK", b"x", {"content-type": "text/plain"})
    assert answer.reports == []


def test_an_exception_ends_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = Answer(app_with(*WRONG_STREAM[:2], error=ZeroDivisionError()))
    assert answer.body.endswith(b'"code":null}}\n\ndata: [DONE]\n\n')
    assert answer.findings == []
    assert not answer.reports[0].is_complete
    assert "ZeroDivisionError" in caplog.text


def test_an_exception_before_the_head_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Answer(app_with(b"{", header=JSON, error=ZeroDivisionError()))


def test_the_write_function_is_supported() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        write = start_response("200 OK", [SSE])
        for part in WRONG_STREAM:
            write(part)
        return []

    assert Answer(app).findings == []


def test_a_client_that_disconnects_closes_the_application() -> None:
    closed: list[bool] = []

    class Parts:
        def __iter__(self) -> Any:  # noqa: ANN401 - an iterator
            return iter(WRONG_STREAM)

        def close(self) -> None:
            closed.append(True)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [SSE])
        return Parts()

    reports: list[AnswerReport] = []
    environ: WSGIEnvironment = {"REQUEST_METHOD": "POST", "PATH_INFO": CHAT_PATH, "wsgi.input": io.BytesIO()}
    parts = iter(RepairMiddleware(app, report=reports.append)(environ, lambda *_: len))
    next(parts)
    parts.close()  # type: ignore[attr-defined]  # it is a generator
    assert closed == [True]
    assert not reports[0].is_complete


def test_strict_raises_with_the_rules() -> None:
    with pytest.raises(InvalidStreamError, match="end-done-sent"):
        Answer(app_with(*WRONG_STREAM), strict=True)
