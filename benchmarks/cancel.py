"""How long it takes until an upstream knows that a client of the gateway has left, in each window of an answer.

The gateway is `welldone serve` in a process of its own; the client and a scripted upstream share this one, and so one
clock. A time is from the client's close to the moment in which the upstream sees its own connection closed.
"""

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from welldone.engines.scripted import HELLO, Reply, Script, Scripted, Seen

LIMIT_MS = 50.0
"""Of the slowest of a hundred."""
LIMIT_S = 60.0  # for what is late: a hang is a failure
SILENT, STALLS = "silent", "stalls"
REPLIES = {SILENT: Reply(end="hang", raw=True), STALLS: Reply(HELLO.pieces[:2], end="hang")}
WINDOWS = {
    "before the first byte": (SILENT, True),
    "in the midst of the stream": (STALLS, True),
    "while a whole reply is made": (STALLS, False),
}
"""The model that is asked for, and whether its answer is streamed."""
TEXT = b"Hello"  # of the chunk after which it stalls


def choose(seen: Seen) -> Reply:
    """What the model's name asks for."""
    return REPLIES[msgspec.json.decode(seen.body)["model"]]


@contextlib.asynccontextmanager
async def gateway(url: str, folder: str) -> AsyncIterator[int]:
    """The port of a gateway in front of this upstream."""
    words = ["-m", "welldone", "serve", "--port", "0", "--upstream", url, "--quiet"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        found = re.search(rb"on http://\S+:(\d+)/v1$", (await process.stdout.readline()).strip())
        if found is None:
            raise SystemExit("welldone serve did not start; run it by hand to see why")
        yield int(found[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def leave(upstream: Scripted, port: int, model: str, *, is_stream: bool) -> float:
    """Ask, leave in the window, and give the seconds until the upstream knew."""
    before = upstream.seen[-1] if upstream.seen else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode(
        {"model": model, "stream": is_stream, "messages": [{"role": "user", "content": "Hello"}]}
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    await upstream.until(lambda: bool(upstream.seen) and upstream.seen[-1] is not before)
    seen = upstream.seen[-1]
    if model == STALLS and is_stream:
        await reader.readuntil(TEXT)
    left_s = time.monotonic()
    writer.close()
    await upstream.until(lambda: seen.ended_s is not None)
    assert seen.end == "left"
    assert seen.ended_s is not None
    return seen.ended_s - left_s


async def measure(samples: int) -> dict[str, list[float]]:
    """The seconds of each window. They take turns, so that a machine that gets slower is slower for all."""
    models = {"object": "list", "data": [{"id": name} for name in REPLIES]}
    times: dict[str, list[float]] = {window: [] for window in WINDOWS}
    with tempfile.TemporaryDirectory() as folder:
        async with (
            await Scripted(Script(models=models), choose).listen() as upstream,
            gateway(f"http://127.0.0.1:{upstream.port}/v1", folder) as port,
        ):
            for _ in range(samples):
                for window, (model, is_stream) in WINDOWS.items():
                    async with asyncio.timeout(LIMIT_S):
                        times[window].append(await leave(upstream, port, model, is_stream=is_stream))
    return times


def show(times: dict[str, list[float]]) -> bool:
    """Print a row for each window; whether all are within the limit."""
    is_right = True
    print(f"{'the client leaves':<28} {'samples':>8} {'p50 ms':>8} {'p99 ms':>8}   limit of p99: {LIMIT_MS:g} ms")
    for window, samples in times.items():
        p50, p99 = _ms(samples, 50), _ms(samples, 99)
        is_right &= p99 <= LIMIT_MS
        print(f"{window:<28} {len(samples):>8} {p50:>8.2f} {p99:>8.2f}   {'ok' if p99 <= LIMIT_MS else 'MISSED'}")
    return is_right


def _ms(samples: Sequence[float], percent: int) -> float:
    place = min(len(samples) - 1, len(samples) * percent // 100)
    return sorted(samples)[place] * 1000


def main() -> int:
    """Measure, and tell."""
    parser = argparse.ArgumentParser(description="How long until an upstream knows that the gateway's client has left.")
    parser.add_argument("--samples", type=int, default=200, help="of each window (200)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a limit is missed")
    options = parser.parse_args()
    is_right = show(asyncio.run(measure(max(1, options.samples))))
    return 1 if options.strict and not is_right else 0


if __name__ == "__main__":
    sys.exit(main())
