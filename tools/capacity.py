"""What so many streams need, on paper: `python tools/capacity.py --streams 1000000 --tokens-per-second 30`.

The figures are those of docs/scaling.json, each measured by a program of this repository. They are of one machine:
`--figure chunk_us=12` puts in one of yours.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "docs" / "scaling.json"
_BUSY = 0.6  # of a core: beyond that the slowest token of a hundred waits for others
_MACHINE_CORES, _MACHINE_GB, _MACHINE_GBIT = 16, 64, 25  # a front's machine, as clouds sell them
_MACHINE_FILES = 1_048_576  # what Linux gives a process at most, if it is asked to
_SOCKETS = 2  # of a stream: its client's, and its engine's
RATE, ANSWER = 30.0, 500.0
"""Tokens a second of a stream, and tokens of an answer, where nobody says else."""
STEPS = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked for."""

    streams: int
    tokens_per_second: float
    """Of each stream; a token is a chunk."""
    answer_tokens: float
    """After which a stream ends and another one begins."""

    @property
    def chunks_per_second(self) -> float:
        """Of all streams."""
        return self.streams * self.tokens_per_second

    @property
    def requests_per_second(self) -> float:
        """That begin."""
        return self.chunks_per_second / self.answer_tokens


@dataclass(frozen=True, kw_only=True)
class Need:
    """What that takes."""

    cores: float
    proxy_cores: float
    """What Ray's proxies take on top, where streams go through them."""
    memory_gb: float
    gbit: float
    files: int
    machines: int
    redis_cores: float
    gpus: int


def need(load: Load, figures: Mapping[str, float]) -> Need:
    """What so many streams take of fronts, store and engines."""
    chunk_s = figures["chunk_us"] / 1e6
    cores = (load.chunks_per_second * chunk_s + load.requests_per_second * figures["request_us"] / 1e6) / _BUSY
    memory_gb = (load.streams * figures["stream_kb"] / 1e6) + math.ceil(cores) * figures["process_mb"] / 1e3
    gbit = load.chunks_per_second * figures["chunk_bytes"] * 8 / 1e9
    files = _SOCKETS * load.streams
    return Need(
        cores=cores,
        proxy_cores=load.chunks_per_second * figures["proxy_chunk_us"] / 1e6 / _BUSY,
        memory_gb=memory_gb,
        gbit=gbit,
        files=files,
        machines=math.ceil(max(cores / _MACHINE_CORES, memory_gb / _MACHINE_GB, gbit / _MACHINE_GBIT)),
        redis_cores=load.requests_per_second / figures["store_per_second"],
        gpus=math.ceil(load.chunks_per_second / figures["gpu_tokens_per_second"]),
    )


def limits(figures: Mapping[str, float], tokens_per_second: float, answer_tokens: float) -> list[tuple[str, float]]:
    """How many streams each thing carries at most, of one machine of fronts; what gives out first comes first."""
    one = need(Load(streams=1_000_000, tokens_per_second=tokens_per_second, answer_tokens=answer_tokens), figures)
    most = [
        ("one GPU of the kind that was measured", figures["gpu_tokens_per_second"] / tokens_per_second),
        ("one core of a front", 1e6 / one.cores),
        (f"the {_MACHINE_CORES} cores of a machine", _MACHINE_CORES * 1e6 / one.cores),
        (f"the files of {_MACHINE_CORES} processes", _MACHINE_CORES * _MACHINE_FILES / _SOCKETS),
        (f"its {_MACHINE_GB} GB of memory", _MACHINE_GB * 1e6 / one.memory_gb),
        (f"its {_MACHINE_GBIT} Gbit/s", _MACHINE_GBIT * 1e6 / one.gbit),
        ("one Redis", 1e6 / one.redis_cores),
    ]
    return sorted(most, key=lambda row: row[1])


