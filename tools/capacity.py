"""Calculate the resources for a number of streams: `tools/capacity.py --streams 1000000 --tokens-per-second 30`.

The figures in docs/scaling.json were each measured on one machine; `--figure chunk_us=12` overrides one.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "docs" / "scaling.json"
_UTILISATION = 0.6  # of a core: above it the 99th percentile of the token latency grows
_MACHINE_CORES, _MACHINE_GB, _MACHINE_GBIT = 16, 64, 25  # a common cloud machine
_MACHINE_FILES = 1_048_576  # highest limit of open files per process (Linux fs.nr_open)
_SOCKETS = 2  # per stream: to the client and to the engine
RATE, ANSWER = 30.0, 500.0
"""Defaults: tokens per second of a stream, and tokens of an answer."""
STEPS = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Load:
    """The load to calculate for."""

    streams: int
    tokens_per_second: float
    """Of each stream; every chunk has one token."""
    answer_tokens: float
    """Tokens of an answer; the next stream starts when one ends."""

    @property
    def chunks_per_second(self) -> float:
        """Chunks of all streams."""
        return self.streams * self.tokens_per_second

    @property
    def requests_per_second(self) -> float:
        """New requests of all streams."""
        return self.chunks_per_second / self.answer_tokens


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources that a load needs."""

    cores: float
    proxy_cores: float
    """Additional cores where streams pass through Ray's proxies."""
    memory_gb: float
    gbit: float
    files: int
    machines: int
    redis_cores: float
    gpus: int


def required_resources(load: Load, figures: Mapping[str, float]) -> Resources:
    """Resources of fronts, store and engines."""
    chunk_s = figures["chunk_us"] / 1e6
    cores = (load.chunks_per_second * chunk_s + load.requests_per_second * figures["request_us"] / 1e6) / _UTILISATION
    memory_gb = (load.streams * figures["stream_kb"] / 1e6) + math.ceil(cores) * figures["process_mb"] / 1e3
    gbit = load.chunks_per_second * figures["chunk_bytes"] * 8 / 1e9
    files = _SOCKETS * load.streams
    return Resources(
        cores=cores,
        proxy_cores=load.chunks_per_second * figures["proxy_chunk_us"] / 1e6 / _UTILISATION,
        memory_gb=memory_gb,
        gbit=gbit,
        files=files,
        machines=math.ceil(max(cores / _MACHINE_CORES, memory_gb / _MACHINE_GB, gbit / _MACHINE_GBIT)),
        redis_cores=load.requests_per_second / figures["store_per_second"],
        gpus=math.ceil(load.chunks_per_second / figures["gpu_tokens_per_second"]),
    )


def stream_limits(
    figures: Mapping[str, float], tokens_per_second: float, answer_tokens: float
) -> list[tuple[str, float]]:
    """Maximum number of streams for each resource of one front machine, smallest first."""
    load = Load(streams=1_000_000, tokens_per_second=tokens_per_second, answer_tokens=answer_tokens)
    million = required_resources(load, figures)
    rows = [
        ("one GPU as measured", figures["gpu_tokens_per_second"] / tokens_per_second),
        ("one front core", 1e6 / million.cores),
        (f"{_MACHINE_CORES} front cores", _MACHINE_CORES * 1e6 / million.cores),
        (f"open files of {_MACHINE_CORES} processes", _MACHINE_CORES * _MACHINE_FILES / _SOCKETS),
        (f"{_MACHINE_GB} GB of memory", _MACHINE_GB * 1e6 / million.memory_gb),
        (f"{_MACHINE_GBIT} Gbit/s", _MACHINE_GBIT * 1e6 / million.gbit),
        ("one Redis", 1e6 / million.redis_cores),
    ]
    return sorted(rows, key=lambda row: row[1])


