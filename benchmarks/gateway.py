"""What welldone costs as a gateway, beside others, in one run: a paced upstream, one gateway in turn, and a reader.

Each stream gets a chunk every 20 ms. The gateway that is measured has one core, upstream and reader have another. The
gateways alternate (A B C C B A ...), so that a machine that gets slower is slower for all. Ratios count, since machines
differ. For Linux.
"""

import argparse
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import Bar, all_kept, note, number, print_json  # isort: skip  # neighbours: a script's own folder is on the path
from gateways import Gateway, GatewayError, Running, known, running  # isort: skip
from passed import LONG, MANY, OURS, Round, Row, Tally, bar_of_long, bars, bars_of_many, row  # isort: skip
from programs import Plan, ProgramError, Programs, Reader, compile_all, upstream  # isort: skip
from usage import Used, used  # isort: skip

DIRECT = "direct"
OPEN_S = 0.005  # between two new streams: the first answers are not in each other's way
SETTLE_S = 0.5  # after the last has opened, and before the first ends
LIMIT_S = 60.0  # for what is late: a hang is a failure
WARM_ROUNDS, WARM_S = 10, 0.2  # with 200 streams: what a program keeps for good, it has after 2,000 requests


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    names: list[str]
    streams: int
    many: int
    seconds: float
    rounds: int
    gap_ms: float
    is_long: bool
    is_json: bool
    is_strict: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """All of it. The text and the JSON are drawn from this."""

    version: int = 1
    gap_ms: float
    seconds: float
    cores: int
    load_before: float
    load_after: float
    took_s: float
    rows: list[Row]
    bars: list[Bar]
    left_out: list[str]
    troubles: list[str]
    """Why streams failed, each reason once."""


class Bench:
    """The upstream and the gateways, and what is asked of them."""

    def __init__(self, options: Options, folder: Path, programs: Programs) -> None:
        self._options = options
        self._folder = folder
        self._programs = programs
        self._load_core, self._core = cores()
        self._upstream = 0
        self.troubles: set[str] = set()

    @contextmanager
    def paced(self) -> Iterator[None]:
        """The upstream runs."""
        with upstream(self._programs, gap_ms=self._options.gap_ms, core=self._load_core) as self._upstream:
            yield

    def side_by_side(self, gateways: Sequence[Gateway]) -> list[Tally]:
        """Nobody in between first, then all gateways in turn, there and back."""
        with ExitStack() as stack:
            places: list[Running | None] = [None]
            for gateway in gateways:
                note(f"{gateway.name} starts")
                places.append(stack.enter_context(self._running(gateway)))
            tallies = [self._tally(DIRECT, self._options.streams, None)]
            tallies += [
                self._tally(gateway.name, gateway.streams(self._options.streams), place)
                for gateway, place in zip(gateways, places[1:], strict=True)
            ]
            pairs = list(zip(tallies, places, strict=True))
            for number in range(self._options.rounds):
                for tally, place in pairs if number % 2 == 0 else reversed(pairs):
                    note(f"{tally.name}, round {number + 1} of {self._options.rounds}")
                    tally.rounds.append(self._round(tally.streams, place, self._options.seconds))
        return tallies

    def many(self, gateway: Gateway) -> Tally:
        """A gateway that is new, and many streams."""
        with self._running(gateway) as place:
            note(f"{gateway.name}, {self._options.many} streams")
            tally = self._tally(gateway.name, self._options.many, place)
            tally.rounds.append(self._round(self._options.many, place, self._options.seconds))
        return tally

    def long(self, gateway: Gateway) -> Bar:
        """A gateway that is new, and many chunks: what its memory has grown by."""
        chunks = 0
        with self._running(gateway) as place:
            note(f"{gateway.name} warms up")
            warm = [self._round(self._options.streams, place, WARM_S) for _ in range(WARM_ROUNDS)][-1]
            done = warm
            while chunks < LONG:
                note(f"{gateway.name}, {done.rss_bytes / 1e6:.1f} MB after {chunks:,} chunks")
                done = self._round(self._options.streams, place, self._options.seconds)
                if not done.heard.texts:
                    raise GatewayError(f"{gateway.name} passes nothing on")
                chunks += done.heard.texts
        return bar_of_long(self._options.streams, chunks, done.rss_bytes - warm.rss_bytes)

    @contextmanager
    def _running(self, gateway: Gateway) -> Iterator[Running]:
        folder = Path(tempfile.mkdtemp(prefix=f"{gateway.name}-", dir=self._folder))
        with running(gateway, folder, upstream=self._upstream, programs=self._programs, core=self._core) as place:
            yield place

    def _tally(self, name: str, streams: int, place: Running | None) -> Tally:
        return Tally(name=name, streams=streams, idle=None if place is None else used(place.pid))

    def _round(self, streams: int, place: Running | None, seconds: float) -> Round:
        plan = self._plan(streams, seconds)
        port = self._upstream if place is None else place.port
        reader = Reader(self._programs, port=port, plan=plan, core=self._load_core)
        before = used_at(plan.since, place)
        after = used_at(plan.until, place)
        heard = reader.end(plan.limit - time.monotonic())
        self.troubles.update(f"{DIRECT if place is None else place.name}: {why}" for why in heard.why)
        return Round(
            heard=heard,
            user_s=after.user_s - before.user_s,
            system_s=after.system_s - before.system_s,
            rss_bytes=after.rss_bytes,
        )

    def _plan(self, streams: int, seconds: float) -> Plan:
        gap_s = self._options.gap_ms / 1e3
        step_s = OPEN_S + gap_s / streams  # chunks of different streams come at different moments
        opening_s = streams * step_s + SETTLE_S
        start = time.monotonic() + SETTLE_S
        since = start + opening_s
        until = since + seconds
        return Plan(
            streams=streams,
            texts=math.ceil((opening_s + seconds + SETTLE_S) / gap_s),
            start=start,
            step_s=step_s,
            since=since,
            until=until,
            limit=until + opening_s + LIMIT_S,
        )


