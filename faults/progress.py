"""Progress of a case on one terminal line, overwritten in place."""

import sys


def note(words: str) -> None:
    """Replace the line."""
    _write(f"\r\033[K  {words}")


def wipe() -> None:
    """Clear the line."""
    _write("\r\033[K")


def _write(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()
