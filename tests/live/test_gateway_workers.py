"""`--workers`: several processes behind one port. One that dies takes only its own streams with it."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.live.faults import LINUX, Child, answer, begin, broken_off, children, metric, until_refused
from tests.live.raw import CHAT, Line, judged
from tests.live.server import LIMIT_S, Running
from tests.live.upstream import DONE, ROLE, STOP, TEXT, Upstream, by_model, eventually, gateway, upstream
from welldone.mock.script import MockChunk, MockReply
from welldone.mock.server import MockHttpRequest

pytestmark = [LINUX, pytest.mark.tier2]
READY = "worker is ready"
SLOW = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 40, STOP, DONE))
"""It takes two seconds: in that time the other worker is killed."""
PER_MINUTE = 6


def slow_or(seen: MockHttpRequest) -> MockReply:
    return SLOW if '"slow"' in seen.body else by_model(seen)


@pytest.fixture
def behind() -> Iterator[Upstream]:
    with upstream(slow_or) as made:
        yield made


@contextmanager
def crew(
    folder: Path,
    behind: Upstream,
    *options: str,
    more: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """A gateway of two workers that are both ready."""
    words = ["--workers", "2", *options]
    with gateway(folder, behind.url, options=words, more=more, environment=environment) as server:
        wait_for_ready(server, 2)
        yield server


def wait_for_ready(server: Running, count: int) -> None:
    """Wait until so many workers have been ready since the start."""
    said = list(server.log.all)
    while sum(READY in line for line in said) < count:
        server.log.wait(READY, seen=len(said))
        said = list(server.log.all)


@contextmanager
def workers(server: Running) -> Iterator[tuple[Child, Child]]:
    with ExitStack() as stack:
        one, other = (stack.enter_context(Child(pid)) for pid in children(server.process.pid))
        yield one, other


@contextmanager
def standing(child: Child) -> Iterator[None]:
    """Nobody is served by it meanwhile."""
    child.hold()
    try:
        yield
    finally:
        child.go()


def test_when_a_worker_is_killed_the_streams_of_the_other_go_on_and_a_new_one_comes(
    tmp_path: Path, behind: Upstream
) -> None:
    with crew(tmp_path, behind) as server, workers(server) as (one, other):
        with ExitStack() as stack:
            with standing(one):
                kept = stack.enter_context(begin(server, model="slow"))
                kept.wait(b"Hello")
            with standing(other):
                lost = stack.enter_context(begin(server, model="stalls"))
                lost.wait(b"Hello")
            one.kill()
            one.wait()
            while lost.read():
                pass
            assert not lost.heard.endswith(b"0\r\n\r\n")
            behind.until(lambda scripted: any(seen.end == "left" for seen in scripted.requests))
            server.log.wait("worker was ended by SIGKILL")
            wait_for_ready(server, 3)
            assert len(set(children(server.process.pid)) - {other.pid}) == 1
            assert judged(kept.reply()).text == "Hello" * 41
        with standing(other):
            assert answer(server).text == "Hello"  # by the new one
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_end_lets_streams_of_all_workers_finish_and_leaves_nothing(
    tmp_path: Path, behind: Upstream, number: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with (
        crew(tmp_path, behind, environment={"TMPDIR": str(temporary)}) as server,
        workers(server) as (one, other),
    ):
        assert list(temporary.iterdir())
        with ExitStack() as stack:
            lines = []
            for busy in (one, other):
                with standing(busy):
                    lines.append(stack.enter_context(begin(server, model="slow")))
                    lines[-1].wait(b"Hello")
            server.process.send_signal(number)
            until_refused(server)
            for line in lines:
                assert judged(line.reply()).text == "Hello" * 41
        assert server.process.wait(LIMIT_S) == 0
        one.wait()
        other.wait()
        assert "Traceback" not in server.log.join()
    assert list(temporary.iterdir()) == []


def test_sighup_ends_neither_the_parent_nor_a_worker(tmp_path: Path, behind: Upstream) -> None:
    with crew(tmp_path, behind) as server, workers(server) as (one, other):
        for pid in (server.process.pid, one.pid, other.pid):
            seen = len(server.log.all)
            os.kill(pid, signal.SIGHUP)
            server.log.wait("SIGHUP is ignored", seen=seen)
        assert set(children(server.process.pid)) == {one.pid, other.pid}
        assert answer(server).text == "Hello"
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_same_signal_twice_ends_all_at_once(tmp_path: Path, behind: Upstream, number: signal.Signals) -> None:
    with crew(tmp_path, behind, "--drain", "3600") as server, workers(server) as (one, other), ExitStack() as stack:
        lines = []
        for busy in (one, other):
            with standing(busy):
                lines.append(stack.enter_context(begin(server, model="stalls")))
                lines[-1].wait(b"Hello")
        server.process.send_signal(number)
        until_refused(server)
        server.process.send_signal(number)
        for line in lines:
            assert broken_off(line.reply())["code"] == "shutting_down"
        assert server.process.wait(LIMIT_S) == 0
        one.wait()
        other.wait()


def test_the_metrics_are_those_of_all_workers(tmp_path: Path, behind: Upstream) -> None:
    with crew(tmp_path, behind) as server, workers(server) as both:
        for other in both:
            with standing(other):
                for _ in range(5):
                    assert answer(server).text == "Hello"
        assert metric(server, "welldone_workers_missing") == 0
        assert metric(server, 'welldone_upstream_attempts_total{upstream="a"}') == 10
        assert metric(server, 'welldone_requests_total{endpoint="chat",model="hello",status="200"}') == 10
        assert server.end() == 0
        said = server.log.join()
    assert {len(re.findall(rf"request worker={number} .*{CHAT}", said)) for number in (1, 2)} == {5}


def test_the_rate_of_a_key_holds_over_all_workers(tmp_path: Path, behind: Upstream) -> None:
    key = "wd-of-ci-0123456789"
    more = f'[keys.ci]\nkey = "{key}"\nrequests_per_minute = {PER_MINUTE}\n'
    statuses = []
    with crew(tmp_path, behind, more=more) as server, workers(server) as both:
        for other in both:
            with standing(other):
                for _ in range(PER_MINUTE):
                    body = {"model": "hello", "messages": [{"role": "user", "content": "Hi"}]}
                    with Line(server, CHAT, body, headers={"Authorization": f"Bearer {key}"}) as line:
                        statuses.append(line.reply().status)
        # A slow machine gives one back every ten seconds.
        assert statuses[:PER_MINUTE] == [200] * PER_MINUTE
        assert statuses.count(429) >= PER_MINUTE - 2
        assert answer(server).text == "Hello"  # of another key
        assert server.end() == 0


def test_one_that_leaves_the_worker_leaves_the_upstream(tmp_path: Path, behind: Upstream) -> None:
    with crew(tmp_path, behind) as server, workers(server) as both:
        for other in both:
            with standing(other), begin(server, model="stalls") as line:
                line.wait(b"Hello")
        behind.until(lambda one: [seen.end for seen in one.requests] == ["left", "left"])
        eventually(lambda: metric(server, "welldone_active_streams") == 0)
