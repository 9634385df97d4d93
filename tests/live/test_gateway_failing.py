"""Failing upstreams: error mapping, at most two attempts, circuit breakers and recovery."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.faults import chat_once, metric, start_chat, wait_for_metric
from tests.support.raw import Reply, fetch
from tests.support.server import Running
from tests.support.upstream import Upstream, eventually, gateway, upstream

BROKEN = {
    "close-first": {502},
    "reset-first": {502},
    "cut-head": {502},
    "not-http": {502},
    "empty": {502},
    "broken": {502},
    "html": {502},
    "gzip": {502},
    "redirect-307": {502},
    "unavailable": {503},
    "hang-first": {504},
    "limited": {429},
}
"""Failures before the first byte of an answer, and the status that clients receive."""
UP = "welldone_upstream_up"


def breaker(name: str, state: str) -> str:
    """The metric of one state of a circuit breaker."""
    return f'welldone_upstream_breaker_state{{state="{state}",upstream="{name}"}}'


def chat_reply(server: Running, model: str, *, stream: bool = True) -> Reply:
    with start_chat(server, model=model, stream=stream) as connection:
        return connection.reply()


@pytest.fixture(scope="module")
def three_upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, list[Upstream]]]:
    """A gateway in front of three upstreams whose replies depend on the model name."""
    folder = tmp_path_factory.mktemp("gateway")
    with ExitStack() as stack:
        upstreams = [stack.enter_context(upstream()) for _ in range(3)]
        urls = [one.url for one in upstreams]
        # The response head waits longer than the upstreams, so every error has its status.
        server = stack.enter_context(gateway(folder, *urls, options=["--first-byte", "1", "--early", "10"]))
        yield server, upstreams
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def reset_breaker(server: Running, target: Upstream) -> None:
    """Send requests until this upstream has answered one, so that its circuit breaker stays closed."""
    before = len(target.posts())
    eventually(lambda: chat_once(server).choice.finish == "stop" and len(target.posts()) > before)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("model", "statuses"), BROKEN.items(), ids=BROKEN)
def test_at_most_two_attempts_are_made_when_all_upstreams_fail(
    three_upstreams: tuple[Running, list[Upstream]], model: str, statuses: set[int], stream: bool
) -> None:
    server, upstreams = three_upstreams
    for one in upstreams if model != "limited" else ():  # a rate-limited upstream is paused
        reset_breaker(server, one)
    before = sum(len(one.posts()) for one in upstreams)
    reply = chat_reply(server, model, stream=stream)
    assert reply.status in statuses
    assert reply.error()["message"]
    # Rate-limited upstreams stay paused for a while, so that a later case may find only one.
    assert sum(len(one.posts()) for one in upstreams) - before in ((1, 2) if model == "limited" else (2,))


def test_requests_succeed_when_one_of_two_upstreams_is_down(tmp_path: Path) -> None:
    with upstream() as running, upstream() as stopped:
        stopped.stop()
        with gateway(tmp_path, stopped.url, running.url) as server:
            eventually(lambda: chat_once(server).choice.finish == "stop" and metric(server, breaker("a", "open")) == 1)
            server.log.wait("circuit breaker opened: .* upstream=a")
            assert metric(server, breaker("b", "closed")) == 1
            before = metric(server, 'welldone_upstream_attempts_total{upstream="a"}')
            for _ in range(10):
                assert chat_once(server).choice.finish == "stop"
            assert metric(server, 'welldone_upstream_attempts_total{upstream="a"}') == before
            assert len(running.posts()) >= 10
            assert server.end() == 0
        stopped.start()


def test_an_upstream_that_stops_and_restarts_is_used_again(tmp_path: Path) -> None:
    with upstream() as one, gateway(tmp_path, one.url, each={"probe_s": 1}) as server:
        assert chat_once(server).choice.finish == "stop"
        assert fetch(server, "/health").status == 200
        one.stop()
        reply = chat_reply(server, "hello")
        assert reply.status == 502
        assert reply.error()["code"] == "upstream_unreachable"
        seen = len(server.log.all)
        server.log.wait("the upstream cannot be reached")
        assert fetch(server, "/health").status == 503
        assert metric(server, UP) == 0
        for _ in range(6):
            assert chat_reply(server, "hello").status == 502
        server.log.wait("circuit breaker opened", seen=seen)
        assert metric(server, breaker("a", "open")) == 1
        assert metric(server, 'welldone_upstream_requests_total{status="unreachable",upstream="a"}') == 7
        one.start()
        server.log.wait("the upstream has recovered")
        assert fetch(server, "/health").status == 200
        wait_for_metric(server, UP, 1)
        assert chat_once(server).choice.finish == "stop"
        server.log.wait("the upstream answers again")
        assert metric(server, breaker("a", "closed")) == 1
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def test_a_running_stream_ends_with_an_error_when_its_upstream_dies(tmp_path: Path) -> None:
    with upstream() as one, gateway(tmp_path, one.url) as server, start_chat(server, model="stalls") as connection:
        connection.wait(b"Hello")
        one.stop()
        reply = connection.reply()
        assert reply.status == 200
        assert reply.chunks()[-1]["error"]["code"] == "upstream_died"
        assert reply.trace.body.endswith(b"data: [DONE]\n\n")
