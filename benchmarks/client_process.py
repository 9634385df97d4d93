"""Client process of `bench_tool.py`: the load generator of `welldone bench`, OpenAI's client, or bare sockets.

Each line of standard input is a run in JSON; each line of output is its result. To measure timestamp delay, the
upstream sends as text the time at which it sends it; both processes read the same monotonic clock.
"""

import asyncio
import os
import re
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
import openai

from welldone.bench.load import LoadGenerator
from welldone.bench.prompts import PromptRequest
from welldone.bench.report import RequestOutcome
from welldone.http.address import parse_url

from c_programs import MODEL, request  # isort: skip  # same folder: a script's own folder is on the path

QUESTION = "Tell me a story about a cook."
LIMIT_S = 60.0  # turns a hang into a failure
LAST_CHUNK = b"0\r\n\r\n"
STAMP = re.compile(rb'"content":" (\d+)"')
READ_BYTES = 262_144  # as asyncio reads


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one run."""

    client: str
    port: int
    streams: int
    texts: int
    """Text chunks per answer."""
    seconds: float
    step_s: float = 0.0
    """Delay between opening one stream and the next, for the runs that measure timestamp delay."""
    core: int
    """CPU core to run on."""


class ClientResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one run."""

    chunks: int
    seconds: float
    cpu_s: float
    failed: list[str]
    delays_s: list[float] = []
    """Timestamp of a chunk minus the time it was sent, for all chunks sent while all streams were open."""


class FixedPrompt:
    """The same prompt for every request."""

    def __init__(self, texts: int) -> None:
        self._prompt = PromptRequest([{"role": "user", "content": QUESTION}], texts, None)

    def next(self) -> PromptRequest:
        """Return the prompt."""
        return self._prompt

    def add_answer(self, request: PromptRequest, text: str) -> None:
        """Ignore the answer: there are no follow-up turns."""


# ---- throughput: read as fast as possible


async def flood_with_welldone(run: Run) -> ClientResult:
    """Run the closed-loop load of `welldone bench`."""
    load = _load(run, grace_s=0.0)
    cpu = time.process_time()
    await load.run_closed_loop(run.streams, run.seconds)
    return _result(load, time.process_time() - cpu)


async def flood_with_openai(run: Run) -> ClientResult:
    """Run the official client and record the arrival time and text of each chunk, as a load test must."""
    client = openai.AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{run.port}/v1")
    times: list[float] = []
    texts: list[str] = []
    began, cpu = time.perf_counter(), time.process_time()

    async def user() -> None:
        while time.perf_counter() - began < run.seconds:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": QUESTION}],
                max_tokens=run.texts,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for chunk in stream:
                now = time.perf_counter()
                if chunk.choices and chunk.choices[0].delta.content:
                    times.append(now)
                    texts.append(chunk.choices[0].delta.content)
                if now - began > run.seconds:
                    break
            await stream.close()

    ends = await asyncio.gather(*(user() for _ in range(run.streams)), return_exceptions=True)
    return ClientResult(
        chunks=len(times),
        seconds=time.perf_counter() - began,
        cpu_s=time.process_time() - cpu,
        failed=[type(end).__name__ for end in ends if end is not None],
    )


# ---- accuracy of the recorded times


async def time_with_welldone(run: Run) -> ClientResult:
    """Run the open-loop load of `welldone bench`; each request starts at its scheduled time."""
    opening_s = run.streams * run.step_s
    load = _load(run, grace_s=LIMIT_S)
    starts = (number * run.step_s for number in range(run.streams))
    cpu = time.process_time()
    await load.run_open_loop(starts, opening_s + run.seconds, run.streams)
    cpu_s, began = time.process_time() - cpu, time.perf_counter() - load.now()
    answers = [(record, text) for record, text in load.texts if record.outcome is RequestOutcome.OK]
    pairs = [
        (arrival_s + began, int(stamp) / 1e9)
        for record, text in answers
        for arrival_s, stamp in zip(record.times, text.split(), strict=True)
    ]
    return _result(load, cpu_s, _delays(run, pairs, began + opening_s))


async def time_with_sockets(run: Run) -> ClientResult:
    """Read with plain sockets and epoll: the baseline of the machine."""
    payload, poll = request(run.port, run.texts), select.epoll()
    streams: dict[int, socket.socket] = {}
    reads: list[tuple[float, bytes]] = []
    began, cpu = time.perf_counter(), time.process_time()
    opened = 0
    while opened < run.streams or streams:
        left_s = LIMIT_S if opened == run.streams else began + opened * run.step_s - time.perf_counter()
        if left_s <= 0:
            stream = socket.create_connection(("127.0.0.1", run.port))
            stream.sendall(payload)
            poll.register(stream, select.EPOLLIN)
            streams[stream.fileno()] = stream
            opened += 1
            continue
        for fd, _ in poll.poll(left_s):
            data = streams[fd].recv(READ_BYTES)
            reads.append((time.perf_counter(), data))
            if data.endswith(LAST_CHUNK) or not data:
                streams.pop(fd).close()
    cpu_s, seconds = time.process_time() - cpu, time.perf_counter() - began
    pairs = [(arrived, int(stamp) / 1e9) for arrived, data in reads for stamp in STAMP.findall(data)]
    delays_s = _delays(run, pairs, began + run.streams * run.step_s)
    return ClientResult(chunks=len(pairs), seconds=seconds, cpu_s=cpu_s, failed=[], delays_s=delays_s)


def _delays(run: Run, pairs: Iterable[tuple[float, float]], since: float) -> list[float]:
    return [arrived - sent for arrived, sent in pairs if since <= sent < since + run.seconds]


def _load(run: Run, *, grace_s: float) -> LoadGenerator:
    members = {"model": MODEL, "temperature": 0.0, "stream_options": {"include_usage": True}}
    address = parse_url(f"http://127.0.0.1:{run.port}/v1")
    return LoadGenerator(
        address, FixedPrompt(run.texts), members, timeout_s=LIMIT_S, grace_s=grace_s, stop=asyncio.Event()
    )


def _result(load: LoadGenerator, cpu_s: float, delays_s: Sequence[float] = ()) -> ClientResult:
    return ClientResult(
        chunks=sum(len(record.times) for record in load.records),
        seconds=load.now(),
        cpu_s=cpu_s,
        failed=[
            record.error
            for record in load.records
            if record.outcome not in (RequestOutcome.OK, RequestOutcome.UNFINISHED)
        ],
        delays_s=list(delays_s),
    )


CLIENTS: dict[str, Callable[[Run], Awaitable[ClientResult]]] = {
    "welldone": flood_with_welldone,
    "openai": flood_with_openai,
    "welldone, times": time_with_welldone,
    "bare reader, times": time_with_sockets,
}


async def run_client(run: Run) -> ClientResult:
    """Run the client that the run names."""
    return await CLIENTS[run.client](run)


def main() -> None:
    """Execute runs until the input closes, on the event loop that `welldone bench` uses."""
    for line in sys.stdin.buffer:
        run = msgspec.json.decode(line, type=Run)
        os.sched_setaffinity(0, {run.core})
        sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run_client(run))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