def used_at(moment: float, place: Running | None) -> Used:
    """What the gateway has taken by then."""
    time.sleep(max(0.0, moment - time.monotonic()))
    return Used(0.0, 0.0, 0) if place is None else used(place.pid)


def cores() -> tuple[int, int]:
    """The core of upstream and reader, and that of the gateway."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[-1]


def measure(options: Options) -> Report:
    """All levels."""
    began, load_before = time.monotonic(), os.getloadavg()[0]
    allow_many_files()
    wanted = [gateway for gateway in known() if gateway.name in options.names]
    there = [gateway for gateway in wanted if gateway.program is not None]
    ours = [gateway for gateway in there if gateway.name == OURS]
    with tempfile.TemporaryDirectory(prefix="gateways-", ignore_cleanup_errors=True) as name:
        bench = Bench(options, Path(name), compile_all(Path(name)))
        with bench.paced():
            rows = [row(tally) for tally in bench.side_by_side(there)]
            many = [row(bench.many(gateway)) for gateway in ours if options.many]
            long = [bench.long(gateway) for gateway in ours if options.is_long]
    beside = bars({figures.name: figures for figures in rows}, options.names) if ours else []
    return Report(
        gap_ms=options.gap_ms,
        seconds=options.seconds,
        cores=len(set(cores())),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        took_s=time.monotonic() - began,
        rows=rows + many,
        bars=beside + [bar for figures in many for bar in bars_of_many(figures)] + long,
        left_out=[f"{gateway.name}: {gateway.where}" for gateway in wanted if gateway.program is None],
        troubles=sorted(bench.troubles),
    )


def allow_many_files() -> None:
    """As many as we may have: a stream takes two in a gateway."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def show(report: Report) -> None:
    """The table and the bars."""
    print(f"a chunk every {report.gap_ms:g} ms in each stream, rounds of {report.seconds:g} s; ", end="")
    print(f"{report.took_s:.0f} s in all")
    print(f"load average {report.load_before:.1f} before and {report.load_after:.1f} after", end="")
    print("" if report.cores > 1 else "; ONE CORE for gateway and load: the figures are no good")
    print(f"\n{'':<41}{'CPU µs per chunk':>21}{'first text, ms':>19}{'gap, ms':>17}{'memory':>18}")
    print(f"  {'gateway':<14}{'streams':>8}{'chunks':>10}{'failed':>7}", end="")
    print(f"{'all':>7}{'user':>7}{'system':>7}{'p50':>10}{'added':>9}{'p99':>9}{'max':>8}{'MB':>8}{'KB/stream':>10}")
    direct = report.rows[0].first_p50_s
    for figures in report.rows:
        print(line(figures, direct))
    for missing in report.left_out:
        print(f"  left out: {missing}")
    if report.bars:
        print("\nwhat is wanted of welldone")
    for bar in report.bars:
        print(f"  {in_words(bar)}")
    for trouble in report.troubles:
        print(f"  failed: {trouble}")


