"""Output on a terminal: colours, widths, and the hint for a forgotten file name."""

import json
import os
import pty
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, Run
from tests.support.upstream import upstream

PLAIN = {name: value for name, value in ENVIRONMENT.items() if name != "NO_COLOR"} | {"TERM": "xterm"}


def _seen(words: str, cwd: Path, **variables: str) -> str:
    """Run the command on a terminal and return its output."""
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
        pass  # Linux reports EIO when the other side of a terminal is closed
    return seen


@pytest.mark.parametrize("words", ["lint roles.txt", "rules tool"])
def test_colours_do_not_change_the_text(words: str, here: Run, folder: Path) -> None:
    seen = _seen(words, folder)
    painted = seen.replace("\x1b[0m", "")
    for colour in ("31", "32", "33", "36"):
        painted = painted.replace(f"\x1b[{colour}m", "")
    assert seen != painted
    assert painted == here(*words.split()).out.decode()


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=["NO_COLOR", "TERM=dumb"])
def test_colours_can_be_turned_off(variables: dict[str, str], here: Run, folder: Path) -> None:
    assert _seen("lint roles.txt", folder, **variables) == here("lint", "roles.txt").out.decode()


@pytest.mark.parametrize("command", ["lint", "fix"])
def test_reading_from_a_terminal_prints_a_hint(command: str, folder: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, command], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=PLAIN
    )
    os.close(theirs)
    with watched(process):
        assert process.stderr is not None
        hint = process.stderr.readline()
        os.write(ours, b"\x04")  # Ctrl-D
        out, err = process.communicate()
    os.close(ours)
    assert hint == b"reading the stream from the terminal; end it with Ctrl-D, or name a file\n"
    assert (process.returncode, out) == (4, b"")
    assert err.endswith(b": the capture is empty\n")


@pytest.mark.tier2
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colours", "NO_COLOR"])
def test_the_log_of_a_server_has_a_short_line_for_each_request(variables: dict[str, str], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with upstream() as backend:
        words = ["serve", "--port", "0", "--upstream", backend.url]
        process = subprocess.Popen(
            [COMMAND, *words], stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, env=PLAIN | variables
        )
        os.close(theirs)
        with watched(process):
            assert process.stdout is not None
            url = next(found[1] for line in process.stdout if (found := re.search(rb"on (http://\S+/v1)", line)))
            body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url.decode()}/chat/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request) as reply:
                assert reply.status == 200
            process.terminate()
            seen = _read_all(ours).decode()
    os.close(ours)
    assert ("\x1b[32m200\x1b[0m chat scripted → " in seen) is (not variables)
    assert re.search(r"\d\d:\d\d:\d\d 200 chat scripted → 127\.0\.0\.1\S* \d+ ms", re.sub(r"\x1b\[\d+m", "", seen)), (
        seen
    )


@pytest.mark.tier3
@pytest.mark.parametrize(
    "words", ["rules", "lint roles.txt", "mock --list", "check --list", "models", "engine", "--help"]
)
@pytest.mark.parametrize("columns", [80, 60])
def test_tables_fit_the_terminal_without_losing_text(words: str, columns: int, here: Run, folder: Path) -> None:
    seen = _seen(words, folder, COLUMNS=str(columns), NO_COLOR="1")
    piped = here(*words.split()).out.decode()
    assert [line for line in seen.splitlines() if len(line) > columns and "welldone COMMAND" not in line] == []
    assert "".join(seen.split()) == "".join(piped.split())
