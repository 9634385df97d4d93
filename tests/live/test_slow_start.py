"""Slow engine start: terminal output, early requests, failures, and no process left behind."""

import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.faults import LINUX, Child, children
from tests.support.raw import CHAT, RawConnection, fetch, parse_valid
from tests.support.server import LIMIT_S, Lines, Running, serving

pytestmark = [LINUX, pytest.mark.tier3]

SLOW_ENGINE = Path(__file__).with_name("slow_engine.py")
BODY = {"model": "big", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class StartPipe:
    """Named pipe that blocks the start of the engine, and the config of a server with that engine."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pipe"
        os.mkfifo(self.path)
        self.config = folder / "welldone.toml"
        command = ", ".join(
            f'"{argument}"' for argument in (sys.executable, str(SLOW_ENGINE), str(self.path), "{port}")
        )
        self.config.write_text(f"[models.big]\ncommand = [{command}]\n")

    def write(self, instruction: str) -> None:
        """Let the engine start (`go`) or fail (`die`). Blocks until the engine reads the pipe."""
        self.path.write_text(instruction)


@pytest.fixture
def pipe(tmp_path: Path) -> StartPipe:
    return StartPipe(tmp_path)


@contextmanager
def loading(pipe: StartPipe) -> Iterator[tuple[Running, list[Child]]]:
    """Run a server whose engine waits at the pipe; also yields the processes of the engine."""
    with (
        ExitStack() as stack,
        serving(["--config", str(pipe.config), "--verbose"], model="big", is_awaited=False) as server,
    ):
        pids = server.log.wait(r"pids (\d+) (\d+)").groups()
        yield server, [stack.enter_context(Child(int(pid))) for pid in pids]


def test_a_request_during_the_start_waits_and_is_answered(pipe: StartPipe) -> None:
    with loading(pipe) as (server, _):
        assert fetch(server, "/health").error()["code"] == "model_loading"
        assert fetch(server, "/health").header("retry-after") == "1"
        with RawConnection(server, CHAT, BODY) as connection:
            connection.wait(b"HTTP/1.1 200 OK")  # an early head, so that no client times out
            assert b"data:" not in connection.received
            pipe.write("go")
            assert parse_valid(connection.reply()).choice.finish == "stop"
        assert fetch(server, "/health").status == 200
        server.log.wait("model is ready .*slots=256 load_s=")


def test_an_engine_that_fails_to_start_ends_the_server_with_its_last_output(pipe: StartPipe) -> None:
    with loading(pipe) as (server, processes):
        for _ in range(5):  # the number of attempts
            seen = len(server.log.all)
            pipe.write("die")
            server.log.wait("cannot be loaded.*RuntimeError: no kernel image|^  RuntimeError", seen=seen)
        code = server.process.wait(LIMIT_S)
        log = server.log.join()
        for process in processes:
            process.wait()
    assert code == 3
    assert "RuntimeError: no kernel image for this device" in log
    assert "the model big cannot be loaded: ended with code 3 before it was ready" in log


def test_an_engine_that_ran_and_fails_to_start_again_and_again_is_started_later_without_a_request(
    pipe: StartPipe,
) -> None:
    with loading(pipe) as (server, processes):
        pipe.write("go")
        seen = len(server.log.all)
        server.log.wait("model is ready", seen=seen)
        processes[0].kill()
        for state in (*["restarting"] * 4, "failed"):
            seen = len(server.log.all)
            pipe.write("die")
            server.log.wait(f"cannot be loaded.*state={state}", seen=seen)
        seen = len(server.log.all)
        pipe.write("go")
        server.log.wait("model is ready", seen=seen)
        assert parse_valid(fetch(server, CHAT, BODY)).choice.finish == "stop"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_during_the_start_leaves_no_engine_process(pipe: StartPipe, number: signal.Signals) -> None:
    with loading(pipe) as (server, processes):
        code = server.end(number)
        for process in processes:
            process.wait()
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)


def test_the_workers_of_an_engine_end_when_only_its_launcher_is_killed(pipe: StartPipe) -> None:
    with loading(pipe) as (server, processes):
        (launcher,) = children(server.process.pid)
        os.kill(launcher, signal.SIGKILL)
        for process in processes:
            process.wait()
        # No retry: SIGKILL probably means lack of memory, and a second start would fail too.
        assert server.process.wait(LIMIT_S) == 3


def test_a_terminal_shows_the_progress_of_the_engine(pipe: StartPipe, tmp_path: Path) -> None:
    terminal, child_terminal = pty.openpty()
    command = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--config", str(pipe.config)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=child_terminal, cwd=tmp_path, env=environment, text=True
    )
    os.close(child_terminal)
    try:
        assert process.stdout is not None
        root = Lines(process.stdout).wait(r"on (http://\S+)/v1$")[1]
        seen = _read_until(terminal, b"big is loading, ", b"30%")
        assert b"s: Loading weights:  30%|###" in seen
        urllib.request.urlopen(f"{root}/v1/models", timeout=LIMIT_S).close()
        # A log line replaces the progress line, which is then drawn again below it.
        seen = _read_until(terminal, b"path=/v1/models", b"big is loading, ")
        assert re.search(
            rb"\r\x1b\[K2[^\x1b]+ request [^\x1b]+path=/v1/models[^\x1b]+\r\n\r\x1b\[Kbig is loading", seen
        )
        pipe.write("go")
        _read_until(terminal, b"model is ready", b"\n")
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert b"is loading" not in _read_rest(terminal)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def _read_until(terminal: int, *patterns: bytes) -> bytes:
    """Read the terminal until all patterns have appeared in this order."""
    seen, position = b"", 0
    for pattern in patterns:
        while (found := seen.find(pattern, position)) < 0:
            seen += os.read(terminal, 65536)
        position = found
    return seen


def _read_rest(terminal: int) -> bytes:
    seen = b""
    try:
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:
        pass  # EIO on Linux: the other side of the terminal is closed
    return seen
