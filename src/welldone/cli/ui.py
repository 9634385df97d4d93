"""Terminal output, exit codes and SIGTERM. All output of the commands is printed here.

Colours are used on terminals only, and never carry information of their own.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """Exit code of a command; see `EXIT_CODE_MEANINGS`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOTHING_TO_DO = 4
    INTERRUPTED = 130
    """128 + SIGINT, as shells report it."""


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "success",
    ExitCode.FAILED: "the input or the server has a problem: a rule is broken, or an answer is incomplete",
    ExitCode.USAGE: "usage error; one line on standard error describes it and how to correct it",
    ExitCode.UNREACHABLE: "a server or another resource could not be reached, or did not answer in time",
    ExitCode.NOTHING_TO_DO: "nothing ran because there was nothing to examine; never a pass",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C, or `check` and `bench` by SIGTERM",
}


class UsageError(Exception):
    """An error that the user can correct. The message says how."""


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of these kinds, whose messages are for the user, as `UsageError`."""
    try:
        yield
    except kinds as error:
        raise UsageError(str(error)) from None


_COLORS = {"breaks": "31", "tolerated": "33", "style": "36", "pass": "32", "warn": "33", "fail": "31", "dim": "2"}


def print_line(text: str = "") -> None:
    """Print a line of the result to stdout."""
    print(text)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of the result to stdout."""
    for line in lines:
        print_line(line)


def print_note(text: str) -> None:
    """Print a message to stderr, in one write because several processes may share stderr."""
    sys.stderr.write(f"{text}\n")


def print_hint(text: str) -> None:
    """Print a message to stderr if it is a terminal."""
    if sys.stderr.isatty():
        print_note(text)


def is_interactive() -> bool:
    """Whether stderr is a terminal that can overwrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def ask(question: str) -> str | None:
    """Ask on stderr and return the line that is typed; None at the end of input, or without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip() if line else None


class StderrAboveProgress:
    """Stderr for messages while a progress line is shown: each write clears the progress line first."""

    def write(self, text: str) -> None:
        """Write the text and clear the progress line, in one write."""
        sys.stderr.write(f"\r\x1b[K{text}")

    def flush(self) -> None:
        """Flush stderr."""
        sys.stderr.flush()


def overwrite_line(text: str) -> None:
    """Replace the progress line on stderr; an empty text clears it."""
    width = shutil.get_terminal_size().columns - 1
    sys.stderr.write(f"\r\x1b[K{text[:width]}")
    sys.stderr.flush()


def terminal_width() -> int | None:
    """Return the columns of the terminal at stdout, or COLUMNS; None for a file or a pipe."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return None
    return shutil.get_terminal_size().columns


def has_screen() -> bool:
    """Whether stdout is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class FullScreen:
    """The terminal at stdout as a screen to draw on. At the end, what was there before comes back."""

    def __enter__(self) -> None:
        """Switch to the alternate screen, without a cursor."""
        self._write("\x1b[?1049h\x1b[?25l")

    def __exit__(self, *_: object) -> None:
        """Switch back."""
        self._write("\x1b[?25h\x1b[?1049l")

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines that fit, in place of those before; long lines are cut."""
        shown = lines[: shutil.get_terminal_size().lines - 1]
        body = "".join(f"{line}\x1b[K\r\n" for line in shown)
        self._write(f"\x1b[?7l\x1b[H{body}\x1b[J\x1b[?7h")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Write bytes to stdout and flush."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def printable_name(name: str | Path) -> str:
    """Return a file name for display: quoted and escaped only where it has unprintable characters."""
    text = str(name)
    return text if text and text.isprintable() else ascii(text)


def short_count(count: int) -> str:
    """Format a parameter count as model names do: 135M, 7.2B."""
    if count >= 1e9:
        return f"{count / 1e9:.1f}B"
    return f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count:,}"


def error_text(error: Exception) -> str:
    """Return the text of an error in lower case, for use in a sentence."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    # asyncio and uvloop replace strerror by a text of their own. Errors of ssl and getaddrinfo have their own numbers.
    if isinstance(error, OSError) and error.errno and type(error).__module__ == "builtins":
        text = os.strerror(error.errno)
    return text.lower()


@contextmanager
def file_errors(action: str, name: str | Path) -> Iterator[None]:
    """Raise `UsageError` if a file cannot be read or written, or if its name is not valid."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot {action} {printable_name(name)}: {error_text(error)}") from None


WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Wildcard addresses, and the loopback address that reaches them."""


def server_url(host: str, port: int, *, is_tls: bool = False) -> str:
    """Return the URL at which clients on this machine reach a server that listens on `host`."""
    bare = strip_brackets(host)
    reachable = WILDCARD_HOSTS.get(bare, bare)
    return f"{'https' if is_tls else 'http'}://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"


def strip_brackets(host: str) -> str:
    """Return an IPv6 address without its brackets, and any other host unchanged."""
    return host.removeprefix("[").removesuffix("]")


def flush_output() -> None:
    """Flush stdout, so that a write error is raised before the command ends."""
    sys.stdout.flush()


def close_output() -> None:
    """Redirect stdout to /dev/null: its reader has gone, or the disk is full."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_missing_streams() -> None:
    """Replace stdout and stderr by /dev/null where the parent process closed them."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - it stays open as long as the program
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as above


def colorize(text: str, style: str) -> str:
    """Return the text in the colour of its kind, if stdout shows colours."""

    if not has_screen() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLORS[style]}m{text}\x1b[0m"


def cancel_on_sigterm() -> None:
    """Let SIGTERM cancel the current task with the message `SIGTERM`. Ctrl-C cancels it without a message."""
    import asyncio  # slow to import; --help does without
    import signal

    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, signal.SIGTERM.name)
