"""Test a server with welldone: start it and check its streams. The package brings the pytest fixture.

This example starts `welldone mock`, which answers without a model. Replace it by your server.
"""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from welldone.check.report import Report, Verdict


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The base URL of a server that runs for the whole test session."""
    with subprocess.Popen(["welldone", "mock", "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield re.search(r"http://\S+", server.stdout.readline())[0]
        finally:
            server.terminate()


def test_the_server_breaks_no_rule(url: str, welldone_check: Callable[..., Report]) -> None:
    """Fails if any rule is broken, with the output of `welldone check`."""
    welldone_check(url, strict=True)


@pytest.mark.parametrize("client", ["openai-python", "ai-sdk"])
def test_no_client_is_affected(url: str, welldone_check: Callable[..., Report], client: str) -> None:
    """Judges only rules that are known to affect the client."""
    welldone_check(url, profile=client, only=["text", "tools", "usage"])


def test_the_report_has_no_failed_probe(url: str, welldone_check: Callable[..., Report]) -> None:
    """With `check=False` the fixture only returns the report, and the test asserts on it."""
    report = welldone_check(url, only=["text"], check=False)
    assert [probe.name for probe in report.probes if probe.verdict is Verdict.FAIL] == []
