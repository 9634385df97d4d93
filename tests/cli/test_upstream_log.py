"""Log of upstreams: each change of state is logged once."""

import logging
from collections.abc import Iterator

import pytest

from welldone.cli.service import UpstreamLog
from welldone.config.upstream import UpstreamSettings
from welldone.core.json_budget import run_to_completion
from welldone.gateway.upstream import FAILURE_THRESHOLD, Upstream
from welldone.http.client import BufferedResponse
from welldone.http.connect import HttpClientError
from welldone.server.observe.log import LOGGER

UNREACHABLE = HttpClientError("no connection to the server")
OK, UNAUTHORIZED = BufferedResponse(200, {}, b'{"data": [{"id": "m"}]}'), BufferedResponse(401, {}, b"")
UNREACHABLE_LINE = (
    "WARNING",
    "the upstream cannot be reached: no connection to the server; check that it runs, and its URL",
)
UNAUTHORIZED_LINE = ("WARNING", "the upstream requires a key: --upstream-key, or key = in the file (status 401)")


class LogRecorder(logging.Handler):
    """Records log lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Record a line and check its fields."""
        fields = record.__dict__["fields"]
        assert fields["upstream"] == "lab"
        assert ("url" in fields) == (record.levelname == "WARNING" and not {"for_s", "last"} & set(fields))
        assert fields.get("url") in (None, "http://127.0.0.1:1/v1")
        self.lines.append((record.levelname, record.getMessage()))


@pytest.fixture
def recorder() -> Iterator[LogRecorder]:
    """Records the log during a test."""
    handler = LogRecorder()
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(before)


@pytest.fixture
def upstream() -> Upstream:
    """An upstream whose changes are logged."""
    upstream_log = UpstreamLog()
    settings = UpstreamSettings(name="lab", url="http://127.0.0.1:1/v1")
    return Upstream(settings, clock=lambda: 1000.0, on_change=upstream_log.update)


def test_an_outage_and_the_recovery_are_logged_once_each(recorder: LogRecorder, upstream: Upstream) -> None:
    for reply in (OK, UNREACHABLE, UNREACHABLE, UNREACHABLE, UNREACHABLE, OK, OK):
        upstream.record_probe(reply)
    assert recorder.lines == [UNREACHABLE_LINE, ("INFO", "the upstream has recovered")]


def test_an_unreachable_upstream_is_logged_at_the_first_probe_only(recorder: LogRecorder, upstream: Upstream) -> None:
    upstream.record_probe(UNREACHABLE)
    assert recorder.lines == [UNREACHABLE_LINE]
    upstream.record_probe(UNREACHABLE)
    upstream.record_probe(UNREACHABLE)
    assert recorder.lines == [UNREACHABLE_LINE]


def test_an_upstream_that_rejects_the_key_is_logged(recorder: LogRecorder, upstream: Upstream) -> None:
    run_to_completion(upstream.record_model_list_in_steps(UNAUTHORIZED))
    assert recorder.lines == [UNAUTHORIZED_LINE]


def test_failing_requests_are_logged_once_and_when_they_succeed_again(
    recorder: LogRecorder, upstream: Upstream
) -> None:
    for failure in ("500", None, *["500"] * 4, "timeout"):
        upstream.record_request(failure)
    for _ in range(FAILURE_THRESHOLD):
        upstream.breaker.record_failure()
    upstream.breaker.record_success()
    upstream.record_request(None)
    upstream.record_request(None)
    assert recorder.lines == [
        ("WARNING", "all recent requests to the upstream failed"),
        ("WARNING", "circuit breaker opened: the upstream failed repeatedly"),
        ("INFO", "the upstream answers again"),
    ]


def test_the_circuit_breaker_is_logged_when_it_opens_and_when_it_closes(
    recorder: LogRecorder, upstream: Upstream
) -> None:
    for _ in range(FAILURE_THRESHOLD + 3):
        upstream.breaker.record_failure()
    run_to_completion(upstream.record_model_list_in_steps(UNAUTHORIZED))
    upstream.breaker.record_success()
    upstream.breaker.record_success()
    assert recorder.lines == [
        ("WARNING", "circuit breaker opened: the upstream failed repeatedly"),
        UNAUTHORIZED_LINE,
        ("INFO", "the upstream answers again"),
    ]


def test_answers_without_an_end_are_logged_in_growing_steps(recorder: LogRecorder, upstream: Upstream) -> None:
    for _ in range(11):
        upstream.record_request("unfinished")
        upstream.record_request(None)
    assert recorder.lines == [
        (
            "WARNING",
            f"the upstream ended {count} of its answers without a finish_reason; "
            'if that is its way, set ends = "close" for it',
        )
        for count in (1, 10)
    ]
