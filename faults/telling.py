"""How far a case is, said on one line that is written over and over: only where a person looks."""

import sys


def note(words: str) -> None:
    """Say it, in place of what was said before."""
    _write(f"\r\033[K  {words}")


def wipe() -> None:
    """Leave nothing of it."""
    _write("\r\033[K")


def _write(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()
