"""Cost of welldone on top of its engine: the same engine through the server and directly, in one run.

The targets alternate (bare, welldone, welldone, bare, ...), so that drift of the machine affects both. Read the ratios:
absolute figures depend on the machine. Unknown options are passed to `welldone serve`: -m model.gguf, -t 8.

With --engines, all engines of this machine: each as welldone starts it, asked directly and through welldone, and each
llama-server by itself, with its own defaults.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from welldone.cli.pull import fetch_model
from welldone.config import builtin_model
from welldone.engines.models.store import models_folder

from child_process import Child, ChildError, start_child  # isort: skip  # same folder: a script's own folder is on the path
from engines import measure_engines, print_engines  # isort: skip
from figures import Bar, Row, Totals, all_passed, bars, format_number, print_json, print_progress, row  # isort: skip
from load import LoadResult, Run  # isort: skip
from server_process import Addresses, CpuTime  # isort: skip

BARE, OURS = "bare engine", "welldone"
ROUNDS = {1: 24, 8: 6, 32: 3}  # by streams; the speed of the machine drifts, and more rounds average it out
QUEUE, QUEUE_WAIT_S = 10_000, 600  # no request is rejected, as with the bare engine


class BenchError(Exception):
    """The server or its engine sent no answer."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of the benchmark."""

    streams: list[int]
    slots: int
    engine_slots: int | None
    tokens: int
    rounds: int | None
    answers: int
    """Lowest number of answers per round."""
    turns: int
    """Lowest number of answers per stream and round."""
    is_json: bool
    is_strict: bool
    has_engines: bool


class Bench:
    """Drives the server and the load generator."""

    def __init__(self, options: Options, server: Child, load: Child) -> None:
        self._options = options
        self._server = server
        self._load = load
        self._seed = 0
        self.addresses = server.receive(Addresses)

    def warm_up(self) -> None:
        """Use all slots of both targets once, without recording figures."""
        for target in (BARE, OURS):
            totals = Totals(target=target, streams=self._options.slots)
            self._round(totals, self._options.slots)
            if totals.failed:
                raise BenchError(f"{target} sent no answer: {totals.failed[0]}")

    def level(self, streams: int) -> tuple[Totals, Totals]:
        """Measure both targets with this many streams."""
        bare, ours = pair = empty_totals(streams)
        rounds = self._options.rounds or ROUNDS.get(streams, 4)
        for number in range(rounds):
            print_progress(f"{streams} streams, round {number + 1} of {rounds}")
            self.run_round(pair, number)
        return bare, ours

    def run_round(self, pair: tuple[Totals, Totals], number: int) -> None:
        """Run one round of each target, in alternating order."""
        for totals in pair if number % 2 == 0 else reversed(pair):
            self._round(totals, max(self._options.answers, self._options.turns * totals.streams))

    def _round(self, totals: Totals, answers: int) -> None:
        self._seed += 1
        addresses, is_ours = self.addresses, totals.target == OURS
        run = Run(
            socket=None if is_ours else addresses.engine_socket,
            port=addresses.port if is_ours else addresses.engine_port,
            key=None if is_ours else addresses.engine_key,
            model=addresses.model,
            streams=totals.streams,
            answers=answers,
            tokens=self._options.tokens,
            seed=self._seed,
        )
        before = self._server.call(None, CpuTime).seconds
        result = self._load.call(run, LoadResult)
        totals.add(result, self._server.call(None, CpuTime).seconds - before)


