"""A client in its own process that reads one stream after the other and records the longest gap.

The load in its parent does not slow it down, so a gap is caused by the server. Each line on stdin requests the longest
gap since the previous line, in milliseconds; the first reply comes when a stream flows.
"""

import asyncio
import sys
import time

from faults.client import chat, connect, post


class Listener:
    """Reads streams and records the longest gap."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._last = 0.0

    async def listen(self, port: int, key: str) -> None:
        """Read one stream after the other."""
        while True:
            connection = await connect(port, post(chat("heartbeat"), port, key=key))
            self._last = 0.0  # the time to the first token does not count
            while await connection.reader.read(65536):
                now = time.monotonic()
                if self._last:
                    self.worst_ms = max(self.worst_ms, (now - self._last) * 1000)
                self._last = now
            connection.disconnect()

    async def answer(self) -> None:
        """Print the longest gap for each input line, the current gap included."""
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            before = self._last
            while self._last == before:  # noqa: ASYNC110 - until the next data
                await asyncio.sleep(0.002)
            sys.stdout.write(f"{self.worst_ms:.1f}\n")
            sys.stdout.flush()
            self.worst_ms = 0.0


async def main() -> None:
    """Read streams and print gaps until standard input closes."""
    listener = Listener()
    listening = asyncio.create_task(listener.listen(int(sys.argv[1]), sys.argv[2]))
    answering = asyncio.create_task(listener.answer())
    await asyncio.wait({listening, answering}, return_when=asyncio.FIRST_COMPLETED)
    listening.cancel()


if __name__ == "__main__":
    asyncio.run(main())
