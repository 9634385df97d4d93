"""The last lines that a program wrote, within bounds, whatever it writes."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence

LINES = 200
"""Enough for llama.cpp's reasons, and for the tracebacks of all processes of vLLM, one after the other: the first of
them has the reason, and some 160 lines may follow it."""

LINE_LIMIT = 400
"""Characters of one line that are kept. The reason of a failure stands at its start."""

READ_BYTES = 65536
"""One pipe's worth on Linux."""


_HEAD = re.compile(r"(\([^)]{1,64}\) )?(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]{1,64}\] +")
"""What stands before each line of vLLM's: a process, a level, a time and a place in its source."""
_REASON = re.compile(r"(\w+\.)*\w*(Error|Exception): \S")
_REASONS = 2  # that are shown besides the last lines: the first is what went wrong, others say the same again
_LAST = 5


def bare(line: str) -> str:
    """A line without what only fills it."""
    return _HEAD.sub("", line, count=1)


def last_words(lines: Sequence[str]) -> tuple[str, ...]:
    """What a program that failed said of it: the first errors that it named, and its last lines."""
    reasons = (bare(line) for line in lines[:-_LAST] if _REASON.match(bare(line)))
    return (*tuple(dict.fromkeys(reasons))[:_REASONS], *(bare(line) for line in lines[-_LAST:]))


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
