"""The only printer: what goes to the terminal goes through here. Colour only on a terminal, never the only sign."""

import os
import shutil
import sys
from enum import IntEnum
from pathlib import Path

# What an exit code means, and the error that ends a command with one.


class ExitCode(IntEnum):
    """How a command ended; `MEANINGS` says it in words."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOTHING_TO_DO = 4
    INTERRUPTED = 130
    """128 and the number of SIGINT, as shells have it."""


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "all is well",
    ExitCode.FAILED: "something is wrong with what was looked at: a rule is broken, an answer is not whole",
    ExitCode.USAGE: "the command was called in a way that it cannot follow; one line on standard error says what to do",
    ExitCode.UNREACHABLE: "what it needs from outside could not be reached, or did not answer in time",
    ExitCode.NOTHING_TO_DO: "nothing ran, since there was nothing to look at; never a pass",
    ExitCode.INTERRUPTED: "it was interrupted by Ctrl-C",
}


class UsageError(Exception):
    """The user can mend this: the message says how."""


_COLORS = {"breaks": "31", "tolerated": "33", "style": "36", "right": "32", "lax": "33", "wrong": "31", "dim": "2"}


def print_line(text: str = "") -> None:
    """A line of the answer."""
    print(text)


def print_note(text: str) -> None:
    """A line beside the answer. In one piece: several processes may write at once."""
    sys.stderr.write(f"{text}\n")


def print_hint(text: str) -> None:
    """A line for a person who waits; programs do not get it."""
    if sys.stderr.isatty():
        print_note(text)


def is_interactive() -> bool:
    """Whether a person sees standard error, on a terminal that can write over a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class StderrAboveProgress:
    """Standard error for lines that may come while another is written over and over: they take its place."""

    def write(self, text: str) -> None:
        """Write lines, in one piece with what takes the other away: it is written by somebody else."""
        sys.stderr.write(f"\r\x1b[K{text}")

    def flush(self) -> None:
        """Let out what was written."""
        sys.stderr.flush()


def overwrite_line(text: str) -> None:
    """A line for a person who waits, written over the one before; an empty one takes it away."""
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{text[:width]}")
    sys.stderr.flush()


def terminal_width() -> int | None:
    """The columns of the terminal that shows standard output, or COLUMNS; None where it goes to a file or a pipe."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


def write_bytes(data: bytes) -> None:
    """Bytes of the answer, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def printable_name(text: str) -> str:
    """A file's name as it is, in quotes only where it could not be seen otherwise."""
    return text if text and text.isprintable() else ascii(text)


def short_count(count: int) -> str:
    """A large number, as models are called by it: 135M, 7.2B."""
    if count >= 1e9:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count:,}"


def error_text(error: Exception) -> str:
    """The system's text for an error, as part of a sentence."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # asyncio and uvloop put a text of their own into it. Errors of ssl and getaddrinfo have numbers of their own.
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        text = os.strerror(error.errno)
    return text.lower()


def flush_output() -> None:
    """Let out all that was printed, so that what goes wrong with it is known before the end."""
    sys.stdout.flush()


def close_output() -> None:
    """Give up on standard output: nobody reads it, or it takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_missing_streams() -> None:
    """Stand in for an output that the caller has closed."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - it stays open as long as the program
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as above


def colorize(text: str, kind: str) -> str:
    """The text in the colour of its kind, where there are colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLORS[kind]}m{text}\x1b[0m"
