"""More requests than slots: FIFO order, keep-alive comments while queued, and 429 or 503 with Retry-After."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.faults import (
    LINUX,
    PROCESSING,
    Child,
    chat_once,
    engine_of,
    metric,
    small_server,
    start_chat,
    stream_error,
    wait_for_metric,
    wait_until_accepted,
)
from tests.support.raw import STREAM, fetch, parse_valid
from tests.support.server import Running

pytestmark = [LINUX, pytest.mark.tier2]
COMMENT = b": keep-alive\\n\\n"


@pytest.fixture(scope="module")
def short_queue(tiny_model: Path) -> Iterator[Running]:
    """A server with one slot, a queue of three, and early keep-alive comments."""
    with small_server(tiny_model, "--queue", "3", "--early", "0.1", "--keep-alive", "0.1") as running:
        yield running
        assert running.end() == 0


@pytest.fixture
def engine(short_queue: Running) -> Iterator[Child]:
    """The engine of that server, suspended until the test resumes it."""
    with engine_of(short_queue) as process:
        process.suspend()
        yield process
    wait_for_metric(short_queue, PROCESSING, 0)


@STREAM
def test_a_request_gets_429_with_retry_after_when_the_queue_is_full(
    short_queue: Running, engine: Child, stream: bool
) -> None:
    with ExitStack() as stack:
        accepted = [stack.enter_context(start_chat(short_queue)) for _ in range(4)]
        for connection in accepted:
            wait_until_accepted(short_queue, connection)
        with start_chat(short_queue, stream=stream) as connection:
            reply = connection.reply()
        assert reply.status == 429
        assert reply.error()["code"] == "queue_full"
        assert 1 <= int(reply.header("retry-after") or 0) <= 120
        engine.resume()
        for connection in accepted:
            assert parse_valid(connection.reply()).choice.finish == "length"


def test_queued_requests_are_answered_in_order_of_arrival(short_queue: Running, engine: Child) -> None:
    seen = len(short_queue.log.all)
    names = ["first", "second", "third", "fourth"]
    with ExitStack() as stack:
        connections = []
        for name in names:
            connections.append(stack.enter_context(start_chat(short_queue, name=name)))
            wait_until_accepted(short_queue, connections[-1])
        engine.resume()
        for connection in connections:
            parse_valid(connection.reply())
    for name in names:
        short_queue.log.wait(f"request_id={name} ", seen=seen)
    found = [name for line in short_queue.log.all[seen:] for name in names if f"request_id={name} " in line]
    assert found == names


def test_a_queued_stream_receives_its_head_and_keep_alive_comments(short_queue: Running, engine: Child) -> None:
    with start_chat(short_queue) as first:
        wait_until_accepted(short_queue, first)
        with start_chat(short_queue) as second:
            second.wait(b"HTTP/1.1 200 OK")
            second.wait(b"(?s)" + b".*".join([COMMENT] * 3))
            assert b"data:" not in second.received
            engine.resume()
            for connection in (first, second):
                assert parse_valid(connection.reply()).choice.finish == "length"


def test_the_head_of_a_stream_is_sent_before_a_long_prompt_is_processed(short_queue: Running, engine: Child) -> None:
    with start_chat(short_queue, "word " * 300) as connection:
        connection.wait(b"(?s)text/event-stream.*" + COMMENT)
        assert b"data:" not in connection.received
        engine.resume()
        assert parse_valid(connection.reply()).choice.finish == "length"


def test_keep_alive_comments_are_sent_during_a_pause_in_an_answer(short_queue: Running) -> None:
    with engine_of(short_queue) as engine, start_chat(short_queue, max_tokens=1000) as connection:
        connection.wait(rb'"content":"[^"]')
        engine.suspend()
        connection.wait(COMMENT)
        engine.resume()
        assert parse_valid(connection.reply()).choice.finish == "length"


@pytest.mark.parametrize("early", ["0.1", "60"])
def test_a_request_that_waits_too_long_in_the_queue_gets_an_error(tiny_model: Path, early: str) -> None:
    with small_server(tiny_model, "--queue-wait", "0.3", "--early", early) as server, engine_of(server) as engine:
        engine.suspend()
        with start_chat(server, stream=False) as first:
            wait_until_accepted(server, first)
            with start_chat(server) as stream, start_chat(server, stream=False) as whole:
                replies = [stream.reply(), whole.reply()]
            if early == "0.1":
                assert stream_error(replies.pop(0))["code"] == "queue_timeout"
            for reply in replies:
                assert reply.status == 503
                assert reply.error()["code"] == "queue_timeout"
                assert int(reply.header("retry-after") or 0) >= 1
            engine.resume()
            assert parse_valid(first.reply()).choice.finish == "length"


def test_an_engine_without_a_first_byte_is_a_504(tiny_model: Path) -> None:
    with small_server(tiny_model, "--first-byte", "1", "--early", "60") as server, engine_of(server) as engine:
        engine.suspend()
        with start_chat(server) as connection:
            reply = connection.reply()
        assert reply.status == 504
        assert reply.error()["code"] == "timeout"
        engine.resume()
        assert chat_once(server).choice.finish == "length"
        assert metric(server, PROCESSING) == 0


def test_a_connection_over_the_limit_gets_503_with_retry_after(tiny_model: Path) -> None:
    with small_server(tiny_model, "--connections", "1", "--early", "0.1") as server, engine_of(server) as engine:
        engine.suspend()
        with start_chat(server) as connection:
            wait_until_accepted(server, connection)
            reply = fetch(server, "/v1/models")
            assert reply.status == 503
            assert int(reply.header("retry-after") or 0) >= 1
            assert fetch(server, "/health").status == 200  # health checks are exempt
            engine.resume()
            assert parse_valid(connection.reply()).choice.finish == "length"
        assert fetch(server, "/v1/models").status == 200
