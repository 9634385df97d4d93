"""Cost of a request: short replies in a closed loop, and the first text of a burst of requests.

A number of connections send requests one after the other, with a reply of one chunk, of 20 chunks, or without a stream.
The CPU time of the gateway is divided by the replies. The gateways alternate, as in `gateway.py`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from c_programs import Plan, Programs, Reader, ReaderResult  # isort: skip  # same folder: a script's own folder is on the path
from figures import Bar, format_number, print_progress  # isort: skip
from gateway_figures import NGINX, OURS  # isort: skip
from gateways import Running  # isort: skip
from process_usage import Usage, read_usage  # isort: skip

CONNECTIONS = 16
BURST, BURST_TEXTS, BURST_GAP_MS = 64, 5, 20.0
SMG = "smg"
SMG_LIMIT, NGINX_LIMIT, BURST_LIMIT_MS = 0.6, 16.0, 15.0
_WARM_S, _LIMIT_S = 1.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of reply."""

    name: str
    texts: int
    is_stream: bool = True


KINDS = (
    Kind(name="one chunk", texts=1),
    Kind(name="20 chunks", texts=20),
    Kind(name="whole reply", texts=2, is_stream=False),
)


@dataclass(kw_only=True)
class RequestTotals:
    """Rounds of one gateway with one kind of reply."""

    gateway: str
    kind: str
    cpu_us: list[float] = field(default_factory=list)
    """CPU time per request, for each round."""
    per_s: list[float] = field(default_factory=list)
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """Figures of one gateway with one kind of reply."""

    gateway: str
    kind: str
    cpu_us: float | None
    per_s: float
    failed: int


@dataclass(frozen=True, kw_only=True)
class BurstRow:
    """Time to the first text of requests that are sent at the same moment."""

    gateway: str
    first_p50_s: float | None
    first_max_s: float | None
    failed: int


class RequestBench:
    """Measures running gateways, which all forward to the upstream's port."""

    def __init__(self, programs: Programs, *, core: int | None, seconds: float, rounds: int) -> None:
        self._programs = programs
        self._core = core
        self._seconds = seconds
        self._rounds = rounds
        self.failures: set[str] = set()

    def closed_loop(self, targets: Sequence[tuple[str, int, Running | None]]) -> list[RequestRow]:
        """Measure `targets` (name, port, process) in alternating order."""
        rows = []
        for kind in KINDS:
            all_totals = [RequestTotals(gateway=name, kind=kind.name) for name, _, _ in targets]
            pairs = list(zip(all_totals, targets, strict=True))
            for number in range(self._rounds):
                for totals, (name, port, process) in pairs if number % 2 == 0 else reversed(pairs):
                    print_progress(f"{name}, {kind.name}, round {number + 1} of {self._rounds}")
                    self._closed_loop_round(totals, kind, port, process)
            rows += [_row(totals) for totals in all_totals]
        return rows

    def bursts(self, targets: Sequence[tuple[str, int, Running | None]]) -> list[BurstRow]:
        """Measure bursts of requests."""
        first_s: dict[str, list[float]] = {name: [] for name, _, _ in targets}
        failed = dict.fromkeys(first_s, 0)
        for number in range(2 * self._rounds):
            for name, port, _ in targets if number % 2 == 0 else reversed(targets):
                print_progress(f"{name}, burst {number + 1} of {2 * self._rounds}")
                now = time.monotonic()
                plan = Plan(
                    streams=BURST,
                    texts=BURST_TEXTS,
                    start=now + 0.2,
                    step_s=0.0,
                    since=now,
                    until=now,
                    limit=now + _LIMIT_S,
                )
                result = self._read(name, port, plan)
                first_s[name] += result.first_s
                failed[name] += result.failed
        return [
            BurstRow(
                gateway=name,
                first_p50_s=median(times) if times else None,
                first_max_s=max(times, default=None),
                failed=failed[name],
            )
            for name, times in first_s.items()
        ]

    def _closed_loop_round(self, totals: RequestTotals, kind: Kind, port: int, process: Running | None) -> None:
        start = time.monotonic() + 0.2
        since, until = start + _WARM_S, start + _WARM_S + self._seconds
        plan = Plan(
            streams=CONNECTIONS,
            texts=kind.texts,
            start=start,
            step_s=0.0,
            since=since,
            until=until,
            limit=until + _LIMIT_S,
            repeats=True,
            is_stream=kind.is_stream,
        )
        reader = Reader(self._programs, port=port, plan=plan, core=self._core)
        before, after = _usage_at(since, process), _usage_at(until, process)
        result = reader.end(plan.limit - time.monotonic())
        self._note(totals.gateway, result)
        totals.failed += result.failed
        totals.per_s.append(result.complete_between / self._seconds)
        if process is not None and result.complete_between:
            cpu_s = after.user_s + after.system_s - before.user_s - before.system_s
            totals.cpu_us.append(cpu_s * 1e6 / result.complete_between)

    def _read(self, name: str, port: int, plan: Plan) -> ReaderResult:
        result = Reader(self._programs, port=port, plan=plan, core=self._core).end(_LIMIT_S)
        self._note(name, result)
        return result

    def _note(self, name: str, result: ReaderResult) -> None:
        self.failures.update(f"{name}: {reason}" for reason in result.reasons)


