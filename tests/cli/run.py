"""Runs the installed `welldone` command as a process."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

COMMAND = str(Path(sys.executable).parent / "welldone")
# PYTHONUNBUFFERED would change the output that users see, as would COLUMNS. PYTHONPATH selects the tree under test.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name == "PYTHONPATH" or not (name.startswith("PYTHON") or name == "COLUMNS")
}
LIMIT_S = 60.0
"""Timeout of a process, generous for slow machines."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: bytes
    err: bytes

    @property
    def notes(self) -> str:
        """Standard error as text."""
        return self.err.decode("utf-8")


Run = Callable[..., CommandResult]
"""Runs a command with the given arguments."""


def run(*arguments: str, stdin: bytes = b"", cwd: Path, **variables: str) -> CommandResult:
    """Run `welldone` in the folder `cwd`, with additional environment variables."""
    return run_program(COMMAND, *arguments, stdin=stdin, cwd=cwd, **variables)


def run_python(code: str, *arguments: str, stdin: bytes = b"", cwd: Path) -> CommandResult:
    """Run Python code in a process of its own."""
    return run_program(sys.executable, "-c", code, *arguments, stdin=stdin, cwd=cwd)


def run_program(*words: str, stdin: bytes, cwd: Path, **variables: str) -> CommandResult:
    """Run a program until it exits."""
    done = subprocess.run(
        words, input=stdin, capture_output=True, cwd=cwd, env=ENVIRONMENT | variables, timeout=LIMIT_S
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)