def resource_table(
    figures: Mapping[str, float], tokens_per_second: float, answer_tokens: float, steps: Iterable[int] = STEPS
) -> list[str]:
    """Markdown table with a row for each number of streams."""
    rows = []
    for streams in steps:
        load = Load(streams=streams, tokens_per_second=tokens_per_second, answer_tokens=answer_tokens)
        needed = required_resources(load, figures)
        rows.append(
            [
                f"{streams:,}",
                f"{load.chunks_per_second:,.0f}",
                f"{load.requests_per_second:,.0f}",
                _amount(needed.cores),
                f"{needed.memory_gb:,.1f} GB",
                f"{needed.gbit:,.2f}",
                f"{needed.machines:,}",
                _amount(needed.proxy_cores),
                f"{100 * needed.redis_cores:,.1f} %",
                f"{needed.gpus:,}",
            ]
        )
    head = ["streams", "chunks/s", "requests/s", "front cores", "memory", "Gbit/s", "front machines"]
    return _table([*head, "additional cores for Ray's proxies", "of one Redis", "GPUs"], rows)


def limit_table(figures: Mapping[str, float], tokens_per_second: float, answer_tokens: float) -> list[str]:
    """Markdown table of the stream limits."""
    rows = [[name, f"{_rounded(count):,}"] for name, count in stream_limits(figures, tokens_per_second, answer_tokens)]
    return _table(["resource", "streams"], rows)


def figure_table(entries: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Markdown table of the measured figures and their sources."""
    rows = [
        [str(one["description"]), f"{one['value']:,} {one['unit']}", str(one["source"])] for one in entries.values()
    ]
    return _table(["figure", "measured", "source"], rows)


def read_figures(path: Path = FIGURES) -> dict[str, dict[str, object]]:
    """The figures with their units, descriptions and sources."""
    entries: dict[str, dict[str, object]] = json.loads(path.read_text())["figures"]
    return entries


def render(text: str, path: Path = FIGURES) -> str:
    """Replace the tables of the page. Each is between a pair of comments with its name."""
    entries, measured = read_figures(path), json.loads(path.read_text())["measured"]
    blocks = {
        "figures": figure_table(entries),
        "needs": resource_table(values(entries), RATE, ANSWER),
        "limits": limit_table(values(entries), RATE, ANSWER),
        **{name: _table(table["head"], table["rows"]) for name, table in measured.items()},
    }
    for name, lines in blocks.items():
        before, first, rest = text.partition(f"<!-- {name} -->\n")
        _, last, after = rest.partition(f"<!-- /{name} -->")
        if not (first and last):
            raise ValueError(f"the page has no comments <!-- {name} --> and <!-- /{name} -->")
        text = before + first + "\n".join(lines) + "\n" + last + after
    return text


def values(entries: Mapping[str, Mapping[str, object]]) -> dict[str, float]:
    """The values of the figures."""
    return {name: float(str(one["value"])) for name, one in entries.items()}


def _amount(count: float) -> str:
    return f"{count:,.2f}" if count < 10 else f"{count:,.0f}"


def _rounded(count: float) -> int:
    """Round to two significant digits: the figures are not more precise."""
    digits = max(0, math.floor(math.log10(count)) - 1) if count >= 1 else 0
    return int(round(count / 10**digits) * 10**digits)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--streams", type=float, help="concurrent streams (default: steps up to a million)")
    parser.add_argument("--tokens-per-second", type=float, default=RATE, metavar="N", help="per stream [30]")
    parser.add_argument("--answer-tokens", type=float, default=ANSWER, metavar="N", help="per answer [500]")
    parser.add_argument("--figure", action="append", default=[], metavar="NAME=VALUE", help="override a figure")
    options = parser.parse_args()
    figures = values(read_figures())
    for given in options.figure:
        name, _, value = given.partition("=")
        if name not in figures:
            parser.error(f"there is no figure {name!r}; there are {', '.join(figures)}")
        figures[name] = float(value)
    steps = (int(options.streams),) if options.streams else STEPS
    rate, answer = options.tokens_per_second, options.answer_tokens
    for line in (*resource_table(figures, rate, answer, steps), "", *limit_table(figures, rate, answer)):
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