def _usage_at(when: float, process: Running | None) -> Usage:
    time.sleep(max(0.0, when - time.monotonic()))
    return Usage(0.0, 0.0, 0) if process is None else read_usage(process.pid)


def _row(totals: RequestTotals) -> RequestRow:
    return RequestRow(
        gateway=totals.gateway,
        kind=totals.kind,
        cpu_us=median(totals.cpu_us) if totals.cpu_us else None,
        per_s=median(totals.per_s),
        failed=totals.failed,
    )


def request_bars(rows: Sequence[RequestRow], bursts: Sequence[BurstRow], direct: str) -> list[Bar]:
    """Limits for welldone."""
    cpu = {(row.gateway, row.kind): row.cpu_us for row in rows}
    first = {row.gateway: row.first_p50_s for row in bursts}
    found = []
    for peer, limit in ((SMG, SMG_LIMIT), (NGINX, NGINX_LIMIT)):
        ours, theirs = cpu.get((OURS, KINDS[0].name)), cpu.get((peer, KINDS[0].name))
        ratio = None if ours is None or not theirs else ours / theirs
        found.append(_bar(f"CPU per request / {peer}", CONNECTIONS, ratio, limit, " x"))
    ours, theirs = first.get(OURS), first.get(direct)
    added_ms = None if ours is None or theirs is None else (ours - theirs) * 1e3
    return [*found, _bar("first text added in a burst", BURST, added_ms, BURST_LIMIT_MS, " ms")]


def _bar(name: str, streams: int, figure: float | None, limit: float, unit: str) -> Bar:
    passed = figure is not None and figure <= limit
    return Bar(name=name, streams=streams, figure=figure, limit=limit, passed=passed, unit=unit)


def format_requests(rows: Sequence[RequestRow], bursts: Sequence[BurstRow]) -> str:
    """Format both tables."""
    lines = [f"{CONNECTIONS} connections, each sends a request after each reply", ""]
    lines.append(f"  {'gateway':<14}{'reply':<13}{'CPU µs/request':>15}{'requests/s':>12}{'failed':>8}")
    lines += [
        f"  {row.gateway:<14}{row.kind:<13}{format_number(row.cpu_us, 1, 0):>15}{row.per_s:>12,.0f}{row.failed:>8}"
        for row in rows
    ]
    lines += ["", f"{BURST} requests at the same moment", "", f"  {'gateway':<14}{'first text p50, ms':>19}{'max':>8}"]
    lines += [
        f"  {row.gateway:<14}{format_number(row.first_p50_s, 1e3, 1):>19}{format_number(row.first_max_s, 1e3, 1):>8}"
        for row in bursts
    ]
    return "\n".join(lines)