def empty_totals(streams: int) -> tuple[Totals, Totals]:
    """Return empty totals of both targets."""
    return Totals(target=BARE, streams=streams), Totals(target=OURS, streams=streams)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report, printed as text or JSON."""

    version: int = 1
    model: str
    slots: int
    tokens: int
    cores: int
    load_before: float
    load_after: float
    seconds: float
    rows: list[Row]
    bars: list[Bar]
    failures: list[str]
    """Reasons for failed answers, without duplicates."""


def measure(options: Options, arguments: list[str]) -> Report:
    """Start the server, warm it up and measure.

    Raises:
        BenchError, ChildError: the server does not start or sends no answer.
    """
    began, load_before = time.monotonic(), os.getloadavg()[0]
    settings = ["--port", "0", "-np", str(options.slots), "--queue", str(QUEUE), "--queue-wait", str(QUEUE_WAIT_S)]
    measured: list[tuple[Totals, Totals]] = []
    with start_child("server_process.py", [*settings, *arguments]) as server, start_child("load.py") as load:
        print_progress("loading the model and warming up")
        bench = Bench(options, server, load)
        bench.warm_up()
        measured += [bench.level(streams) for streams in options.streams]
    levels = [(row(bare), row(ours)) for bare, ours in measured]
    return Report(
        model=bench.addresses.model,
        slots=options.slots,
        tokens=options.tokens,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load_before=load_before,
        load_after=os.getloadavg()[0],
        seconds=time.monotonic() - began,
        rows=[figures for level in levels for figures in level],
        bars=[bar for bare, ours in levels for bar in bars(bare, ours, options.slots)],
        failures=sorted({failure for level in measured for totals in level for failure in totals.failed}),
    )


def print_report(report: Report) -> None:
    """Print the table and the limits."""
    share = max(figures.load_cores for figures in report.rows)
    print(f"{report.model}, {report.slots} slots, {report.tokens} tokens per answer, in {report.seconds:.0f} s")
    print("closed loop: each stream sends its next request after a complete answer; streams above the slots wait")
    print(
        f"{report.cores} cores, load average {report.load_before:.1f} before and {report.load_after:.1f} after", end=""
    )
    print(f"; the load generator used at most {share:.1%} of a core\n")
    print(f"{'':<41}{'first token, ms':>19}{'between, ms':>17}{'server CPU':>22}")
    print(
        f"  {'target':<13}{'streams':>8}{'answers':>9}{'tokens/s':>9}{'p50':>10}{'p90':>9}{'p50':>9}{'p90':>8}", end=""
    )
    print(f"{'s/1,000 tok':>13}{'µs/frame':>9}")
    for figures in report.rows:
        print(
            f"  {figures.target:<13}{figures.streams:>8}{figures.answers:>9}{figures.tokens_per_s:>9.1f}"
            f"{format_number(figures.first_p50_s, 1e3, 1):>10}{format_number(figures.first_p90_s, 1e3, 1):>9}"
            f"{format_number(figures.between_p50_s, 1e3, 1):>9}{format_number(figures.between_p90_s, 1e3, 1):>8}"
            f"{format_number(figures.server_cpu_s_per_1000_tokens, 1, 3):>13}"
            f"{format_number(figures.server_cpu_s_per_frame, 1e6, 0):>9}"
        )
    print_bars(report.bars, report.failures)


def print_bars(bars: Sequence[Bar], failures: Sequence[str]) -> None:
    """Print the limits and the failures."""
    print("\nwelldone compared with the bare engine")
    for bar in bars:
        print(f"  {format_bar(bar)}")
    for failure in failures:
        print(f"  failed: {failure}")


def format_bar(bar: Bar) -> str:
    """Format a figure, its limit and whether it holds."""
    verdict = "within" if bar.passed else "too few samples for" if bar.figure is None else "EXCEEDS"
    streams = f"{bar.streams} stream{'s' if bar.streams > 1 else ''}"
    figure = format_number(bar.figure, 1, 1 if bar.unit else 3) + (bar.unit or "   ")
    note = f" ({bar.note})" if bar.note else ""
    return f"{bar.name:<24}{streams:>11}{figure:>13}  {verdict} the limit of {bar.limit:g}{bar.unit}{note}"


def count(text: str) -> int:
    """Parse a positive number."""
    found = int(text)
    if found < 1:
        raise ValueError
    return found


def counts(text: str) -> list[int]:
    """Parse a comma-separated list of positive numbers."""
    return [count(word) for word in text.split(",")]


def read_options() -> tuple[Options, list[str]]:
    """Parse the command line; unknown options are for the server."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--engines", action="store_true", help="compare all engines, with 1, 4 and 16 streams")
    parser.add_argument("--quick", action="store_true", help="few and short answers, for a first impression")
    parser.add_argument(
        "--streams", type=counts, help="concurrent streams, one number per level [1,8,32; with --engines 1,4,16]"
    )
    parser.add_argument("-np", "--parallel", type=count, help="slots of the engine [4; with --engines one per stream]")
    parser.add_argument("--tokens", type=count, help="tokens per answer [32, quick: 16]")
    parser.add_argument("--rounds", type=count, help="rounds per target, by level [24, 6 and 3, quick: 2]")
    parser.add_argument("--answers", type=count, help="lowest number of answers per round [2, quick: 10]")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is exceeded")
    given, rest = parser.parse_known_args()
    options = Options(
        streams=given.streams or ([1, 4, 16] if given.engines else [1, 8, 32]),
        slots=given.parallel or 4,
        engine_slots=given.parallel,
        tokens=given.tokens or (16 if given.quick else 32),
        rounds=given.rounds or (2 if given.quick else None),
        answers=given.answers or (10 if given.quick else 2),
        turns=1 if given.quick else 2,
        is_json=given.json,
        is_strict=given.strict,
        has_engines=given.engines,
    )
    return options, rest


def prepare_arguments(arguments: list[str]) -> list[str]:
    """Make paths absolute, since the server runs in another folder; download the built-in model if it is used."""
    folder = models_folder(os.environ)
    if not {"-m", "--model", "--config"} & set(arguments) and builtin_model.find_builtin(folder) is None:
        fetch_model(builtin_model.DEFAULT_MODEL.name, folder=folder)
    return [str(Path(word).absolute()) if Path(word).is_file() else word for word in arguments]


def main() -> int:
    """Run the benchmark and print the report."""
    options, arguments = read_options()
    try:
        if options.has_engines:
            engines = measure_engines(options, prepare_arguments(arguments))
            print_json(engines) if options.is_json else print_engines(engines)
            return int(options.is_strict and not all_passed(engines.bars))
        report = measure(options, prepare_arguments(arguments))
    except (BenchError, ChildError) as error:
        print(error, file=sys.stderr)
        return 3
    print_json(report) if options.is_json else print_report(report)
    return int(options.is_strict and not all_passed(report.bars))


if __name__ == "__main__":
    sys.exit(main())
