"""What welldone costs in front of llama.cpp on a GPU: tokens a second, first token, time between tokens.

`python benchmarks/gpu.py --llama-server build/bin/llama-server --random-model 1B`, or `-m model.gguf`. The engine is a
`command` of `welldone serve`, and is asked through it and past it, at its own port: the same process both ways, in the
same run, in turn (bare, welldone, welldone, bare, ...). Each answer has the same number of tokens, and no two prompts
begin alike. Options that are not its own go to llama-server. It ends with 1 where welldone lets through less than
`--bar` of the bare engine's tokens a second, at the most streams.
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

from child import ChildError, started  # isort: skip  # neighbours: a script's own folder is on the path
from figures import Bar, Row, Tally, number, row, throughput  # isort: skip
from serve import Bench, BenchError, Options, count, counts, show_bars, tallies  # isort: skip

ROOT = Path(__file__).parent.parent
NAME = "measured"
CONTEXT = 1024
"""Of a slot: a prompt has about a hundred tokens, and an answer some hundreds."""
BAR = 0.98
WORD_LIMIT_S = 30.0  # a GPU that sleeps takes some seconds to say its name
LIBRARIES = ("aiohttp", "httptools", "msgspec", "uvloop")


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it. The text and the JSON are drawn from this."""

    version: int = 1
    gpu: str
    engine: str
    """What llama-server says of itself."""
    command: list[str]
    """How welldone started it."""
    model: str
    slots: int
    tokens: int
    cores: int
    versions: dict[str, str]
    seconds: float
    rows: list[Row]
    ratios: list[Bar]
    """By level; the last is the one that is wanted."""
    troubles: list[str]
    """Why answers failed, each reason once."""

    @property
    def is_kept(self) -> bool:
        """Whether the bar is kept, by whole answers alone."""
        return self.ratios[-1].is_kept and not self.troubles


def engine(server: str, model: Path, slots: int, rest: Sequence[str]) -> list[str]:
    """The command. Prompts that were answered are not kept in main memory: no prompt comes twice."""
    places = ["--host", "127.0.0.1", "--port", "{port}"]
    work = ["-ngl", "99", "-np", str(slots), "-c", str(slots * CONTEXT), "--cache-ram", "0"]
    return [server, "-m", str(model), *places, *work, *rest]


def measure(options: Options, command: list[str], model: str, bar: float, limit_s: float) -> Report:
    """Start, warm up, measure, end.

    Raises:
        BenchError, ChildError: there is nothing to measure.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "welldone.toml")
        # A list of texts is written alike in JSON and TOML.
        config.write_text(f"[models.{NAME}]\ncommand = {json.dumps(command)}\nparallel = {options.slots}\n")
        with started("served.py", ["--config", str(config), "--port", "0"]) as server, started("load.py") as load:
            told("the engine is ready", began)
            bench = Bench(options, server, load)
            bench.warm_up()
            told("warm", began)
            measured = _rounds(bench, options, began, until=began + limit_s)
    levels = [(row(bare), row(ours)) for bare, ours in measured]
    return Report(
        gpu=said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or "none",
        engine=said(command[0], "--version"),
        command=[Path(command[0]).name, "-m", model, *command[3:]],
        model=model,
        slots=options.slots,
        tokens=options.tokens,
        cores=os.cpu_count() or 1,
        versions=versions(),
        seconds=time.monotonic() - began,
        rows=[figures for level in levels for figures in level],
        ratios=[throughput(bare, ours, bar) for bare, ours in levels],
        troubles=sorted({trouble for level in measured for tally in level for trouble in tally.failed}),
    )


def _rounds(bench: Bench, options: Options, began: float, *, until: float) -> list[tuple[Tally, Tally]]:
    """Rounds of all levels, again and again: when the time is over, each has as many, and there is a result."""
    levels = [tallies(streams) for streams in options.streams]
    longest = 0.0
    for turn in range(options.rounds or 1):
        if turn and time.monotonic() + longest > until:
            break
        start = time.monotonic()
        for both in levels:
            bench.turn(both, turn)
            for figures in map(row, both):
                rate = f"{figures.tokens_per_s:.1f} tokens/s so far, {figures.failed} failed"
                told(f"round {turn + 1}, {figures.streams} streams, {figures.way}: {rate}", began)
        longest = max(longest, time.monotonic() - start)
    return levels


def told(text: str, began: float) -> None:
    """What is done, and when: what a run that is cut short has found is not lost."""
    print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)


def said(*command: str) -> str:
    """The first line with a word that a program says, if there is such a program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WORD_LIMIT_S, check=False)
    except OSError:
        return ""
    return next(
        (text.strip() for text in (done.stdout + done.stderr).splitlines() if "version" in text or "," in text), ""
    )


