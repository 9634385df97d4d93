"""The clients cannot reach beyond the loopback, and would be seen to try."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.client import PROGRAMS, ROOT
from tests.clients.programs.loopback import ENDED
from tests.oracle import node_client

LIMIT_S = 60.0


def _run(command: list[str], **more: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **more}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize("host", ["stray.invalid", "192.0.2.1"])
def test_a_python_client_that_asks_home_is_ended(tmp_path: Path, host: str) -> None:
    # The client catches what it can, as some do.
    stray = f"import socket\ntry:\n    socket.create_connection(({host!r}, 80))\nexcept BaseException:\n    pass\n"
    (tmp_path / "stray.py").write_text(stray)
    ended = _run([sys.executable, "-m", f"{PROGRAMS}.loopback", "stray"], PYTHONPATH=str(tmp_path))
    assert ended.returncode == ENDED
    assert host in ended.stderr


def test_a_javascript_client_that_asks_home_is_ended() -> None:
    if why := node_client.why_missing():
        pytest.skip(why)
    job = (node_client.HOME / "job.mjs").as_uri()
    ended = _run(["node", "-e", f"import('{job}').then(() => fetch('http://stray.invalid/')).catch(() => 0)"])
    assert ended.returncode == ENDED
    assert "stray.invalid" in ended.stderr
