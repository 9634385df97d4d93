"""User instructions per chunk and per request, counted by callgrind: unlike times, they do not vary.

A figure per chunk is the difference of a short and a long stream, one per request the median of many, after others that
are not counted: start-up and the first chunk are left out. Garbage collection is off. Compare only figures of the same
machine and Python:

    python benchmarks/instructions.py --json before.json
    python benchmarks/instructions.py --compare before.json

To measure another revision: `git worktree add DIR REVISION`, and `--tree DIR --json before.json`.
"""

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from gateway_in_steps import Client, StepError, Upstream  # isort: skip  # same folder: a script's own is on the path
from callgrind import CallgrindError, end_of_log, find_valgrind, parts, run  # isort: skip

FOLDER = Path(__file__).parent
LIMIT = 1.03
"""Highest ratio to the earlier figure."""
REQUESTS = 24
"""Counted requests of each kind; the median counts, since some requests do work for later ones."""
_WARM_UP_REQUESTS = 16  # after the first ones their template is in use, and Python has specialised its code
_CHUNKS_PER_PART, _PARTS = 24, 16
_WARM_UP_PARTS = 3  # a template of a whole stream has up to 32 texts
_IDLE, _CHUNK = "idle", "text chunk through the gateway"
ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")
_PROMPT = "Tell me a story about a cook who makes a stew for the whole village."
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": _PROMPT}], "temperature": 0}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

Figures = dict[str, float]


class Request(NamedTuple):
    """A request to the gateway, and bytes of its reply."""

    path: str
    body: dict[str, Any]
    expected: tuple[bytes, ...]


REQUESTS_BY_NAME = {
    "request, streamed": Request("/v1/chat/completions", CHAT | STREAM, (b'" w5"', b"[DONE]")),
    "request, not streamed": Request("/v1/chat/completions", CHAT, (b" w0 w1 w2 w3 w4 w5",)),
    "request, streamed, Messages": Request(
        "/v1/messages",
        {"model": "m", "max_tokens": 9, "messages": CHAT["messages"], "stream": True},
        (b'" w5"', b"message_stop"),
    ),
    "request, streamed, Responses": Request(
        "/v1/responses",
        {"model": "m", "input": _PROMPT, "stream": True, "store": False},
        (b'" w5"', b"response.completed"),
    ),
}


def measure_chunks(tree: Path) -> Figures:
    """Return the instructions per chunk, by workload."""
    names = subprocess.run(
        [sys.executable, "-c", "import counted_chunks as c, json; print(json.dumps([c.CHUNKS, *c.WORKLOADS]))"],
        cwd=FOLDER,
        env={"PYTHONPATH": str(tree / "src")},
        capture_output=True,
        check=False,
    )
    if names.returncode:
        raise CallgrindError(f"{tree} cannot run the workloads:\n{names.stderr.decode()[-800:]}")
    chunks, *workloads = json.loads(names.stdout)
    with tempfile.TemporaryDirectory(prefix="instructions-") as name:
        folder = Path(name)
        with run([str(FOLDER / "counted_chunks.py")], tree=tree, folder=folder) as process:
            process.wait()
        streams = parts(folder)[1::2]
        if process.returncode or len(streams) != 3 * len(workloads):
            raise CallgrindError(f"the workloads failed:\n{end_of_log(folder)}")
    pairs = zip(streams[1::3], streams[2::3], strict=True)
    return {name: (long - short) / chunks for name, (short, long) in zip(workloads, pairs, strict=True)}


def measure_requests(tree: Path) -> Figures:
    """Return the instructions of the gateway per request, and per text chunk of a stream."""
    with tempfile.TemporaryDirectory(prefix="instructions-") as name, Upstream() as upstream:
        folder = Path(name)
        labels: list[str] = []  # of each part
        with gateway(tree, folder, upstream) as (mark, port), Client(port, upstream) as client:

            def end_part(label: str) -> None:
                mark()
                labels.append(label)

            for label, request in REQUESTS_BY_NAME.items():
                for _ in range(_WARM_UP_REQUESTS):
                    client.request(*request)
                client.wait_until_idle()
                end_part("")
                for _ in range(REQUESTS):
                    client.request(*request)
                    client.wait_until_idle()
                    end_part(label)
                    client.wait_until_idle()
                    end_part(_IDLE)
            steps = client.stream_in_steps("/v1/chat/completions", CHAT | STREAM, _CHUNKS_PER_PART * _PARTS)
            for number, _ in enumerate(steps, 1):
                if number % _CHUNKS_PER_PART == 0:
                    end_part("" if number <= _CHUNKS_PER_PART * _WARM_UP_PARTS else _CHUNK)
        counts = parts(folder)
    medians = {label: median(c for c, other in zip(counts, labels, strict=True) if other == label) for label in labels}
    figures = {label: medians[label] - medians[_IDLE] for label in REQUESTS_BY_NAME}
    return figures | {_CHUNK: medians[_CHUNK] / _CHUNKS_PER_PART}


