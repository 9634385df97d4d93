"""Figures of a gateway, and the limits for welldone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from figures import Bar, percentile  # isort: skip  # same folder: a script's own folder is on the path
from c_programs import ReaderResult  # isort: skip
from process_usage import Usage  # isort: skip

OURS, NGINX, SGLANG, LITELLM = "welldone", "nginx", "sglang-router", "litellm"
OURS_OFF = "welldone-off"
"""welldone with `--continue off`: it records nothing of what it sends."""

OFF_LIMIT = 1.03
"""Highest multiple of its CPU time."""
NGINX_LIMIT = 2.2
"""Highest multiple of nginx's CPU time; nginx repairs nothing."""
LITELLM_LIMIT = 30
"""LiteLLM must need at least this multiple of welldone's CPU time."""
STREAM_LIMIT_KB = 64
"""Memory per open stream: the buffers that Envoy's edge guide recommends (32 + 32 KiB)."""
MANY_STREAMS = 1000
"""Concurrent streams on one core."""
MANY_STREAMS_LIMIT_KB = 32
"""Memory per open stream with that many, where what the process allocates once no longer counts."""
GAP_LIMIT_MS = 250
"""Longest gap between two texts with that many streams."""
LONG_RUN_CHUNKS = 1_000_000
"""Number of chunks over which memory must not grow."""
GROWTH_LIMIT_KB = 1000
"""About one byte per chunk: a leak per chunk, or per answer of 500 chunks, would be far larger."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of one gateway."""

    result: ReaderResult
    user_s: float
    system_s: float
    rss_bytes: int
    """Memory while all streams are open."""

    @property
    def user_us(self) -> float:
        """User CPU time per chunk."""
        return self.user_s * 1e6 / max(1, self.result.texts_between)

    @property
    def system_us(self) -> float:
        """System CPU time per chunk."""
        return self.system_s * 1e6 / max(1, self.result.texts_between)


@dataclass(kw_only=True)
class Totals:
    """All rounds of one gateway. `idle`: usage before the first round; None for a direct connection."""

    name: str
    streams: int
    idle: Usage | None
    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the report: medians over the rounds, except for the longest gap and the peak memory."""

    name: str
    streams: int
    rounds: int
    chunks: int
    failed: int
    cpu_us: float | None
    """Per chunk while all streams are open; the cost of opening requests is not included."""
    cpu_us_by_round: list[float]
    user_us: float | None
    system_us: float | None
    first_p50_s: float | None
    first_p90_s: float | None
    gap_p50_s: float
    gap_p99_s: float
    gap_max_s: float
    rss_bytes: int | None
    bytes_per_stream: float | None


def row(totals: Totals) -> Row:
    """Compute the row of the report."""
    result = [round.result for round in totals.rounds]
    firsts = [first for one in result for first in one.first_s]
    rss = max(round.rss_bytes for round in totals.rounds)
    is_gateway = totals.idle is not None
    costs = [round.user_us + round.system_us for round in totals.rounds]
    return Row(
        name=totals.name,
        streams=totals.streams,
        rounds=len(totals.rounds),
        chunks=sum(one.texts for one in result),
        failed=sum(one.failed for one in result),
        cpu_us=median(costs) if is_gateway else None,
        cpu_us_by_round=costs if is_gateway else [],
        user_us=median(round.user_us for round in totals.rounds) if is_gateway else None,
        system_us=median(round.system_us for round in totals.rounds) if is_gateway else None,
        first_p50_s=percentile(firsts, 50),
        first_p90_s=percentile(firsts, 90),
        gap_p50_s=median(one.gap_p50_s for one in result),
        gap_p99_s=median(one.gap_p99_s for one in result),
        gap_max_s=max(one.gap_max_s for one in result),
        rss_bytes=rss if is_gateway else None,
        bytes_per_stream=(rss - totals.idle.rss_bytes) / totals.streams if totals.idle is not None else None,
    )


def bars(rows: Mapping[str, Row], wanted: Sequence[str]) -> list[Bar]:
    """Compare welldone with the other gateways. A requested gateway that is not installed has no figure."""
    ours = rows[OURS]
    found = [_stream_memory(ours), _failed_streams(ours)]
    if OURS_OFF in wanted:
        found.insert(0, _cpu_ratio(OURS_OFF, ours, rows.get(OURS_OFF), OFF_LIMIT))
    if LITELLM in wanted:
        found.insert(0, _litellm_ratio(LITELLM, rows.get(LITELLM), ours))
    if NGINX in wanted:
        found.insert(0, _cpu_ratio(NGINX, ours, rows.get(NGINX), NGINX_LIMIT))
    if SGLANG in wanted:
        found.insert(0, _cpu_ratio(SGLANG, ours, rows.get(SGLANG), 1))
    return found


def _cpu_ratio(name: str, ours: Row, theirs: Row | None, limit: float) -> Bar:
    ratio, note = _ratio(ours, theirs)
    passed = ratio is not None and ratio <= limit
    return _bar(f"CPU per chunk, of {name}'s", ours, ratio, limit, passed=passed, unit=" x", note=note)


def _litellm_ratio(name: str, theirs: Row | None, ours: Row) -> Bar:
    ratio = _ratio(theirs, ours)[0] if theirs is not None else None
    passed = ratio is not None and ratio >= LITELLM_LIMIT
    return _bar(f"CPU per chunk, {name}'s of ours", ours, ratio, LITELLM_LIMIT, passed=passed, unit=" x")


def _ratio(one: Row, other: Row | None) -> tuple[float | None, str]:
    if other is None or one.cpu_us is None or not other.cpu_us:
        return None, "not measured"
    pairs = zip(one.cpu_us_by_round, other.cpu_us_by_round, strict=False)
    by_round = [mine / theirs for mine, theirs in pairs if theirs]
    return one.cpu_us / other.cpu_us, f"{min(by_round):.2f} to {max(by_round):.2f} by round" if by_round else ""


def _stream_memory(ours: Row, limit_kb: int = STREAM_LIMIT_KB) -> Bar:
    used_kb = None if ours.bytes_per_stream is None else ours.bytes_per_stream / 1024
    passed = used_kb is not None and used_kb <= limit_kb
    return _bar("memory per stream", ours, used_kb, limit_kb, passed=passed, unit=" KB")


def _failed_streams(ours: Row) -> Bar:
    return _bar("failed streams", ours, ours.failed, 0, passed=ours.failed == 0)


def many_streams_bars(ours: Row) -> list[Bar]:
    """Return the limits with many streams."""
    gap = ours.gap_max_s * 1e3
    longest = _bar("longest gap", ours, gap, GAP_LIMIT_MS, passed=gap <= GAP_LIMIT_MS, unit=" ms")
    return [longest, _stream_memory(ours, MANY_STREAMS_LIMIT_KB), _failed_streams(ours)]


def growth_bar(streams: int, chunks: int, growth_bytes: int) -> Bar:
    """Return the limit of memory growth over many chunks."""
    growth = growth_bytes / 1024
    passed = chunks >= LONG_RUN_CHUNKS and growth <= GROWTH_LIMIT_KB
    return Bar(
        name="memory growth",
        streams=streams,
        figure=growth,
        limit=GROWTH_LIMIT_KB,
        passed=passed,
        unit=" KB",
        note=f"over {chunks:,} chunks",
    )


def _bar(
    name: str, ours: Row, figure: float | None, limit: float, *, passed: bool, unit: str = "", note: str = ""
) -> Bar:
    return Bar(name=name, streams=ours.streams, figure=figure, limit=limit, passed=passed, unit=unit, note=note)
