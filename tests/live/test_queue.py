"""More requests than slots: they wait in order, hear that they wait, and the rest is told when to come again."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.faults import (
    LINUX,
    PROCESSING,
    Child,
    answer,
    begin,
    broken_off,
    engine_of,
    metric,
    queued,
    small,
    until,
)
from tests.live.raw import STREAM, ask, judged
from tests.live.server import Running

pytestmark = [LINUX, pytest.mark.tier2]
COMMENT = b": keep-alive\\n\\n"


@pytest.fixture(scope="module")
def narrow(tiny_model: Path) -> Iterator[Running]:
    """One slot, three places to wait, and signs of life at once."""
    with small(tiny_model, "--queue", "3", "--early", "0.1", "--keep-alive", "0.1") as running:
        yield running
        assert running.end() == 0


@pytest.fixture
def held(narrow: Running) -> Iterator[Child]:
    """Its engine, which stands still until the test lets it go."""
    with engine_of(narrow) as engine:
        engine.hold()
        yield engine
    until(narrow, PROCESSING, 0)


@STREAM
def test_who_finds_the_queue_full_is_told_when_to_come_again(narrow: Running, held: Child, stream: bool) -> None:
    with ExitStack() as stack:
        inside = [stack.enter_context(begin(narrow)) for _ in range(4)]
        for line in inside:
            queued(narrow, line)
        with begin(narrow, stream=stream) as line:
            reply = line.reply()
        assert reply.status == 429
        assert reply.error()["code"] == "queue_full"
        assert 1 <= int(reply.header("retry-after") or 0) <= 120
        held.go()
        for line in inside:
            assert judged(line.reply()).one.finish == "length"


def test_those_who_wait_are_answered_in_the_order_in_which_they_came(narrow: Running, held: Child) -> None:
    seen = len(narrow.log.all)
    names = ["first", "second", "third", "fourth"]
    with ExitStack() as stack:
        lines = []
        for name in names:
            lines.append(stack.enter_context(begin(narrow, name=name)))
            queued(narrow, lines[-1])
        held.go()
        for line in lines:
            judged(line.reply())
    for name in names:
        narrow.log.wait(f"request_id={name} ", seen=seen)
    logged = [line for line in narrow.log.all[seen:] if "request_id=" in line]
    assert [next(name for name in names if f"request_id={name} " in line) for line in logged] == names


def test_who_waits_for_a_slot_gets_the_head_and_signs_of_life(narrow: Running, held: Child) -> None:
    with begin(narrow) as first:
        queued(narrow, first)
        with begin(narrow) as second:
            second.wait(b"HTTP/1.1 200 OK")
            second.wait(b"(?s)" + b".*".join([COMMENT] * 3))
            assert b"data:" not in second.heard
            held.go()
            for line in (first, second):
                assert judged(line.reply()).one.finish == "length"


def test_the_head_of_a_stream_does_not_wait_for_a_long_prompt(narrow: Running, held: Child) -> None:
    with begin(narrow, "word " * 300) as line:
        line.wait(b"(?s)text/event-stream.*" + COMMENT)
        assert b"data:" not in line.heard
        held.go()
        assert judged(line.reply()).one.finish == "length"


def test_signs_of_life_come_also_in_the_midst_of_an_answer(narrow: Running) -> None:
    with engine_of(narrow) as engine, begin(narrow, max_tokens=1000) as line:
        line.wait(rb'"content":"[^"]')
        engine.hold()
        line.wait(COMMENT)
        engine.go()
        assert judged(line.reply()).one.finish == "length"


@pytest.mark.parametrize("early", ["0.1", "60"])
def test_who_waited_too_long_is_told_so(tiny_model: Path, early: str) -> None:
    with small(tiny_model, "--queue-wait", "0.3", "--early", early) as server, engine_of(server) as engine:
        engine.hold()
        with begin(server, stream=False) as first:
            queued(server, first)
            with begin(server) as stream, begin(server, stream=False) as whole:
                replies = [stream.reply(), whole.reply()]
            if early == "0.1":
                assert broken_off(replies.pop(0))["code"] == "queue_timeout"
            for reply in replies:
                assert reply.status == 503
                assert reply.error()["code"] == "queue_timeout"
                assert int(reply.header("retry-after") or 0) >= 1
            engine.go()
            assert judged(first.reply()).one.finish == "length"


def test_an_engine_that_says_nothing_is_given_up(tiny_model: Path) -> None:
    with small(tiny_model, "--first-byte", "1", "--early", "60") as server, engine_of(server) as engine:
        engine.hold()
        with begin(server) as line:
            reply = line.reply()
        assert reply.status == 504
        assert reply.error()["code"] == "timeout"
        engine.go()
        assert answer(server).one.finish == "length"
        assert metric(server, PROCESSING) == 0


def test_a_server_that_is_full_says_so(tiny_model: Path) -> None:
    with small(tiny_model, "--connections", "1", "--early", "0.1") as server, engine_of(server) as engine:
        engine.hold()
        with begin(server) as line:
            queued(server, line)
            reply = ask(server, "/v1/models")
            assert reply.status == 503
            assert int(reply.header("retry-after") or 0) >= 1
            assert ask(server, "/health").status == 200  # it is busy, and well
            engine.go()
            assert judged(line.reply()).one.finish == "length"
        assert ask(server, "/v1/models").status == 200
