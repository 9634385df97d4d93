"""The real `welldone` command, run as a process: what went in, what came out."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

COMMAND = str(Path(sys.executable).parent / "welldone")
# PYTHONUNBUFFERED and its like would hide what users see, and COLUMNS would change it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") and name != "COLUMNS"}
LIMIT_S = 60.0
"""When a process counts as stuck: far beyond what any of them needs, so that a slow machine is no failing one."""


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def notes(self) -> str:
        """Standard error as text."""
        return self.err.decode("utf-8")


Run = Callable[..., Ran]
"""What runs a command: its words in, how it ended out."""


def run(*arguments: str, stdin: bytes = b"", cwd: Path, **variables: str) -> Ran:
    """Run `welldone` with these arguments in the folder `cwd`, with more environment variables."""
    return run_program(COMMAND, *arguments, stdin=stdin, cwd=cwd, **variables)


def run_python(code: str, *arguments: str, stdin: bytes = b"", cwd: Path) -> Ran:
    """Run a small program in the Python of the tests."""
    return run_program(sys.executable, "-c", code, *arguments, stdin=stdin, cwd=cwd)


def run_program(*words: str, stdin: bytes, cwd: Path, **variables: str) -> Ran:
    """Run a program to its end."""
    done = subprocess.run(
        words, input=stdin, capture_output=True, cwd=cwd, env=ENVIRONMENT | variables, timeout=LIMIT_S
    )
    return Ran(done.returncode, done.stdout, done.stderr)
