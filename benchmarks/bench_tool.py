"""What `welldone bench` itself costs, beside other clients, and how right its times are.

A scripted upstream on one core, and one client at a time on another. First the upstream writes as fast as it is read:
what CPU does a chunk take that is measured? Then each of many streams gets a chunk now and then, whose text is the
moment at which it was sent: how late is the time that was noted for it? The clients alternate, and the best round of
each counts, the least disturbed one. For Linux.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from asker import Heard, Run  # isort: skip  # neighbours: a script's own folder is on the path
from child import Child, ChildError, started  # isort: skip
from figures import Bar, all_kept, note, number, percentile, print_json  # isort: skip
from gateway import allow_many_files, cores, in_words  # isort: skip
from generators import KNOWN, Generator, GeneratorError, cpu_per_chunk_s  # isort: skip
from programs import ProgramError, Programs, compile_all, upstream  # isort: skip

OURS, OFFICIAL, BARE = "welldone", "openai", "bare reader"
TEXTS = 2000
"""Of an answer: what a request costs beside its chunks shows little."""
BY_OFFICIAL, BY_GUIDELLM = 10.0, 3.0
"""So many times more chunks per second of CPU."""
LATE_LIMIT_US = 1000.0
OPEN_S = 0.005  # between two new streams: the first answers are not in each other's way
GAP_S = 0.1  # ten chunks a second in each stream


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    names: list[str]
    streams: int
    many: int
    seconds: float
    rounds: int
    is_json: bool
    is_strict: bool


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a chunk takes."""

    name: str
    streams: int
    chunks: int
    failed: int
    cpu_us: float | None
    """Per chunk, in the best round."""
    chunks_per_s: float | None
    """In the best round; None where the client does not tell."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """How late the noted times are. None: too few samples."""

    name: str
    streams: int
    chunks: int
    failed: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    cores: float
    """How much of a core it took."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it. The text and the JSON are drawn from this."""

    version: int = 1
    cores: int
    load_before: float
    load_after: float
    took_s: float
    costs: list[Cost]
    lates: list[Late]
    bars: list[Bar]
    left_out: list[str]
    troubles: list[str]
    """Why streams failed, each reason once."""


