"""What welldone costs on top of its engine: the same engine asked through the server, and past it, in the same run.

The ways alternate (bare, welldone, welldone, bare, ...), so that a machine that gets slower is slower for both. Ratios
count, since machines differ. Options that are not its own go to `welldone serve`: -m model.gguf, -t 8.
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

from child import Child, ChildError, started  # isort: skip  # neighbours: a script's own folder is on the path
from figures import Bar, Row, Tally, all_kept, bars, note, number, print_json, row  # isort: skip
from load import Heard, Run  # isort: skip
from served import Cpu, Place  # isort: skip

BARE, OURS = "bare engine", "welldone"
ROUNDS = {1: 24, 8: 6, 32: 3}  # the machine's own speed drifts: the more rounds, the fairer to both ways
QUEUE, QUEUE_WAIT_S = 10_000, 600  # nobody is sent away, as with the bare engine


class BenchError(Exception):
    """It cannot be measured; why."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    streams: list[int]
    slots: int
    tokens: int
    rounds: int | None
    answers: int
    """In a round, at least."""
    turns: int
    """Of each stream in a round, at least."""
    is_json: bool
    is_strict: bool


class Bench:
    """The server and the load generator, and what they are told."""

    def __init__(self, options: Options, server: Child, load: Child) -> None:
        self._options = options
        self._server = server
        self._load = load
        self._seed = 0
        self.place = server.hear(Place)

    def warm_up(self) -> None:
        """Use all slots once, both ways. Nothing of it counts."""
        for way in (BARE, OURS):
            tally = Tally(way=way, streams=self._options.slots)
            self._round(tally, self._options.slots)
            if tally.failed:
                raise BenchError(f"{way} gave no answer: {tally.failed[0]}")

    def level(self, streams: int) -> tuple[Tally, Tally]:
        """Both ways with so many streams."""
        bare, ours = both = tallies(streams)
        rounds = self._options.rounds or ROUNDS.get(streams, 4)
        for turn in range(rounds):
            note(f"{streams} streams, round {turn + 1} of {rounds}")
            self.turn(both, turn)
        return bare, ours

    def turn(self, both: tuple[Tally, Tally], number: int) -> None:
        """A round of each way, in an order that alternates."""
        for tally in both if number % 2 == 0 else reversed(both):
            self._round(tally, max(self._options.answers, self._options.turns * tally.streams))

    def _round(self, tally: Tally, answers: int) -> None:
        self._seed += 1
        place, is_ours = self.place, tally.way == OURS
        run = Run(
            socket=None if is_ours else place.engine_socket,
            port=place.port if is_ours else place.engine_port,
            key=None if is_ours else place.engine_key,
            model=place.model,
            streams=tally.streams,
            answers=answers,
            tokens=self._options.tokens,
            seed=self._seed,
        )
        before = self._server.ask(None, Cpu).seconds
        heard = self._load.ask(run, Heard)
        tally.add(heard, self._server.ask(None, Cpu).seconds - before)


