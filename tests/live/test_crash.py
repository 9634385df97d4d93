"""Engine crashes: running answers end with an error, and all other requests are answered."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.faults import (
    DEFERRED,
    LINUX,
    LONG_ANSWER,
    PROCESSING,
    RESTARTS,
    Child,
    chat_once,
    descendants,
    engine_of,
    metric,
    small_server,
    start_chat,
    stream_error,
    wait_for_metric,
)
from tests.support.raw import STREAM, fetch, parse_valid
from tests.support.server import Running, serving

pytestmark = [LINUX, pytest.mark.tier2]


@pytest.fixture
def crashing(tiny_model: Path) -> Iterator[Running]:
    """A server per test, because the restart delay grows with each crash."""
    with small_server(tiny_model, "--continue", "off") as running:
        yield running
        assert running.end() == 0


def test_a_stream_ends_with_one_error_when_its_engine_is_killed(crashing: Running) -> None:
    with engine_of(crashing) as engine, start_chat(crashing, max_tokens=LONG_ANSWER) as connection:
        connection.wait(rb'"content":"[^"]')
        engine.kill()
        error = stream_error(connection.reply())
        engine.wait()
    assert error["code"] == "engine_died"
    assert error["type"] == "server_error"
    assert chat_once(crashing, "Are you back?").choice.finish == "length"
    assert metric(crashing, RESTARTS) == 1


def test_a_whole_answer_becomes_a_502_when_its_engine_is_killed(tiny_model: Path) -> None:
    options = ("-np", "2", "-c", "4096", "--continue", "off")
    with small_server(tiny_model, *options) as server, engine_of(server) as engine:
        with start_chat(server, max_tokens=LONG_ANSWER, stream=False) as whole:
            wait_for_metric(server, PROCESSING, 1)
            with start_chat(server, max_tokens=LONG_ANSWER) as connection:
                # This request was sent later and has output already, so the first one has started too.
                connection.wait(rb'(?s)("content":"[^"].*?){8}')
                engine.kill()
                assert stream_error(connection.reply())["code"] == "engine_died"
            reply = whole.reply()
        assert reply.status == 502
        assert reply.error()["code"] == "engine_died"
        assert metric(server, "welldone_stream_failures_total") == 1


@STREAM
def test_a_queued_request_is_answered_by_the_next_engine_after_a_crash(crashing: Running, stream: bool) -> None:
    with engine_of(crashing) as engine, start_chat(crashing, max_tokens=LONG_ANSWER) as first:
        first.wait(rb'"content":"[^"]')
        with start_chat(crashing, stream=stream) as second:
            wait_for_metric(crashing, DEFERRED, 1)
            engine.kill()
            assert stream_error(first.reply())["code"] == "engine_died"
            assert parse_valid(second.reply()).choice.finish == "length"


@STREAM
def test_a_request_is_retried_when_its_engine_dies_before_the_first_token(crashing: Running, stream: bool) -> None:
    with engine_of(crashing) as engine:
        engine.suspend()
        with start_chat(crashing, stream=stream) as connection:
            wait_for_metric(crashing, PROCESSING, 1)
            engine.kill()
            assert parse_valid(connection.reply()).choice.finish == "length"
    wait_for_metric(crashing, PROCESSING, 0)


def test_a_hung_engine_is_replaced_and_the_next_one_answers(tiny_model: Path) -> None:
    with small_server(tiny_model, "--idle", "1", "--first-byte", "5") as server, engine_of(server) as engine:
        with start_chat(server, max_tokens=LONG_ANSWER) as connection:
            connection.wait(rb'"content":"[^"]')
            engine.suspend()
            assert stream_error(connection.reply())["code"] == "timeout"
        engine.wait()
        assert chat_once(server, "Are you back?").choice.finish == "length"
        assert metric(server, RESTARTS) == 1


@pytest.mark.parametrize("is_suspended", [False, True], ids=["running", "suspended"])
def test_a_killed_server_leaves_no_engine_running(tiny_model: Path, is_suspended: bool) -> None:
    with (
        small_server(tiny_model) as server,
        engine_of(server) as engine,
        start_chat(server, max_tokens=LONG_ANSWER) as connection,
    ):
        connection.wait(rb'"content":"[^"]')
        if is_suspended:
            engine.suspend()
        server.process.kill()
        engine.wait()


def test_a_killed_server_leaves_no_process_of_a_command_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "welldone.mock.server", "--port", "{port}"]
    (tmp_path / "welldone.toml").write_text(f"[models.hello]\ncommand = {command}\npreload = true\n")
    with serving([], folder=tmp_path) as server:
        pids = descendants(server.process.pid)
        assert len(pids) == 3  # the launcher, the program, and the parent-death guard of the launcher
        with ExitStack() as stack:
            processes = [stack.enter_context(Child(pid)) for pid in pids]
            server.process.kill()
            for process in processes:
                process.wait()


def test_an_engine_that_hangs_in_tokenize_is_replaced(tiny_model: Path) -> None:
    with small_server(tiny_model, "--idle", "1", "--first-byte", "2") as server, engine_of(server) as engine:
        engine.suspend()
        fetch(server, "/tokenize", {"content": "Hello"})  # the retry may reach the next engine already
        engine.wait()
        wait_for_metric(server, RESTARTS, 1)
        assert fetch(server, "/tokenize", {"content": "Hello"}).ok()["tokens"]
