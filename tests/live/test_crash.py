"""The engine dies: what is lost is said, and nothing else is lost."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.faults import (
    LINUX,
    LONG,
    PROCESSING,
    RESTARTS,
    WAITING,
    Child,
    answer,
    begin,
    broken_off,
    descendants,
    engine_of,
    metric,
    small,
    until,
)
from tests.live.raw import STREAM, ask, judged
from tests.live.server import Running, serving

pytestmark = [LINUX, pytest.mark.tier2]


@pytest.fixture
def crashing(tiny_model: Path) -> Iterator[Running]:
    """A server of its own for each test: who dies again and again is started later and later."""
    with small(tiny_model) as running:
        yield running
        assert running.end() == 0


def test_a_stream_whose_engine_is_killed_ends_with_one_error(crashing: Running) -> None:
    with engine_of(crashing) as engine, begin(crashing, max_tokens=LONG) as line:
        line.wait(rb'"content":"[^"]')
        engine.kill()
        error = broken_off(line.reply())
        engine.wait()
    assert error["code"] == "engine_died"
    assert error["type"] == "server_error"
    assert answer(crashing, "Are you back?").one.finish == "length"
    assert metric(crashing, RESTARTS) == 1


def test_an_answer_that_is_not_streamed_and_whose_engine_is_killed_is_a_502(tiny_model: Path) -> None:
    with small(tiny_model, "-np", "2", "-c", "4096") as server, engine_of(server) as engine:
        with begin(server, max_tokens=LONG, stream=False) as whole:
            until(server, PROCESSING, 1)
            with begin(server, max_tokens=LONG) as line:
                # It came later and is heard already: so the first one has begun too.
                line.wait(rb'(?s)("content":"[^"].*?){8}')
                engine.kill()
                assert broken_off(line.reply())["code"] == "engine_died"
            reply = whole.reply()
        assert reply.status == 502
        assert reply.error()["code"] == "engine_died"
        assert metric(server, "welldone_stream_failures_total") == 1


@STREAM
def test_who_waits_in_the_queue_when_the_engine_dies_is_answered_by_the_next(crashing: Running, stream: bool) -> None:
    with engine_of(crashing) as engine, begin(crashing, max_tokens=LONG) as first:
        first.wait(rb'"content":"[^"]')
        with begin(crashing, stream=stream) as second:
            until(crashing, WAITING, 1)
            engine.kill()
            assert broken_off(first.reply())["code"] == "engine_died"
            assert judged(second.reply()).one.finish == "length"


@STREAM
def test_a_request_whose_engine_dies_before_its_first_word_is_asked_again(crashing: Running, stream: bool) -> None:
    with engine_of(crashing) as engine:
        engine.hold()
        with begin(crashing, stream=stream) as line:
            until(crashing, PROCESSING, 1)
            engine.kill()
            assert judged(line.reply()).one.finish == "length"
    until(crashing, PROCESSING, 0)


def test_an_engine_that_stands_still_is_ended_and_the_next_one_answers(tiny_model: Path) -> None:
    with small(tiny_model, "--idle", "1", "--first-byte", "5") as server, engine_of(server) as engine:
        with begin(server, max_tokens=LONG) as line:
            line.wait(rb'"content":"[^"]')
            engine.hold()
            assert broken_off(line.reply())["code"] == "timeout"
        engine.wait()
        assert answer(server, "Are you back?").one.finish == "length"
        assert metric(server, RESTARTS) == 1


@pytest.mark.parametrize("is_held", [False, True], ids=["at work", "standing still"])
def test_a_server_that_is_killed_leaves_no_engine(tiny_model: Path, is_held: bool) -> None:
    with small(tiny_model) as server, engine_of(server) as engine, begin(server, max_tokens=LONG) as line:
        line.wait(rb'"content":"[^"]')
        if is_held:
            engine.hold()
        server.process.kill()
        engine.wait()


def test_a_server_that_is_killed_leaves_nothing_of_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "welldone.mock.server", "--port", "{port}"]
    (tmp_path / "welldone.toml").write_text(f"[models.hello]\ncommand = {command}\npreload = true\n")
    with serving([], folder=tmp_path) as server:
        pids = descendants(server.process.pid)
        assert len(pids) == 3  # the launcher, the program, and the launcher's guard
        with ExitStack() as stack:
            left = [stack.enter_context(Child(pid)) for pid in pids]
            server.process.kill()
            for process in left:
                process.wait()


def test_an_engine_that_stands_still_over_tokens_is_ended_too(tiny_model: Path) -> None:
    with small(tiny_model, "--idle", "1", "--first-byte", "2") as server, engine_of(server) as engine:
        engine.hold()
        ask(server, "/tokenize", {"content": "Hello"})  # its second attempt may reach the next engine already
        engine.wait()
        until(server, RESTARTS, 1)
        assert ask(server, "/tokenize", {"content": "Hello"}).ok()["tokens"]
