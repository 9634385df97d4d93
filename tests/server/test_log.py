"""The server log: one line per event, no secrets, and no blocking."""

import io
import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.http.redaction import HIDDEN
from welldone.server.observe import log
from welldone.server.observe.log import FieldValue, LineFormatter, LogHandler, LogStyle, Redactor, RequestLogEntry

KEY = 'canary+"key\\1'
LIMIT_S = 30.0
ANSWERED = RequestLogEntry(
    request_id="req_1",
    principal="key-0a1b2c3d",
    method="POST",
    path="/v1/chat/completions?api_key=canary-in-the-query",
    status=200,
    duration_ms=1234.56789,
    model="smol",
    ttft_ms=0.0,
    prompt_tokens=0,
    completion_tokens=50,
    finish="stop",
    repaired=("delta-role-once", "end-done-missing"),
)


def _line(
    style: LogStyle,
    message: str,
    fields: dict[str, FieldValue] | None = None,
    *,
    error: BaseException | None = None,
    args: tuple[object, ...] = (),
    name: str = "welldone",
) -> str:
    info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord(name, logging.INFO, "file.py", 1, message, args, info)
    record.created = 1767323045.678
    record.__dict__["fields"] = fields or {}
    return LineFormatter(style, Redactor([KEY])).format(record)


@contextmanager
def _logging(style: LogStyle = "text", level: int = logging.INFO) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with LogHandler(LineFormatter(style, Redactor([KEY])), level=level, stream=stream):
        yield stream


def test_a_request_as_text() -> None:
    with _logging() as stream:
        log.log_request(ANSWERED)
    time, _, rest = stream.getvalue().partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == (
        "info    request request_id=req_1 principal=key-0a1b2c3d method=POST path=/v1/chat/completions status=200"
        " duration_ms=1234.57 model=smol ttft_ms=0 prompt_tokens=0 completion_tokens=50 finish=stop"
        " repaired=delta-role-once,end-done-missing\n"
    )


def test_a_request_as_json() -> None:
    with _logging("json") as stream:
        log.log_request(ANSWERED)
    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "event": "request",
        "request_id": "req_1",
        "principal": "key-0a1b2c3d",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration_ms": 1234.568,
        "model": "smol",
        "ttft_ms": 0.0,
        "prompt_tokens": 0,
        "completion_tokens": 50,
        "finish": "stop",
        "repaired": ["delta-role-once", "end-done-missing"],
    }


def test_an_event_has_a_utc_time_and_the_name_of_another_logger() -> None:
    assert _line("text", "ready", {"model": "smol", "slots": 4, "is_up": True, "why": None}) == (
        "2026-01-02T03:04:05.678Z info    ready model=smol slots=4 is_up=yes why=-"
    )
    assert _line("text", "took %d ms", args=(5,), name="aiohttp.server").endswith("took 5 ms logger=aiohttp.server")


def test_a_server_error_is_logged_as_a_warning() -> None:
    with _logging("json", logging.WARNING) as stream:
        log.log_request(ANSWERED)
        log.log_request(
            RequestLogEntry(request_id="r", principal="p", method="GET", path="/", status=503, duration_ms=1.0)
        )
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["level"] == "warning"


SECRETS = [
    KEY,
    "Authorization: Bearer canary.other-server",
    "bearer   canary",
    "BEARER canary",
    "{'Authorization': 'Bearer canary'}",
    "{'Authorization': 'Basic canary'}",
    '{"x-api-key": "canary"}',
    "(b'api-key', b'canary')",
    "api_key=canary&x=1",
    "https://example.org/?key=canary",
    "https://user:canary@example.org/",
    "sk-proj-canary_0123456789",
    "wd-canary0123456789",
    "token hf_canary0123456789",
    "https://example.org/?x=1&TOKEN=canary",
    "SK-canary_0123456789",
    "bea\u017fer \u212aey; API-KEY: canary",
]


@table("style", ["text", "json"])
@table("secret", SECRETS)
def test_a_secret_is_redacted_everywhere(secret: str, style: Literal["text", "json"]) -> None:
    error = ValueError(f"it was {secret}")
    error.__cause__ = KeyError(secret)
    for line in (
        _line(style, f"request with {secret} today"),
        _line(style, "request with %s and %r", args=(secret, [secret])),
        _line(style, "request %s", args=(error,)),
        _line(style, "request", {"path": f"/{secret}", "repaired": [secret]}),
        _line(style, "request", error=ValueError(secret)),
        _line(style, "request", error=error),
    ):
        assert "canary" not in line
        assert HIDDEN in line
    assert "today" in _line(style, f"request with {secret} today")


def test_a_truncated_secret_is_redacted() -> None:
    for length in range(990, 1030):
        assert "canary" not in _line("json", "request", {"path": "x" * length + KEY + "y" * 9000})


@table("text", ["a bearer", "sk-learn", "a basic question", "monkey=1", "key-0a1b2c3d", "req_1234567890"])
def test_words_that_are_not_secrets_stay(text: str) -> None:
    assert Redactor([KEY]).redact(text) == text


def test_a_key_with_another_key_as_prefix_is_redacted_completely() -> None:
    assert Redactor(["abcd", "abcdefgh", ""]).redact("abcdefgh abcd ABCD") == f"{HIDDEN} {HIDDEN} ABCD"