class Bench:
    """The upstream and the clients."""

    def __init__(self, options: Options, programs: Programs) -> None:
        self._options = options
        self._programs = programs
        self._load_core, self._core = cores()
        self.troubles: set[str] = set()

    def costs(self) -> list[Cost]:
        """What a chunk takes, of each client."""
        options = self._options
        there = [generator for generator in KNOWN if generator.name in options.names and generator.program.exists()]
        ways = [name for name in (OURS, OFFICIAL) if name in options.names]
        with upstream(self._programs, gap_ms=0, core=self._load_core) as port:
            heard = self._rounds(ways, port, streams=options.streams, texts=TEXTS)
            costs = [self._cost(name, rounds) for name, rounds in heard.items()]
            return costs + [self._cost_of(generator, port) for generator in there]

    def lates(self) -> list[Late]:
        """How late times are, of ours and of a bare reader."""
        options = self._options
        step_s = OPEN_S + GAP_S / options.many  # chunks of different streams come at different moments
        texts = int((options.many * step_s + options.seconds) / GAP_S) + 2
        ways = [f"{name}, times" for name in (OURS, BARE) if OURS in options.names]
        with upstream(self._programs, gap_ms=GAP_S * 1e3, core=self._load_core, is_stamped=True) as port:
            heard = self._rounds(ways, port, streams=options.many, texts=texts, step_s=step_s)
        return [self._late(way.partition(",")[0], rounds) for way, rounds in heard.items()]

    def _rounds(
        self, ways: Sequence[str], port: int, *, streams: int, texts: int, step_s: float = 0.0
    ) -> dict[str, list[Heard]]:
        """All ways in turn, there and back."""
        heard: dict[str, list[Heard]] = {way: [] for way in ways}
        with ExitStack() as stack:
            children: dict[str, Child] = {way: stack.enter_context(started("asker.py")) for way in ways}
            for round in range(self._options.rounds):
                for way in ways if round % 2 == 0 else reversed(ways):
                    note(f"{way}, {streams} streams, round {round + 1} of {self._options.rounds}")
                    run = Run(
                        way=way,
                        port=port,
                        streams=streams,
                        texts=texts,
                        seconds=self._options.seconds,
                        step_s=step_s,
                        core=self._core,
                    )
                    heard[way].append(children[way].ask(run, Heard))
                    self.troubles.update(f"{way}: {why}" for why in heard[way][-1].failed)
        return heard

    def _cost(self, name: str, rounds: list[Heard]) -> Cost:
        some = [heard for heard in rounds if heard.chunks]
        return Cost(
            name=name,
            streams=self._options.streams,
            chunks=sum(heard.chunks for heard in rounds),
            failed=sum(len(heard.failed) for heard in rounds),
            cpu_us=min((heard.cpu_s / heard.chunks * 1e6 for heard in some), default=None),
            chunks_per_s=max((heard.chunks / heard.seconds for heard in some), default=None),
        )

    def _cost_of(self, generator: Generator, port: int) -> Cost:
        note(f"{generator.name} measures")
        requests = self._options.streams * 16  # half a minute of guidellm, so that a start shows little
        cpu_s = cpu_per_chunk_s(
            generator, port=port, streams=self._options.streams, texts=TEXTS, core=self._core, requests=requests
        )
        return Cost(
            name=generator.name,
            streams=self._options.streams,
            chunks=requests * TEXTS,
            failed=0,
            cpu_us=cpu_s * 1e6,
            chunks_per_s=None,
        )

    def _late(self, name: str, rounds: list[Heard]) -> Late:
        best = min(rounds, key=lambda heard: percentile(heard.late_s, 99) or max(heard.late_s, default=0.0))
        p50, p99 = percentile(best.late_s, 50), percentile(best.late_s, 99)
        return Late(
            name=name,
            streams=self._options.many,
            chunks=len(best.late_s),
            failed=sum(len(heard.failed) for heard in rounds),
            p50_us=None if p50 is None else p50 * 1e6,
            p99_us=None if p99 is None else p99 * 1e6,
            max_us=max(best.late_s) * 1e6 if best.late_s else None,
            cores=best.cpu_s / best.seconds,
        )


def bars(options: Options, costs: list[Cost], lates: list[Late]) -> list[Bar]:
    """What is wanted of welldone."""
    by_name = {cost.name: cost.cpu_us for cost in costs}
    wanted = [
        _times_more(name, by_name.get(OURS), by_name.get(name), limit, options.streams)
        for name, limit in ((OFFICIAL, BY_OFFICIAL), ("guidellm", BY_GUIDELLM))
        if name in options.names
    ]
    failed = sum(cost.failed for cost in costs) + sum(late.failed for late in lates)
    none = Bar(name="failed streams", streams=options.many, figure=failed, limit=0, is_kept=failed == 0)
    return [*wanted, *(_lateness(late, lates) for late in lates if late.name == OURS), none]


def _times_more(name: str, ours: float | None, theirs: float | None, limit: float, streams: int) -> Bar:
    ratio = None if ours is None or theirs is None else theirs / ours
    return Bar(
        name=f"chunks per CPU s, by {name}'s",
        streams=streams,
        figure=ratio,
        limit=limit,
        is_kept=ratio is not None and ratio >= limit,
        unit=" x",
    )


def _lateness(ours: Late, lates: list[Late]) -> Bar:
    bare = next((late.p99_us for late in lates if late.name == BARE), None)
    busy = "; the machine is busy" if bare is not None and bare >= LATE_LIMIT_US else ""
    return Bar(
        name="time noted too late, p99",
        streams=ours.streams,
        figure=ours.p99_us,
        limit=LATE_LIMIT_US,
        is_kept=ours.p99_us is not None and ours.p99_us < LATE_LIMIT_US,
        unit=" µs",
        note=f"a bare reader: {number(bare, 1, 0)} µs{busy}",
    )


def measure(options: Options) -> Report:
    """Both parts."""
    began, load_before = time.monotonic(), os.getloadavg()[0]
    allow_many_files()
    with tempfile.TemporaryDirectory(prefix="bench-tool-", ignore_cleanup_errors=True) as name:
        bench = Bench(options, compile_all(Path(name)))
        costs, lates = bench.costs(), bench.lates()
    missing = [generator for generator in KNOWN if generator.name in options.names and not generator.program.exists()]
    return Report(
        cores=len(set(cores())),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        took_s=time.monotonic() - began,
        costs=costs,
        lates=lates,
        bars=bars(options, costs, lates),
        left_out=[f"{generator.name}: {generator.where}" for generator in missing],
        troubles=sorted(bench.troubles),
    )


