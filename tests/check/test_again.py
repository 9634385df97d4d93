"""How to see a finding again: what is shown works when it is pasted into a shell, and says no secret."""

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
from tests.check.serving import IMPATIENT
from tests.http.aio import LIMIT_S, run
from tests.table import table
from welldone.check.reply import ProbeRequest
from welldone.check.report import Finding
from welldone.check.repro import repro_command, repro_curl
from welldone.check.run import check
from welldone.check.settings import CheckSettings, Timeouts
from welldone.mock.faults import error_reply
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

URL = "http://127.0.0.1:8000/v1"
KEY = "a-key-of-some-length"
POST = ProbeRequest(method="POST", path="/chat/completions", body=b'{"a":"it\'s"}')
SHELLS = [shell for shell in ("sh", "bash") if shutil.which(shell)]
ODD_MODEL = 'it\'s $HOME `id` "q" !! \\ né 你好 *'


def _settings(**settings: Any) -> CheckSettings:  # noqa: ANN401 - any setting
    return CheckSettings(url=URL, **settings)


@table(
    ("settings", "said"),
    [
        ({}, ""),
        ({"key": KEY}, " --api-key env:WELLDONE_API_KEY"),
        ({"key": KEY, "variables": {"Authorization": "MY_KEY"}}, " --api-key env:MY_KEY"),
        ({"headers": (("X-Api-Key", KEY),)}, " --header 'X-Api-Key: env:WELLDONE_X_API_KEY'"),
        ({"headers": (("X-A", KEY),), "variables": {"X-A": "MY_A"}}, " --header 'X-A: env:MY_A'"),
        ({"headers": (("Authorization", KEY),)}, " --header 'Authorization: env:WELLDONE_AUTHORIZATION'"),
        ({"extra": {"effort": "lów", "n": [1]}}, """ --extra '{"effort":"lów","n":[1]}'"""),
        ({"ca_file": "my ca.pem"}, " --ca-file 'my ca.pem'"),
        ({"is_verified": False}, " --insecure"),
        ({"patience": Timeouts(reply_s=7.5)}, " --timeout 7.5"),
        ({"side_by_side": 1}, " --jobs 1"),
        ({"is_strict": True}, " --strict"),
    ],
)
def test_what_the_user_said_of_how_to_ask_is_said_again(settings: dict[str, Any], said: str) -> None:
    shown = repro_command(_settings(**settings), "m", "text", "end-done-sent")
    assert shown == f"welldone check {URL} --model m --only text --rule end-done-sent{said}"


def test_a_model_may_begin_with_a_hyphen() -> None:
    assert "--model=-m" in repro_command(_settings(), "-m", "text", "end-done-sent")


@table(
    ("settings", "said"),
    [
        ({}, ""),
        ({"key": KEY}, ' -H "Authorization: Bearer $WELLDONE_API_KEY"'),
        ({"key": KEY, "variables": {"Authorization": "MY_KEY"}}, ' -H "Authorization: Bearer $MY_KEY"'),
        ({"headers": (("X-A`$", KEY),)}, """ -H 'X-A`$: '"$WELLDONE_X_A__\""""),
    ],
)
def test_secrets_are_put_in_by_the_shell(settings: dict[str, Any], said: str) -> None:
    json_type = "-H 'Content-Type: application/json'"
    body = shlex.quote('{"a":"it\'s"}')
    begin = f"curl -siN --raw {URL}/chat/completions -m 60 {json_type}"
    assert repro_curl(_settings(**settings), POST) == f"{begin}{said} -d {body}"


@table(
    ("settings", "asked", "said"),
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
def test_a_request_by_hand(settings: dict[str, Any], asked: ProbeRequest, said: str | None) -> None:
    assert repro_curl(_settings(**settings), asked) == said


# ---- in a shell


def _without_done(seen: MockHttpRequest) -> MockReply:
    """A server that wants a key and a header, and ends its streams without [DONE]."""
    if seen.headers.get("x-team") != "a secret 'team'":
        return error_reply(400, "which team?")
    if seen.method == "POST" and '"effort":"lów"' not in seen.body:
        return error_reply(400, "no effort")
    reply = ReferenceServer(key=KEY, models=(ODD_MODEL,)).answer(seen)
    kept = tuple(piece for piece in reply.pieces if not piece.data.startswith(b"data: [DONE]"))
    return msgspec.structs.replace(reply, pieces=kept)


def _finding(url: str, rule: str) -> Finding:
    settings = CheckSettings(
        url=url,
        key=KEY,
        headers=(("X-Team", "a secret 'team'"),),
        extra={"effort": "lów"},
        only=("text",),
        rules=(rule,),
        timeouts=IMPATIENT,
    )
    report = run(check(settings))
    return next(finding for finding in report.findings if finding.probe == "text")


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str, str], tuple[int, str]]:
    """Runs a line as if it were pasted: how it ended, and what it showed."""
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
def test_the_command_finds_the_same_rule_again(program: str, shell: Callable[[str, str], tuple[int, str]]) -> None:
    with served(_without_done) as url:
        found = _finding(url, "end-done-sent")
        code, shown = shell(program, found.reproduce)
    assert code == 1, shown
    assert "x end-done-sent  breaks  text" in shown
    assert found.reproduce in shown
    assert KEY not in shown
    assert "secret" not in shown


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl program here")
@pytest.mark.parametrize("program", SHELLS)
def test_lint_finds_the_same_rule_in_what_curl_hears(
    program: str, shell: Callable[[str, str], tuple[int, str]]
) -> None:
    with served(_without_done) as url:
        found = _finding(url, "end-done-sent")
        assert found.curl is not None
        code, shown = shell(program, f"{found.curl} | welldone lint")
    assert code == 1, shown
    assert "end-done-sent" in shown
    asked = json.loads(shlex.split(found.curl)[-1])
    assert asked["model"] == ODD_MODEL