def line(figures: Row, direct: float | None) -> str:
    """A gateway in figures."""
    first = figures.first_p50_s
    added = first - direct if first is not None and direct is not None and figures.name != DIRECT else None
    return (
        f"  {figures.name:<14}{figures.streams:>8}{figures.chunks:>10}{figures.failed:>7}"
        f"{number(figures.cpu_us, 1, 1):>7}{number(figures.user_us, 1, 1):>7}{number(figures.system_us, 1, 1):>7}"
        f"{number(first, 1e3, 2):>10}{number(added, 1e3, 2):>9}"
        f"{figures.gap_p99_s * 1e3:>9.1f}{figures.gap_max_s * 1e3:>8.1f}"
        f"{number(figures.rss_bytes, 1e-6, 1):>8}{number(figures.bytes_per_stream, 1 / 1024, 1):>10}"
    )


def in_words(bar: Bar) -> str:
    """A bar, and whether it is kept."""
    verdict = "kept" if bar.is_kept else "open, not measured" if bar.figure is None else "MISSED"
    note = f" ({bar.note})" if bar.note else ""
    figure = number(bar.figure, 1, 2 if bar.unit == " x" else 0) + bar.unit
    return f"{bar.name:<34}{bar.streams:>5} streams{figure:>12}  bar {bar.limit:g}{bar.unit}: {verdict}{note}"


def names(text: str) -> list[str]:
    """Names of gateways, separated by commas."""
    found = text.split(",")
    if not set(found) <= {gateway.name for gateway in known()}:
        raise ValueError
    return found


def read_options() -> Options:
    """What the user wants."""
    all_names = [gateway.name for gateway in known()]
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="short rounds: a look, not a measurement")
    parser.add_argument("--only", type=names, default=all_names, help=f"these gateways [{','.join(all_names)}]")
    parser.add_argument("--streams", type=int, default=200, help="streams at once [%(default)s]")
    parser.add_argument("--many", type=int, default=MANY, help="streams of welldone alone; 0: none [%(default)s]")
    parser.add_argument("--seconds", type=float, help="of a round [10, quick: 3]")
    parser.add_argument("--rounds", type=int, help="of each gateway [4, quick: 2]")
    parser.add_argument("--gap", type=float, default=20.0, help="ms between two chunks of a stream [%(default)g]")
    parser.add_argument(
        "--long", action="store_true", help=f"welldone's memory over {LONG:,} chunks; takes two minutes"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a bar is missed")
    given = parser.parse_args()
    if min(given.streams, given.rounds or 1) < 1 or min(given.gap, given.seconds or 1) <= 0:
        parser.error("nothing to measure: streams, rounds, seconds and gap are above 0")
    return Options(
        names=given.only,
        streams=given.streams,
        many=given.many,
        seconds=given.seconds or (3 if given.quick else 10),
        rounds=given.rounds or (2 if given.quick else 4),
        gap_ms=given.gap,
        is_long=given.long,
        is_json=given.json,
        is_strict=given.strict,
    )


def main() -> int:
    """Measure, and print a table."""
    options = read_options()
    if not sys.platform.startswith("linux"):
        print("this benchmark reads /proc and uses epoll: it is for Linux", file=sys.stderr)
        return 3
    try:
        report = measure(options)
    except (ProgramError, GatewayError) as error:
        print(error, file=sys.stderr)
        return 3
    print_json(report) if options.is_json else show(report)
    return int(options.is_strict and not all_kept(report.bars))


if __name__ == "__main__":
    sys.exit(main())
