"""Speed of all engines of this machine: directly, through welldone, and each llama-server by itself.

All of them run at once and are asked in turn, so that drift of the machine affects all; the order alternates. Each
level has new engines with a slot for each stream: where idle slots lie between busy ones, llama.cpp computes the busy
ones one after another, and the ratio would show by chance which slots it chose.
"""

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from welldone.engines.builds import SERVER_PROGRAM, WHEEL, engines_folder, list_builds
from welldone.engines.llama_server import clean_environment
from welldone.engines.models.store import models_folder, resolve_model_file
from welldone.engines.process import wait_until_healthy
from welldone.http.address import Address

from child_process import Child, ChildError, start_child  # isort: skip  # same folder: a script's own folder is on the path
from figures import THROUGHPUT_LIMIT, Bar, print_progress  # isort: skip
from load import LoadResult, Run  # isort: skip
from server_process import Addresses  # isort: skip

DIRECT, OURS, ALONE = "direct", "welldone", "llama-server alone"
CONTEXT_PER_SLOT = 1024
QUESTIONS = 6
"""Of a long prompt: 120 tokens with the built-in model, seconds for 16 streams on a slow machine."""
START_LIMIT_S = 120.0
POLL_S = 0.2
ROUNDS = 3


class BenchOptions(Protocol):
    """The options that are used here."""

    @property
    def streams(self) -> list[int]:
        """Levels of load."""

    @property
    def engine_slots(self) -> int | None:
        """Slots of each engine; None: one for each stream."""

    @property
    def tokens(self) -> int:
        """Tokens per answer."""

    @property
    def rounds(self) -> int | None:
        """Rounds per target."""


@dataclass(kw_only=True)
class Target:
    """An engine, and the way to it."""

    engine: str
    way: str
    run: Run
    """Its address and model."""


@dataclass(kw_only=True)
class EngineRow:
    """Figures of a target with so many streams."""

    engine: str
    way: str
    streams: int
    tokens_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    first_p50_s: float = 0.0
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """Report, printed as text or JSON."""

    version: int = 1
    model: str
    cores: int
    load_before: float
    load_after: float
    seconds: float
    rows: list[EngineRow]
    bars: list[Bar]


def measure_engines(options: BenchOptions, arguments: list[str]) -> EngineReport:
    """Start all engines and measure them.

    Raises:
        ChildError: a server does not start.
    """
    began, load_before = time.monotonic(), os.getloadavg()[0]
    rows: list[EngineRow] = []
    model = ""
    with start_child("load.py") as load:
        for streams in options.streams:
            with ExitStack() as stack:
                slots = options.engine_slots or streams
                targets = [
                    target for name, program in _engines() for target in _start(stack, slots, arguments, name, program)
                ]
                print_progress("warming up")
                for target in targets:
                    load.call(_run(target, slots, slots, 4, 0, 1), LoadResult)
                rows += _level(load, targets, streams, options)
                model = targets[0].run.model
    return EngineReport(
        model=model,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load_before=load_before,
        load_after=os.getloadavg()[0],
        seconds=time.monotonic() - began,
        rows=rows,
        bars=_bars(rows),
    )


def _engines() -> Iterator[tuple[str, str | None]]:
    """Yield the name of each engine as in `--engine`, and its program."""
    yield WHEEL, None
    folder = engines_folder(os.environ)
    for build in list_builds(folder):
        if build.problem() is None:
            yield build.name, str(folder / build.name / SERVER_PROGRAM)
    if program := shutil.which(SERVER_PROGRAM):
        yield SERVER_PROGRAM, program


def _start(stack: ExitStack, slots: int, arguments: list[str], name: str, program: str | None) -> Iterator[Target]:
    print_progress(f"starting {name}")
    context = ["-np", str(slots), "-c", str(slots * CONTEXT_PER_SLOT)]
    words = ["--port", "0", *context, "--queue", "10000", "--queue-wait", "600", "--engine", name, *arguments]
    found = stack.enter_context(start_child("server_process.py", words)).receive(Addresses)
    common = {"model": found.model, "streams": 1, "answers": 1, "tokens": 1, "seed": 0}
    direct = Run(socket=found.engine_socket, port=found.engine_port, key=found.engine_key, **common)
    yield Target(engine=name, way=DIRECT, run=direct)
    yield Target(engine=name, way=OURS, run=Run(port=found.port, **common))
    if program is not None:
        port = stack.enter_context(_alone(program, [*context, *arguments]))
        yield Target(engine=name, way=ALONE, run=Run(port=port, **common))


