"""The only printer: what goes to the terminal goes through here. Colour only on a terminal, never the only sign."""

import os
import sys

_COLOURS = {"breaks": "31", "tolerated": "33", "style": "36", "right": "32", "lax": "33", "wrong": "31", "dim": "2"}


def line(text: str = "") -> None:
    """A line of the answer."""
    print(text)


def note(text: str) -> None:
    """A line beside the answer."""
    print(text, file=sys.stderr)


def write(data: bytes) -> None:
    """Bytes of the answer, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def paint(text: str, kind: str) -> str:
    """The text in the colour of its kind, where there are colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m"
