"""The middleware in real web frameworks, behind real servers: uvicorn, hypercorn, werkzeug."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.asgi.framework_apps import ENDLESS_PROMPT, FAILING_PROMPT, FRAMEWORKS
from tests.http.aio import LIMIT_S, run
from welldone.check.api import check_server
from welldone.http.address import parse_url
from welldone.http.recording_client import RecordedResponse, record_response
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

pytestmark = pytest.mark.tier2
ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-frameworks"
LIGHTLLM_RULES = {
    *("delta-role-once", "delta-role-content-empty", "end-done-sent", "use-only-if-asked", "use-final-chunk"),
    *("use-null-elsewhere", "fin-own-chunk", "err-body-shape", "live-empty-generation"),
    *("http-no-proxy-buffering", "http-cache-control"),
}
"""Broken in LightLLM before its pull request 1262, with FastAPI's errors and headers; also in docs/servers.md."""


class Serving(NamedTuple):
    """A server in its own process."""

    url: str
    process: "subprocess.Popen[str]"

    def next_line(self) -> str:
        """The next line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def serving(framework: str, kind: str = "repaired") -> Iterator[Serving]:
    """Run the application of a framework."""
    if not (ENVIRONMENT / ".ready").is_file():
        pytest.skip("run: make clients")
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "tests.asgi.framework_apps", framework, kind]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        try:
            assert process.stdout is not None
            yield Serving(f"http://127.0.0.1:{int(process.stdout.readline())}/v1", process)
        finally:
            process.terminate()


def post(url: str, prompt: str, **options: Any) -> RecordedResponse:  # noqa: ANN401 - of `record_response`
    """Send a request for a stream."""
    request = {"model": "ideal", "messages": [{"role": "user", "content": prompt}], "stream": True}
    body = json.dumps(request).encode()
    return run(record_response(parse_url(url), "POST", "/chat/completions", body=body, **options))


@pytest.fixture(scope="module", params=FRAMEWORKS)
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """The repaired application of each framework."""
    with serving(request.param) as server:
        yield server


def test_an_exception_within_the_stream_ends_it_with_an_error_event(server: Serving) -> None:
    reply = post(server.url, FAILING_PROMPT)
    assert server.next_line() == "closed"
    assert reply.is_complete
    assert reply.body.endswith(b'"type":"server_error","param":null,"code":null}}\n\ndata: [DONE]\n\n')
    assert judge(Trace(body=reply.body, status=reply.status, headers=reply.headers, complete=True)).findings == ()


def test_a_disconnect_ends_the_generator_of_the_application(server: Serving) -> None:
    reply = post(server.url, ENDLESS_PROMPT, leave=lambda body: len(body) > 20_000, timeout_s=LIMIT_S)
    assert reply.is_aborted
    assert server.next_line() == "closed"


def test_the_answers_are_right(server: Serving) -> None:
    assert check_server(server.url, strict=True, only=["text", "usage", "mistakes"]).findings == ()


def test_a_whole_check_passes_that_failed_without_the_middleware() -> None:
    with serving("fastapi", "bare") as bare:
        assert set(check_server(bare.url, check=False).findings_by_rule) == LIGHTLLM_RULES
    with serving("fastapi") as repaired:
        assert check_server(repaired.url, strict=True).findings == ()
