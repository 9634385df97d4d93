"""Every example of docs/asgi.md runs."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.asgi.asgi_page import EXAMPLES, run_examples
from tests.http.aio import LIMIT_S
from welldone.asgi import RepairMiddleware

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-frameworks"


def test_the_examples_without_a_framework_run() -> None:
    (settings,) = [example for example in EXAMPLES if "reports: list" in example]
    names: dict[str, Any] = {"RepairMiddleware": RepairMiddleware}
    assert run_examples([EXAMPLES[0], settings], names) == 1
    (report,) = names["reports"]
    assert report.is_complete
    assert "delta-role-once" in {entry.rule for entry in report.result.repairs}


@pytest.mark.tier2
def test_all_examples_run() -> None:
    if not (ENVIRONMENT / ".ready").is_file():
        pytest.skip("run: make clients")
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "tests.asgi.asgi_page"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=LIMIT_S)
