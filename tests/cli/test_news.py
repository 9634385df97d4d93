"""What the log says of upstreams: each change once."""

import logging
from collections.abc import Iterator

import pytest

from welldone.cli.service import UpstreamLog
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.upstream import FAILURE_THRESHOLD, Upstream
from welldone.http.client import BufferedResponse, HttpClientError
from welldone.server.observe.log import LOGGER

NO_ONE = HttpClientError("no connection to the server")
WELL, REFUSED = BufferedResponse(200, {}, b'{"data": [{"id": "m"}]}'), BufferedResponse(401, {}, b"")
SILENT = ("WARNING", "the upstream cannot be asked: no connection to the server; does it run, and is its URL right?")
KEYLESS = ("WARNING", "the upstream wants a key: --upstream-key, or key = in the file (status 401)")


class Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, and see that it names the upstream."""
        fields = record.__dict__["fields"]
        assert fields["upstream"] == "lab"
        assert ("url" in fields) == (record.levelname == "WARNING" and not {"for_s", "last"} & set(fields))
        assert fields.get("url") in (None, "http://127.0.0.1:1/v1")
        self.said.append((record.levelname, record.getMessage()))


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The log, kept."""
    made = Kept()
    before = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(made)
    yield made
    LOGGER.removeHandler(made)
    LOGGER.setLevel(before)


@pytest.fixture
def upstream() -> Upstream:
    """An upstream whose changes are told."""
    news = UpstreamLog()
    settings = UpstreamSettings(name="lab", url="http://127.0.0.1:1/v1")
    return Upstream(settings, clock=lambda: 1000.0, on_change=news.update)


def test_an_upstream_that_goes_and_comes_is_told_once_each(kept: Kept, upstream: Upstream) -> None:
    for reply in (WELL, NO_ONE, NO_ONE, NO_ONE, NO_ONE, WELL, WELL):
        upstream.record_probe(reply)
    assert kept.said == [SILENT, ("INFO", "the upstream is well again")]


def test_a_dead_one_is_told_at_the_first_look_and_only_then(kept: Kept, upstream: Upstream) -> None:
    upstream.record_probe(NO_ONE)
    assert kept.said == [SILENT]
    upstream.record_probe(NO_ONE)
    upstream.record_probe(NO_ONE)
    assert kept.said == [SILENT]


def test_a_key_that_an_upstream_refuses_is_told(kept: Kept, upstream: Upstream) -> None:
    upstream.record_model_list(REFUSED)
    assert kept.said == [KEYLESS]


def test_requests_that_all_fail_are_told_once_and_when_they_are_answered_again(kept: Kept, upstream: Upstream) -> None:
    for failure in ("500", None, *["500"] * 4, "timeout"):
        upstream.record_request(failure)
    for _ in range(FAILURE_THRESHOLD):
        upstream.breaker.record_failure()
    upstream.breaker.record_success()
    upstream.record_request(None)
    upstream.record_request(None)
    assert kept.said == [
        ("WARNING", "all recent requests to the upstream failed"),
        ("WARNING", "the upstream failed again and again and is avoided"),
        ("INFO", "the upstream answers again"),
    ]


def test_a_breaker_is_told_when_it_opens_and_when_it_closes(kept: Kept, upstream: Upstream) -> None:
    for _ in range(FAILURE_THRESHOLD + 3):
        upstream.breaker.record_failure()
    upstream.record_model_list(REFUSED)
    upstream.breaker.record_success()
    upstream.breaker.record_success()
    assert kept.said == [
        ("WARNING", "the upstream failed again and again and is avoided"),
        KEYLESS,
        ("INFO", "the upstream answers again"),
    ]