def show(report: Report) -> None:
    """The tables and the bars."""
    print(f"{report.took_s:.0f} s in all; load average {report.load_before:.1f} before and ", end="")
    print(f"{report.load_after:.1f} after", end="")
    print("" if report.cores > 1 else "; ONE CORE for client and upstream: the figures are no good")
    print(f"\nas fast as they read\n  {'client':<18}{'streams':>8}{'chunks':>10}{'failed':>7}", end="")
    print(f"{'CPU µs':>9}{'chunks/CPU s':>14}{'chunks/s':>10}")
    for cost in report.costs:
        per_s = None if not cost.cpu_us else 1e6 / cost.cpu_us
        print(
            f"  {cost.name:<18}{cost.streams:>8}{cost.chunks:>10}{cost.failed:>7}{number(cost.cpu_us, 1, 1):>9}", end=""
        )
        print(f"{number(per_s, 1, 0):>14}{number(cost.chunks_per_s, 1, 0):>10}")
    print(f"\na chunk every {GAP_S * 1e3:g} ms in each stream; noted too late by, µs")
    print(f"  {'client':<18}{'streams':>8}{'chunks':>10}{'failed':>7}{'p50':>9}{'p99':>9}{'max':>9}{'cores':>8}")
    for late in report.lates:
        figures = (number(late.p50_us, 1, 0), number(late.p99_us, 1, 0), number(late.max_us, 1, 0))
        print(f"  {late.name:<18}{late.streams:>8}{late.chunks:>10}{late.failed:>7}", end="")
        print("".join(f"{figure:>9}" for figure in figures) + f"{late.cores:>8.2f}")
    for missing in report.left_out:
        print(f"  left out: {missing}")
    print("\nwhat is wanted of welldone")
    for bar in report.bars:
        print(f"  {in_words(bar)}")
    for trouble in report.troubles:
        print(f"  failed: {trouble}")


def names(text: str) -> list[str]:
    """Names of clients, separated by commas."""
    found = text.split(",")
    if not set(found) <= set(all_names()):
        raise ValueError
    return found


def all_names() -> list[str]:
    """All that can be measured."""
    return [OURS, OFFICIAL, *(generator.name for generator in KNOWN)]


def read_options() -> Options:
    """What the user wants."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help=f"short rounds of {OURS} and {OFFICIAL}: a look")
    parser.add_argument("--only", type=names, help=f"these clients [{','.join(all_names())}]")
    parser.add_argument("--streams", type=int, default=32, help="streams that are read as fast as can be [%(default)s]")
    parser.add_argument("--many", type=int, default=500, help="streams whose times are looked at [%(default)s]")
    parser.add_argument("--seconds", type=float, help="of a round [5, quick: 2]")
    parser.add_argument("--rounds", type=int, help="of each client [4, quick: 1]")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a bar is missed")
    given = parser.parse_args()
    if min(given.streams, given.many, given.rounds or 1) < 1 or (given.seconds or 1) <= 0:
        parser.error("nothing to measure: streams, rounds and seconds are above 0")
    return Options(
        names=given.only or ([OURS, OFFICIAL] if given.quick else all_names()),
        streams=given.streams,
        many=given.many,
        seconds=given.seconds or (2 if given.quick else 5),
        rounds=given.rounds or (1 if given.quick else 4),
        is_json=given.json,
        is_strict=given.strict,
    )


def main() -> int:
    """Measure, and print tables."""
    options = read_options()
    if not sys.platform.startswith("linux"):
        print("this benchmark uses epoll and pins programs to cores: it is for Linux", file=sys.stderr)
        return 3
    try:
        report = measure(options)
    except (ProgramError, ChildError, GeneratorError) as error:
        print(error, file=sys.stderr)
        return 3
    print_json(report) if options.is_json else show(report)
    return int(options.is_strict and not all_kept(report.bars))


if __name__ == "__main__":
    sys.exit(main())
