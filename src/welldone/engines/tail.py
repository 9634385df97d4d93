"""The last lines that a program wrote, within bounds, whatever it writes."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence

OUTPUT_LINES = 200
"""Enough for llama.cpp's reasons, and for the tracebacks of all processes of vLLM, one after the other: the first of
them has the reason, and some 160 lines may follow it."""

LINE_LIMIT_CHARS = 400
"""Characters of one line that are kept. The reason of a failure stands at its start."""

READ_BYTES = 65536
"""One pipe's worth on Linux."""


_LOG_PREFIX = re.compile(r"(\([^)]{1,64}\) )?(DEBUG|INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^\]]{1,64}\] +")
"""What stands before each line of vLLM's: a process, a level, a time and a place in its source."""
_ERROR_LINE = re.compile(r"(\w+\.)*\w*(Error|Exception): \S")
_ERRORS_SHOWN = 2  # that are shown besides the last lines: the first is what went wrong, others say the same again
_LAST_LINES_SHOWN = 5


def strip_log_prefix(line: str) -> str:
    """A line without what only fills it."""
    return _LOG_PREFIX.sub("", line, count=1)


def failure_excerpt(lines: Sequence[str]) -> tuple[str, ...]:
    """What a program that failed said of it: the first errors that it named, and its last lines."""
    reasons = (
        strip_log_prefix(line) for line in lines[:-_LAST_LINES_SHOWN] if _ERROR_LINE.match(strip_log_prefix(line))
    )
    return (
        *tuple(dict.fromkeys(reasons))[:_ERRORS_SHOWN],
        *(strip_log_prefix(line) for line in lines[-_LAST_LINES_SHOWN:]),
    )


class OutputTail:
    """Lines as they come; the last ones are kept."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._lines: deque[str] = deque(maxlen=OUTPUT_LINES)
        self._partial_line = b""
        self._on_line = on_line

    def feed(self, data: bytes) -> None:
        """More bytes. A line without an end is cut where it gets too long."""
        *whole, rest = (self._partial_line + data).split(b"\n")
        for line in whole:
            self._append(line)
        if len(rest) > READ_BYTES:
            self._append(rest)
            rest = b""
        self._partial_line = rest

    def end(self) -> None:
        """The program ended: what stands without an end of line is a line too."""
        self._append(self._partial_line)
        self._partial_line = b""

    def _append(self, line: bytes) -> None:
        text = _visible_text(line)
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
    def current_line(self) -> str:
        """What it says just now: a line that is not ended yet, such as a bar that grows, else the last one."""
        return _visible_text(self._partial_line) or (self._lines[-1] if self._lines else "")


def _visible_text(line: bytes) -> str:
    """What a terminal would show of it: a bar is written over itself, again and again."""
    last = line.rstrip().rpartition(b"\r")[2]
    return last[: LINE_LIMIT_CHARS * 4].decode(errors="replace").rstrip()[:LINE_LIMIT_CHARS]


async def drain(source: asyncio.StreamReader, output: OutputTail) -> None:
    """Reads all that comes, at once: a program that writes to a full pipe stands still."""
    while data := await source.read(READ_BYTES):
        output.feed(data)
    output.end()
