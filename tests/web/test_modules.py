"""JavaScript unit tests in Node."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent / "js"
LIMIT_S = 300.0
MIN_NODE = 20  # has mock timers


def test_the_javascript_unit_tests_pass() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
        pytest.skip(f"Node is {version.strip()}; {MIN_NODE} is needed")
    files = sorted(map(str, TESTS.glob("*.test.js")))
    assert files
    ran = subprocess.run(
        [node, "--test", "--test-reporter=spec", *files], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ran.returncode == 0, ran.stdout.partition("failing tests:")[2] or ran.stdout + ran.stderr
