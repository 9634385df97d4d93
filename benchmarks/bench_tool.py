"""Cost of `welldone bench` itself compared with other clients, and the accuracy of its times.

A scripted upstream runs on one core, and one client at a time on another. First the upstream writes as fast as the
client reads: CPU time per measured chunk. Then each of many streams gets a chunk at intervals, whose text is the time
at which it was sent: delay of the recorded timestamp. The clients alternate; the best round of each counts, since it is
the least disturbed one. Linux only.
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

from client_process import ClientResult, Run  # isort: skip  # same folder: a script's own folder is on the path
from child_process import Child, ChildError, start_child  # isort: skip
from figures import Bar, all_passed, format_number, percentile, print_json, print_progress  # isort: skip
from gateway import allow_many_files, cores, format_bar  # isort: skip
from generators import KNOWN, Generator, GeneratorError, cpu_per_chunk_s  # isort: skip
from c_programs import ProgramError, Programs, compile_all, upstream  # isort: skip

OURS, OFFICIAL, BARE = "welldone", "openai", "bare reader"
TEXTS = 2000
"""Text chunks per answer: enough that the cost of a request itself is small."""
BY_OFFICIAL, BY_GUIDELLM = 10.0, 3.0
"""Lowest multiple of the chunks per CPU second."""
DELAY_LIMIT_US = 1000.0
OPEN_S = 0.005  # between two new streams, so that their first answers do not collide
GAP_S = 0.1  # ten chunks a second in each stream


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of the benchmark."""

    names: list[str]
    streams: int
    many: int
    seconds: float
    rounds: int
    is_json: bool
    is_strict: bool


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU time per chunk of one client."""

    name: str
    streams: int
    chunks: int
    failed: int
    cpu_us: float | None
    """Per chunk, in the best round."""
    chunks_per_s: float | None
    """In the best round; None if the client does not report it."""


@dataclass(frozen=True, kw_only=True)
class Delay:
    """Delay of the recorded timestamps. None: too few samples."""

    name: str
    streams: int
    chunks: int
    failed: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None
    cores: float
    """Share of a core that the client used."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report, printed as text or JSON."""

    version: int = 1
    cores: int
    load_before: float
    load_after: float
    took_s: float
    costs: list[Cost]
    delays: list[Delay]
    bars: list[Bar]
    left_out: list[str]
    failures: list[str]
    """Reasons for failed streams, without duplicates."""


