"""Cost of Ray: one server alone, on a Ray cluster through Ray's proxy, and directly at the port of the front.

Every target has an engine that sends a token every 20 ms. The targets alternate (A B C C B A), so that drift of the
machine affects all of them. CPU time is the sum over all processes of a target except the engine; the idle share is
subtracted and shown separately. Needs Linux and an environment with Ray: .venv/bin/python benchmarks/scale.py
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ray
from ray import serve

from welldone.cluster.application import app
from welldone.cluster.proxy import CALLBACK, CALLBACK_VARIABLE

PLAIN, PROXY, FRONT = "one server", "Ray, its proxy", "Ray, the front's port"
TOKENS, GAP_MS = 100, 20
LIMIT_S = 60.0  # turns a hang into a failure
IDLE_S = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_CONFIG = """
[models.paced]
command = {command}
[scale.front]
num_cpus = 1
port = {port}
"""


@dataclass
class Totals:
    """Sums over all rounds of one target."""

    first_s: list[float] = field(default_factory=list)
    chunks: int = 0
    cpu_s: float = 0.0


def main() -> None:
    """Run the benchmark and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10, help="concurrent streams (10)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds per target (10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wd-") as name:
        folder = Path(name)
        proxy, front = _free_port(), _free_port()
        mock = [sys.executable, "-m", "welldone", "mock", "--port", "{port}", "--tokens", str(TOKENS)]
        command = [*mock, "--gap", f"{GAP_MS}ms"]
        (folder / "welldone.toml").write_text(_CONFIG.format(command=command, port=front))
        with _single_server(folder) as (plain, pid), _on_ray(folder, proxy):
            _measure({PLAIN: plain, PROXY: proxy, FRONT: front}, pid, options.streams, options.rounds)


def _measure(ports: dict[str, int], plain: int, streams: int, rounds: int) -> None:
    totals = {target: Totals() for target in ports}
    for port in ports.values():
        asyncio.run(_round(port, streams))  # warm-up: the first answers are slower
    before = _cpu_s(plain)
    time.sleep(IDLE_S)
    idle = {target: (cpu_s - before[target]) / IDLE_S for target, cpu_s in _cpu_s(plain).items()}
    for number in range(rounds):
        for target in list(ports)[:: 1 if number % 2 == 0 else -1]:
            kind = PLAIN if target == PLAIN else PROXY
            cpu_s, began = _cpu_s(plain)[kind], time.monotonic()
            totals[target].first_s += asyncio.run(_round(ports[target], streams))
            background_s = idle[kind] * (time.monotonic() - began)
            totals[target].cpu_s += _cpu_s(plain)[kind] - cpu_s - background_s
            totals[target].chunks += streams * TOKENS
    print(f"{rounds} rounds of {streams} streams, {TOKENS} tokens each, one every {GAP_MS} ms")
    print(f"{'':24}{'TTFT p50 ms':>12}{'p99 ms':>10}{'CPU us/chunk':>14}{'idle CPU %':>12}")
    for target, result in totals.items():
        p50, p99 = statistics.median(result.first_s), statistics.quantiles(result.first_s, n=100)[98]
        cost = result.cpu_s / result.chunks * 1e6
        idle_percent = idle[PLAIN if target == PLAIN else PROXY] * 100
        print(f"{target:24}{p50 * 1e3:>12.1f}{p99 * 1e3:>10.1f}{cost:>14.0f}{idle_percent:>12.1f}")
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


async def _round(port: int, streams: int) -> list[float]:
    """Run concurrent streams, started evenly over one gap; return their times to first token."""

    async def one(number: int) -> float:
        await asyncio.sleep(number * GAP_MS / 1e3 / streams)
        return await _first_s(port)

    async with asyncio.timeout(LIMIT_S):
        return await asyncio.gather(*(one(number) for number in range(streams)))


async def _first_s(port: int) -> float:
    request = {"model": "paced", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    body = json.dumps(request).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    began = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    received, first_s = b"", 0.0
    while data := await reader.read(65_536):
        received += data
        if not first_s and re.search(rb'"content":"[^"]', received):
            first_s = time.monotonic() - began
    writer.close()
    if b"data: [DONE]" not in received or b'"error"' in received:
        raise RuntimeError(f"incomplete stream: {received[-500:]!r}")
    return first_s


def _cpu_s(plain: int) -> dict[str, float]:
    """CPU time so far of all descendants of this process except engines, by target."""
    stats = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue  # the process has ended
            stats[int(folder.name)] = (int(words[1]), (int(words[11]) + int(words[12])) / _TICKS, command)
    found = {PLAIN: 0.0, PROXY: 0.0}
    for pid, (_, cpu_s, command) in stats.items():
        ancestors = [pid]
        while ancestors[-1] in stats:
            ancestors.append(stats[ancestors[-1]][0])
        if os.getpid() in ancestors[1:] and b"\0mock\0" not in command:
            found[PLAIN if plain in ancestors else PROXY] += cpu_s
    return found


@contextmanager
def _single_server(folder: Path) -> Iterator[tuple[int, int]]:
    """Run a single server; yields its port and process id."""
    words = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--config", str(folder / "welldone.toml")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(int(found[1]) for line in process.stdout if (found := re.search(r":([0-9]+)/v1$", line)))
            yield port, process.pid
        finally:
            process.terminate()


@contextmanager
def _on_ray(folder: Path, port: int) -> Iterator[None]:
    """Run a cluster of one node with a front and an engine."""
    os.environ |= {CALLBACK_VARIABLE: CALLBACK, "RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0"}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error", _temp_dir=str(folder))
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(app({"config": str(folder / "welldone.toml")}))
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


if __name__ == "__main__":
    main()
