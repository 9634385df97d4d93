"""A client in a process of its own that hears one stream after the other, and notes the longest silence.

What its parent sends and reads does not slow it down: so a silence is the server's. A line on standard input asks for
the longest silence since the line before, in milliseconds; the first answer comes when a stream flows.
"""

import asyncio
import sys
import time

from faults.asking import chat, post, say


class Listener:
    """Hears streams."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._last = 0.0

    async def listen(self, port: int, key: str) -> None:
        """Have one stream after the other."""
        while True:
            talk = await say(port, post(chat("pulse"), port, key=key))
            self._last = 0.0  # the wait for a first token is no silence
            while await talk.reader.read(65536):
                now = time.monotonic()
                if self._last:
                    self.worst_ms = max(self.worst_ms, (now - self._last) * 1000)
                self._last = now
            talk.leave()

    async def answer(self) -> None:
        """Tell the longest silence for each line that comes; one that goes on counts as well."""
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            before = self._last
            while self._last == before:  # noqa: ASYNC110 - until the stream has gone on
                await asyncio.sleep(0.002)
            sys.stdout.write(f"{self.worst_ms:.1f}\n")
            sys.stdout.flush()
            self.worst_ms = 0.0


async def main() -> None:
    """Listen, and answer until standard input ends."""
    listener = Listener()
    listening = asyncio.create_task(listener.listen(int(sys.argv[1]), sys.argv[2]))
    answering = asyncio.create_task(listener.answer())
    await asyncio.wait({listening, answering}, return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()


if __name__ == "__main__":
    asyncio.run(main())
