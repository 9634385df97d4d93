"""A steady stream that runs next to a fault, and its longest gap."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from faults.client import LIMIT_S, connect, post
from tests.support.server import Lines, Running

BEAT_MS = 10
"""Gap between two tokens of the mock server."""
_TOKENS = 4096  # one answer lasts 40 s


@contextmanager
def beating() -> Iterator[str]:
    """Run a mock server that sends a token every ten milliseconds; yields its URL."""
    words = [sys.executable, "-m", "welldone", "mock", "--port", "0", "--text", "beat "]
    process = subprocess.Popen(
        [*words, "--tokens", str(_TOKENS), "--gap", f"{BEAT_MS}ms"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield Lines(process.stdout).wait(r"on (http://\S+)$")[1]
    finally:
        process.kill()
        process.wait(LIMIT_S)


class GapRecorder:
    """Reads one stream after the other and records the gaps."""

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}
        """Longest gap in milliseconds, by the activity during it."""
        self.endings: dict[str, int] = {}
        """Number of streams by their ending; incomplete ones by their last bytes."""
        self.doing = ""
        self._last = 0.0
        self._received = asyncio.Event()

    async def listen(self, server: Running, body: bytes) -> None:
        """Read one stream after the other until cancelled."""
        while True:
            connection = await connect(server.port, post(body, server.port, key=server.key))
            tail = b""
            try:
                self._last = 0.0
                while data := await connection.reader.read(65536):
                    self._note()
                    tail = (tail + data)[-64:]
            finally:
                connection.disconnect()
            end = "whole" if re.search(rb"data: \[DONE\]\n\n\r\n0\r\n\r\n$", tail) else repr(tail)
            self.endings[end] = self.endings.get(end, 0) + 1

    async def beat(self, doing: str) -> None:
        """Wait for the next data; later gaps are recorded under this activity."""
        self._received.clear()
        async with asyncio.timeout(LIMIT_S):
            await self._received.wait()
        self.doing = doing

    def _note(self) -> None:
        now = time.monotonic()
        if self._last:  # the time to the first token does not count
            self.worst[self.doing] = max(self.worst.get(self.doing, 0.0), (now - self._last) * 1000)
        self._last = now
        self._received.set()


@asynccontextmanager
async def listening(server: Running, body: bytes) -> AsyncIterator[GapRecorder]:
    """Measure streams until the context ends. `body` requests a long stream."""
    made = GapRecorder()
    task = asyncio.create_task(made.listen(server, body))
    try:
        await made.beat("nothing")
        yield made
        await made.beat("nothing")
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()  # raises if the reader failed
