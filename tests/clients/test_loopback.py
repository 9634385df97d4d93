"""Client programs cannot connect beyond the loopback interface, and an attempt is detected."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.client import PROGRAMS, ROOT
from tests.clients.programs.loopback import EXIT_STATUS
from tests.oracle import node_client

LIMIT_S = 60.0


def _run(command: list[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize("host", ["stray.invalid", "192.0.2.1"])
def test_a_python_client_that_connects_elsewhere_is_killed(tmp_path: Path, host: str) -> None:
    # Some clients catch every exception.
    stray = f"import socket\ntry:\n    socket.create_connection(({host!r}, 80))\nexcept BaseException:\n    pass\n"
    (tmp_path / "stray.py").write_text(stray)
    finished = _run([sys.executable, "-m", f"{PROGRAMS}.loopback", "stray"], PYTHONPATH=str(tmp_path))
    assert finished.returncode == EXIT_STATUS
    assert host in finished.stderr


def test_a_javascript_client_that_connects_elsewhere_is_killed() -> None:
    if reason := node_client.why_missing():
        pytest.skip(reason)
    job = (node_client.HOME / "job.mjs").as_uri()
    finished = _run(["node", "-e", f"import('{job}').then(() => fetch('http://stray.invalid/')).catch(() => 0)"])
    assert finished.returncode == EXIT_STATUS
    assert "stray.invalid" in finished.stderr