def table_of_needs(
    figures: Mapping[str, float], tokens_per_second: float, answer_tokens: float, steps: Iterable[int] = STEPS
) -> list[str]:
    """A row for each number of streams."""
    rows = []
    for streams in steps:
        load = Load(streams=streams, tokens_per_second=tokens_per_second, answer_tokens=answer_tokens)
        found = need(load, figures)
        rows.append(
            [
                f"{streams:,}",
                f"{load.chunks_per_second:,.0f}",
                f"{load.requests_per_second:,.0f}",
                _amount(found.cores),
                f"{found.memory_gb:,.1f} GB",
                f"{found.gbit:,.2f}",
                f"{found.machines:,}",
                _amount(found.proxy_cores),
                f"{100 * found.redis_cores:,.1f} %",
                f"{found.gpus:,}",
            ]
        )
    head = ["streams", "chunks/s", "requests/s", "front cores", "memory", "Gbit/s", "machines of fronts"]
    return _table([*head, "Ray's proxies, cores on top", "of one Redis", "GPUs"], rows)


def table_of_limits(figures: Mapping[str, float], tokens_per_second: float, answer_tokens: float) -> list[str]:
    """What gives out first."""
    rows = [[name, f"{_rounded(count):,}"] for name, count in limits(figures, tokens_per_second, answer_tokens)]
    return _table(["what", "streams that it carries"], rows)


def table_of_figures(entries: Mapping[str, Mapping[str, object]]) -> list[str]:
    """What was measured, and how."""
    rows = [[str(one["says"]), f"{one['value']:,} {one['unit']}", str(one["by"])] for one in entries.values()]
    return _table(["figure", "measured", "by"], rows)


def read(path: Path = FIGURES) -> dict[str, dict[str, object]]:
    """The figures, with what is said of them."""
    entries: dict[str, dict[str, object]] = json.loads(path.read_text())["figures"]
    return entries


def draw(text: str, path: Path = FIGURES) -> str:
    """The page with its tables anew: each stands between two comments that say which it is."""
    entries, measured = read(path), json.loads(path.read_text())["measured"]
    blocks = {
        "figures": table_of_figures(entries),
        "needs": table_of_needs(values(entries), RATE, ANSWER),
        "limits": table_of_limits(values(entries), RATE, ANSWER),
        **{name: _table(table["head"], table["rows"]) for name, table in measured.items()},
    }
    for name, lines in blocks.items():
        before, first, rest = text.partition(f"<!-- {name} -->\n")
        _, last, after = rest.partition(f"<!-- /{name} -->")
        if not (first and last):
            raise ValueError(f"the page has no place for {name}")
        text = before + first + "\n".join(lines) + "\n" + last + after
    return text


def values(entries: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """The bare numbers."""
    return {name: float(str(one["value"])) for name, one in entries.items()}


def _amount(count: float) -> str:
    return f"{count:,.2f}" if count < 10 else f"{count:,.0f}"


def _rounded(count: float) -> int:
    """Two digits: more would say more than is known."""
    places = max(0, math.floor(math.log10(count)) - 1) if count >= 1 else 0
    return int(round(count / 10**places) * 10**places)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def main() -> int:
    """Print the tables for what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=float, help="so many at once, instead of the steps up to a million")
    parser.add_argument("--tokens-per-second", type=float, default=RATE, metavar="N", help="of each stream [30]")
    parser.add_argument("--answer-tokens", type=float, default=ANSWER, metavar="N", help="of an answer [500]")
    parser.add_argument("--figure", action="append", default=[], metavar="NAME=VALUE", help="one of yours")
    options = parser.parse_args()
    figures = values(read())
    for given in options.figure:
        name, _, value = given.partition("=")
        if name not in figures:
            parser.error(f"there is no figure {name!r}; there are {', '.join(figures)}")
        figures[name] = float(value)
    steps = (int(options.streams),) if options.streams else STEPS
    rate, answer = options.tokens_per_second, options.answer_tokens
    for line in (*table_of_needs(figures, rate, answer, steps), "", *table_of_limits(figures, rate, answer)):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