FORGED = "x\r\n2026-01-02T03:04:05.678Z error   forged\x1b[31m\u2028\x85\x9b2J\u202e"


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_client_cannot_inject_log_lines(style: Literal["text", "json"]) -> None:
    for line in (_line(style, FORGED), _line(style, "a", {"path": FORGED}), _line(style, "a", {"repaired": [FORGED]})):
        assert len(line.splitlines()) == 1
        assert line.isprintable()


def test_a_traceback_is_indented_so_that_it_cannot_imitate_a_line() -> None:
    first, *rest = _line("text", "failed", error=ValueError(FORGED)).split("\n")
    assert first.endswith("failed")
    assert rest
    assert all(part.startswith("    ") and part.isprintable() for part in rest)
    assert "ValueError" in json.loads(_line("json", "failed", error=ValueError(FORGED)))["exception"]


@given(st.text(), st.text(), st.text())
def test_whatever_is_logged_is_one_printable_line(message: str, value: str, more: str) -> None:
    text = _line("text", message, {"path": value, "repaired": [more]})
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", text)
    data = _line("json", message, {"path": value, "repaired": [more]})
    assert len(data.splitlines()) == 1
    assert isinstance(json.loads(data), dict)
    data.encode()


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_lines_have_a_maximum_length(size: int) -> None:
    big = "a b" * size
    line = _line("json", big, {"path": big, "repaired": ["r"] * size}, error=ValueError(big))
    assert len(line) < 16_384
    assert len(Redactor().redact("bearer " * 1000)) < 20_000


def test_records_with_wrong_arguments_are_logged() -> None:
    assert "%d apples" in _line("text", "%d apples", args=("many",))


class _Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("never")


def test_an_unprintable_argument_drops_the_line_only() -> None:
    subject = LogHandler(stream=io.StringIO())
    with subject:
        subject.handle(logging.makeLogRecord({"msg": "%s", "args": (_Unshowable(),)}))
    assert subject.dropped == 1


def test_libraries_are_logged_from_warnings_on_and_close_restores_the_levels() -> None:
    root = logging.getLogger()
    before = (root.level, log.LOGGER.level, list(root.handlers))
    with _logging(level=logging.DEBUG) as stream:
        logging.getLogger("library").info("quiet")
        logging.getLogger("library").warning("loud")
        logging.getLogger("welldone.engines").debug("ours")
    assert (root.level, log.LOGGER.level, root.handlers) == before
    assert re.findall(r"\b(quiet|loud|ours)\b", stream.getvalue()) == ["loud", "ours"]


class _Stuck(io.StringIO):
    """A stream that blocks until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.go.wait(LIMIT_S)
        return super().write(text)


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_blocked_stream_drops_and_counts_lines_without_blocking(style: Literal["text", "json"]) -> None:
    stream = _Stuck()
    subject = LogHandler(LineFormatter(style, Redactor()), stream=stream)
    with subject:
        log.event(logging.INFO, "first")
        assert stream.reached.wait(LIMIT_S)
        for number in range(5_000):  # would hang if logging blocked
            log.event(logging.INFO, "more", {"number": number})
        assert subject.dropped == 5_000 - 4_096
        stream.go.set()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + 4_096 + 1
    (notice,) = (line for line in lines if "dropped" in line)
    assert "904" in notice
    if style == "json":
        assert all(json.loads(line) for line in lines)


def test_close_gives_up_on_a_blocked_stream() -> None:
    stream = _Stuck()
    subject = LogHandler(stream=stream)
    subject.start()
    log.event(logging.INFO, "first")
    assert stream.reached.wait(LIMIT_S)
    for _ in range(5_000):
        log.event(logging.INFO, "more")
    subject.close(within_s=0.01)
    subject.close()
    assert subject.dropped == 5_000
    stream.go.set()
    for thread in threading.enumerate():
        if thread.name == "log":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_requests_are_dropped_and_counted_while_the_stream_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    stream = _Stuck()
    subject = LogHandler(stream=stream)
    with subject:
        log.log_request(ANSWERED)
        assert stream.reached.wait(LIMIT_S)
        for _ in range(4_100):
            log.log_request(ANSWERED)
        assert subject.dropped == 4
        stream.go.set()
    assert len(stream.getvalue().splitlines()) == 1 + 4_096 + 1


def test_lines_in_quick_succession_are_written_together() -> None:
    class Stream(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    stream = Stream()
    with LogHandler(stream=stream):
        for _ in range(200):
            log.log_request(ANSWERED)
    assert len(stream.getvalue().splitlines()) == 200
    assert stream.writes < 100


def test_a_broken_pipe_only_drops_lines() -> None:
    stream = io.StringIO()
    stream.close()
    subject = LogHandler(stream=stream)
    with subject:
        log.event(logging.INFO, "no reader")
    assert subject.dropped >= 1


def test_lines_go_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with LogHandler(stream=sys.stderr):
        log.event(logging.ERROR, "engine failed", {"model": "smol"}, error=RuntimeError("why"))
    shown = capsys.readouterr().err
    assert "error   engine failed model=smol" in shown
    assert "    RuntimeError: why" in shown
