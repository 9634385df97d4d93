"""Cost of welldone as a gateway compared with others in one run: a paced upstream, one gateway at a time, a reader.

Each stream gets a chunk every 20 ms. The gateway runs on one core, upstream and reader on another. The
gateways alternate (A B C C B A ...), so that drift of the machine affects all of them. Read the ratios: absolute
figures depend on the machine. Linux only.
"""

import argparse
import math
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from figures import Bar, all_passed, format_number, print_json, print_progress  # isort: skip  # same folder: a script's own folder is on the path
from gateways import Gateway, GatewayError, Running, known, running  # isort: skip
from gateway_figures import LONG_RUN_CHUNKS, MANY_STREAMS, OURS, OURS_OFF, Round, Row, Totals  # isort: skip
from gateway_figures import bars, growth_bar, many_streams_bars, row  # isort: skip
from gateway_requests import BURST_GAP_MS, BurstRow, RequestBench, RequestRow, format_requests, request_bars  # isort: skip
from c_programs import Plan, ProgramError, Programs, Reader, compile_all, upstream  # isort: skip
from process_usage import Usage, read_usage  # isort: skip

DIRECT = "direct"
OPEN_S = 0.005  # between two new streams, so that their first answers do not collide
SETTLE_S = 0.5  # after the last stream opens, and before the first one ends
LIMIT_S = 60.0  # turns a hang into a failure
WARM_ROUNDS, WARM_S = 10, 0.2  # 2,000 requests with 200 streams: permanent allocations are done by then


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of the benchmark."""

    names: list[str]
    streams: int
    many: int
    seconds: float
    rounds: int
    gap_ms: float
    is_long: bool
    is_requests: bool
    is_json: bool
    is_strict: bool


@dataclass(frozen=True, kw_only=True)
class RequestReport:
    """Report of `--requests`, printed as text or JSON."""

    version: int = 1
    cores: int
    load_before: float
    load_after: float
    rows: list[RequestRow]
    bursts: list[BurstRow]
    bars: list[Bar]
    left_out: list[str]
    failures: list[str]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report, printed as text or JSON."""

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
    failures: list[str]
    """Reasons for failed streams, without duplicates."""


