"""A steady stream that runs next to a fault, and its longest gap; its source and its reader are processes.

Where this process may do so (root on Linux), source, server and reader have priority over all others, such as the load,
the engine and worker processes: the gaps are those of the server, and not of a machine with few CPUs.
"""

import asyncio
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from faults.client import LIMIT_S, ClientReply, post
from faults.sender import Sending
from faults.stream_reader import Observed
from tests.support.server import Lines, Running

Reply = TypeVar("Reply")

BEAT_MS = 10
"""Gap between two tokens of the mock server."""
_TOKENS = 4096  # one answer lasts 40 s
_IDLE_BEATS = 100
_IDLE_TRIES = 10
_NICENESS = -10
NOTHING = "nothing"
"""Activity before and between others."""


@contextmanager
def beating() -> Iterator[str]:
    """Run a mock server that sends a token every ten milliseconds; yields its URL."""
    words = [sys.executable, "-m", "welldone", "mock", "--port", "0", "--text", "beat "]
    process = subprocess.Popen(
        [*words, "--tokens", str(_TOKENS), "--gap", f"{BEAT_MS}ms"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        _give_priority(process.pid)
        yield Lines(process.stdout).wait(r"on (http://\S+)$")[1]
    finally:
        process.kill()
        process.wait(LIMIT_S)


def _give_priority(pid: int) -> None:
    """Give priority to the threads of a process, and to those that they start."""
    for thread in Path("/proc").glob(f"{pid}/task/*"):
        with suppress(OSError):  # the thread has ended, or this is not root
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICENESS)


def _stolen_ticks() -> int:
    """CPU time so far that the hypervisor gave to other machines while this one had work; 0 where that is unknown."""
    with suppress(OSError, IndexError), Path("/proc/stat").open(encoding="ascii") as file:
        return int(file.readline().split()[8])
    return 0


class _Child:
    """A process that answers lines on stdin with lines on stdout."""

    def __init__(self, module: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    async def ask(self, data: bytes, form: type[Reply]) -> Reply:
        assert self.process.stdout is not None
        await asyncio.to_thread(self.write, data)
        async with asyncio.timeout(LIMIT_S):
            return msgspec.json.decode(await asyncio.to_thread(self.process.stdout.readline), type=form)


class GapRecorder:
    """Records the gaps of a stream by the activity during them."""

    def __init__(self, reader: _Child) -> None:
        self.worst: dict[str, float] = {}
        """Longest gap in milliseconds, by activity, without that of the idle server."""
        self.endings: Counter[str] = Counter()
        """Number of streams by their ending; incomplete ones by their last bytes."""
        self._reader = reader
        self._idle_ms = 0.0
        self._doing = ""
        self._stolen_before = 0

    async def measure_idle(self) -> None:
        """Measure the gaps of the idle server."""
        await self._observe(1)
        idle = []
        for _ in range(_IDLE_TRIES):
            self._stolen_before = _stolen_ticks()
            idle.append(await self._observe(_IDLE_BEATS))
            if _stolen_ticks() == self._stolen_before:
                break
        self._idle_ms = min(idle)

    async def beat(self, doing: str, limit_ms: float = math.inf) -> bool:
        """Wait for the next data; later gaps are recorded under this activity.

        A gap above the limit is not recorded if the hypervisor ran another machine since the last call: then it may be
        that of this machine, and the caller repeats the activity. Returns whether the gap was recorded.
        """
        gap_ms = max(0.0, await self._observe(1) - self._idle_ms)
        stolen, self._stolen_before = self._stolen_before, _stolen_ticks()
        is_recorded = gap_ms <= limit_ms or stolen == self._stolen_before
        if self._doing and is_recorded:
            self.worst[self._doing] = max(self.worst.get(self._doing, 0.0), gap_ms)
        self._doing = doing
        return is_recorded

    async def _observe(self, beats: int) -> float:
        observed: Observed = await self._reader.ask(b"%d\n" % beats, Observed)
        self.endings.update(observed.endings)
        return observed.worst_ms


@asynccontextmanager
async def listening(server: Running, body: bytes) -> AsyncIterator[GapRecorder]:
    """Measure streams until the context ends. `body` requests a long stream."""
    request = post(body, server.port, key=server.key)
    reader = _Child("faults.stream_reader", str(server.port), request.hex())
    with reader.process:
        try:
            for process in (reader.process, server.process):
                _give_priority(process.pid)
            recorder = GapRecorder(reader)
            await recorder.measure_idle()
            await recorder.beat(NOTHING)
            yield recorder
            await recorder.beat("")
        finally:
            reader.process.kill()


class Sender:
    """Sends requests from a process of its own."""

    def __init__(self, child: _Child) -> None:
        self._child = child

    async def send(self, port: int, data: bytes, at_once: int = 1, first_size: int = 0) -> list[ClientReply]:
        """Send bytes as in `Sending`; return the replies, with the ends of their bodies."""
        order = msgspec.json.encode(Sending(port, len(data), at_once, first_size))
        replies: list[ClientReply] = await self._child.ask(order + b"\n" + data, list[ClientReply])
        return replies


@asynccontextmanager
async def sending() -> AsyncIterator[Sender]:
    """Run a sender until the context ends."""
    child = _Child("faults.sender")
    with child.process:
        try:
            yield Sender(child)
        finally:
            child.process.kill()
