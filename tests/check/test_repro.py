"""Commands that reproduce a finding: they work when pasted into a shell, and contain no secrets."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.check.background import served
from tests.check.serving import TEST_TIMEOUTS
from tests.http.aio import LIMIT_S, run
from tests.table import table
from welldone.check.reply import ProbeRequest
from welldone.check.report import Finding
from welldone.check.repro import repro_command, repro_curl
from welldone.check.run import check
from welldone.check.settings import CheckSettings, Timeouts
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import error_reply

URL = "http://127.0.0.1:8000/v1"
KEY = "a-key-of-some-length"
POST = ProbeRequest(method="POST", path="/chat/completions", body=b'{"a":"it\'s"}')
SHELLS = [shell for shell in ("sh", "bash") if shutil.which(shell)]
ODD_MODEL = 'it\'s $HOME `id` "q" !! \\ né 你好 *'


def _settings(**settings: Any) -> CheckSettings:  # noqa: ANN401 - any setting
    return CheckSettings(url=URL, **settings)


@table(
    ("settings", "options"),
    [
        ({}, ""),
        ({"key": KEY}, " --api-key env:WELLDONE_API_KEY"),
        ({"key": KEY, "env_variables": {"Authorization": "MY_KEY"}}, " --api-key env:MY_KEY"),
        ({"headers": (("X-Api-Key", KEY),)}, " --header 'X-Api-Key: env:WELLDONE_X_API_KEY'"),
        ({"headers": (("X-A", KEY),), "env_variables": {"X-A": "MY_A"}}, " --header 'X-A: env:MY_A'"),
        ({"headers": (("Authorization", KEY),)}, " --header 'Authorization: env:WELLDONE_AUTHORIZATION'"),
        ({"extra": {"effort": "lów", "n": [1]}}, """ --extra '{"effort":"lów","n":[1]}'"""),
        ({"ca_file": "my ca.pem"}, " --ca-file 'my ca.pem'"),
        ({"is_verified": False}, " --insecure"),
        ({"timeouts": Timeouts(reply_s=7.5)}, " --timeout 7.5"),
        ({"jobs": 1}, " --jobs 1"),
        ({"is_strict": True}, " --strict"),
    ],
)
def test_the_command_repeats_the_options_of_the_user(settings: dict[str, Any], options: str) -> None:
    command = repro_command(_settings(**settings), "m", "text", "end-done-sent")
    assert command == f"welldone check {URL} --model m --only text --rule end-done-sent{options}"


def test_a_model_name_may_begin_with_a_hyphen() -> None:
    assert "--model=-m" in repro_command(_settings(), "-m", "text", "end-done-sent")


@table(
    ("settings", "options"),
    [
        ({}, ""),
        ({"key": KEY}, ' -H "Authorization: Bearer $WELLDONE_API_KEY"'),
        ({"key": KEY, "env_variables": {"Authorization": "MY_KEY"}}, ' -H "Authorization: Bearer $MY_KEY"'),
        ({"headers": (("X-A`$", KEY),)}, """ -H 'X-A`$: '"$WELLDONE_X_A__\""""),
    ],
)
def test_the_curl_command_reads_secrets_from_the_environment(settings: dict[str, Any], options: str) -> None:
    json_type = "-H 'Content-Type: application/json'"
    body = shlex.quote('{"a":"it\'s"}')
    begin = f"curl -siN --raw {URL}/chat/completions -m 60 {json_type}"
    assert repro_curl(_settings(**settings), POST) == f"{begin}{options} -d {body}"


@table(
    ("settings", "probe_request", "command"),
    [
        ({}, ProbeRequest(method="GET", path="/models"), f"curl -siN --raw {URL}/models -m 60"),
        (
            {},
            ProbeRequest(method="GET", path="/slots", is_root=True),
            "curl -siN --raw http://127.0.0.1:8000/slots -m 60",
        ),
        ({}, ProbeRequest(method="OPTIONS", path="/x"), f"curl -siN --raw {URL}/x -m 60 -X OPTIONS"),
        (
            {"key": KEY, "headers": (("X-A", KEY),)},
            ProbeRequest(method="GET", path="/x", headers=(("Authorization", None), ("x-a", "b"))),
            f"curl -siN --raw {URL}/x -m 60 -H Authorization: -H 'x-a: b'",
        ),
        (
            {"ca_file": "a b", "is_verified": False},
            ProbeRequest(method="GET", path="/x"),
            f"curl -siN --raw {URL}/x -m 60 --cacert 'a b' --insecure",
        ),
        ({}, ProbeRequest(method="POST", path="/x", body=b"\xff"), None),
        ({}, ProbeRequest(method="POST", path="/x", body=b"a\nb"), None),
        ({}, ProbeRequest(method="POST", path="/x", body=b"a" * 4_000), None),
    ],
)
def test_the_curl_command_of_a_request(
    settings: dict[str, Any], probe_request: ProbeRequest, command: str | None
) -> None:
    assert repro_curl(_settings(**settings), probe_request) == command


# ---- in a shell


def _without_done(http_request: MockHttpRequest) -> MockReply:
    """A server that requires a key and a header, and ends its streams without [DONE]."""
    if http_request.headers.get("x-team") != "a secret 'team'":
        return error_reply(400, "which team?")
    if http_request.method == "POST" and '"effort":"lów"' not in http_request.body:
        return error_reply(400, "no effort")
    reply = ReferenceServer(key=KEY, models=(ODD_MODEL,)).answer(http_request)
    pieces = tuple(piece for piece in reply.pieces if not piece.data.startswith(b"data: [DONE]"))
    return msgspec.structs.replace(reply, pieces=pieces)


def _finding(url: str, rule: str) -> Finding:
    settings = CheckSettings(
        url=url,
        key=KEY,
        headers=(("X-Team", "a secret 'team'"),),
        extra={"effort": "lów"},
        only=("text",),
        rules=(rule,),
        timeouts=TEST_TIMEOUTS,
    )
    report = run(check(settings))
    return next(finding for finding in report.findings if finding.probe == "text")


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str, str], tuple[int, str]]:
    """Runs a command line in a shell; returns its exit code and output."""
    folder = Path(sys.executable).parent
    env = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "WELLDONE_API_KEY": KEY,
        "WELLDONE_X_TEAM": "a secret 'team'",
        "LC_ALL": "C.UTF-8",
    }

    def paste(program: str, line: str) -> tuple[int, str]:
        done = subprocess.run(
            [program, "-c", line], cwd=tmp_path, env=env, capture_output=True, timeout=LIMIT_S, check=False
        )
        return done.returncode, (done.stdout + done.stderr).decode()

    return paste


@pytest.mark.parametrize("program", SHELLS)
def test_the_printed_command_reproduces_the_finding(program: str, shell: Callable[[str, str], tuple[int, str]]) -> None:
    with served(_without_done) as url:
        finding = _finding(url, "end-done-sent")
        code, output = shell(program, finding.reproduce)
    assert code == 1, output
    assert "x end-done-sent  breaks, specified  text" in output
    assert finding.reproduce in output
    assert KEY not in output
    assert "secret" not in output


@pytest.mark.tier2
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("program", SHELLS)
def test_lint_reproduces_the_finding_in_the_output_of_curl(
    program: str, shell: Callable[[str, str], tuple[int, str]]
) -> None:
    with served(_without_done) as url:
        finding = _finding(url, "end-done-sent")
        assert finding.curl is not None
        code, output = shell(program, f"{finding.curl} | welldone lint")
    assert code == 1, output
    assert "end-done-sent" in output
    assert json.loads(shlex.split(finding.curl)[-1])["model"] == ODD_MODEL
