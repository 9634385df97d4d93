"""Who asks, a program of its own: `welldone bench`'s load, the official client, or a bare reader that only notes times.

It reads runs from standard input, a line of JSON each, and answers each with a line. Where times are of interest, the
upstream's texts are the moments at which they were sent: both ends have the same clock.
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
from welldone.bench.record import RequestOutcome
from welldone.http.address import parse_url

from programs import MODEL, request  # isort: skip  # a neighbour: a script's own folder is on the path

QUESTION = "Tell me a story about a cook."
LIMIT_S = 60.0  # for what is late: a hang is a failure
LAST_CHUNK = b"0\r\n\r\n"
STAMP = re.compile(rb'"content":" (\d+)"')
READ_BYTES = 262_144  # as asyncio reads


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    way: str
    port: int
    streams: int
    texts: int
    """Of an answer."""
    seconds: float
    step_s: float = 0.0
    """Between the opening of a stream and that of the next, where times are of interest."""
    core: int
    """Where to run."""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    chunks: int
    seconds: float
    cpu_s: float
    failed: list[str]
    late_s: list[float] = []
    """From the sending of a chunk to the time that was noted for it, of all chunks while all streams were open."""


class Same:
    """One question again and again."""

    def __init__(self, texts: int) -> None:
        self._turn = PromptRequest([{"role": "user", "content": QUESTION}], texts, None, None)

    def next(self) -> PromptRequest:
        """The question."""
        return self._turn

    def add_answer(self, request: PromptRequest, text: str) -> None:
        """Nobody asks on."""


# ---- as much as it takes


async def flood_by_welldone(run: Run) -> Heard:
    """Our own load, closed."""
    load = _load(run, grace_s=0.0)
    cpu = time.process_time()
    await load.run_closed_loop(run.streams, run.seconds)
    return _heard(load, time.process_time() - cpu)


async def flood_by_openai(run: Run) -> Heard:
    """The official client, which notes of each chunk what a load test needs: when it came, and its text."""
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
    return Heard(
        chunks=len(times),
        seconds=time.perf_counter() - began,
        cpu_s=time.process_time() - cpu,
        failed=[type(end).__name__ for end in ends if end is not None],
    )


# ---- how right the times are


async def times_of_welldone(run: Run) -> Heard:
    """Our own load, open; each request at its time."""
    opening_s = run.streams * run.step_s
    load = _load(run, grace_s=LIMIT_S)
    starts = (number * run.step_s for number in range(run.streams))
    cpu = time.process_time()
    await load.run_open_loop(starts, opening_s + run.seconds, run.streams)
    cpu_s, began = time.process_time() - cpu, time.perf_counter() - load.now()
    heard = [(record, text) for record, text in load.texts if record.outcome is RequestOutcome.OK]
    pairs = [
        (came_s + began, int(stamp) / 1e9)
        for record, text in heard
        for came_s, stamp in zip(record.times, text.split(), strict=True)
    ]
    return _heard(load, cpu_s, _late(run, pairs, began + opening_s))


async def times_of_bare(run: Run) -> Heard:
    """Sockets and a clock, and nothing else."""
    asked, poll = request(run.port, run.texts), select.epoll()
    streams: dict[int, socket.socket] = {}
    heard: list[tuple[float, bytes]] = []
    began, cpu = time.perf_counter(), time.process_time()
    opened = 0
    while opened < run.streams or streams:
        left_s = LIMIT_S if opened == run.streams else began + opened * run.step_s - time.perf_counter()
        if left_s <= 0:
            stream = socket.create_connection(("127.0.0.1", run.port))
            stream.sendall(asked)
            poll.register(stream, select.EPOLLIN)
            streams[stream.fileno()] = stream
            opened += 1
            continue
        for place, _ in poll.poll(left_s):
            data = streams[place].recv(READ_BYTES)
            heard.append((time.perf_counter(), data))
            if data.endswith(LAST_CHUNK) or not data:
                streams.pop(place).close()
    cpu_s, seconds = time.process_time() - cpu, time.perf_counter() - began
    pairs = [(came, int(stamp) / 1e9) for came, data in heard for stamp in STAMP.findall(data)]
    late_s = _late(run, pairs, began + run.streams * run.step_s)
    return Heard(chunks=len(pairs), seconds=seconds, cpu_s=cpu_s, failed=[], late_s=late_s)


def _late(run: Run, pairs: Iterable[tuple[float, float]], since: float) -> list[float]:
    return [came - sent for came, sent in pairs if since <= sent < since + run.seconds]


def _load(run: Run, *, grace_s: float) -> LoadGenerator:
    members = {"model": MODEL, "temperature": 0.0, "stream_options": {"include_usage": True}}
    address = parse_url(f"http://127.0.0.1:{run.port}/v1")
    return LoadGenerator(address, Same(run.texts), members, timeout_s=LIMIT_S, grace_s=grace_s, stop=asyncio.Event())


def _heard(load: LoadGenerator, cpu_s: float, late_s: Sequence[float] = ()) -> Heard:
    return Heard(
        chunks=sum(len(record.times) for record in load.records),
        seconds=load.now(),
        cpu_s=cpu_s,
        failed=[
            record.error
            for record in load.records
            if record.outcome not in (RequestOutcome.OK, RequestOutcome.UNFINISHED)
        ],
        late_s=list(late_s),
    )


WAYS: dict[str, Callable[[Run], Awaitable[Heard]]] = {
    "welldone": flood_by_welldone,
    "openai": flood_by_openai,
    "welldone, times": times_of_welldone,
    "bare reader, times": times_of_bare,
}


async def do(run: Run) -> Heard:
    """What a run says."""
    return await WAYS[run.way](run)


def main() -> None:
    """Do what each line says, until there is none. All are on the event loop that `welldone bench` has."""
    for line in sys.stdin.buffer:
        run = msgspec.json.decode(line, type=Run)
        os.sched_setaffinity(0, {run.core})
        sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(do(run))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
