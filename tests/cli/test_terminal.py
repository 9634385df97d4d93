"""On a terminal there are colours, and a person who forgot to name a file is told what is awaited."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, run

PLAIN = {name: value for name, value in ENVIRONMENT.items() if name != "NO_COLOR"} | {"TERM": "xterm"}


def _seen(words: str, cwd: Path, **variables: str) -> str:
    """What the command shows on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, *words.split()],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        cwd=cwd,
        env=PLAIN | {"COLUMNS": "1000"} | variables,
    )
    os.close(theirs)
    with watched(process):
        seen = _read_all(ours)
    os.close(ours)
    return seen.decode().replace("\r\n", "\n")


def _read_all(terminal: int) -> bytes:
    seen = b""
    try:
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:
        pass  # this is how Linux says that the other side of a terminal is closed
    return seen


@pytest.mark.parametrize("words", ["lint roles.txt", "lint right.txt", "rules tool"])
def test_colours_only_paint_what_the_text_says(words: str, folder: Path) -> None:
    seen = _seen(words, folder)
    painted = seen.replace("\x1b[0m", "")
    for colour in ("31", "32", "33", "36"):
        painted = painted.replace(f"\x1b[{colour}m", "")
    assert seen != painted
    assert painted == run(*words.split(), cwd=folder).out.decode()


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
def test_who_wants_no_colours_gets_none(variables: dict[str, str], folder: Path) -> None:
    assert _seen("lint roles.txt", folder, **variables) == run("lint", "roles.txt", cwd=folder).out.decode()


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_who_forgot_the_file_is_told_what_is_awaited(command: str, folder: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, command], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=PLAIN
    )
    os.close(theirs)
    with watched(process):
        assert process.stderr is not None
        told = process.stderr.readline()
        os.write(ours, b"\x04")  # Ctrl-D
        out, err = process.communicate()
    os.close(ours)
    assert told == b"reading a stream from the terminal; end it with Ctrl-D, or name a file\n"
    assert (process.returncode, out) == (4, b"")
    assert err.endswith(b": the capture is empty\n")


@pytest.mark.tier3
@pytest.mark.parametrize("words", ["rules", "lint roles.txt", "mock --list", "check --list", "models", "--help"])
@pytest.mark.parametrize("columns", [80, 60])
def test_tables_fit_the_terminal_and_lose_nothing(words: str, columns: int, folder: Path) -> None:
    seen = _seen(words, folder, COLUMNS=str(columns), NO_COLOR="1")
    piped = run(*words.split(), cwd=folder).out.decode()
    assert [line for line in seen.splitlines() if len(line) > columns and "welldone COMMAND" not in line] == []
    assert "".join(seen.split()) == "".join(piped.split())
