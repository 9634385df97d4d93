"""The log on a terminal: one line per request that a person can read, colours, and the summary of repairs."""

import asyncio
import io
import logging
import os
import pty
import re
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.aio import LIMIT_S, run
from tests.server.running_gateway import gateway
from tests.server.running_server import CHAT, DONE, ROLE, STOP
from tests.server.test_continuation import words
from tests.table import table
from welldone.config.server import ServeSettings
from welldone.http.redaction import HIDDEN
from welldone.mock.script import MockReply
from welldone.server.observe import counters
from welldone.server.observe.counters import RepairSummary, UpstreamCounts
from welldone.server.observe.log import LineFormatter, LogHandler, Redactor, RequestLogEntry, log_style, make_formatter

AT = 1767323045.678
CLOCK = time.strftime("%H:%M:%S", time.localtime(AT))
ANSWERED = RequestLogEntry(
    request_id="req_1",
    principal="key-0a1b2c3d",
    method="POST",
    path="/v1/chat/completions",
    status=200,
    duration_ms=54.2,
    model="role",
    endpoint="chat",
    upstream="gpu1",
    ttft_ms=12.0,
    queued_ms=0.1,
    prompt_tokens=9,
    completion_tokens=3,
    repaired=("delta-role-once",),
)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def format_request(formatter: LineFormatter, entry: RequestLogEntry) -> str:
    values = {"name": "welldone", "levelname": "INFO", "msg": "request", "created": AT, "fields": entry}
    return formatter.format(logging.makeLogRecord(values))


def short(entry: RequestLogEntry, *, has_colors: bool = False) -> str:
    formatter = LineFormatter("short", Redactor(["canary-key"]), has_colors=has_colors)
    return format_request(formatter, entry).removeprefix(f"{CLOCK} ")


def changed(**fields: Any) -> RequestLogEntry:  # noqa: ANN401 - fields of an entry
    return msgspec.structs.replace(ANSWERED, **fields)


@table(
    "entry, expected",
    [
        (ANSWERED, "200 chat role → gpu1 54 ms 3 tok repaired: delta-role-once"),
        (changed(repaired=(), upstream=None), "200 chat role 54 ms 3 tok"),
        (changed(repaired=tuple("abcde")), "200 chat role → gpu1 54 ms 3 tok repaired: a, b, c +2"),
        (
            changed(repaired=(), failed=("lab:timeout",), continued=("prefill",), duration_ms=1234.5),
            "200 chat role → gpu1 1.2 s 3 tok failed: lab:timeout continued: prefill",
        ),
        (
            changed(repaired=(), status=502, completion_tokens=None, error="upstream_died", reason="It ended."),
            "502 chat role → gpu1 54 ms error: upstream_died (It ended.) request_id=req_1",
        ),
        (
            changed(repaired=(), error="timeout", trace_id=TRACE, duration_ms=754_321.0),
            f"200 chat role → gpu1 12 min 34 s 3 tok error: timeout request_id=req_1 trace_id={TRACE}",
        ),
        (
            changed(repaired=(), status=404, model=None, requested_model="gpt", upstream=None, error="model_not_found"),
            "404 chat gpt 54 ms 3 tok error: model_not_found",
        ),
        (
            changed(repaired=(), status=499, has_left=True, broken_json=1),
            "499 chat role → gpu1 54 ms 3 tok client left broken_json=1",
        ),
        (
            RequestLogEntry(
                request_id="r", principal="p", method="GET", path="/v1/models?key=x", status=200, duration_ms=0.4
            ),
            "200 GET /v1/models 0 ms",
        ),
        (
            RequestLogEntry(
                request_id="r", principal="p", method="POST", path="/x", status=404, duration_ms=1, endpoint="other"
            ),
            "404 POST /x 1 ms",
        ),
    ],
)
def test_a_request_is_a_line_that_a_person_can_read(entry: RequestLogEntry, expected: str) -> None:
    assert short(entry) == expected


def test_colours_carry_no_information() -> None:
    for entry, color in ((ANSWERED, "32"), (changed(status=404), "33"), (changed(status=500), "31")):
        painted = format_request(LineFormatter("short", Redactor(), has_colors=True), entry)
        assert f"\x1b[{color}m{entry.status}\x1b[0m" in painted
        assert re.sub(r"\x1b\[\d+m", "", painted) == f"{CLOCK} {short(entry)}"


