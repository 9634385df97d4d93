"""Figures of one target (bare engine or welldone) at one level of load, and their limits."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from load import LoadResult  # isort: skip  # same folder: a script's own folder is on the path

THROUGHPUT_LIMIT = 0.97
"""Lowest share of the bare engine's tokens per second."""
FIRST_LIMIT_MS = 5.0
"""Highest delay that welldone may add to the first token."""
MIN_SAMPLES_ABOVE = 10
"""A percentile is shown only if at least this many samples lie above it."""


def percentile(samples: Sequence[float], percent: int) -> float | None:
    """Return the percentile, or None with too few samples."""
    rank = len(samples) * percent // 100
    return sorted(samples)[rank] if len(samples) - rank >= MIN_SAMPLES_ABOVE else None


@dataclass(kw_only=True)
class Totals:
    """Sums over all rounds of one target at one level."""

    target: str
    streams: int
    answers: int = 0
    failed: list[str] = field(default_factory=list)
    tokens: int = 0
    frames: int = 0
    seconds: float = 0.0
    server_cpu_s: float = 0.0
    load_cpu_s: float = 0.0
    first_s: list[float] = field(default_factory=list)
    between_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Tokens per second, by round."""

    def add(self, result: LoadResult, server_cpu_s: float) -> None:
        """Add one round."""
        self.answers += len(result.first_s)
        self.failed += result.failed
        self.tokens += result.tokens
        self.frames += result.frames
        self.seconds += result.seconds
        self.server_cpu_s += server_cpu_s
        self.load_cpu_s += result.cpu_s
        self.first_s += result.first_s
        self.between_s += result.between_s
        self.rates.append(result.tokens / result.seconds)


@dataclass(frozen=True, kw_only=True)
class Row:
    """Row of the report. None: too few samples."""

    target: str
    streams: int
    answers: int
    failed: int
    tokens: int
    frames: int
    seconds: float
    tokens_per_s: float
    tokens_per_s_by_round: list[float]
    first_p50_s: float | None
    first_p90_s: float | None
    first_p99_s: float | None
    between_p50_s: float | None
    between_p90_s: float | None
    between_p99_s: float | None
    server_cpu_s_per_1000_tokens: float | None
    """Of welldone's own process, everything included. For the bare engine: the cost of reading the engine's log."""
    server_cpu_s_per_frame: float | None
    load_cores: float
    """Share of a core that the load generator used."""


def row(totals: Totals) -> Row:
    """Compute the row of the report."""
    return Row(
        target=totals.target,
        streams=totals.streams,
        answers=totals.answers,
        failed=len(totals.failed),
        tokens=totals.tokens,
        frames=totals.frames,
        seconds=totals.seconds,
        tokens_per_s=totals.tokens / totals.seconds,
        tokens_per_s_by_round=totals.rates,
        first_p50_s=percentile(totals.first_s, 50),
        first_p90_s=percentile(totals.first_s, 90),
        first_p99_s=percentile(totals.first_s, 99),
        between_p50_s=percentile(totals.between_s, 50),
        between_p90_s=percentile(totals.between_s, 90),
        between_p99_s=percentile(totals.between_s, 99),
        server_cpu_s_per_1000_tokens=totals.server_cpu_s / totals.tokens * 1000 if totals.tokens else None,
        server_cpu_s_per_frame=totals.server_cpu_s / totals.frames if totals.frames else None,
        load_cores=totals.load_cpu_s / totals.seconds,
    )


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Measured figure and its limit. None: too few samples, or not measured."""

    name: str
    streams: int
    figure: float | None
    limit: float
    passed: bool
    unit: str = ""
    note: str = ""


def bars(bare: Row, ours: Row, slots: int) -> list[Bar]:
    """Return the limits of one level."""
    failed = bare.failed + ours.failed
    return [
        throughput(bare, ours, THROUGHPUT_LIMIT),
        _first_token(bare, ours, slots),
        Bar(name="failed answers", streams=ours.streams, figure=failed, limit=0, passed=failed == 0),
    ]


def throughput(bare: Row, ours: Row, limit: float) -> Bar:
    """Compare tokens per second with the bare engine."""
    rounds = list(zip(ours.tokens_per_s_by_round, bare.tokens_per_s_by_round, strict=True))
    ratios = [mine / theirs for mine, theirs in rounds if theirs]
    if not ratios:
        return Bar(name="tokens/s, ratio", streams=ours.streams, figure=None, limit=limit, passed=False)
    ratio = ours.tokens_per_s / bare.tokens_per_s
    # If the bare engine's own rounds differ by more than the limit allows, the ratio shows noise of the machine.
    noise = max(bare.tokens_per_s_by_round) / min(theirs for _, theirs in rounds if theirs) - 1
    return Bar(
        name="tokens/s, ratio",
        streams=ours.streams,
        figure=ratio,
        limit=limit,
        passed=ratio >= limit,
        note=f"{min(ratios):.3f} to {max(ratios):.3f} by round; the bare engine's own rounds differ by {noise:.0%}",
    )


def _first_token(bare: Row, ours: Row, slots: int) -> Bar:
    limit, note = FIRST_LIMIT_MS, ""
    if bare.first_p50_s is None or ours.first_p50_s is None:
        added_ms = None
    else:
        added_ms = (ours.first_p50_s - bare.first_p50_s) * 1e3
        if ours.streams > slots:
            # A request that waits for a slot waits for other answers, which the throughput limit allows to be slower.
            limit += (1 / THROUGHPUT_LIMIT - 1) * bare.first_p50_s * 1e3
            note = f"{FIRST_LIMIT_MS:g} ms, and 3 % of the wait for a slot"
    passed = added_ms is not None and added_ms <= limit
    return Bar(
        name="first token p50, more",
        streams=ours.streams,
        figure=added_ms,
        limit=round(limit, 1),
        passed=passed,
        unit=" ms",
        note=note,
    )


def format_number(value: float | None, factor: float, digits: int) -> str:
    """Format a figure; None is a dash."""
    return "-" if value is None else f"{value * factor:.{digits}f}"


def print_progress(text: str) -> None:
    """Print progress to a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def print_json(report: Any) -> None:  # noqa: ANN401 - any dataclass
    """Print the report as JSON."""
    print(json.dumps(asdict(report), indent=1))


def all_passed(bars: Sequence[Bar]) -> bool:
    """Return whether all limits hold."""
    return all(bar.passed for bar in bars)
