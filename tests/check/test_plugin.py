"""The pytest plugin with the fixture `welldone_check`, and `check_server`."""

import asyncio
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.check.background import served, without_done
from tests.check.test_failed_answers import MESSAGE, failing
from tests.http.aio import LIMIT_S, run
from tests.table import table
from welldone.check.api import CheckFailedError, check_server
from welldone.check.report import Verdict

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "test_server.py"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "welldone.check.plugin"]


def pytest_run(folder: Path, test: str) -> tuple[int, str]:
    """Run pytest in a folder with one test file; returns its exit code and output."""
    (folder / "test_it.py").write_text(test, "utf-8")
    # No plugin is loaded by its entry point: others take a second, and this one is loaded exactly once by its name.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*PYTEST, "test_it.py"], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, env=env, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_documented_example_passes(tmp_path: Path) -> None:
    code, output = pytest_run(tmp_path, EXAMPLE.read_text("utf-8"))
    assert code == 0, output
    assert "4 passed" in output


def test_a_failing_server_fails_the_test_with_the_output_of_the_check(tmp_path: Path) -> None:
    with served(without_done()) as url:
        code, output = pytest_run(
            tmp_path, f"def test_it(welldone_check):\n    welldone_check({url!r}, only=['text'])\n"
        )
    assert code == 1
    assert "x end-done-sent  breaks, specified  text" in output
    assert "more       welldone rules end-done-sent" in output
    assert "Traceback" not in output
    assert "check_server" not in output


def test_a_server_that_fails_every_answer_fails_the_test_with_the_number_of_failures(tmp_path: Path) -> None:
    with served(failing(lambda _: True)) as url:
        code, output = pytest_run(
            tmp_path, f"def test_it(welldone_check):\n    welldone_check({url!r}, only=['text'])\n"
        )
    assert code == 1
    assert f"\nfailed: 4 of 4 answers ended in an error: {MESSAGE}\n" in output


def test_an_unreachable_server_fails_the_test_in_one_line(tmp_path: Path) -> None:
    with served() as url:
        pass
    code, output = pytest_run(tmp_path, f"def test_it(welldone_check):\n    welldone_check({url!r})\n")
    assert code == 1
    assert "welldone check: " in output
    assert "Traceback" not in output


def test_a_run_without_the_fixture_does_not_import_the_check(tmp_path: Path) -> None:
    test = (
        "import sys\n"
        "def test_it():\n"
        "    assert 'welldone.check.plugin' in sys.modules\n"
        "    assert not {'msgspec', 'welldone.check.run', 'welldone.core'} & set(sys.modules)\n"
    )
    code, output = pytest_run(tmp_path, test)
    assert code == 0, output


def test_the_package_registers_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"welldone": "welldone.check.plugin"}
    assert not any("pytest" in dependency for dependency in project["dependencies"])


def test_the_api_works_inside_a_running_event_loop() -> None:
    async def main(url: str) -> None:
        assert asyncio.get_running_loop().is_running()
        assert check_server(url, only=["text"]).verdict is Verdict.PASS

    with served() as url:
        run(main(url))


def test_known_violations_do_not_fail_the_check() -> None:
    with served(without_done()) as url:
        report = check_server(url, only=["text"], known=["end-done-sent"])
        assert report.passed
        assert set(report.findings_by_rule) == {"end-done-sent"}


def test_a_known_violation_that_is_mended_fails_the_check_with_its_name() -> None:
    with served() as url, pytest.raises(CheckFailedError, match=r"^failed: no longer broken, but .*: end-done-sent\n"):
        check_server(url, only=["text"], known=["end-done-sent", "tool-id-first"])


def test_without_check_the_report_is_returned() -> None:
    with served(without_done("secret")) as url:
        report = check_server(url, only=["text"], api_key="secret", check=False)
    assert not report.passed
    assert report.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"only": ["text"], "skip": ["text"]}, "no probe is selected"),
        ({"model": "nobody"}, "nobody"),
        ({"api_key": "wrong"}, "key"),
    ],
)
def test_a_check_that_cannot_run_raises_an_error(settings: dict[str, object], message: str) -> None:
    with served(without_done("secret")) as url, pytest.raises(CheckFailedError, match=message):
        check_server(url, **{"api_key": "secret", **settings})  # type: ignore[arg-type] # one of many kinds