class Bench:
    """Runs the upstream and the clients."""

    def __init__(self, options: Options, programs: Programs) -> None:
        self._options = options
        self._programs = programs
        self._load_core, self._core = cores()
        self.failures: set[str] = set()

    def costs(self) -> list[Cost]:
        """Measure the CPU time per chunk of each client."""
        options = self._options
        installed = [generator for generator in KNOWN if generator.name in options.names and generator.program.exists()]
        clients = [name for name in (OURS, OFFICIAL) if name in options.names]
        with upstream(self._programs, gap_ms=0, core=self._load_core) as port:
            result = self._run_rounds(clients, port, streams=options.streams, texts=TEXTS)
            costs = [self._cost(name, rounds) for name, rounds in result.items()]
            return costs + [self._generator_cost(generator, port) for generator in installed]

    def delays(self) -> list[Delay]:
        """Measure the timestamp delay of welldone and of a bare reader."""
        options = self._options
        step_s = OPEN_S + GAP_S / options.many  # chunks of different streams arrive at different times
        texts = int((options.many * step_s + options.seconds) / GAP_S) + 2
        clients = [f"{name}, times" for name in (OURS, BARE) if OURS in options.names]
        with upstream(self._programs, gap_ms=GAP_S * 1e3, core=self._load_core, is_stamped=True) as port:
            result = self._run_rounds(clients, port, streams=options.many, texts=texts, step_s=step_s)
        return [self._delay(client.partition(",")[0], rounds) for client, rounds in result.items()]

    def _run_rounds(
        self, clients: Sequence[str], port: int, *, streams: int, texts: int, step_s: float = 0.0
    ) -> dict[str, list[ClientResult]]:
        """Run all clients in alternating order."""
        result: dict[str, list[ClientResult]] = {client: [] for client in clients}
        with ExitStack() as stack:
            children: dict[str, Child] = {
                client: stack.enter_context(start_child("client_process.py")) for client in clients
            }
            for round in range(self._options.rounds):
                for client in clients if round % 2 == 0 else reversed(clients):
                    print_progress(f"{client}, {streams} streams, round {round + 1} of {self._options.rounds}")
                    run = Run(
                        client=client,
                        port=port,
                        streams=streams,
                        texts=texts,
                        seconds=self._options.seconds,
                        step_s=step_s,
                        core=self._core,
                    )
                    result[client].append(children[client].call(run, ClientResult))
                    self.failures.update(f"{client}: {reason}" for reason in result[client][-1].failed)
        return result

    def _cost(self, name: str, rounds: list[ClientResult]) -> Cost:
        counted = [result for result in rounds if result.chunks]
        return Cost(
            name=name,
            streams=self._options.streams,
            chunks=sum(result.chunks for result in rounds),
            failed=sum(len(result.failed) for result in rounds),
            cpu_us=min((result.cpu_s / result.chunks * 1e6 for result in counted), default=None),
            chunks_per_s=max((result.chunks / result.seconds for result in counted), default=None),
        )

    def _generator_cost(self, generator: Generator, port: int) -> Cost:
        print_progress(f"{generator.name} is running")
        requests = self._options.streams * 16  # half a minute of guidellm, so that its start weighs little
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

    def _delay(self, name: str, rounds: list[ClientResult]) -> Delay:
        best = min(rounds, key=lambda result: percentile(result.delays_s, 99) or max(result.delays_s, default=0.0))
        p50, p99 = percentile(best.delays_s, 50), percentile(best.delays_s, 99)
        return Delay(
            name=name,
            streams=self._options.many,
            chunks=len(best.delays_s),
            failed=sum(len(result.failed) for result in rounds),
            p50_us=None if p50 is None else p50 * 1e6,
            p99_us=None if p99 is None else p99 * 1e6,
            max_us=max(best.delays_s) * 1e6 if best.delays_s else None,
            cores=best.cpu_s / best.seconds,
        )


def bars(options: Options, costs: list[Cost], delays: list[Delay]) -> list[Bar]:
    """Return the limits for welldone."""
    by_name = {cost.name: cost.cpu_us for cost in costs}
    ratios = [
        _cpu_bar(name, by_name.get(OURS), by_name.get(name), limit, options.streams)
        for name, limit in ((OFFICIAL, BY_OFFICIAL), ("guidellm", BY_GUIDELLM))
        if name in options.names
    ]
    failed = sum(cost.failed for cost in costs) + sum(delay.failed for delay in delays)
    none = Bar(name="failed streams", streams=options.many, figure=failed, limit=0, passed=failed == 0)
    return [*ratios, *(_delay_bar(delay, delays) for delay in delays if delay.name == OURS), none]


def _cpu_bar(name: str, ours: float | None, theirs: float | None, limit: float, streams: int) -> Bar:
    ratio = None if ours is None or theirs is None else theirs / ours
    return Bar(
        name=f"chunks per CPU s, by {name}'s",
        streams=streams,
        figure=ratio,
        limit=limit,
        passed=ratio is not None and ratio >= limit,
        unit=" x",
    )


def _delay_bar(ours: Delay, delays: list[Delay]) -> Bar:
    bare = next((delay.p99_us for delay in delays if delay.name == BARE), None)
    busy = "; the machine is busy" if bare is not None and bare >= DELAY_LIMIT_US else ""
    return Bar(
        name="timestamp delay, p99",
        streams=ours.streams,
        figure=ours.p99_us,
        limit=DELAY_LIMIT_US,
        passed=ours.p99_us is not None and ours.p99_us < DELAY_LIMIT_US,
        unit=" µs",
        note=f"a bare reader: {format_number(bare, 1, 0)} µs{busy}",
    )


