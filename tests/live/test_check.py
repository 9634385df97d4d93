"""`welldone check` of welldone itself: local models and the gateway have no finding."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.support.server import KEY, LATE_HEADERS, Running
from tests.support.upstream import Upstream, gateway
from welldone.check.report import Report, Verdict
from welldone.check.reports import text
from welldone.check.run import check
from welldone.check.settings import CheckSettings, Timeouts
from welldone.mock.reference.server import ReferenceServer

LONG_TIMEOUTS = Timeouts(reply_s=240.0)
"""For a busy machine."""
MAX_NOT_APPLICABLE = 40
"""Rules that may not apply, because a correct server has no such call, failure or pause; all others must pass."""

MAX_GEMINI_NOT_APPLICABLE = 16


def _check(running: Running, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    key = running.key
    return run(check(CheckSettings(url=running.url, key=key, timeouts=LONG_TIMEOUTS, **settings)), limit_s=900.0)


def _assert_passed(report: Report) -> None:
    assert not report.findings, "\n".join(text.render_terminal(report, lambda text, _: text, is_verbose=True))
    assert report.passed


@pytest.fixture
def backend() -> Iterator[Upstream]:
    server = Upstream(ReferenceServer().answer, handles_all=True)
    server.start()
    yield server
    server.end()


@pytest.mark.tier3
def test_a_local_model_passes(server: Running) -> None:
    report = _check(server, model=server.model)
    _assert_passed(report)
    assert report.count(Verdict.PASS) > len(report.rules) - MAX_NOT_APPLICABLE


def test_a_gateway_in_front_of_a_correct_server_passes(backend: Upstream, tmp_path: Path) -> None:
    with gateway(tmp_path, backend.url, options=LATE_HEADERS) as running:
        report = _check(running, model="ideal")
        _assert_passed(report)
        assert report.count(Verdict.PASS) > len(report.rules) - MAX_NOT_APPLICABLE


def test_geminis_api_of_a_gateway_passes(backend: Upstream, tmp_path: Path) -> None:
    with gateway(tmp_path, backend.url, options=LATE_HEADERS) as running:
        report = _check(running, model="ideal", endpoint="gemini", skip=("count-tokens",))
        _assert_passed(report)
        assert report.count(Verdict.PASS) > len(report.rules) - MAX_GEMINI_NOT_APPLICABLE


@pytest.mark.tier3
def test_geminis_api_of_a_local_model_passes(server: Running) -> None:
    report = _check(server, model=server.model, endpoint="gemini")
    _assert_passed(report)
    assert report.count(Verdict.PASS) > len(report.rules) - MAX_GEMINI_NOT_APPLICABLE


def _assert_response_endpoints_pass(running: Running, model: str) -> None:
    report = _check(running, model=model, endpoint="responses", only=("compact", "socket"))
    _assert_passed(report)
    assert [probe.verdict for probe in report.probes] == [Verdict.PASS, Verdict.PASS]


def test_compaction_and_websockets_of_a_gateway_pass(backend: Upstream, tmp_path: Path) -> None:
    with gateway(tmp_path, backend.url, options=LATE_HEADERS) as running:
        _assert_response_endpoints_pass(running, "ideal")


@pytest.mark.tier2
def test_compaction_and_websockets_of_a_local_model_pass(server: Running) -> None:
    _assert_response_endpoints_pass(server, server.model)


@pytest.mark.parametrize(
    "only", [("text",), pytest.param(("usage", "choices", "tools", "mistakes"), marks=pytest.mark.tier3)]
)
def test_a_gateway_in_front_of_a_local_model_passes(
    tiny_server: Running, tmp_path: Path, only: tuple[str, ...]
) -> None:
    with gateway(tmp_path, tiny_server.url, each={"key": KEY}, options=LATE_HEADERS) as running:
        _assert_passed(_check(running, model=tiny_server.model, only=only))
