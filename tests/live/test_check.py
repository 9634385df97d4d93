"""The check of welldone by itself: local models and the gateway are right, without one finding."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.live.server import KEY, PATIENT, Running
from tests.live.upstream import Upstream, gateway
from welldone.check.report import Report, Verdict
from welldone.check.reports import text
from welldone.check.run import check
from welldone.check.settings import CheckSettings, Timeouts
from welldone.mock.reference.server import ReferenceServer

LONG = Timeouts(reply_s=240.0)
"""On a machine with much else to do."""
ALL_BUT = 40
"""Rules that may be not heard: no such call, failure or silence in a right server; the rest must be right."""


def _check(running: Running, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    key = running.key
    return run(check(CheckSettings(url=running.url, key=key, timeouts=LONG, **settings)), limit_s=900.0)


def _assert_right(report: Report) -> None:
    assert not report.findings, "\n".join(text.render_terminal(report, lambda text, _: text, is_verbose=True))
    assert report.passed


@pytest.fixture
def behind() -> Iterator[Upstream]:
    made = Upstream(ReferenceServer().answer, for_all=True)
    made.start()
    yield made
    made.end()


@pytest.mark.tier3
def test_a_local_model_is_right(server: Running) -> None:
    report = _check(server, model=server.model)
    _assert_right(report)
    assert report.count(Verdict.PASS) > len(report.rules) - ALL_BUT


def test_a_gateway_in_front_of_a_right_server_is_right(behind: Upstream, tmp_path: Path) -> None:
    with gateway(tmp_path, behind.url, options=PATIENT) as running:
        report = _check(running, model="ideal")
        _assert_right(report)
        assert report.count(Verdict.PASS) > len(report.rules) - ALL_BUT


@pytest.mark.parametrize(
    "only", [("text",), pytest.param(("usage", "choices", "tools", "mistakes"), marks=pytest.mark.tier3)]
)
def test_a_gateway_in_front_of_a_local_model_is_right(server: Running, tmp_path: Path, only: tuple[str, ...]) -> None:
    with gateway(tmp_path, server.url, each={"key": KEY}, options=PATIENT) as running:
        _assert_right(_check(running, model=server.model, only=only))
