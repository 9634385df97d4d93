"""The benchmark of the server runs, and shows what it promises. Its figures are nobody's business here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "serve.py"
LIMIT_S = 120.0
"""It takes some seconds, also on a busy machine: a hang is a failure."""
SMALLEST = ("--streams", "1,2,3", "--rounds", "1", "--answers", "3", "--tokens", "4", "-np", "2", "-t", "1")


def _run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(BENCHMARK), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_the_benchmark_of_the_server_shows_every_way_and_every_bar_at_every_level(tiny_model: Path) -> None:
    done = _run(*SMALLEST, "-m", str(tiny_model))
    assert (done.returncode, done.stderr) == (0, "")
    words = [line.split() for line in done.stdout.splitlines()]
    rows = [" ".join(line) for line in words]
    for streams in ("1", "2", "3"):
        answers = "6" if streams == "3" else "4" if streams == "2" else "3"
        assert any(row.startswith(f"bare engine {streams} {answers} ") for row in rows)
        assert any(row.startswith(f"welldone {streams} {answers} ") for row in rows)
        for bar in ("tokens/s, ratio", "first token p50, more", "failed answers"):
            assert sum(row.startswith(f"{bar} {streams} stream") for row in rows) == 1
    assert "load average" in done.stdout
    assert "of a core" in done.stdout


def test_few_answers_give_no_percentile_and_strictly_no_pass(tiny_model: Path) -> None:
    done = _run(*SMALLEST, "-m", str(tiny_model), "--streams", "1", "--json", "--strict")
    assert (done.returncode, done.stderr) == (1, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert [(row["way"], row["failed"], row["first_p50_s"]) for row in report["rows"]] == [
        ("bare engine", 0, None),
        ("welldone", 0, None),
    ]
    assert {row["tokens"] for row in report["rows"]} == {3 * 4}
    assert [bar["figure"] for bar in report["bars"] if bar["name"] == "first token p50, more"] == [None]


def test_a_benchmark_of_nothing_says_why(tmp_path: Path) -> None:
    done = _run(*SMALLEST, "-m", str(tmp_path / "missing.gguf"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "missing.gguf" in done.stderr
