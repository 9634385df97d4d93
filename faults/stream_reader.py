"""A client in its own process that reads one stream after the other and records the longest gap.

The load of other processes does not slow it down, so a gap is caused by the server. Each line on stdin is a number of
pieces of data; after as many more, one line on stdout says the longest gap since the previous line, and how the streams
ended since then (`Observed`).
"""

import asyncio
import re
import sys
import time

import msgspec

from faults.client import connect


class Observed(msgspec.Struct):
    """What the reader saw."""

    worst_ms: float = 0.0
    """Longest gap in milliseconds; the time to the first data of a stream does not count."""
    endings: list[str] = []
    """`whole`, or the last bytes."""


class StreamReader:
    """Reads streams and records the longest gap."""

    def __init__(self) -> None:
        self._observed = Observed()
        self._received = asyncio.Event()

    async def read(self, port: int, request: bytes) -> None:
        """Read one stream after the other."""
        while True:
            connection = await connect(port, request)
            last, tail = 0.0, b""
            while data := await connection.reader.read(65536):
                now = time.monotonic()
                if last:
                    self._observed.worst_ms = max(self._observed.worst_ms, (now - last) * 1000)
                last = now
                tail = (tail + data)[-64:]
                self._received.set()
            connection.disconnect()
            end = "whole" if re.search(rb"data: \[DONE\]\n\n\r\n0\r\n\r\n$", tail) else repr(tail)
            self._observed.endings.append(end)

    async def answer(self, lines: asyncio.StreamReader) -> None:
        """Print what was seen for each input line, the current gap included."""
        while line := await lines.readline():
            for _ in range(int(line)):
                self._received.clear()
                await self._received.wait()
            sys.stdout.buffer.write(msgspec.json.encode(self._observed) + b"\n")
            sys.stdout.flush()
            self._observed = Observed()


async def main() -> None:
    """Read streams and print gaps until standard input closes."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    reader = StreamReader()
    reading = asyncio.create_task(reader.read(int(sys.argv[1]), bytes.fromhex(sys.argv[2])))
    answering = asyncio.create_task(reader.answer(lines))
    await asyncio.wait({reading, answering}, return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()


if __name__ == "__main__":
    asyncio.run(main())