def measure(options: Options) -> Report:
    """Run both parts of the benchmark."""
    began, load_before = time.monotonic(), os.getloadavg()[0]
    allow_many_files()
    with tempfile.TemporaryDirectory(prefix="bench-tool-", ignore_cleanup_errors=True) as name:
        bench = Bench(options, compile_all(Path(name)))
        costs, delays = bench.costs(), bench.delays()
    missing = [generator for generator in KNOWN if generator.name in options.names and not generator.program.exists()]
    return Report(
        cores=len(set(cores())),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        took_s=time.monotonic() - began,
        costs=costs,
        delays=delays,
        bars=bars(options, costs, delays),
        left_out=[f"{generator.name}: {generator.install}" for generator in missing],
        failures=sorted(bench.failures),
    )


def print_report(report: Report) -> None:
    """Print the tables and the limits."""
    print(f"{report.took_s:.0f} s in all; load average {report.load_before:.1f} before and ", end="")
    print(f"{report.load_after:.1f} after", end="")
    print("" if report.cores > 1 else "; ONE CORE for client and upstream: the figures are not reliable")
    print(f"\nas fast as they read\n  {'client':<18}{'streams':>8}{'chunks':>10}{'failed':>7}", end="")
    print(f"{'CPU µs':>9}{'chunks/CPU s':>14}{'chunks/s':>10}")
    for cost in report.costs:
        per_s = None if not cost.cpu_us else 1e6 / cost.cpu_us
        print(
            f"  {cost.name:<18}{cost.streams:>8}{cost.chunks:>10}{cost.failed:>7}{format_number(cost.cpu_us, 1, 1):>9}",
            end="",
        )
        print(f"{format_number(per_s, 1, 0):>14}{format_number(cost.chunks_per_s, 1, 0):>10}")
    print(f"\na chunk every {GAP_S * 1e3:g} ms in each stream; timestamp delay, µs")
    print(f"  {'client':<18}{'streams':>8}{'chunks':>10}{'failed':>7}{'p50':>9}{'p99':>9}{'max':>9}{'cores':>8}")
    for delay in report.delays:
        figures = (
            format_number(delay.p50_us, 1, 0),
            format_number(delay.p99_us, 1, 0),
            format_number(delay.max_us, 1, 0),
        )
        print(f"  {delay.name:<18}{delay.streams:>8}{delay.chunks:>10}{delay.failed:>7}", end="")
        print("".join(f"{figure:>9}" for figure in figures) + f"{delay.cores:>8.2f}")
    for missing in report.left_out:
        print(f"  left out: {missing}")
    print("\nlimits for welldone")
    for bar in report.bars:
        print(f"  {format_bar(bar)}")
    for failure in report.failures:
        print(f"  failed: {failure}")


def names(text: str) -> list[str]:
    """Parse a comma-separated list of clients."""
    found = text.split(",")
    if not set(found) <= set(all_names()):
        raise ValueError
    return found


def all_names() -> list[str]:
    """Return the names of all clients."""
    return [OURS, OFFICIAL, *(generator.name for generator in KNOWN)]


def read_options() -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help=f"short rounds of {OURS} and {OFFICIAL} only")
    parser.add_argument("--only", type=names, help=f"clients to measure [{','.join(all_names())}]")
    parser.add_argument("--streams", type=int, default=32, help="streams of the CPU measurement [%(default)s]")
    parser.add_argument("--many", type=int, default=500, help="streams of the timestamp measurement [%(default)s]")
    parser.add_argument("--seconds", type=float, help="length of a round [5, quick: 2]")
    parser.add_argument("--rounds", type=int, help="rounds per client [4, quick: 1]")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is exceeded")
    given = parser.parse_args()
    if min(given.streams, given.many, given.rounds or 1) < 1 or (given.seconds or 1) <= 0:
        parser.error("--streams, --many, --rounds and --seconds must be above 0")
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
    """Run the benchmark and print the report."""
    options = read_options()
    if not sys.platform.startswith("linux"):
        print("this benchmark needs Linux: it uses epoll and pins programs to cores", file=sys.stderr)
        return 3
    try:
        report = measure(options)
    except (ProgramError, ChildError, GeneratorError) as error:
        print(error, file=sys.stderr)
        return 3
    print_json(report) if options.is_json else print_report(report)
    return int(options.is_strict and not all_passed(report.bars))


if __name__ == "__main__":
    sys.exit(main())
