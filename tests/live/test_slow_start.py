"""An engine that takes minutes to start: what a person sees, what clients hear, and that nothing of it is left."""

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

from tests.live.faults import LINUX, Child, children
from tests.live.raw import CHAT, Line, ask, judged
from tests.live.server import LIMIT_S, Lines, Running, serving

pytestmark = [LINUX, pytest.mark.tier3]

SLOW = Path(__file__).with_name("slow.py")
BODY = {"model": "big", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Gate:
    """What the engine waits at."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gate"
        os.mkfifo(self.path)
        self.config = folder / "welldone.toml"
        words = ", ".join(f'"{word}"' for word in (sys.executable, str(SLOW), str(self.path), "{port}"))
        self.config.write_text(f"[models.big]\ncommand = [{words}]\n")

    def say(self, word: str) -> None:
        """Let the engine go on, or die. It is there already: else this would wait for it."""
        self.path.write_text(word)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate, and the settings of a server whose engine stands before it."""
    return Gate(tmp_path)


@contextmanager
def loading(gate: Gate) -> Iterator[tuple[Running, list[Child]]]:
    """A server whose engine is at the gate, and the engine's processes."""
    with (
        ExitStack() as stack,
        serving(["--config", str(gate.config), "--verbose"], model="big", is_awaited=False) as server,
    ):
        pids = server.log.wait(r"pids (\d+) (\d+)").groups()
        yield server, [stack.enter_context(Child(int(pid))) for pid in pids]


def test_who_asks_while_it_starts_waits_and_is_answered(gate: Gate) -> None:
    with loading(gate) as (server, _):
        assert ask(server, "/health").error()["code"] == "model_loading"
        assert ask(server, "/health").header("retry-after") == "1"
        with Line(server, CHAT, BODY) as line:
            line.wait(b"HTTP/1.1 200 OK")  # the head comes, so that no client gives up
            assert b"data:" not in line.heard
            gate.say("go")
            assert judged(line.reply()).one.finish == "stop"
        assert ask(server, "/health").status == 200
        server.log.wait("model is ready .*slots=256 load_s=")


def test_one_that_dies_while_it_starts_ends_the_server_with_its_last_words(gate: Gate) -> None:
    with loading(gate) as (server, processes):
        for _ in range(5):  # it is tried so often
            seen = len(server.log.all)
            gate.say("die")
            server.log.wait("cannot be loaded.*RuntimeError: no kernel image|^  RuntimeError", seen=seen)
        code = server.process.wait(LIMIT_S)
        said = server.log.join()
        for process in processes:
            process.wait()
    assert code == 3
    assert "RuntimeError: no kernel image for this device" in said
    assert "the model big cannot be loaded: ended with code 3 before it was ready" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_end_while_it_starts_leaves_nothing_of_it(gate: Gate, number: signal.Signals) -> None:
    with loading(gate) as (server, processes):
        code = server.end(number)
        for process in processes:
            process.wait()
    assert code == (-signal.SIGKILL if number is signal.SIGKILL else 0)


def test_its_workers_end_also_where_only_the_program_around_it_is_killed(gate: Gate) -> None:
    with loading(gate) as (server, processes):
        (launcher,) = children(server.process.pid)
        os.kill(launcher, signal.SIGKILL)
        for process in processes:
            process.wait()
        assert server.process.wait(LIMIT_S) == 3  # to try again would only cost the machine its memory once more


def test_a_terminal_shows_what_it_is_doing(gate: Gate, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--config", str(gate.config)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, env=environment, text=True)
    os.close(theirs)
    try:
        assert process.stdout is not None
        root = Lines(process.stdout).wait(r"on (http://\S+)/v1$")[1]
        seen = _until(ours, b"big is loading, ", b"30%")
        assert b"s: Loading weights:  30%|###" in seen
        urllib.request.urlopen(f"{root}/v1/models", timeout=LIMIT_S).close()
        # A line of the log takes the place of that line, which then comes again below.
        seen = _until(ours, b"path=/v1/models", b"big is loading, ")
        assert re.search(
            rb"\r\x1b\[K2[^\x1b]+ request [^\x1b]+path=/v1/models[^\x1b]+\r\n\r\x1b\[Kbig is loading", seen
        )
        gate.say("go")
        _until(ours, b"model is ready", b"\n")
        process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert b"is loading" not in _rest(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until(terminal: int, *patterns: bytes) -> bytes:
    """What is shown until all of this was, one after the other."""
    seen, place = b"", 0
    for pattern in patterns:
        while (found := seen.find(pattern, place)) < 0:
            seen += os.read(terminal, 65536)
        place = found
    return seen


def _rest(terminal: int) -> bytes:
    seen = b""
    try:
        while piece := os.read(terminal, 65536):
            seen += piece
    except OSError:
        pass  # so Linux says that the other side of a terminal is closed
    return seen
