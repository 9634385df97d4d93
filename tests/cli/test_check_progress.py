"""Progress of `welldone check` on a terminal and in a log, and what is printed when it ends early."""

import asyncio
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.check.background import served
from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S
from tests.http.aio import run
from welldone.check.run import CheckProgress
from welldone.cli.check import check_progress
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES

HALF = CheckProgress(3, 7, ("text", "usage"))
CLEAR = b"\r\x1b[K"


def _on_terminal(*arguments: str, cwd: Path, **environment: str) -> tuple[int, bytes]:
    """Run the command on a terminal; return its exit code and output."""
    ours, theirs = pty.openpty()
    env = {**ENVIRONMENT, "TERM": "xterm", **environment}
    process = subprocess.Popen([COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env)
    os.close(theirs)
    shown = b""
    with watched(process):
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        code = process.wait()
    os.close(ours)
    return code, shown


def test_a_terminal_shows_one_line_that_is_cleared_at_the_end(tmp_path: Path) -> None:
    with served() as url:
        code, shown = _on_terminal("check", url, "--only", "text", cwd=tmp_path, COLUMNS="20")
    assert code == 0
    *over, rest = shown.split(CLEAR)
    assert over[1] == b"0 of 4 probes  disc"
    assert all(len(line) < 20 and b"\n" not in line for line in over)
    assert rest.startswith(b"\x1b[32mpassed\x1b[0m: no rule broken\r\nideal at\r\n")
    assert b"\x1b[32mpass\x1b[0m" in rest


def test_no_color_turns_colours_off(tmp_path: Path) -> None:
    with served() as url:
        _, shown = _on_terminal("check", url, "--only", "text", cwd=tmp_path, NO_COLOR="1")
    assert b"\x1b[3" not in shown


def test_an_unreachable_server_is_reported_on_a_line_of_its_own(tmp_path: Path) -> None:
    code, shown = _on_terminal("check", "http://127.0.0.1:9/v1", cwd=tmp_path)
    assert code == 3
    assert shown.split(CLEAR)[-1].startswith(b"welldone check: http://127.0.0.1:9/v1: no connection")


def test_a_log_gets_a_line_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with check_progress(every_s=0.001) as report:
            report(HALF)
            printed = ""
            while printed.count("\n") < 2:
                await asyncio.sleep(0)
                printed += capsys.readouterr().err
            assert set(printed.splitlines()) == {"3 of 7 probes  text, usage"}

    run(work())


def test_a_short_run_prints_no_progress_to_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with check_progress() as report:
            report(HALF)

    run(work())
    assert capsys.readouterr().err == ""


def test_an_interrupt_prints_the_report_so_far_and_no_traceback(tmp_path: Path) -> None:
    is_requested, reference = threading.Event(), ReferenceServer()

    def answer(request: MockHttpRequest) -> MockReply:
        if "(flush)" in request.headers["user-agent"]:
            is_requested.set()
            return FAULT_REPLIES["hang-first"]
        return reference.answer(request)

    with served(answer) as url:
        words = [COMMAND, "check", url, "--only", "text,flush", "--record", str(tmp_path / "traces")]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
        with watched(process):
            assert is_requested.wait(LIMIT_S)  # flush runs after all others have ended
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert b"pass  text (4)" in out
    assert b"flush  not applicable" in out
    assert b"the check was interrupted" in out


def test_a_closed_pipe_prints_no_traceback(tmp_path: Path) -> None:
    with served() as url:
        words = [COMMAND, "check", url, "--only", "text", "--json"]
        ours, theirs = os.pipe()
        os.close(ours)
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE, cwd=tmp_path, env=ENVIRONMENT
        )
        os.close(theirs)
        with watched(process):
            _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")
