"""What was measured of one way at one level, what is shown of it, and what is wanted."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from load import Heard  # isort: skip  # a neighbour: a script's own folder is on the path

THROUGHPUT_LIMIT = 0.97
"""Of the bare engine's tokens a second."""
FIRST_LIMIT_MS = 5.0
"""So much later than the bare engine's may the first token come."""
ABOVE = 10
"""So many samples lie above a percentile that is shown."""


def percentile(samples: Sequence[float], percent: int) -> float | None:
    """The percentile, where enough samples lie above it."""
    place = len(samples) * percent // 100
    return sorted(samples)[place] if len(samples) - place >= ABOVE else None


@dataclass(kw_only=True)
class Tally:
    """All rounds of one way at one level."""

    way: str
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
    """Tokens a second, round by round."""

    def add(self, heard: Heard, server_cpu_s: float) -> None:
        """One more round."""
        self.answers += len(heard.first_s)
        self.failed += heard.failed
        self.tokens += heard.tokens
        self.frames += heard.frames
        self.seconds += heard.seconds
        self.server_cpu_s += server_cpu_s
        self.load_cpu_s += heard.cpu_s
        self.first_s += heard.first_s
        self.between_s += heard.between_s
        self.rates.append(heard.tokens / heard.seconds)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is shown of a tally. None: too few samples."""

    way: str
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
    """Of welldone's own process, with all that a request costs. Past it: what it takes to read its engine's log."""
    server_cpu_s_per_frame: float | None
    load_cores: float
    """How much of a core the load generator took."""


def row(tally: Tally) -> Row:
    """What is shown of it."""
    return Row(
        way=tally.way,
        streams=tally.streams,
        answers=tally.answers,
        failed=len(tally.failed),
        tokens=tally.tokens,
        frames=tally.frames,
        seconds=tally.seconds,
        tokens_per_s=tally.tokens / tally.seconds,
        tokens_per_s_by_round=tally.rates,
        first_p50_s=percentile(tally.first_s, 50),
        first_p90_s=percentile(tally.first_s, 90),
        first_p99_s=percentile(tally.first_s, 99),
        between_p50_s=percentile(tally.between_s, 50),
        between_p90_s=percentile(tally.between_s, 90),
        between_p99_s=percentile(tally.between_s, 99),
        server_cpu_s_per_1000_tokens=tally.server_cpu_s / tally.tokens * 1000 if tally.tokens else None,
        server_cpu_s_per_frame=tally.server_cpu_s / tally.frames if tally.frames else None,
        load_cores=tally.load_cpu_s / tally.seconds,
    )


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What was wanted, and what came. None: too few samples to tell."""

    name: str
    streams: int
    figure: float | None
    limit: float
    is_kept: bool
    unit: str = ""
    note: str = ""


def bars(bare: Row, ours: Row, slots: int) -> list[Bar]:
    """What is wanted of a level."""
    failed = bare.failed + ours.failed
    return [
        throughput(bare, ours, THROUGHPUT_LIMIT),
        _first(bare, ours, slots),
        Bar(name="failed answers", streams=ours.streams, figure=failed, limit=0, is_kept=failed == 0),
    ]


def throughput(bare: Row, ours: Row, limit: float) -> Bar:
    """The share of the bare engine's tokens a second."""
    rounds = list(zip(ours.tokens_per_s_by_round, bare.tokens_per_s_by_round, strict=True))
    ratios = [mine / theirs for mine, theirs in rounds if theirs]
    if not ratios:
        return Bar(name="tokens/s, ratio", streams=ours.streams, figure=None, limit=limit, is_kept=False)
    ratio = ours.tokens_per_s / bare.tokens_per_s
    # Where the bare engine differs from itself by more than the bar allows us, the machine was measured.
    noise = max(bare.tokens_per_s_by_round) / min(theirs for _, theirs in rounds if theirs) - 1
    return Bar(
        name="tokens/s, ratio",
        streams=ours.streams,
        figure=ratio,
        limit=limit,
        is_kept=ratio >= limit,
        note=f"{min(ratios):.3f} to {max(ratios):.3f} by round; the bare engine's own rounds differ by {noise:.0%}",
    )


def _first(bare: Row, ours: Row, slots: int) -> Bar:
    limit, note = FIRST_LIMIT_MS, ""
    if bare.first_p50_s is None or ours.first_p50_s is None:
        more = None
    else:
        more = (ours.first_p50_s - bare.first_p50_s) * 1e3
        if ours.streams > slots:
            # Who waits for a slot waits for the answers of others. Those may be slower by what the throughput may be.
            limit += (1 / THROUGHPUT_LIMIT - 1) * bare.first_p50_s * 1e3
            note = f"{FIRST_LIMIT_MS:g} ms, and 3 % of the wait for a slot"
    is_kept = more is not None and more <= limit
    return Bar(
        name="first token p50, more",
        streams=ours.streams,
        figure=more,
        limit=round(limit, 1),
        is_kept=is_kept,
        unit=" ms",
        note=note,
    )


def number(value: float | None, factor: float, digits: int) -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value * factor:.{digits}f}"


def note(text: str) -> None:
    """What happens now, for one who watches."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def print_json(report: Any) -> None:  # noqa: ANN401 - any dataclass
    """All figures, for programs."""
    print(json.dumps(asdict(report), indent=1))


def all_kept(bars: Sequence[Bar]) -> bool:
    """Whether all is as it was wanted."""
    return all(bar.is_kept for bar in bars)
