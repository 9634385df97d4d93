"""What was measured of a gateway, what is shown of it, and what is wanted of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from figures import Bar, percentile  # isort: skip  # neighbours: a script's own folder is on the path
from programs import Heard  # isort: skip
from usage import Used  # isort: skip

OURS, NGINX, SGLANG, LITELLM = "welldone", "nginx", "sglang-router", "litellm"

NGINX_LIMIT = 2.2
"""Times the CPU of nginx, which repairs nothing."""
LITELLM_LIMIT = 30
"""So many times more is LiteLLM's."""
STREAM_LIMIT_KB = 64
"""Of memory for an open stream, as the edge guide of Envoy sets its buffers (32 and 32 KiB)."""
MANY = 1000
"""Streams at once on one core."""
GAP_LIMIT_MS = 250
"""The longest that a reader of such a stream may wait for the next text."""
LONG = 1_000_000
"""Chunks over which memory must not grow."""
GROWTH_LIMIT_KB = 1000
"""A byte for each of them: what is kept of a chunk, or of an answer of 500, would be far more."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One gateway, for some seconds."""

    heard: Heard
    user_s: float
    system_s: float
    rss_bytes: int
    """With all streams open."""

    @property
    def user_us(self) -> float:
        """CPU of a chunk, outside the kernel."""
        return self.user_s * 1e6 / max(1, self.heard.texts_between)

    @property
    def system_us(self) -> float:
        """CPU of a chunk, inside the kernel."""
        return self.system_s * 1e6 / max(1, self.heard.texts_between)


@dataclass(kw_only=True)
class Tally:
    """All rounds of one gateway with so many streams. Idle: before the first one. None: there is no gateway."""

    name: str
    streams: int
    idle: Used | None
    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is shown of a tally; the median of its rounds, but for the longest gap and the most memory."""

    name: str
    streams: int
    rounds: int
    chunks: int
    failed: int
    cpu_us: float | None
    """Of a chunk, while all streams are open: what a request costs besides is not in it."""
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


def row(tally: Tally) -> Row:
    """What is shown of it."""
    heard = [round.heard for round in tally.rounds]
    firsts = [first for one in heard for first in one.first_s]
    rss = max(round.rss_bytes for round in tally.rounds)
    is_gateway = tally.idle is not None
    costs = [round.user_us + round.system_us for round in tally.rounds]
    return Row(
        name=tally.name,
        streams=tally.streams,
        rounds=len(tally.rounds),
        chunks=sum(one.texts for one in heard),
        failed=sum(one.failed for one in heard),
        cpu_us=median(costs) if is_gateway else None,
        cpu_us_by_round=costs if is_gateway else [],
        user_us=median(round.user_us for round in tally.rounds) if is_gateway else None,
        system_us=median(round.system_us for round in tally.rounds) if is_gateway else None,
        first_p50_s=percentile(firsts, 50),
        first_p90_s=percentile(firsts, 90),
        gap_p50_s=median(one.gap_p50_s for one in heard),
        gap_p99_s=median(one.gap_p99_s for one in heard),
        gap_max_s=max(one.gap_max_s for one in heard),
        rss_bytes=rss if is_gateway else None,
        bytes_per_stream=(rss - tally.idle.rss_bytes) / tally.streams if tally.idle is not None else None,
    )


def bars(rows: Mapping[str, Row], wanted: Sequence[str]) -> list[Bar]:
    """What is wanted of us beside the others. One of them that was wanted and is not there leaves its bar open."""
    ours = rows[OURS]
    found = [_stream(ours), _failed(ours)]
    if LITELLM in wanted:
        found.insert(0, _times(LITELLM, rows.get(LITELLM), ours))
    if NGINX in wanted:
        found.insert(0, _cost(NGINX, ours, rows.get(NGINX), NGINX_LIMIT))
    if SGLANG in wanted:
        found.insert(0, _cost(SGLANG, ours, rows.get(SGLANG), 1))
    return found


def _cost(name: str, ours: Row, theirs: Row | None, limit: float) -> Bar:
    ratio, note = _ratio(ours, theirs)
    is_kept = ratio is not None and ratio <= limit
    return _bar(f"CPU per chunk, of {name}'s", ours, ratio, limit, is_kept=is_kept, unit=" x", note=note)


def _times(name: str, theirs: Row | None, ours: Row) -> Bar:
    ratio = _ratio(theirs, ours)[0] if theirs is not None else None
    is_kept = ratio is not None and ratio >= LITELLM_LIMIT
    return _bar(f"CPU per chunk, {name}'s of ours", ours, ratio, LITELLM_LIMIT, is_kept=is_kept, unit=" x")


def _ratio(one: Row, other: Row | None) -> tuple[float | None, str]:
    if other is None or one.cpu_us is None or not other.cpu_us:
        return None, "not measured"
    pairs = zip(one.cpu_us_by_round, other.cpu_us_by_round, strict=False)
    by_round = [mine / theirs for mine, theirs in pairs if theirs]
    return one.cpu_us / other.cpu_us, f"{min(by_round):.2f} to {max(by_round):.2f} by round" if by_round else ""


def _stream(ours: Row) -> Bar:
    used = None if ours.bytes_per_stream is None else ours.bytes_per_stream / 1024
    is_kept = used is not None and used <= STREAM_LIMIT_KB
    return _bar("memory per stream", ours, used, STREAM_LIMIT_KB, is_kept=is_kept, unit=" KB")


def _failed(ours: Row) -> Bar:
    return _bar("failed streams", ours, ours.failed, 0, is_kept=ours.failed == 0)


def bars_of_many(ours: Row) -> list[Bar]:
    """What is wanted with many streams."""
    gap = ours.gap_max_s * 1e3
    longest = _bar("longest gap", ours, gap, GAP_LIMIT_MS, is_kept=gap <= GAP_LIMIT_MS, unit=" ms")
    return [longest, _stream(ours), _failed(ours)]


def bar_of_long(streams: int, chunks: int, growth_bytes: int) -> Bar:
    """What is wanted over many chunks."""
    growth = growth_bytes / 1024
    is_kept = chunks >= LONG and growth <= GROWTH_LIMIT_KB
    return Bar(
        name="memory grown",
        streams=streams,
        figure=growth,
        limit=GROWTH_LIMIT_KB,
        is_kept=is_kept,
        unit=" KB",
        note=f"over {chunks:,} chunks",
    )


def _bar(
    name: str, ours: Row, figure: float | None, limit: float, *, is_kept: bool, unit: str = "", note: str = ""
) -> Bar:
    return Bar(name=name, streams=ours.streams, figure=figure, limit=limit, is_kept=is_kept, unit=unit, note=note)
