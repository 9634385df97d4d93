"""The log: one line for each event, no secret in any, and never a reason to wait."""

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
from welldone.server.observe import log
from welldone.server.observe.log import FieldValue, LineFormatter, LogHandler, Redactor, RequestLogEntry

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
    style: Literal["text", "json"],
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
def _logging(style: Literal["text", "json"] = "text", level: int = logging.INFO) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with LogHandler(style=style, level=level, secrets=[KEY], stream=stream):
        yield stream


def test_a_request_is_a_line_for_people() -> None:
    with _logging() as stream:
        log.log_request(ANSWERED)
    time, _, rest = stream.getvalue().partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == (
        "info    request request_id=req_1 principal=key-0a1b2c3d method=POST path=/v1/chat/completions status=200"
        " duration_ms=1234.57 model=smol ttft_ms=0 prompt_tokens=0 completion_tokens=50 finish=stop"
        " mended=delta-role-once,end-done-missing\n"
    )


def test_a_request_is_an_object_for_programs() -> None:
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
        "mended": ["delta-role-once", "end-done-missing"],
    }


def test_an_event_has_a_time_in_utc_and_names_a_foreign_logger() -> None:
    assert _line("text", "ready", {"model": "smol", "slots": 4, "is_up": True, "why": None}) == (
        "2026-01-02T03:04:05.678Z info    ready model=smol slots=4 is_up=yes why=-"
    )
    assert _line("text", "took %d ms", args=(5,), name="aiohttp.server").endswith("took 5 ms logger=aiohttp.server")


def test_what_went_wrong_in_the_server_is_a_warning() -> None:
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
]


@table("style", ["text", "json"])
@table("secret", SECRETS)
def test_a_secret_is_blotted_out_wherever_it_stands(secret: str, style: Literal["text", "json"]) -> None:
    error = ValueError(f"it was {secret}")
    error.__cause__ = KeyError(secret)
    for line in (
        _line(style, f"asked with {secret} today"),
        _line(style, "asked with %s and %r", args=(secret, [secret])),
        _line(style, "asked %s", args=(error,)),
        _line(style, "asked", {"path": f"/{secret}", "mended": [secret]}),
        _line(style, "asked", error=ValueError(secret)),
        _line(style, "asked", error=error),
    ):
        assert "canary" not in line
        assert log.HIDDEN in line
    assert "today" in _line(style, f"asked with {secret} today")


def test_a_secret_that_is_cut_by_a_limit_is_not_shown_in_part() -> None:
    for length in range(990, 1030):
        assert "canary" not in _line("json", "asked", {"path": "x" * length + KEY + "y" * 9000})


@table("text", ["a bearer", "sk-learn", "a basic question", "monkey=1", "key-0a1b2c3d", "req_1234567890"])
def test_words_that_are_no_secrets_stay(text: str) -> None:
    assert Redactor([KEY]).redact(text) == text


def test_a_longer_key_that_begins_like_another_is_hidden_whole() -> None:
    assert Redactor(["abcd", "abcdefgh", ""]).redact("abcdefgh abcd ABCD") == f"{log.HIDDEN} {log.HIDDEN} ABCD"


FORGED = "x\r\n2026-01-02T03:04:05.678Z error   forged\x1b[31m\u2028\x85\x9b2J\u202e"


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_client_cannot_write_lines_of_its_own(style: Literal["text", "json"]) -> None:
    for line in (_line(style, FORGED), _line(style, "a", {"path": FORGED}), _line(style, "a", {"mended": [FORGED]})):
        assert len(line.splitlines()) == 1
        assert line.isprintable()


def test_an_exception_is_set_in_so_that_it_cannot_pose_as_a_line() -> None:
    first, *rest = _line("text", "failed", error=ValueError(FORGED)).split("\n")
    assert first.endswith("failed")
    assert rest
    assert all(part.startswith("    ") and part.isprintable() for part in rest)
    assert "ValueError" in json.loads(_line("json", "failed", error=ValueError(FORGED)))["exception"]


@given(st.text(), st.text(), st.text())
def test_whatever_is_logged_is_one_printable_line(message: str, value: str, more: str) -> None:
    text = _line("text", message, {"path": value, "mended": [more]})
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", text)
    data = _line("json", message, {"path": value, "mended": [more]})
    assert len(data.splitlines()) == 1
    assert isinstance(json.loads(data), dict)
    data.encode()


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_no_line_is_long(size: int) -> None:
    big = "a b" * size
    line = _line("json", big, {"path": big, "mended": ["r"] * size}, error=ValueError(big))
    assert len(line) < 16_384
    assert len(Redactor().redact("bearer " * 1000)) < 20_000


def test_records_whose_arguments_do_not_fit_are_still_lines() -> None:
    assert "%d apples" in _line("text", "%d apples", args=("many",))


class _Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("never")


def test_an_argument_that_cannot_be_shown_costs_a_line_and_no_request() -> None:
    subject = LogHandler(stream=io.StringIO())
    with subject:
        subject.handle(logging.makeLogRecord({"msg": "%s", "args": (_Unshowable(),)}))
    assert subject.dropped == 1


def test_libraries_are_heard_from_warnings_on_and_nothing_stays_behind() -> None:
    root = logging.getLogger()
    before = (root.level, log.LOGGER.level, list(root.handlers))
    with _logging(level=logging.DEBUG) as stream:
        logging.getLogger("library").info("quiet")
        logging.getLogger("library").warning("loud")
        logging.getLogger("welldone.engines").debug("ours")
    assert (root.level, log.LOGGER.level, root.handlers) == before
    assert re.findall(r"\b(quiet|loud|ours)\b", stream.getvalue()) == ["loud", "ours"]


class _Stuck(io.StringIO):
    """A stream that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.go.wait(LIMIT_S)
        return super().write(text)


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_stuck_reader_costs_lines_that_are_counted_and_no_time(style: Literal["text", "json"]) -> None:
    stream = _Stuck()
    subject = LogHandler(style=style, stream=stream)
    with subject:
        log.event(logging.INFO, "first")
        assert stream.reached.wait(LIMIT_S)
        for number in range(5_000):  # would hang here if it waited
            log.event(logging.INFO, "more", {"number": number})
        assert subject.dropped == 5_000 - 4_096
        stream.go.set()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1 + 4_096 + 1
    (notice,) = (line for line in lines if "dropped" in line)
    assert "904" in notice
    if style == "json":
        assert all(json.loads(line) for line in lines)


def test_closing_gives_up_on_a_reader_that_stays_stuck() -> None:
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


def test_a_reader_that_has_gone_costs_lines_only() -> None:
    stream = io.StringIO()
    stream.close()
    subject = LogHandler(stream=stream)
    with subject:
        log.event(logging.INFO, "to nobody")
    assert subject.dropped >= 1


def test_by_default_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with LogHandler(stream=sys.stderr):
        log.event(logging.ERROR, "engine failed", {"model": "smol"}, error=RuntimeError("why"))
    shown = capsys.readouterr().err
    assert "error   engine failed model=smol" in shown
    assert "    RuntimeError: why" in shown
