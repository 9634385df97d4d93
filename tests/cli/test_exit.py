"""How a command ends when its reader closes the pipe, on Ctrl-C, and when output cannot be written."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.captures import RIGHT, ROLES
from tests.cli.live import Live
from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S, CommandResult, run_python
from tests.table import table
from welldone.cli.ui import ExitCode

QUIET_EXIT_CODES = {0, 128 + signal.SIGPIPE}  # 0: all output fitted into the pipe; 141: SIGPIPE


def _run_with_closed_output(words: str, cwd: Path) -> CommandResult:
    """Run the command with a pipe as its stdout whose read end is closed."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [COMMAND, *words.split()],
            input=b"",
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=ENVIRONMENT,
            timeout=LIMIT_S,
        )
    finally:
        os.close(write)
    return CommandResult(done.returncode, b"", done.stderr)


def test_the_reader_may_close_the_pipe_after_the_first_line(folder: Path) -> None:
    with Live("rules", cwd=folder) as rules:
        assert rules.process.stdout is not None
        assert rules.process.stdout.readline().startswith(b"http-content-type ")
        rules.process.stdout.close()
        assert rules.process.stderr is not None
        assert rules.process.stderr.read() == b""
        assert rules.process.wait(LIMIT_S) in QUIET_EXIT_CODES


@pytest.mark.parametrize("words", ["rules", "rules --json", "fix roles.txt", "--version", "lint right.txt"])
def test_a_closed_output_is_not_an_error(words: str, folder: Path) -> None:
    ran = _run_with_closed_output(words, folder)
    assert ran.code in QUIET_EXIT_CODES
    assert ran.err == b""


def test_the_reader_may_close_the_pipe_during_a_repair(folder: Path) -> None:
    first, second, *_ = (frame + b"\n\n" for frame in RIGHT.split(b"\n\n"))
    with Live("fix", cwd=folder) as fix:
        fix.write(first)
        assert fix.read_frame() == first
        assert fix.process.stdout is not None
        assert fix.process.stderr is not None
        fix.process.stdout.close()
        fix.write(second)
        assert fix.process.stderr.read() == b""
        assert fix.process.wait(LIMIT_S) in QUIET_EXIT_CODES


@pytest.mark.parametrize("words", ["fix", "fix --report report.json"])
def test_ctrl_c_while_fix_waits_ends_it_quietly(words: str, tmp_path: Path) -> None:
    first = ROLES.partition(b"\n\n")[0] + b"\n\n"
    with Live(*words.split(), cwd=tmp_path) as fix:
        fix.write(first)
        # Its output shows that it has started and has read all input: now it waits.
        fix.read_frame()
        fix.read_frame()
        fix.process.send_signal(signal.SIGINT)
        assert fix.process.wait(LIMIT_S) == 130
        assert fix.process.stderr is not None
        assert fix.process.stderr.read() == b""


INTERRUPT = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

_, program, module, *words = sys.argv
sys.argv[:] = [program, *words]
sys.meta_path.insert(0, Interrupt())
runpy.run_path(program, run_name="__main__")
"""
"""Runs the program, with Ctrl-C at the import of a module."""


@table(
    ("words", "module"),
    [
        ("--version", "welldone.cli.main"),
        ("rules", "welldone.cli.rules"),
        ("serve", "welldone.cli.service"),
        ("bench", "welldone.bench.run"),
    ],
)
def test_ctrl_c_during_imports_ends_a_command_quietly(words: str, module: str, tmp_path: Path) -> None:
    ran = run_python(INTERRUPT, COMMAND, module, words, cwd=tmp_path)
    assert (ran.code, ran.out, ran.notes) == (ExitCode.INTERRUPTED, b"", "")


@pytest.mark.parametrize("words", ["rules", "lint right.txt", "fix right.txt"])
def test_an_output_that_cannot_be_written_is_an_error_of_one_line(words: str, folder: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [COMMAND, *words.split()],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=ENVIRONMENT,
            timeout=LIMIT_S,
        )
    assert done.returncode not in {0, 1}
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_a_closed_standard_input_is_an_error_of_one_line(command: str, folder: Path) -> None:
    line = f'exec "$0" {command} <&-'
    done = subprocess.run(
        ["/bin/sh", "-c", line, COMMAND], capture_output=True, cwd=folder, env=ENVIRONMENT, timeout=LIMIT_S
    )
    assert done.returncode in {2, 4}
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