def _record(level: int, message: str, fields: dict[str, Any], error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("welldone", level, "", 0, message, (), info)
    record.created = AT
    record.__dict__["fields"] = fields
    return record


def test_other_events_have_their_level_if_it_matters() -> None:
    formatter = LineFormatter("short", Redactor())
    ready = formatter.format(_record(logging.INFO, "model is ready", {"model": "smol", "slots": 4}))
    assert ready == f"{CLOCK} model is ready model=smol slots=4"
    assert formatter.format(_record(logging.WARNING, "it failed", {})) == f"{CLOCK} warning it failed"
    first, second = formatter.format(_record(logging.ERROR, "oops", {}, ValueError("why"))).split("\n")
    assert (first, second) == (f"{CLOCK} error oops", "    ValueError: why")


def test_lines_of_workers_have_their_number() -> None:
    fields = {"worker": 2, **msgspec.to_builtins(ANSWERED)}
    line = LineFormatter("short", Redactor()).format(_record(logging.INFO, "request", fields))
    assert line == f"{CLOCK} {short(ANSWERED)} worker=2"


@given(st.text(), st.text(), st.text(), st.text())
def test_a_client_cannot_inject_lines_or_control_a_terminal(model: str, path: str, error: str, name: str) -> None:
    entry = changed(
        model=model, path=path, error=error, reason=name, requested_model=name, endpoint=None, upstream=name
    )
    entry = msgspec.structs.replace(entry, repaired=(name,), failed=(name,), request_id=name, trace_id=name)
    line = short(entry)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", line)
    line.encode()


def test_lines_have_a_maximum_length_and_no_secret() -> None:
    big = "canary-key " * 100_000
    names = {"model": big, "path": big, "error": big, "reason": big, "upstream": big, "request_id": big}
    line = short(changed(**names, status=500, repaired=(big,) * 1000, failed=(big,) * 1000, endpoint=None))
    assert len(line) < 4_096
    assert "canary-key" not in line
    assert HIDDEN in line


@table("setting", ["auto", "short", "text", "json"])
@table("is_terminal", [False, True])
@table("variables, has_color", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_the_format_and_the_colours_depend_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, setting: str, is_terminal: bool, variables: dict[str, str], has_color: bool
) -> None:
    main, terminal = pty.openpty()
    try:
        for name in ("NO_COLOR", "TERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with (
            os.fdopen(os.dup(terminal), "w") if is_terminal else io.StringIO() as stream,
            monkeypatch.context() as patch,
        ):
            patch.setattr("sys.stderr", stream)
            settings = ServeSettings(log_format=setting)
            style = log_style(settings)
            line = format_request(make_formatter(settings, ()), ANSWERED)
    finally:
        os.close(main)
        os.close(terminal)
    assert style == ({False: "text", True: "short"}[is_terminal] if setting == "auto" else setting)
    assert ("\x1b[" in line) is (style == "short" and is_terminal and has_color)


# The summary of repairs.


def counts(findings: dict[str, int], answers: int) -> UpstreamCounts:
    return UpstreamCounts(running=0, waiting=0, ttft_counts=[], findings=findings, attempts={"200": answers, "500": 9})


def test_the_summary_has_the_most_frequent_rules_since_the_last_one() -> None:
    now: dict[str, UpstreamCounts] = {"a": counts({"x": 5}, 7), "b": counts({}, 3)}
    summary = RepairSummary(lambda: now)
    stream = io.StringIO()
    with LogHandler(stream=stream):
        summary.report()
        summary.report()  # nothing has changed
        now = {"a": counts({"x": 6, "y": 3, "z": 2, "w": 1, "v": 1}, 17), "b": counts({}, 9)}
        summary.report()
    lines = [line.partition("repaired upstream=")[2] for line in stream.getvalue().splitlines()]
    assert lines[0] == "a minutes=5 answers=7 repaired=x:5"
    assert lines[1:] == ["a minutes=5 answers=10 repaired=y:3,z:2,x:1 other_rules=2"]


class _Watched(io.StringIO):
    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.has_line = threading.Event()
        self._awaited = awaited

    def write(self, text: str) -> int:
        if self._awaited in text:
            self.has_line.set()
        return super().write(text)


def test_a_gateway_logs_the_summary_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "INTERVAL_S", 0.05)
    stream = _Watched("answers of an upstream were repaired upstream=a")

    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, ROLE, *words("Hi"), STOP, DONE))]) as serving:
            await serving.post({**CHAT, "stream": True})
            assert await asyncio.to_thread(stream.has_line.wait, LIMIT_S)

    with LogHandler(stream=stream):
        run(work())
    assert stream.getvalue().count("answers of an upstream were repaired") == 1