@table(
    ("settings", "message"),
    [
        ({"profile": "opnai"}, "there is no profile 'opnai'"),
        ({"only": ["tex"]}, "there is no probe 'tex'"),
        ({"skip": "reasoning"}, "'reasoning' should be a list of names"),
        ({"rules": ["end-done"]}, "there is no rule 'end-done'"),
        ({"known": ["end-done"]}, "there is no rule 'end-done'"),
        ({"extra": {"stream": False}}, "stream is set by the probes themselves"),
    ],
)
def test_unknown_names_raise_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_server("http://127.0.0.1:9/v1", **settings)


# An application without a port.

APP = """
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.server import MockHttpRequest

IDEAL = ReferenceServer()
SKIPPED = b"data: [DONE]"

async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = (await receive())["body"].decode("utf-8", "replace")
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    reply = IDEAL.answer(MockHttpRequest(scope["method"], scope["raw_path"].decode(), headers, body))
    pairs = [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
    for piece in reply.pieces:
        if not piece.data.startswith(SKIPPED):
            await send({"type": "http.response.body", "body": piece.data, "more_body": True})
    await send({"type": "http.response.body"})
"""


def test_an_asgi_application_is_checked_without_a_port(tmp_path: Path) -> None:
    test = (
        f"{APP}\n"
        "from welldone.asgi import RepairMiddleware\n\n"
        "def test_wrong(welldone_check):\n    welldone_check(asgi_app=app, only=['text'])\n\n"
        "def test_right(welldone_check):\n"
        "    report = welldone_check(asgi_app=RepairMiddleware(app), strict=True)\n"
        "    assert report.url == 'http://localhost/v1'\n"
    )
    code, output = pytest_run(tmp_path, test)
    assert code == 1
    assert "1 failed, 1 passed" in output
    assert "x end-done-sent  breaks, specified  text" in output


def test_the_url_gives_the_prefix_of_an_application() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        paths.add(scope.get("path"))

    paths: set[str] = set()
    with pytest.raises(CheckFailedError):
        check_server("http://localhost/api", asgi_app=app)
    assert "/api/chat/completions" in paths or "/api/models" in paths


def test_an_application_that_does_not_start_fails_the_check() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - of ASGI
        await send({"type": "lifespan.startup.failed", "message": "no model"})

    with pytest.raises(CheckFailedError, match="the application did not start: no model"):
        check_server(asgi_app=app)


def test_a_check_needs_a_url_or_an_application() -> None:
    with pytest.raises(TypeError, match="give the URL of a server, or an ASGI application"):
        check_server()


# The mock server for tests of clients.


def test_the_mock_fixture_breaks_a_rule_or_has_a_fault(tmp_path: Path) -> None:
    test = """
import json
import urllib.request
import pytest
from welldone import lint

REQUEST = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "Say: hello"}]}

def post(server):
    body = json.dumps(REQUEST).encode()
    request = urllib.request.Request(f"{server.url}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return response.read()

def test_right(welldone_mock):
    server = welldone_mock(text="Hi there")
    assert lint(post(server), request=REQUEST).findings == ()
    server.wait_until(lambda: server.requests[0].end == "whole")
    assert json.loads(server.requests[0].body) == REQUEST

def test_rule(welldone_mock):
    for rule in ("delta-role-once", "end-done-sent"):
        assert set(lint(post(welldone_mock(rule=rule)), request=REQUEST).counts) == {rule}

def test_fault(welldone_mock):
    with pytest.raises(Exception):
        post(welldone_mock(fault="cut"))
    assert b"[DONE]" not in post(welldone_mock(fault="no-done"))

@pytest.mark.parametrize(("parameters", "message"), [
    ({"rule": "end-done"}, "there is no rule 'end-done' .did you mean 'end-done-"),
    ({"fault": "cuts"}, "there is no fault 'cuts' .did you mean 'cut'"),
    ({"rule": "ns-leading-space-ok"}, "no answer of a server can break"),
    ({"rule": "end-done-sent", "text": "a"}, "give one of rule, fault and text"),
    ({"rule": "end-done-sent", "fault": "cut"}, "give one of rule, fault and text"),
])
def test_wrong_use(welldone_mock, parameters, message):
    with pytest.raises(ValueError, match=message):
        welldone_mock(**parameters)
"""
    code, output = pytest_run(tmp_path, test)
    assert code == 0, output
    assert "8 passed" in output
