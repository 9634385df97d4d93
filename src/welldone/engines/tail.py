"""The last lines that a program wrote, within bounds, whatever it writes."""

import asyncio
from collections import deque
from collections.abc import Callable

LINES = 40
"""Enough for llama.cpp's reasons and for the end of a Python traceback."""

LINE_LIMIT = 400
"""Characters of one line that are kept. The reason of a failure stands at its start."""

READ_BYTES = 65536
"""One pipe's worth on Linux."""


class Tail:
    """Lines as they come; the last ones are kept."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=LINES)
        self._open = b""
        self._on_line = on_line

    def feed(self, data: bytes) -> None:
        """More bytes. A line without an end is cut where it gets too long."""
        *whole, rest = (self._open + data).split(b"\n")
        for line in whole:
            self._keep(line)
        if len(rest) > READ_BYTES:
            self._keep(rest)
            rest = b""
        self._open = rest

    def end(self) -> None:
        """The program ended: what stands without an end of line is a line too."""
        self._keep(self._open)
        self._open = b""

    def _keep(self, line: bytes) -> None:
        text = _shown(line)
        if not text:
            return
        self._lines.append(text)
        if self._on_line is not None:
            self._on_line(text)

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._lines)

    @property
    def now(self) -> str:
        """What it says just now: a line that is not ended yet, such as a bar that grows, else the last one."""
        return _shown(self._open) or (self._lines[-1] if self._lines else "")


def _shown(line: bytes) -> str:
    """What a terminal would show of it: a bar is written over itself, again and again."""
    last = line.rstrip().rpartition(b"\r")[2]
    return last[: LINE_LIMIT * 4].decode(errors="replace").rstrip()[:LINE_LIMIT]


async def drain(source: asyncio.StreamReader, tail: Tail) -> None:
    """Reads all that comes, at once: a program that writes to a full pipe stands still."""
    while data := await source.read(READ_BYTES):
        tail.feed(data)
    tail.end()
