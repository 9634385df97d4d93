"""Cost of welldone in front of llama.cpp on a GPU: tokens per second, TTFT, inter-token time.

`python benchmarks/gpu.py --llama-server build/bin/llama-server --random-model 1B`, or `-m model.gguf`. The engine is a
`command` of `welldone serve` and receives requests through welldone and at its own port: the same process in the same
run, in alternating order (bare, welldone, welldone, bare, ...). Each answer has the same number of tokens, and no two
prompts share a prefix. Unknown options are passed to llama-server. The exit status is 1 if welldone reaches less than
`--bar` of the bare engine's tokens per second at the highest number of streams.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from welldone import __version__

from child_process import ChildError, start_child  # isort: skip  # same folder: a script's own folder is on the path
from figures import Bar, Row, Totals, format_number, row, throughput  # isort: skip
from serve import Bench, BenchError, Options, count, counts, empty_totals, print_bars  # isort: skip

ROOT = Path(__file__).parent.parent
NAME = "measured"
CONTEXT = 1024
"""Context per slot: a prompt has about a hundred tokens, an answer some hundreds."""
BAR = 0.98
VERSION_LIMIT_S = 30.0  # nvidia-smi takes some seconds on an idle GPU
LIBRARIES = ("httptools", "msgspec", "uvloop")


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report, printed as text and written as JSON."""

    version: int = 1
    gpu: str
    engine: str
    """Version line of llama-server."""
    command: list[str]
    """Command line of the engine."""
    model: str
    slots: int
    tokens: int
    cores: int
    versions: dict[str, str]
    seconds: float
    rows: list[Row]
    ratios: list[Bar]
    """By level; the last one decides."""
    failures: list[str]
    """Reasons for failed answers, without duplicates."""

    @property
    def passed(self) -> bool:
        """Whether the last ratio is within its limit and no answer failed."""
        return self.ratios[-1].passed and not self.failures


def engine(server: str, model: Path, slots: int, rest: Sequence[str]) -> list[str]:
    """Return the command line of llama-server. No prompt repeats, so the prompt cache in RAM is off."""
    address = ["--host", "127.0.0.1", "--port", "{port}"]
    work = ["-ngl", "99", "-np", str(slots), "-c", str(slots * CONTEXT), "--cache-ram", "0"]
    return [server, "-m", str(model), *address, *work, *rest]


def measure(options: Options, command: list[str], model: str, bar: float, limit_s: float) -> Report:
    """Start the server, warm it up and measure.

    Raises:
        BenchError, ChildError: the server does not start or sends no answer.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "welldone.toml")
        # A list of strings has the same syntax in JSON and TOML.
        config.write_text(f"[models.{NAME}]\ncommand = {json.dumps(command)}\nparallel = {options.slots}\n")
        with (
            start_child("server_process.py", ["--config", str(config), "--port", "0"]) as server,
            start_child("load.py") as load,
        ):
            print_progress("the engine is ready", began)
            bench = Bench(options, server, load)
            bench.warm_up()
            print_progress("warmed up", began)
            measured = _rounds(bench, options, began, until=began + limit_s)
    levels = [(row(bare), row(ours)) for bare, ours in measured]
    return Report(
        gpu=version_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or "none",
        engine=version_line(command[0], "--version"),
        command=[Path(command[0]).name, "-m", model, *command[3:]],
        model=model,
        slots=options.slots,
        tokens=options.tokens,
        cores=os.cpu_count() or 1,
        versions=versions(),
        seconds=time.monotonic() - began,
        rows=[figures for level in levels for figures in level],
        ratios=[throughput(bare, ours, bar) for bare, ours in levels],
        failures=sorted({failure for level in measured for totals in level for failure in totals.failed}),
    )


def _rounds(bench: Bench, options: Options, began: float, *, until: float) -> list[tuple[Totals, Totals]]:
    """Run one round of every level in turn, so that all have the same number of rounds when time is up."""
    levels = [empty_totals(streams) for streams in options.streams]
    longest = 0.0
    for turn in range(options.rounds or 1):
        if turn and time.monotonic() + longest > until:
            break
        start = time.monotonic()
        for pair in levels:
            bench.run_round(pair, turn)
            for figures in map(row, pair):
                rate = f"{figures.tokens_per_s:.1f} tokens/s so far, {figures.failed} failed"
                print_progress(f"round {turn + 1}, {figures.streams} streams, {figures.target}: {rate}", began)
        longest = max(longest, time.monotonic() - start)
    return levels


def print_progress(text: str, began: float) -> None:
    """Print intermediate results, so that an interrupted run is not lost."""
    print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)


def version_line(*command: str) -> str:
    """Return the version line of a program; empty if the program is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_LIMIT_S, check=False)
    except OSError:
        return ""
    return next(
        (text.strip() for text in (done.stdout + done.stderr).splitlines() if "version" in text or "," in text), ""
    )


