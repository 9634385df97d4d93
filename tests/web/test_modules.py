"""The page's modules alone, in Node: what needs no browser."""

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent / "js"
LIMIT_S = 300.0
OLDEST = 20  # it has clocks that tests can turn


def test_the_modules_keep_what_their_own_tests_say() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST:
        pytest.skip(f"node is {version.strip()} here, and {OLDEST} is needed")
    files = sorted(map(str, TESTS.glob("*.test.js")))
    assert files
    ran = subprocess.run(
        [node, "--test", "--test-reporter=spec", *files], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ran.returncode == 0, ran.stdout.partition("failing tests:")[2] or ran.stdout + ran.stderr
