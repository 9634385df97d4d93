"""CPU time per request of a front end, and of the Redis that several front ends share.

A mock server answers with one token, a gateway runs in front of it, and the load generator sends requests: CPU time of
each process divided by the requests. Rounds without and with a store alternate. Needs Linux and `redis-server`.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from child_process import Child, start_child  # isort: skip  # same folder: a script's own folder is on the path
from load import LoadResult, Run  # isort: skip
from process_usage import read_usage  # isort: skip

STREAMS = 16
PER_MINUTE = 1_000_000_000  # no request is rejected, but each one is counted
_ADDRESS = re.compile(rb"http://127\.0\.0\.1:(\d+)")


@contextmanager
def run_server(command: Sequence[str]) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """Run a program that prints its address; yields the process and its port."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            found = next(found for line in process.stdout if (found := _ADDRESS.search(line)))
            yield process, int(found[1])
        finally:
            process.terminate()


@contextmanager
def redis_server(folder: Path) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """Run a private Redis; yields the process and its URL."""
    path = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            next(line for line in process.stdout if b"eady to accept connections" in line)
            yield process, f"unix://{path}"
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far."""
    now = read_usage(pid)
    return now.user_s + now.system_s


def measure(
    load: Child, upstream: int, requests: int, url: str | None, store_pid: int | None
) -> tuple[float, float, float]:
    """Return the CPU time per request of the gateway and of the store in µs, and the gateway's idle memory in MB."""
    command = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--no-api-key", "--quiet"]
    command += ["--upstream", f"http://127.0.0.1:{upstream}/v1", "--requests-per-minute", str(PER_MINUTE)]
    with run_server([*command, *(("--limits-store", url) if url is not None else ())]) as (process, port):
        idle_mb = read_usage(process.pid).rss_bytes / 1e6
        run = Run(port=port, model="mock", streams=STREAMS, answers=STREAMS * 10, tokens=1, seed=0)
        load.call(run, LoadResult)  # warm-up
        before, store_before = cpu_s(process.pid), 0.0 if store_pid is None else cpu_s(store_pid)
        result = load.call(
            Run(port=port, model="mock", streams=STREAMS, answers=requests, tokens=1, seed=1), LoadResult
        )
        if result.failed:
            raise SystemExit(f"{len(result.failed)} requests failed: {result.failed[0]}")
        spent = cpu_s(process.pid) - before
        store_spent = 0.0 if store_pid is None else cpu_s(store_pid) - store_before
    return spent / requests * 1e6, store_spent / requests * 1e6, idle_mb


def main() -> int:
    """Run the benchmark and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3_000, metavar="N", help="requests per round [3000]")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="rounds without and with a store [4]")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("redis-server not found: apt-get install redis-server", file=sys.stderr)
        return 3
    without_store, with_store = [], []
    with tempfile.TemporaryDirectory(prefix="wd-") as folder, redis_server(Path(folder)) as (redis, url):
        mock = [sys.executable, "-m", "welldone", "mock", "--port", "0", "--text", "word"]
        with run_server(mock) as (_, upstream), start_child("load.py") as load:
            for _ in range(options.rounds):
                without_store.append(measure(load, upstream, options.requests, None, None))
                with_store.append(measure(load, upstream, options.requests, url, redis.pid))
    figures = {
        "request_us": median(one[0] for one in without_store),
        "request_us_by_round": [one[0] for one in without_store],
        "request_with_store_us": median(one[0] for one in with_store),
        "store_us": median(one[1] for one in with_store),
        "process_mb": median(one[2] for one in without_store),
    }
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