@contextmanager
def _alone(program: str, arguments: list[str]) -> Iterator[int]:
    """Run a llama-server as its user would; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    model = (
        [] if {"-m", "--model"} & set(arguments) else ["-m", str(resolve_model_file(models_folder(os.environ), None))]
    )
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [program, "--port", str(port), *model, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=clean_environment(os.environ),
        ) as process,
    ):
        try:
            asyncio.run(_wait_until_ready(process, port, Path(program).name))
            yield port
        finally:
            process.terminate()


async def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, name: str) -> None:
    healthy = asyncio.create_task(wait_until_healthy(Address(port=port)))
    deadline = time.monotonic() + START_LIMIT_S
    while not (await asyncio.wait({healthy}, timeout=POLL_S))[0]:
        if process.poll() is not None or time.monotonic() > deadline:
            healthy.cancel()
            raise ChildError(f"{name} does not run by itself with these options")


def _run(target: Target, streams: int, answers: int, tokens: int, seed: int, questions: int) -> Run:
    fields = {name: getattr(target.run, name) for name in ("socket", "port", "key", "model")}
    return Run(streams=streams, answers=answers, tokens=tokens, seed=seed, questions=questions, **fields)


def _level(load: Child, targets: list[Target], streams: int, options: BenchOptions) -> list[EngineRow]:
    """Measure all targets with so many streams, answers and long prompts in turn."""
    rows = [EngineRow(engine=target.engine, way=target.way, streams=streams) for target in targets]
    answers: list[list[LoadResult]] = [[] for _ in targets]
    prompts: list[list[LoadResult]] = [[] for _ in targets]
    rounds = options.rounds or ROUNDS
    for number in range(rounds):
        print_progress(f"{streams} streams, round {number + 1} of {rounds}")
        order = range(len(targets)) if number % 2 == 0 else reversed(range(len(targets)))
        for at in order:
            seed = 1 + 2 * (number + rounds * streams)  # no prompt is in the cache of its engine
            count = max(2, streams)
            offset = 10_000 * (1 + ("direct", "welldone", "llama-server alone").index(targets[at].way))
            long = _run(targets[at], streams, count, 1, seed + offset, QUESTIONS)
            short = _run(targets[at], streams, count, options.tokens, seed + 1 + offset, 1)
            prompts[at].append(load.call(long, LoadResult))
            answers[at].append(load.call(short, LoadResult))
    for row, own_answers, own_prompts in zip(rows, answers, prompts, strict=True):
        row.tokens_per_s = sum(one.tokens for one in own_answers) / sum(one.seconds for one in own_answers)
        row.prompt_tokens_per_s = sum(one.prompt_tokens for one in own_prompts) / sum(
            one.seconds for one in own_prompts
        )
        firsts = [first for one in own_answers for first in one.first_s]
        row.first_p50_s = statistics.median(firsts) if firsts else 0.0
        row.failed = sorted({reason for one in (*own_answers, *own_prompts) for reason in one.failed})
    return rows


def _bars(rows: list[EngineRow]) -> list[Bar]:
    """Compare welldone with a llama-server by itself, or for the wheel with the bare engine."""
    found = {(row.engine, row.way, row.streams): row for row in rows}
    bars = []
    for row in rows:
        if row.way != OURS:
            continue
        other = found.get((row.engine, ALONE, row.streams)) or found[row.engine, DIRECT, row.streams]
        for name in ("tokens_per_s", "prompt_tokens_per_s"):
            base = getattr(other, name)
            ratio = getattr(row, name) / base if base else None
            label = f"{row.engine}, {name.replace('_per_s', '/s').replace('_', ' ')}"
            passed = ratio is not None and ratio >= THROUGHPUT_LIMIT and not row.failed
            note = f"welldone / {other.way}"
            bars.append(
                Bar(name=label, streams=row.streams, figure=ratio, limit=THROUGHPUT_LIMIT, passed=passed, note=note)
            )
    return bars


def print_engines(report: EngineReport) -> None:
    """Print the table and the ratios."""
    print(f"{report.model}, {report.cores} cores, in {report.seconds:.0f} s, load average", end=" ")
    print(f"{report.load_before:.1f} before and {report.load_after:.1f} after\n")
    print(f"  {'engine':<14}{'asked':<20}{'streams':>8}{'tokens/s':>10}{'prompt tokens/s':>17}{'first token, ms':>17}")
    for row in report.rows:
        print(
            f"  {row.engine:<14}{row.way:<20}{row.streams:>8}{row.tokens_per_s:>10.1f}{row.prompt_tokens_per_s:>17.1f}"
            f"{row.first_p50_s * 1e3:>17.0f}"
        )
        for reason in row.failed:
            print(f"    failed: {reason}")
    print()
    for bar in report.bars:
        verdict = "reaches" if bar.passed else "MISSES"
        figure = "-" if bar.figure is None else f"{bar.figure:.3f}"
        print(f"  {bar.name:<34}{bar.streams:>4} streams{figure:>8}  {verdict} {bar.limit:g} ({bar.note})")