def tallies(streams: int) -> tuple[Tally, Tally]:
    """Empty ones, of both ways."""
    return Tally(way=BARE, streams=streams), Tally(way=OURS, streams=streams)


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it. The text and the JSON are drawn from this."""

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
    troubles: list[str]
    """Why answers failed, each reason once."""


def measure(options: Options, arguments: list[str]) -> Report:
    """Start, warm up, measure, end.

    Raises:
        BenchError, ChildError: there is nothing to measure.
    """
    began, load_before = time.monotonic(), os.getloadavg()[0]
    places = ["--port", "0", "-np", str(options.slots), "--queue", str(QUEUE), "--queue-wait", str(QUEUE_WAIT_S)]
    tallies: list[tuple[Tally, Tally]] = []
    with started("served.py", [*places, *arguments]) as server, started("load.py") as load:
        note("the model is loaded, and both ways are warmed up")
        bench = Bench(options, server, load)
        bench.warm_up()
        tallies += [bench.level(streams) for streams in options.streams]
    levels = [(row(bare), row(ours)) for bare, ours in tallies]
    return Report(
        model=bench.place.model,
        slots=options.slots,
        tokens=options.tokens,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load_before=load_before,
        load_after=os.getloadavg()[0],
        seconds=time.monotonic() - began,
        rows=[figures for level in levels for figures in level],
        bars=[bar for bare, ours in levels for bar in bars(bare, ours, options.slots)],
        troubles=sorted({trouble for level in tallies for tally in level for trouble in tally.failed}),
    )


def show(report: Report) -> None:
    """The table and the bars."""
    share = max(figures.load_cores for figures in report.rows)
    print(f"{report.model}, {report.slots} slots, {report.tokens} tokens an answer, in {report.seconds:.0f} s")
    print("closed loop: each stream asks again when its answer is whole; more streams than slots wait, both ways")
    print(
        f"{report.cores} cores, load average {report.load_before:.1f} before and {report.load_after:.1f} after", end=""
    )
    print(f"; the load generator took {share:.1%} of a core at most\n")
    print(f"{'':<41}{'first token, ms':>19}{'between, ms':>17}{'server CPU':>22}")
    print(f"  {'way':<13}{'streams':>8}{'answers':>9}{'tokens/s':>9}{'p50':>10}{'p90':>9}{'p50':>9}{'p90':>8}", end="")
    print(f"{'s/1,000 tok':>13}{'µs/frame':>9}")
    for figures in report.rows:
        print(
            f"  {figures.way:<13}{figures.streams:>8}{figures.answers:>9}{figures.tokens_per_s:>9.1f}"
            f"{number(figures.first_p50_s, 1e3, 1):>10}{number(figures.first_p90_s, 1e3, 1):>9}"
            f"{number(figures.between_p50_s, 1e3, 1):>9}{number(figures.between_p90_s, 1e3, 1):>8}"
            f"{number(figures.server_cpu_s_per_1000_tokens, 1, 3):>13}"
            f"{number(figures.server_cpu_s_per_frame, 1e6, 0):>9}"
        )
    show_bars(report.bars, report.troubles)


def show_bars(bars: Sequence[Bar], troubles: Sequence[str]) -> None:
    """Both ways beside each other, and what went wrong."""
    print("\nwelldone beside the bare engine")
    for bar in bars:
        print(f"  {line(bar)}")
    for trouble in troubles:
        print(f"  failed: {trouble}")


def line(bar: Bar) -> str:
    """A bar in words."""
    verdict = "within" if bar.is_kept else "too few samples for" if bar.figure is None else "MISSES"
    streams = f"{bar.streams} stream{'s' if bar.streams > 1 else ''}"
    figure = number(bar.figure, 1, 1 if bar.unit else 3) + (bar.unit or "   ")
    note = f" ({bar.note})" if bar.note else ""
    return f"{bar.name:<24}{streams:>11}{figure:>13}  {verdict} the bar of {bar.limit:g}{bar.unit}{note}"


def count(text: str) -> int:
    """A number from 1 on."""
    found = int(text)
    if found < 1:
        raise ValueError
    return found


def counts(text: str) -> list[int]:
    """Such numbers, separated by commas."""
    return [count(word) for word in text.split(",")]


def read_options() -> tuple[Options, list[str]]:
    """Our options, and those for the server."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="few and short answers: a look, not a measurement")
    parser.add_argument("--streams", type=counts, default=[1, 8, 32], help="streams at once, by level [1,8,32]")
    parser.add_argument("-np", "--parallel", type=count, default=4, help="slots of the engine [%(default)s]")
    parser.add_argument("--tokens", type=count, help="tokens of an answer [32, quick: 16]")
    parser.add_argument("--rounds", type=count, help="rounds of each way, by level [24, 6 and 3, quick: 2]")
    parser.add_argument("--answers", type=count, help="answers in a round, at least [2, quick: 10]")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a bar is missed")
    given, rest = parser.parse_known_args()
    options = Options(
        streams=given.streams,
        slots=given.parallel,
        tokens=given.tokens or (16 if given.quick else 32),
        rounds=given.rounds or (2 if given.quick else None),
        answers=given.answers or (10 if given.quick else 2),
        turns=1 if given.quick else 2,
        is_json=given.json,
        is_strict=given.strict,
    )
    return options, rest


def with_model(arguments: list[str]) -> list[str]:
    """The server's arguments with whole paths, since it reads them elsewhere. The built-in model is fetched once."""
    folder = models_folder(os.environ)
    if not {"-m", "--model", "--config"} & set(arguments) and builtin_model.find_builtin(folder) is None:
        fetch_model(builtin_model.DEFAULT_MODEL.name, folder=folder)
    return [str(Path(word).absolute()) if Path(word).is_file() else word for word in arguments]


def main() -> int:
    """Measure, and print a table."""
    options, arguments = read_options()
    try:
        report = measure(options, with_model(arguments))
    except (BenchError, ChildError) as error:
        print(error, file=sys.stderr)
        return 3
    print_json(report) if options.is_json else show(report)
    return int(options.is_strict and not all_kept(report.bars))


if __name__ == "__main__":
    sys.exit(main())