class Bench:
    """Runs the upstream, the gateways and the reader."""

    def __init__(self, options: Options, folder: Path, programs: Programs) -> None:
        self._options = options
        self._folder = folder
        self._programs = programs
        self._load_core, self._core = cores()
        self._upstream = 0
        self.failures: set[str] = set()

    @contextmanager
    def run_upstream(self) -> Iterator[None]:
        """Run the upstream until the context ends."""
        with upstream(self._programs, gap_ms=self._options.gap_ms, core=self._load_core) as self._upstream:
            yield

    def requests(self, gateways: Sequence[Gateway]) -> tuple[list[RequestRow], list[BurstRow]]:
        """Measure short replies in a closed loop, and bursts; each with an upstream of its own pace."""
        bench = RequestBench(
            self._programs, core=self._load_core, seconds=self._options.seconds, rounds=self._options.rounds
        )
        with self._targets(gateways, gap_ms=0.0) as targets:
            rows = bench.closed_loop(targets)
        with self._targets(gateways, gap_ms=BURST_GAP_MS) as targets:
            bursts = bench.bursts(targets)
        self.failures |= bench.failures
        return rows, bursts

    @contextmanager
    def _targets(
        self, gateways: Sequence[Gateway], *, gap_ms: float
    ) -> Iterator[list[tuple[str, int, Running | None]]]:
        with ExitStack() as stack:
            self._upstream = stack.enter_context(upstream(self._programs, gap_ms=gap_ms, core=self._load_core))
            targets: list[tuple[str, int, Running | None]] = [(DIRECT, self._upstream, None)]
            for gateway in gateways:
                print_progress(f"{gateway.name} starts")
                process = stack.enter_context(self._running(gateway))
                targets.append((gateway.name, process.port, process))
            yield targets

    def compare(self, gateways: Sequence[Gateway]) -> list[Totals]:
        """Measure a direct connection and all gateways in alternating order."""
        with ExitStack() as stack:
            processes: list[Running | None] = [None]
            for gateway in gateways:
                print_progress(f"{gateway.name} starts")
                processes.append(stack.enter_context(self._running(gateway)))
            all_totals = [self._empty_totals(DIRECT, self._options.streams, None)]
            all_totals += [
                self._empty_totals(gateway.name, gateway.streams(self._options.streams), process)
                for gateway, process in zip(gateways, processes[1:], strict=True)
            ]
            pairs = list(zip(all_totals, processes, strict=True))
            for number in range(self._options.rounds):
                for totals, process in pairs if number % 2 == 0 else reversed(pairs):
                    print_progress(f"{totals.name}, round {number + 1} of {self._options.rounds}")
                    totals.rounds.append(self._round(totals.streams, process, self._options.seconds))
        return all_totals

    def many(self, gateway: Gateway) -> Totals:
        """Measure a fresh gateway with many streams."""
        with self._running(gateway) as process:
            print_progress(f"{gateway.name}, {self._options.many} streams")
            totals = self._empty_totals(gateway.name, self._options.many, process)
            totals.rounds.append(self._round(self._options.many, process, self._options.seconds))
        return totals

    def long(self, gateway: Gateway) -> Bar:
        """Measure the memory growth of a fresh gateway over many chunks."""
        chunks = 0
        with self._running(gateway) as process:
            print_progress(f"{gateway.name} warms up")
            warm = [self._round(self._options.streams, process, WARM_S) for _ in range(WARM_ROUNDS)][-1]
            done = warm
            while chunks < LONG_RUN_CHUNKS:
                print_progress(f"{gateway.name}, {done.rss_bytes / 1e6:.1f} MB after {chunks:,} chunks")
                done = self._round(self._options.streams, process, self._options.seconds)
                if not done.result.texts:
                    raise GatewayError(f"{gateway.name} forwarded no text")
                chunks += done.result.texts
        return growth_bar(self._options.streams, chunks, done.rss_bytes - warm.rss_bytes)

    @contextmanager
    def _running(self, gateway: Gateway) -> Iterator[Running]:
        folder = Path(tempfile.mkdtemp(prefix=f"{gateway.name}-", dir=self._folder))
        with running(gateway, folder, upstream=self._upstream, programs=self._programs, core=self._core) as process:
            yield process

    def _empty_totals(self, name: str, streams: int, process: Running | None) -> Totals:
        return Totals(name=name, streams=streams, idle=None if process is None else read_usage(process.pid))

    def _round(self, streams: int, process: Running | None, seconds: float) -> Round:
        plan = self._plan(streams, seconds)
        port = self._upstream if process is None else process.port
        reader = Reader(self._programs, port=port, plan=plan, core=self._load_core)
        before = usage_at(plan.since, process)
        after = usage_at(plan.until, process)
        result = reader.end(plan.limit - time.monotonic())
        self.failures.update(f"{DIRECT if process is None else process.name}: {reason}" for reason in result.reasons)
        return Round(
            result=result,
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


def usage_at(when: float, process: Running | None) -> Usage:
    """Sleep until the given time, then read the usage of the gateway."""
    time.sleep(max(0.0, when - time.monotonic()))
    return Usage(0.0, 0.0, 0) if process is None else read_usage(process.pid)


def cores() -> tuple[int, int]:
    """Return the core of upstream and reader, and the core of the gateway."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[0], ours[-1]


def measure(options: Options) -> Report:
    """Run the benchmark."""
    began, load_before = time.monotonic(), os.getloadavg()[0]
    allow_many_files()
    requested = [gateway for gateway in known() if gateway.name in options.names]
    installed = [gateway for gateway in requested if gateway.program is not None]
    ours = [gateway for gateway in installed if gateway.name == OURS]
    with tempfile.TemporaryDirectory(prefix="gateways-", ignore_cleanup_errors=True) as name:
        bench = Bench(options, Path(name), compile_all(Path(name)))
        with bench.run_upstream():
            rows = [row(totals) for totals in bench.compare(installed)]
            many = [
                row(bench.many(gateway)) for gateway in installed if gateway.name in (OURS, OURS_OFF) and options.many
            ]
            long = [bench.long(gateway) for gateway in ours if options.is_long]
    compared = bars({figures.name: figures for figures in rows}, options.names) if ours else []
    return Report(
        gap_ms=options.gap_ms,
        seconds=options.seconds,
        cores=len(set(cores())),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        took_s=time.monotonic() - began,
        rows=rows + many,
        bars=compared + [bar for figures in many if figures.name == OURS for bar in many_streams_bars(figures)] + long,
        left_out=[f"{gateway.name}: {gateway.install}" for gateway in requested if gateway.program is None],
        failures=sorted(bench.failures),
    )


def measure_requests(options: Options) -> RequestReport:
    """Run the benchmark of requests."""
    load_before = os.getloadavg()[0]
    requested = [gateway for gateway in known() if gateway.name in options.names]
    installed = [gateway for gateway in requested if gateway.program is not None]
    with tempfile.TemporaryDirectory(prefix="gateways-", ignore_cleanup_errors=True) as name:
        bench = Bench(options, Path(name), compile_all(Path(name)))
        rows, bursts = bench.requests(installed)
    return RequestReport(
        cores=len(set(cores())),
        load_before=load_before,
        load_after=os.getloadavg()[0],
        rows=rows,
        bursts=bursts,
        bars=request_bars(rows, bursts, DIRECT),
        left_out=[f"{gateway.name}: {gateway.install}" for gateway in requested if gateway.program is None],
        failures=sorted(bench.failures),
    )


def print_request_report(report: RequestReport) -> None:
    """Print the tables and the limits."""
    print(format_requests(report.rows, report.bursts))
    print(f"\nload average {report.load_before:.1f} before and {report.load_after:.1f} after")
    for line in [f"left out: {missing}" for missing in report.left_out] + [format_bar(bar) for bar in report.bars]:
        print(f"  {line}")
    for failure in report.failures:
        print(f"  failed: {failure}")


def allow_many_files() -> None:
    """Raise the limit of open files to the hard limit: a stream takes two in a gateway."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def print_report(report: Report) -> None:
    """Print the table and the limits."""
    print(f"a chunk every {report.gap_ms:g} ms in each stream, rounds of {report.seconds:g} s; ", end="")
    print(f"{report.took_s:.0f} s in all")
    print(f"load average {report.load_before:.1f} before and {report.load_after:.1f} after", end="")
    print("" if report.cores > 1 else "; ONE CORE for gateway and load: the figures are not reliable")
    print(f"\n{'':<41}{'CPU µs per chunk':>21}{'first text, ms':>19}{'gap, ms':>17}{'memory':>18}")
    print(f"  {'gateway':<14}{'streams':>8}{'chunks':>10}{'failed':>7}", end="")
    print(f"{'all':>7}{'user':>7}{'system':>7}{'p50':>10}{'added':>9}{'p99':>9}{'max':>8}{'MB':>8}{'KB/stream':>10}")
    direct = report.rows[0].first_p50_s
    for figures in report.rows:
        print(format_row(figures, direct))
    for missing in report.left_out:
        print(f"  left out: {missing}")
    if report.bars:
        print("\nlimits for welldone")
    for bar in report.bars:
        print(f"  {format_bar(bar)}")
    for failure in report.failures:
        print(f"  failed: {failure}")


def format_row(figures: Row, direct: float | None) -> str:
    """Format the row of a gateway."""
    first = figures.first_p50_s
    added = first - direct if first is not None and direct is not None and figures.name != DIRECT else None
    return (
        f"  {figures.name:<14}{figures.streams:>8}{figures.chunks:>10}{figures.failed:>7}"
        f"{format_number(figures.cpu_us, 1, 1):>7}{format_number(figures.user_us, 1, 1):>7}"
        f"{format_number(figures.system_us, 1, 1):>7}"
        f"{format_number(first, 1e3, 2):>10}{format_number(added, 1e3, 2):>9}"
        f"{figures.gap_p99_s * 1e3:>9.1f}{figures.gap_max_s * 1e3:>8.1f}"
        f"{format_number(figures.rss_bytes, 1e-6, 1):>8}{format_number(figures.bytes_per_stream, 1 / 1024, 1):>10}"
    )


def format_bar(bar: Bar) -> str:
    """Format a figure, its limit and whether it holds."""
    verdict = "within" if bar.passed else "not measured" if bar.figure is None else "EXCEEDED"
    note = f" ({bar.note})" if bar.note else ""
    figure = format_number(bar.figure, 1, 2 if bar.unit == " x" else 0) + bar.unit
    return f"{bar.name:<34}{bar.streams:>5} streams{figure:>12}  limit {bar.limit:g}{bar.unit}: {verdict}{note}"


def names(text: str) -> list[str]:
    """Parse a comma-separated list of gateways."""
    found = text.split(",")
    if not set(found) <= {gateway.name for gateway in known()}:
        raise ValueError
    return found


def read_options() -> Options:
    """Parse the command line."""
    all_names = [gateway.name for gateway in known()]
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first impression")
    parser.add_argument("--only", type=names, default=all_names, help=f"gateways to measure [{','.join(all_names)}]")
    parser.add_argument("--streams", type=int, default=200, help="concurrent streams [%(default)s]")
    parser.add_argument(
        "--many", type=int, default=MANY_STREAMS, help="streams of welldone alone; 0: skip [%(default)s]"
    )
    parser.add_argument("--seconds", type=float, help="length of a round [10, quick: 3]")
    parser.add_argument("--rounds", type=int, help="rounds per gateway [4, quick: 2]")
    parser.add_argument(
        "--gap", type=float, default=20.0, help="milliseconds between two chunks of a stream [%(default)g]"
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help=f"measure the memory of welldone over {LONG_RUN_CHUNKS:,} chunks (two minutes)",
    )
    parser.add_argument(
        "--requests", action="store_true", help="measure short replies and bursts of requests instead of long streams"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a limit is exceeded")
    given = parser.parse_args()
    if min(given.streams, given.rounds or 1) < 1 or min(given.gap, given.seconds or 1) <= 0:
        parser.error("--streams, --rounds, --seconds and --gap must be above 0")
    return Options(
        names=given.only,
        streams=given.streams,
        many=given.many,
        seconds=given.seconds or (3 if given.quick else 10),
        rounds=given.rounds or (2 if given.quick else 4),
        gap_ms=given.gap,
        is_long=given.long,
        is_requests=given.requests,
        is_json=given.json,
        is_strict=given.strict,
    )


def end_with_children(number: int, frame: object) -> None:
    """End the benchmark with its gateways, which run in sessions of their own."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    """Run the benchmark and print the report."""
    options = read_options()
    signal.signal(signal.SIGTERM, end_with_children)
    if not sys.platform.startswith("linux"):
        print("this benchmark needs Linux: it reads /proc and uses epoll", file=sys.stderr)
        return 3
    try:
        report = measure_requests(options) if options.is_requests else measure(options)
    except (ProgramError, GatewayError) as error:
        print(error, file=sys.stderr)
        return 3
    if options.is_json:
        print_json(report)
    elif isinstance(report, RequestReport):
        print_request_report(report)
    else:
        print_report(report)
    return int(options.is_strict and not all_passed(report.bars))


if __name__ == "__main__":
    sys.exit(main())
