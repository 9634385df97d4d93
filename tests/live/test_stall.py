"""Engines that stop without an exit are replaced, whatever their requests do; slow ones are left alone."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.engines import stand_in_server
from tests.support.fake_engine import fake_engine
from tests.support.faults import (
    LINUX,
    PROCESSING,
    RESTARTS,
    Child,
    chat_once,
    command_line,
    descendants,
    engine_of,
    metric,
    small_server,
    start_chat,
    wait_for_metric,
)
from tests.support.raw import RawConnection, parse_valid
from tests.support.server import Running, serving

pytestmark = [LINUX, pytest.mark.tier2]

STALL_S = 4
"""A token takes less than this on a busy machine."""
ENDED = f"warning +the engine has not answered or made progress for {STALL_S} s: ending it model="
PROMPT = "Read this. " + "one two three four five six seven eight nine ten " * 40
"""Some 450 tokens, which take the built-in model some seconds with one thread, in one batch."""
QUESTION = "Count from 1 to 40."
ARRIVALS_S = 0.2

BUSY_SERVER = fake_engine(
    """
    end = time.process_time() + float(sys.argv[2])
    while time.process_time() < end:
        pass
    """,
    server="HTTPServer",
)
"""An engine that computes for so many seconds before it answers, and answers nothing else meanwhile."""


@contextmanager
def running_server(model: Path, *options: str) -> Iterator[Running]:
    """A server per test: the delay of a restart grows with each one."""
    with small_server(model, "-c", "2048", "--stall", str(STALL_S), *options) as server:
        yield server
        assert server.end() == 0


def assert_replaced(server: Running, engine: Child) -> None:
    """Wait for the end of the engine, and for an answer of the next one."""
    engine.wait()
    assert chat_once(server).choice.finish in ("stop", "length")
    server.log.wait(ENDED)
    assert metric(server, RESTARTS) == 1


def test_an_engine_that_stops_while_it_generates_is_replaced_and_its_answer_goes_on(default_model: Path) -> None:
    with running_server(default_model) as server, engine_of(server) as engine:
        expected = chat_once(server, QUESTION, max_tokens=96)
        with start_chat(server, QUESTION, max_tokens=96) as connection:
            connection.wait(rb'"content":"[^"]')  # a busy machine reads late: the engine must not have finished
            engine.suspend()
            assert parse_valid(connection.reply()).choices == expected.choices
        assert_replaced(server, engine)


def test_an_engine_that_stops_while_requests_arrive_is_replaced(default_model: Path) -> None:
    with running_server(default_model, "-np", "2", "-c", "4096") as server, ExitStack() as stack:
        engine = stack.enter_context(engine_of(server))
        connections = [stack.enter_context(start_chat(server, QUESTION, max_tokens=96))]
        connections[0].wait(rb'"content":"[^"]')
        engine.suspend()
        while not engine.has_ended(ARRIVALS_S):
            connections.append(stack.enter_context(start_chat(server, max_tokens=4)))
            assert len(connections) < 200, "the engine has not been replaced"
        for connection in connections:
            assert parse_valid(connection.reply()).choice.finish
        assert_replaced(server, engine)


def test_an_engine_that_stops_in_a_prompt_is_replaced(default_model: Path) -> None:
    with running_server(default_model) as server, engine_of(server) as engine:
        with start_chat(server, PROMPT, max_tokens=4) as connection:
            wait_for_metric(server, PROCESSING, 1)
            engine.suspend()
            assert parse_valid(connection.reply()).choice.finish
        assert_replaced(server, engine)


def test_an_engine_that_stops_while_it_is_idle_is_replaced(default_model: Path) -> None:
    with running_server(default_model) as server, engine_of(server) as engine:
        engine.suspend()
        assert_replaced(server, engine)


def test_an_engine_that_stops_at_embeddings_is_replaced(default_model: Path) -> None:
    options = ("--embeddings", "--pooling", "mean")
    with running_server(default_model, *options) as server, engine_of(server) as engine:
        engine.suspend()
        with RawConnection(server, "/v1/embeddings", {"model": server.model, "input": PROMPT}) as connection:
            reply = connection.reply().ok()
        assert len(reply["data"]) == 1
        engine.wait()
        server.log.wait(ENDED)


def test_an_engine_in_a_batch_longer_than_the_limit_is_not_replaced(default_model: Path) -> None:
    with running_server(default_model, "--stall", "1") as server:
        for number in range(2):  # the second one begins when the engine has shown progress
            with start_chat(server, f"{number}: {PROMPT}", max_tokens=1) as connection:
                assert parse_valid(connection.reply()).choice.finish == "length"
        assert metric(server, RESTARTS) == 0


@contextmanager
def running_command(folder: Path, *words: str) -> Iterator[Running]:
    """A server with a command of this Python."""
    command = json.dumps([sys.executable, *words])
    (folder / "welldone.toml").write_text(f"[models.tiny]\ncommand = {command}\npreload = true\n")
    with serving(["--stall", str(STALL_S)], folder=folder, model="tiny") as server:
        yield server
        assert server.end() == 0


def test_a_command_that_stops_is_replaced(default_model: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    program = str(Path(stand_in_server.__file__))
    options = f"--ctx-size 2048 --batch-size 512 --ubatch-size 512 --predict 2048 --parallel 1 --api-key-file {key}"
    words = (program, "--model", str(default_model), "--port", "{port}", *options.split())
    with running_command(tmp_path, *words) as server:
        pid = max(pid for pid in descendants(server.process.pid) if program in command_line(pid)[:2])
        with Child(pid) as engine, start_chat(server, PROMPT, max_tokens=64) as connection:
            connection.wait(rb'"content":"[^"]')
            engine.suspend()
            assert parse_valid(connection.reply()).choice.finish
            assert_replaced(server, engine)


def test_a_command_that_answers_nothing_while_it_works_is_not_replaced(tmp_path: Path) -> None:
    with running_command(tmp_path, "-c", BUSY_SERVER, "{port}", str(2 * STALL_S)) as server:
        assert chat_once(server).text == "Hello"
        assert metric(server, RESTARTS) == 0
