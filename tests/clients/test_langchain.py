"""LangChain's standard integration tests of chat models: ChatOpenAI (chat, Responses) and ChatAnthropic."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.clients.client import ENVIRONMENT, LIMIT_S, PROGRAMS, ROOT
from tests.clients.tool_stand_in import reply_with_tools
from tests.support.server import Running, serving
from tests.support.upstream import gateway, upstream

HOME = ROOT / ".venv-langchain"
MODULE = ROOT / "tests/clients/programs/langchain_standard.py"
OPTIONS = ("-q", "-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "-p", "no:cacheprovider")
# One event loop for all tests: LangChain's clients share a pool of connections, which belong to a loop.
SETTINGS = (
    "asyncio_mode=auto",
    "asyncio_default_test_loop_scope=session",
    "asyncio_default_fixture_loop_scope=session",
    "junit_family=xunit2",
)
STANDARD_TESTS = 42
"""Tests of langchain-tests 1.1.9 for a chat model."""
NOT_RUN = {
    "test_pdf_inputs": "needs a file from the internet",
    "test_audio_inputs": "needs a file from the internet",
    "test_image_inputs": "needs a file from the internet",
    "test_image_tool_message": "needs a file from the internet",
    "test_pdf_tool_message": "needs a file from the internet",
    "test_stream_time": "measures LangChain's own time, with recorded replies",
}
NOT_OF_CLIENT = {
    "TestChat": {"test_anthropic_inputs"},
    "TestResponses": {"test_anthropic_inputs"},
    "TestMessages": {"test_json_mode"},
}
"""Tests of what the API of a client does not have."""

pytestmark = pytest.mark.skipif(not (HOME / ".ready").is_file(), reason="run: make clients")
each_client = pytest.mark.parametrize("client", NOT_OF_CLIENT)


@pytest.fixture(scope="module")
def small_server(default_model: Path) -> Iterator[Running]:
    """The default model under two names. Its answers have the first one, which is a longer form of the second."""
    with serving(["-m", str(default_model), "--alias", "other-model,other", "-t", "1"], model="other-model") as running:
        yield running


def run_standard_tests(server: Running, client: str, folder: Path, *, is_small: bool = False) -> None:
    """Run the standard tests of a client. All must pass but those that are not for it, or may fail by their words."""
    report = folder / "report.xml"
    settings = [word for setting in SETTINGS for word in ("-o", setting)]
    command = [str(HOME / "bin/python"), "-m", f"{PROGRAMS}.loopback", "pytest", *OPTIONS, *settings]
    address = {"SERVER_URL": server.url, "SERVER_KEY": server.key or "none", "SMALL": str(int(is_small))}
    names = {"MODEL": server.model, "OTHER_MODEL": "other", "PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(
        [*command, f"--junitxml={report}", f"{MODULE}::{client}"],
        cwd=ROOT,
        env={**ENVIRONMENT, **address, **names},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    cases = list(ET.parse(report).iter("testcase"))
    assert len({_test(case) for case in cases}) == STANDARD_TESTS
    skipped = {_test(case) for case in cases for result in case.iter("skipped") if result.get("type") == "pytest.skip"}
    assert skipped == NOT_RUN.keys() | NOT_OF_CLIENT[client]


def _test(case: ET.Element) -> str:
    return str(case.get("name")).partition("[")[0]


@each_client
def test_the_standard_tests_pass_with_a_model_that_calls_tools(client: str, tmp_path: Path) -> None:
    with upstream(reply_with_tools) as server, gateway(tmp_path, server.url) as running:
        run_standard_tests(running, client, tmp_path)


@each_client
def test_the_standard_tests_pass_with_the_default_model_but_for_its_words(
    client: str, small_server: Running, tmp_path: Path
) -> None:
    run_standard_tests(small_server, client, tmp_path, is_small=True)