@contextmanager
def gateway(tree: Path, folder: Path, upstream: Upstream) -> Iterator[tuple[Callable[[], None], int]]:
    """Run a gateway under callgrind; yields a function that marks a part, and the port."""
    config = folder / "welldone.toml"
    config.write_text(f'[upstreams.up]\nurl = "http://127.0.0.1:{upstream.port}/v1"\nmodels = ["m"]\nprobe_s = 0\n')
    # A step takes longer than the usual second under callgrind.
    arguments = ["serve", "--config", str(config), "--port", "0", "--no-api-key", "--early", "60", "--quiet"]
    with run([str(FOLDER / "counted_gateway.py"), *arguments], tree=tree, folder=folder) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            output, marks = process.stdout, process.stdin
            found = next((found for line in output if (found := ADDRESS.search(line))), None)
            if found is None:
                raise CallgrindError(f"the gateway did not start:\n{end_of_log(folder)}")

            def mark() -> None:
                marks.write(b"\n")
                marks.flush()
                while output.readline() not in (b"marked\n", b""):
                    pass

            yield mark, int(found[1])
        finally:
            process.terminate()


def measure(tree: Path, runs: int) -> list[Figures]:
    """Measure several times; both programs run at once."""
    find_valgrind()
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(work, tree) for _ in range(runs) for work in (measure_chunks, measure_requests)]
        return [job.result() for job in jobs]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    environment: dict[str, str]
    figures: Figures
    spreads: Figures


def read_report(path: Path) -> Report:
    """Read what `--json` has written.

    Raises:
        ValueError: it is something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no file that --json has written: {error}") from None


def environment() -> dict[str, str]:
    """Return what the counts depend on besides the tree."""
    return {"python": platform.python_version(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver())}


class Row(NamedTuple):
    """A figure, the earlier one if there is one, and whether it exceeds the limit."""

    name: str
    figure: float | None
    before: float | None
    is_over: bool

    @property
    def ratio(self) -> float | None:
        """The ratio of both."""
        return self.figure / self.before if self.figure is not None and self.before else None


def compare(figures: Mapping[str, float], before: Mapping[str, float], limit: float) -> list[Row]:
    """Compare by name. A new figure is within the limit; one that is missing now is not."""
    rows = []
    for name in [*figures, *(name for name in before if name not in figures)]:
        row = Row(name, figures.get(name), before.get(name), is_over=False)
        rows.append(row._replace(is_over=row.figure is None or (row.ratio is not None and row.ratio > limit)))
    return rows


def print_table(rows: list[Row], spreads: Mapping[str, float], limit: float, *, has_before: bool) -> None:
    """Print a line per figure."""
    head = f"{'before':>12} {'ratio':>8}" if has_before else ""
    print(f"{'user instructions':<38} {'':>12} {'spread':>8} {head}")
    for row in rows:
        figure = "-" if row.figure is None else f"{row.figure:,.0f}"
        line = f"{row.name:<38} {figure:>12} {spreads.get(row.name, 0.0):>8.2%} "
        if has_before:
            before, ratio = "-" if row.before is None else f"{row.before:,.0f}", row.ratio
            line += f"{before:>12} {'-' if ratio is None else f'{ratio:.3f}':>8}"
            line += f"    OVER the limit of {limit:g}" * row.is_over
        print(line.rstrip())


def main() -> int:
    """Measure, print the figures, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=FOLDER.parent, metavar="DIR", help="measure another work tree")
    parser.add_argument("--runs", type=int, default=2, metavar="N", help="runs, whose lowest figure counts [2]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare with these figures")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="use these figures instead of measuring")
    parser.add_argument("--limit", type=float, default=LIMIT, help="highest ratio; above it, exit status 1 [1.03]")
    options = parser.parse_args()
    tree: Path = options.tree.resolve()
    if not (tree / "src" / "welldone").is_dir():
        print(f"{tree} is no work tree of welldone: it has no src/welldone", file=sys.stderr)
        return 3
    try:
        before = None if options.compare is None else read_report(options.compare)
        runs = measure(tree, options.runs) if options.figures is None else [read_report(options.figures).figures]
    except (CallgrindError, StepError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 3
    found: dict[str, list[float]] = {}
    for name, figure in (item for figures in runs for item in figures.items()):
        found.setdefault(name, []).append(figure)
    figures = {name: min(several) for name, several in found.items()}
    rows = compare(figures, before.figures if before is not None else {}, options.limit)
    spreads = {name: max(several) / min(several) - 1 for name, several in found.items()}
    print_table(rows, spreads, options.limit, has_before=before is not None)
    if before is not None and before.environment != environment():
        print(f"the figures before are of another machine or Python: {before.environment}, now {environment()}")
    if options.json is not None:
        report = Report(environment=environment(), figures=figures, spreads=spreads)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return int(any(row.is_over for row in rows))


if __name__ == "__main__":
    sys.exit(main())
