"""A server's own tests: they start it, and let welldone check it. `pip install welldone` brings the fixture to pytest.

The server here is `welldone mock`, which answers without a model. Put yours in its place.
"""

import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from welldone.check.report import Report, Verdict


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The address of a server that runs for as long as the tests do."""
    with subprocess.Popen(["welldone", "mock", "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield re.search(r"http://\S+", server.stdout.readline())[0]
        finally:
            server.terminate()


def test_the_stream_is_right(url: str, welldone_check: Callable[..., Report]) -> None:
    """The test fails where a rule is broken, and shows what `welldone check` shows."""
    welldone_check(url, strict=True)


@pytest.mark.parametrize("client", ["openai-python", "ai-sdk"])
def test_no_client_is_hurt(url: str, welldone_check: Callable[..., Report], client: str) -> None:
    """Only the rules count whose breaking is known to hurt the client."""
    welldone_check(url, profile=client, only=["text", "tools", "usage"])


def test_what_the_report_says(url: str, welldone_check: Callable[..., Report]) -> None:
    """Without `check` no rule fails the test: it looks for itself."""
    report = welldone_check(url, only=["text"], check=False)
    assert [probe.name for probe in report.probes if probe.verdict is Verdict.WRONG] == []
