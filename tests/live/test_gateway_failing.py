"""Upstreams that fail, that go away and come back: honest errors, few attempts, and all is well again after."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.faults import answer, begin, metric, until
from tests.live.raw import Reply, ask
from tests.live.server import Running
from tests.live.upstream import Upstream, eventually, gateway, upstream

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
"""What fails before the first byte of an answer, and what clients hear of it."""
UP = "welldone_upstream_up"


def breaker(name: str, state: str) -> str:
    """The metric that says whether a breaker is in a state."""
    return f'welldone_upstream_breaker_state{{state="{state}",upstream="{name}"}}'


def asked(server: Running, model: str, *, stream: bool = True) -> Reply:
    with begin(server, model=model, stream=stream) as line:
        return line.reply()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, list[Upstream]]]:
    """A gateway in front of three upstreams that all do what the model's name says."""
    folder = tmp_path_factory.mktemp("both")
    with ExitStack() as stack:
        found = [stack.enter_context(upstream()) for _ in range(3)]
        urls = [one.url for one in found]
        # Nobody waits longer for the status than for the upstreams.
        server = stack.enter_context(gateway(folder, *urls, options=["--first-byte", "1", "--early", "10"]))
        yield server, found
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def make_well(server: Running, one: Upstream) -> None:
    """Ask until this upstream has answered well once more, so that its breaker does not open."""
    before = len(one.posts())
    eventually(lambda: answer(server).one.finish == "stop" and len(one.posts()) > before)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("model", "statuses"), BROKEN.items(), ids=BROKEN)
def test_where_all_fail_it_costs_two_attempts_at_most_and_is_told(
    both: tuple[Running, list[Upstream]], model: str, statuses: set[int], stream: bool
) -> None:
    server, upstreams = both
    for one in upstreams if model != "limited" else ():  # who was asked too much rests
        make_well(server, one)
    before = sum(len(one.posts()) for one in upstreams)
    reply = asked(server, model, stream=stream)
    assert reply.status in statuses
    assert reply.error()["message"]
    # Who said that it has too much to do is not asked so soon again.
    assert sum(len(one.posts()) for one in upstreams) - before in ((1, 2) if model == "limited" else (2,))


def test_the_gateway_goes_on_when_one_upstream_of_two_is_away(tmp_path: Path) -> None:
    with upstream() as here, upstream() as away:
        away.stop()
        with gateway(tmp_path, away.url, here.url) as server:
            eventually(lambda: answer(server).one.finish == "stop" and metric(server, breaker("a", "open")) == 1)
            server.log.wait("is avoided upstream=a")
            assert metric(server, breaker("b", "closed")) == 1
            before = metric(server, 'welldone_upstream_attempts_total{upstream="a"}')
            for _ in range(10):
                assert answer(server).one.finish == "stop"
            assert metric(server, 'welldone_upstream_attempts_total{upstream="a"}') == before
            assert len(here.posts()) >= 10
            assert server.end() == 0
        away.start()


def test_an_upstream_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    with upstream() as one, gateway(tmp_path, one.url, each={"probe_s": 1}) as server:
        assert answer(server).one.finish == "stop"
        assert ask(server, "/health").status == 200
        one.stop()
        reply = asked(server, "hello")
        assert reply.status == 502
        assert reply.error()["code"] == "upstream_unreachable"
        seen = len(server.log.all)
        server.log.wait("the upstream cannot be asked")
        assert ask(server, "/health").status == 503
        assert metric(server, UP) == 0
        for _ in range(6):
            assert asked(server, "hello").status == 502
        server.log.wait("is avoided", seen=seen)
        assert metric(server, breaker("a", "open")) == 1
        assert metric(server, 'welldone_upstream_requests_total{status="unreachable",upstream="a"}') == 7
        one.start()
        server.log.wait("the upstream is well again")
        assert ask(server, "/health").status == 200
        until(server, UP, 1)
        assert answer(server).one.finish == "stop"
        server.log.wait("the upstream answers again")
        assert metric(server, breaker("a", "closed")) == 1
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def test_a_stream_that_runs_while_its_upstream_dies_ends_with_an_error(tmp_path: Path) -> None:
    with upstream() as one, gateway(tmp_path, one.url) as server, begin(server, model="stalls") as line:
        line.wait(b"Hello")
        one.stop()
        reply = line.reply()
        assert reply.status == 200
        assert reply.chunks()[-1]["error"]["code"] == "upstream_died"
        assert reply.trace.body.endswith(b"data: [DONE]\n\n")
