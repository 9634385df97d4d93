"""How a command ends when others end first: a reader that leaves, a person who presses Ctrl-C."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.captures import RIGHT, ROLES
from tests.cli.live import Live
from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S, Ran

QUIET_ENDS = {0, 128 + signal.SIGPIPE}  # all fitted into the pipe; or as a shell shows a broken one


def _run_for_nobody(words: str, cwd: Path) -> Ran:
    """Run the command with an output that no one reads any more."""
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
    return Ran(done.returncode, b"", done.stderr)


def test_a_reader_may_leave_after_the_first_line(folder: Path) -> None:
    with Live("rules", cwd=folder) as rules:
        assert rules.process.stdout is not None
        assert rules.process.stdout.readline().startswith(b"http-content-type ")
        rules.process.stdout.close()
        assert rules.process.stderr is not None
        assert rules.process.stderr.read() == b""
        assert rules.process.wait(LIMIT_S) in QUIET_ENDS


@pytest.mark.parametrize("words", ["rules", "rules --json", "fix right.txt", "fix roles.txt"])
def test_a_reader_who_has_left_is_no_trouble(words: str, folder: Path) -> None:
    ran = _run_for_nobody(words, folder)
    assert ran.code in QUIET_ENDS
    assert ran.err == b""


@pytest.mark.parametrize("words", ["--help", "--version", "rules tool", "rules delta-role-once", "lint right.txt"])
def test_a_reader_who_has_left_is_no_trouble_for_a_short_answer(words: str, folder: Path) -> None:
    ran = _run_for_nobody(words, folder)
    assert ran.code in QUIET_ENDS
    assert ran.err == b""


def test_a_reader_may_leave_in_the_middle_of_a_repair(folder: Path) -> None:
    first, second, *_ = (frame + b"\n\n" for frame in RIGHT.split(b"\n\n"))
    with Live("fix", cwd=folder) as fix:
        fix.write(first)
        assert fix.read_frame() == first
        assert fix.process.stdout is not None
        assert fix.process.stderr is not None
        fix.process.stdout.close()
        fix.write(second)
        assert fix.process.stderr.read() == b""
        assert fix.process.wait(LIMIT_S) in QUIET_ENDS


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let processes that are started here hear SIGINT, even where the tests themselves were told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("words", ["fix", "fix --endpoint chat", "fix --report report.json"])
def test_ctrl_c_while_fix_waits_ends_it_quietly(words: str, tmp_path: Path) -> None:
    first = ROLES.partition(b"\n\n")[0] + b"\n\n"
    with _interruptible(), Live(*words.split(), cwd=tmp_path) as fix:
        fix.write(first)
        # What it writes shows that it is up and has read all that there is: it waits.
        fix.read_frame()
        fix.read_frame()
        fix.process.send_signal(signal.SIGINT)
        assert fix.process.wait(LIMIT_S) == 130
        assert fix.process.stderr is not None
        assert fix.process.stderr.read() == b""


@pytest.mark.parametrize("words", ["rules", "rules tool", "lint right.txt", "fix right.txt"])
def test_an_output_that_cannot_be_written_is_one_line(words: str, folder: Path) -> None:
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
def test_a_closed_standard_input_is_one_line_as_well(command: str, folder: Path) -> None:
    line = f'exec "$0" {command} <&-'
    done = subprocess.run(
        ["/bin/sh", "-c", line, COMMAND], capture_output=True, cwd=folder, env=ENVIRONMENT, timeout=LIMIT_S
    )
    assert done.returncode in {2, 4}
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
