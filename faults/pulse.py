"""A stream that beats while something else is done to the server, and the longest time in which it was silent."""

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from faults.asking import LIMIT_S, post, say
from tests.live.server import Lines, Running

BEAT_MS = 10
"""From one token of the beating server to its next."""
_TOKENS = 4096  # all that one answer of it may have: 40 s


@contextmanager
def beating() -> Iterator[str]:
    """A server in a process of its own that says a token every ten milliseconds; its address."""
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


class Pulse:
    """One stream after the other, listened to."""

    def __init__(self) -> None:
        self.worst: dict[str, float] = {}
        """The longest silence in milliseconds, by what was done meanwhile."""
        self.endings: dict[str, int] = {}
        """How the streams ended that are over: by the last of their bytes."""
        self.doing = ""
        self._last = 0.0
        self._beat = asyncio.Event()

    async def listen(self, server: Running, body: bytes) -> None:
        """Have one stream after the other, until cancelled."""
        while True:
            talk = await say(server.port, post(body, server.port, key=server.key))
            tail = b""
            try:
                self._last = 0.0
                while data := await talk.reader.read(65536):
                    self._note()
                    tail = (tail + data)[-64:]
            finally:
                talk.leave()
            end = "whole" if re.search(rb"data: \[DONE\]\n\n\r\n0\r\n\r\n$", tail) else repr(tail)
            self.endings[end] = self.endings.get(end, 0) + 1

    async def beat(self, doing: str) -> None:
        """Wait for the next sign of life. What comes after it happens while that is done."""
        self._beat.clear()
        async with asyncio.timeout(LIMIT_S):
            await self._beat.wait()
        self.doing = doing

    def _note(self) -> None:
        now = time.monotonic()
        if self._last:  # the wait for a first token is no silence
            self.worst[self.doing] = max(self.worst.get(self.doing, 0.0), (now - self._last) * 1000)
        self._last = now
        self._beat.set()


@asynccontextmanager
async def listening(server: Running, body: bytes) -> AsyncIterator[Pulse]:
    """A pulse that is listened to for so long. `body` asks for a long stream."""
    made = Pulse()
    task = asyncio.create_task(made.listen(server, body))
    try:
        await made.beat("nothing")
        yield made
        await made.beat("nothing")
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()  # it fell