def versions() -> dict[str, str]:
    """Return the versions of welldone, Python and the libraries on the token path."""
    found = {"welldone": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "none"
    return found


def print_report(report: Report) -> None:
    """Print the table and the ratios."""
    print(f"{report.model} on {report.gpu}; {report.engine}; {report.cores} cores")
    print(", ".join(f"{name} {text}" for name, text in report.versions.items()))
    print(f"{report.slots} slots, {report.tokens} tokens per answer, in {report.seconds:.0f} s; the engine is run by")
    share = max(figures.load_cores for figures in report.rows)
    print(f"welldone, measured through it and at its own port; the load generator used at most {share:.0%} of a core\n")
    print(f"{'':<42}{'first token, ms':>25}{'between, ms':>18}{'welldone CPU':>14}")
    print(f"  {'target':<13}{'streams':>8}{'answers':>9}{'tokens/s':>10}", end="")
    print(f"{'p50':>9}{'p90':>8}{'p99':>8}{'p50':>9}{'p99':>9}{'µs/chunk':>14}")
    for figures in report.rows:
        print(
            f"  {figures.target:<13}{figures.streams:>8}{figures.answers:>9}{figures.tokens_per_s:>10.1f}"
            f"{format_number(figures.first_p50_s, 1e3, 1):>9}{format_number(figures.first_p90_s, 1e3, 1):>8}"
            f"{format_number(figures.first_p99_s, 1e3, 1):>8}"
            f"{format_number(figures.between_p50_s, 1e3, 2):>9}{format_number(figures.between_p99_s, 1e3, 2):>9}"
            f"{format_number(figures.server_cpu_s_per_frame, 1e6, 1):>14}"
        )
    print_bars(report.ratios, report.failures)


@contextmanager
def model_file(given: argparse.Namespace) -> Iterator[Path]:
    """Yield the given model file, or a temporary one with random weights."""
    if given.model is not None:
        yield given.model.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"random-{given.random_model}.gguf")
        # In a separate process, so that its memory is freed.
        subprocess.run([sys.executable, "-m", "benchmarks.random_gguf", given.random_model, path], cwd=ROOT, check=True)
        yield path


def read_options() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; unknown options are for llama-server."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--llama-server", required=True, help="llama-server program or its path")
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument("-m", "--model", type=Path, help="a GGUF file")
    models.add_argument("--random-model", metavar="SIZE", help="generate a model with random weights: tiny, 1B")
    parser.add_argument("--quick", action="store_true", help="few and short answers, for a first impression")
    parser.add_argument(
        "--streams", type=counts, default=[1, 16, 64], help="concurrent streams, one number per level [1,16,64]"
    )
    parser.add_argument("--tokens", type=count, help="tokens per answer [256, quick: 16]")
    parser.add_argument("--rounds", type=count, help="rounds per target and level [8, quick: 2]")
    parser.add_argument(
        "--limit",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="start no round that may end after this time [600]",
    )
    parser.add_argument(
        "--bar", type=float, default=BAR, help="lowest share of the bare engine's tokens/s [%(default)s]"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_known_args()


def main() -> int:
    """Run the benchmark, print the report and write it to --report."""
    given, rest = read_options()
    options = Options(
        streams=given.streams,
        slots=max(given.streams),
        tokens=given.tokens or (16 if given.quick else 256),
        rounds=given.rounds or (2 if given.quick else 8),
        answers=2 if given.quick else 8,
        turns=1 if given.quick else 3,
        is_json=False,
        is_strict=True,
    )
    try:
        with model_file(given) as model:
            report = measure(
                options, engine(given.llama_server, model, options.slots, rest), model.name, given.bar, given.limit
            )
    except (BenchError, ChildError) as error:
        print(error, file=sys.stderr)
        return 3
    print_report(report)
    if given.report is not None:
        given.report.write_text(json.dumps(asdict(report), indent=1) + "\n")
    return int(not report.passed)


if __name__ == "__main__":
    sys.exit(main())