def versions() -> dict[str, str]:
    """Of all that handles a token."""
    found = {"welldone": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "none"
    return found


def show(report: Report) -> None:
    """The table and the ratios."""
    print(f"{report.model} on {report.gpu}; {report.engine}; {report.cores} cores")
    print(", ".join(f"{name} {text}" for name, text in report.versions.items()))
    print(
        f"{report.slots} slots, {report.tokens} tokens an answer, in {report.seconds:.0f} s; the engine is a command of"
    )
    share = max(figures.load_cores for figures in report.rows)
    print(f"welldone, asked through it and at its own port; the load generator took {share:.0%} of a core at most\n")
    print(f"{'':<42}{'first token, ms':>25}{'between, ms':>18}{'welldone CPU':>14}")
    print(f"  {'way':<13}{'streams':>8}{'answers':>9}{'tokens/s':>10}", end="")
    print(f"{'p50':>9}{'p90':>8}{'p99':>8}{'p50':>9}{'p99':>9}{'µs/chunk':>14}")
    for figures in report.rows:
        print(
            f"  {figures.way:<13}{figures.streams:>8}{figures.answers:>9}{figures.tokens_per_s:>10.1f}"
            f"{number(figures.first_p50_s, 1e3, 1):>9}{number(figures.first_p90_s, 1e3, 1):>8}"
            f"{number(figures.first_p99_s, 1e3, 1):>8}"
            f"{number(figures.between_p50_s, 1e3, 2):>9}{number(figures.between_p99_s, 1e3, 2):>9}"
            f"{number(figures.server_cpu_s_per_frame, 1e6, 1):>14}"
        )
    show_bars(report.ratios, report.troubles)


@contextmanager
def the_model(given: argparse.Namespace) -> Iterator[Path]:
    """The file that was named, or one that is made for this run."""
    if given.model is not None:
        yield given.model.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"random-{given.random_model}.gguf")
        # In a process of its own, which gives back the memory that it took.
        subprocess.run([sys.executable, "-m", "benchmarks.random_gguf", given.random_model, path], cwd=ROOT, check=True)
        yield path


def read_options() -> tuple[argparse.Namespace, list[str]]:
    """Our options, and those for llama-server."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--llama-server", required=True, help="the program, or the path to it")
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument("-m", "--model", type=Path, help="a GGUF file")
    models.add_argument("--random-model", metavar="SIZE", help="random weights, made for this run: tiny, 1B")
    parser.add_argument("--quick", action="store_true", help="few and short answers: a look, not a measurement")
    parser.add_argument("--streams", type=counts, default=[1, 16, 64], help="streams at once, by level [1,16,64]")
    parser.add_argument("--tokens", type=count, help="tokens of an answer [256, quick: 16]")
    parser.add_argument("--rounds", type=count, help="rounds of each way at a level [8, quick: 2]")
    parser.add_argument(
        "--limit", type=float, default=600.0, metavar="SECONDS", help="begin no round that may last beyond [600]"
    )
    parser.add_argument("--bar", type=float, default=BAR, help="of the bare engine's tokens/s [%(default)s]")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser.parse_known_args()


def main() -> int:
    """Measure, print a table, keep the figures."""
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
        with the_model(given) as model:
            report = measure(
                options, engine(given.llama_server, model, options.slots, rest), model.name, given.bar, given.limit
            )
    except (BenchError, ChildError) as error:
        print(error, file=sys.stderr)
        return 3
    show(report)
    if given.report is not None:
        given.report.write_text(json.dumps(asdict(report), indent=1) + "\n")
    return int(not report.is_kept)


if __name__ == "__main__":
    sys.exit(main())
