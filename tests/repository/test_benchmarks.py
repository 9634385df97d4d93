"""The benchmarks run and print all rows and bars. Their figures are not tested."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engines import stand_in_server

pytestmark = pytest.mark.tier3

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BENCHMARK = BENCHMARKS / "serve.py"
LIMIT_S = 120.0
"""A benchmark with these arguments takes some seconds."""
SMALLEST = ("--streams", "1,2,3", "--rounds", "1", "--answers", "3", "--tokens", "4", "-np", "2", "-t", "1")
SMALL_GATEWAY = ("--streams", "2", "--rounds", "1", "--seconds", "0.2", "--gap", "10", "--many", "0", "--only")
SMALL_TOOL = ("--streams", "2", "--many", "3", "--rounds", "1", "--seconds", "0.5", "--only")

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install gcc")


def _run(
    *arguments: str, script: Path = BENCHMARK, environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command, own = [sys.executable, str(script), *arguments], {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=own)


def test_the_server_benchmark_prints_every_path_and_bar_at_every_level(tiny_model: Path) -> None:
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


def test_the_server_benchmark_compares_all_engines(tiny_model: Path, tmp_path: Path) -> None:
    program = stand_in_server.install(tmp_path / "llama-server")
    environment = {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "WELLDONE_ENGINES": str(tmp_path)}
    options = ("--engines", "--streams", "1,2", "--rounds", "1", "--tokens", "4", "-np", "2", "--json")
    done = _run(*options, "-m", str(tiny_model), environment=environment)
    # The stand-in starts only with welldone's flags, so that it does not run alone.
    assert (done.returncode, done.stdout) == (3, "")
    assert "llama-server" in done.stderr
    done = _run(*options, "-m", str(tiny_model), environment=environment | {"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(done.stdout)
    expected = [("wheel", way, streams) for streams in (1, 2) for way in ("direct", "welldone")]
    assert [(row["engine"], row["way"], row["streams"]) for row in report["rows"]] == expected
    for row in report["rows"]:
        assert row["failed"] == []
        assert min(row["tokens_per_s"], row["prompt_tokens_per_s"], row["first_p50_s"]) > 0
    assert len(report["bars"]) == 4


def test_with_few_answers_there_is_no_percentile_and_strict_fails(tiny_model: Path) -> None:
    done = _run(*SMALLEST, "-m", str(tiny_model), "--streams", "1", "--json", "--strict")
    assert (done.returncode, done.stderr) == (1, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert [(row["target"], row["failed"], row["first_p50_s"]) for row in report["rows"]] == [
        ("bare engine", 0, None),
        ("welldone", 0, None),
    ]
    assert {row["tokens"] for row in report["rows"]} == {3 * 4}
    assert [bar["figure"] for bar in report["bars"] if bar["name"] == "first token p50, more"] == [None]


def test_a_benchmark_without_a_model_reports_the_missing_file(tmp_path: Path) -> None:
    done = _run(*SMALLEST, "-m", str(tmp_path / "missing.gguf"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "missing.gguf" in done.stderr


@needs_compiler
def test_the_gateway_benchmark_prints_every_gateway_and_bar() -> None:
    done = _run(*SMALL_GATEWAY, "welldone,welldone-off", "--many", "3", script=BENCHMARKS / "gateway.py")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for start in ("direct 2 ", "welldone 2 ", "welldone-off 2 ", "welldone 3 ", "welldone-off 3 "):
        assert sum(row.startswith(start) for row in rows) == 1
    for bar in (
        "CPU per chunk, of welldone-off's 2 ",
        "memory per stream 2 ",
        "memory per stream 3 ",
        "failed streams 2 ",
        "longest gap 3 ",
    ):
        assert sum(row.startswith(bar) for row in rows) == 1
    assert "load average" in done.stdout


@needs_compiler
def test_the_gateway_benchmark_counts_every_chunk() -> None:
    done = _run(*SMALL_GATEWAY, "welldone", "--json", script=BENCHMARKS / "gateway.py")
    assert (done.returncode, done.stderr) == (0, "")
    direct, ours = json.loads(done.stdout)["rows"]
    assert direct["chunks"] == ours["chunks"] > 0
    assert (direct["failed"], ours["failed"]) == (0, 0)
    assert direct["cpu_us"] is None
    assert ours["rss_bytes"] > 0


@needs_compiler
def test_a_missing_gateway_is_reported_and_its_bar_has_no_figure(tmp_path: Path) -> None:
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "benchmarks" / "gateway.py"  # a copy without the other programs
    done = _run(*SMALL_GATEWAY, "welldone,sglang-router", "--json", "--strict", script=script)
    assert (done.returncode, done.stderr) == (1, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["left_out"] == ["sglang-router: make .venv-peers/.ready"]
    open_bars = [(bar["name"], bar["passed"]) for bar in report["bars"] if bar["figure"] is None]
    assert open_bars == [("CPU per chunk, of sglang-router's", False)]


@needs_compiler
def test_a_gateway_benchmark_that_is_ended_ends_its_gateways() -> None:
    command = [sys.executable, str(BENCHMARKS / "gateway.py"), *SMALL_GATEWAY, "welldone", "--seconds", "60"]
    with subprocess.Popen(command) as process:
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children: list[str] = []
        deadline = time.monotonic() + LIMIT_S
        while not any(b"welldone.toml" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.05)
            children = listed.read_text().split()
        process.terminate()
        assert process.wait(LIMIT_S) == 128 + signal.SIGTERM
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_benchmark_without_a_compiler_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    done = _run(*SMALL_GATEWAY, "nginx", script=BENCHMARKS / "gateway.py")
    assert (done.returncode, done.stdout) == (3, "")
    assert "apt-get install gcc" in done.stderr


@needs_compiler
def test_the_load_test_benchmark_prints_every_client_and_bar() -> None:
    done = _run(*SMALL_TOOL, "welldone,openai", script=BENCHMARKS / "bench_tool.py")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for start in ("welldone 2 ", "openai 2 ", "welldone 3 ", "bare reader 3 "):
        assert sum(row.startswith(start) for row in rows) == 1
    for bar in ("chunks per CPU s, by openai's 2 ", "timestamp delay, p99 3 ", "failed streams 3 "):
        assert sum(row.startswith(bar) for row in rows) == 1
    assert "load average" in done.stdout


@needs_compiler
def test_a_missing_load_test_is_reported_and_its_bar_has_no_figure(tmp_path: Path) -> None:
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "benchmarks" / "bench_tool.py"  # a copy without the other programs
    done = _run(*SMALL_TOOL, "welldone,guidellm", "--json", "--strict", script=script)
    assert (done.returncode, done.stderr) == (1, "")
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["left_out"] == ["guidellm: make .venv-guidellm/.ready"]
    assert [(cost["name"], cost["failed"]) for cost in report["costs"]] == [("welldone", 0)]
    assert report["costs"][0]["chunks"] > 0
    assert "chunks per CPU s, by guidellm's" in [bar["name"] for bar in report["bars"] if bar["figure"] is None]
    ours, bare = report["delays"]
    assert min(ours["chunks"], bare["chunks"]) > 0
    assert ours["max_us"] > 0
