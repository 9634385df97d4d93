"""Counts the user instructions of a Python program, in parts that the program separates with `mark`.

The same program with the same input executes the same instructions, so that these counts do not vary as times do.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

END_S = 600.0
"""Under callgrind a program is 50 times as slow; it ends within a minute, and the limit turns a hang into a failure."""
_MARK = "sched_get_priority_max"  # a function of the C library that nothing else calls
_TOTALS = re.compile(r"^totals: ([0-9]+)", re.MULTILINE)
_OUTPUT = "callgrind.out"


class CallgrindError(Exception):
    """Valgrind is missing, or the program failed under it."""


def find_valgrind() -> str:
    """Return the path of valgrind.

    Raises:
        CallgrindError: there is none.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise CallgrindError("valgrind not found: apt-get install valgrind")
    return valgrind


def mark() -> None:
    """End a part and begin the next."""
    os.sched_get_priority_max(os.SCHED_OTHER)


@contextmanager
def run(program: Sequence[str], *, tree: Path, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a Python program with the package of a tree until the context ends; its output is a pipe."""
    output = f"--callgrind-out-file={folder / _OUTPUT}"
    command = [
        find_valgrind(),
        "--quiet",
        "--tool=callgrind",
        f"--dump-before={_MARK}",
        output,
        sys.executable,
        *program,
    ]
    # What else is in the environment would be copied, searched and hashed. Hashes of strings are random by default.
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(tree / "src"),
    }
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            finally:
                process.kill()


def parts(folder: Path) -> list[int]:
    """Return the instructions of each part that a mark has ended.

    Raises:
        CallgrindError: there is none.
    """
    paths = sorted(folder.glob(f"{_OUTPUT}.*"), key=lambda path: int(path.suffix[1:]))
    found = [_TOTALS.search(path.read_text("latin-1")) for path in paths]
    if not found or None in found:
        raise CallgrindError(f"the program failed under callgrind:\n{end_of_log(folder)}")
    return [int(totals[1]) for totals in found if totals is not None]


def end_of_log(folder: Path) -> str:
    """Return the last lines of what the program wrote to standard error."""
    return "\n".join((folder / "log").read_text("utf-8", "replace").splitlines()[-8:])
