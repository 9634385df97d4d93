"""The comparison of instruction counts. Counting itself takes minutes and needs valgrind."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.table import table

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "instructions.py"
BEFORE = {"chat": 1000.0, "request": 2000.0}


def compare(folder: Path, figures: Mapping[str, float], *more: str) -> tuple[int, str]:
    """Return the exit status and output of a comparison with `BEFORE`."""
    files = []
    for name, found in (("figures", figures), ("compare", BEFORE)):
        file = folder / f"{name}.json"
        file.write_text(json.dumps({"environment": {}, "figures": found, "spreads": {}}))
        files += [f"--{name}", str(file)]
    done = subprocess.run([sys.executable, str(SCRIPT), *files, *more], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@table(
    ("figures", "over"),
    [
        ({"chat": 1030.0, "request": 1.0}, []),
        ({"chat": 1031.0, "request": 2000.0}, ["chat"]),
        ({"chat": 1000.0, "request": 2000.0, "new": 9.0}, []),
        ({"request": 2000.0}, ["chat"]),
    ],
)
def test_a_figure_above_the_limit_or_missing_fails(tmp_path: Path, figures: dict[str, float], over: list[str]) -> None:
    status, output = compare(tmp_path, figures)
    assert status == bool(over)
    assert [line.split()[0] for line in output.splitlines() if "OVER" in line] == over


def test_the_limit_can_be_set(tmp_path: Path) -> None:
    assert compare(tmp_path, {"chat": 1100.0, "request": 2000.0}, "--limit", "1.2")[0] == 0


def test_without_valgrind_it_reports_what_to_install(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (3, "")
    assert "apt-get install valgrind" in done.stderr


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("[]")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--figures", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert str(file) in done.stderr
