"""What a request costs a front end, and what it costs the Redis that several of them share.

A mock server answers with one token, a gateway stands before it, and the load generator asks again and again: the CPU
of each process, divided by the requests. Without a store and with one, in turn. For Linux; Redis is the system's.
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

from child import Child, started  # isort: skip  # neighbours: a script's own folder is on the path
from load import Heard, Run  # isort: skip
from usage import used  # isort: skip

STREAMS = 16
PER_MINUTE = 1_000_000_000  # nobody is refused, and each is counted
_PLACE = re.compile(rb"http://127\.0\.0\.1:(\d+)")


@contextmanager
def running(command: Sequence[str]) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """A program that says where it listens, and its port."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            found = next(found for line in process.stdout if (found := _PLACE.search(line)))
            yield process, int(found[1])
        finally:
            process.terminate()


@contextmanager
def a_redis(folder: Path) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """A store of our own, and its address."""
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
    """What a process has taken so far."""
    now = used(pid)
    return now.user_s + now.system_s


def measure(
    load: Child, upstream: int, requests: int, url: str | None, store: int | None
) -> tuple[float, float, float]:
    """CPU of the gateway and of the store for a request, in µs; and the gateway's memory before it, in MB."""
    command = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--no-api-key", "--quiet"]
    command += ["--upstream", f"http://127.0.0.1:{upstream}/v1", "--requests-per-minute", str(PER_MINUTE)]
    with running([*command, *(("--limits-store", url) if url is not None else ())]) as (process, port):
        idle_mb = used(process.pid).rss_bytes / 1e6
        run = Run(port=port, model="mock", streams=STREAMS, answers=STREAMS * 10, tokens=1, seed=0)
        load.ask(run, Heard)  # warm
        before, store_before = cpu_s(process.pid), 0.0 if store is None else cpu_s(store)
        heard = load.ask(Run(port=port, model="mock", streams=STREAMS, answers=requests, tokens=1, seed=1), Heard)
        if heard.failed:
            raise SystemExit(f"{len(heard.failed)} requests failed: {heard.failed[0]}")
        spent = cpu_s(process.pid) - before
        stored = 0.0 if store is None else cpu_s(store) - store_before
    return spent / requests * 1e6, stored / requests * 1e6, idle_mb


def main() -> int:
    """Measure, and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=3_000, metavar="N", help="of a round [3000]")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="of each way [4]")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("there is no redis-server: apt-get install redis-server", file=sys.stderr)
        return 3
    alone, shared = [], []
    with tempfile.TemporaryDirectory(prefix="wd-") as folder, a_redis(Path(folder)) as (redis, url):
        mock = [sys.executable, "-m", "welldone", "mock", "--port", "0", "--text", "word"]
        with running(mock) as (_, upstream), started("load.py") as load:
            for _ in range(options.rounds):
                alone.append(measure(load, upstream, options.requests, None, None))
                shared.append(measure(load, upstream, options.requests, url, redis.pid))
    figures = {
        "request_us": median(one[0] for one in alone),
        "request_us_by_round": [one[0] for one in alone],
        "request_with_store_us": median(one[0] for one in shared),
        "store_us": median(one[1] for one in shared),
        "process_mb": median(one[2] for one in alone),
    }
    print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
