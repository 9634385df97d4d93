"""`--workers`: several processes on one port. A worker that dies ends only its own streams."""

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.faults import LINUX, Child, chat_once, children, metric, start_chat, stream_error, wait_until_refused
from tests.support.raw import CHAT, RawConnection, parse_valid
from tests.support.server import LIMIT_S, Running
from tests.support.upstream import DONE, ROLE, STOP, TEXT, Upstream, eventually, gateway, reply_by_model, upstream
from welldone.mock.script import MockChunk, MockReply
from welldone.mock.server import MockHttpRequest

pytestmark = [LINUX, pytest.mark.tier2]
READY = "worker is ready"
SLOW = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 40, STOP, DONE))
"""A stream of two seconds, in which the other worker is killed."""
PER_MINUTE = 6


def slow_or_by_model(request: MockHttpRequest) -> MockReply:
    return SLOW if '"slow"' in request.body else reply_by_model(request)


@pytest.fixture
def backend() -> Iterator[Upstream]:
    with upstream(slow_or_by_model) as started:
        yield started


@contextmanager
def two_workers(
    folder: Path,
    backend: Upstream,
    *options: str,
    more: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Run a gateway with two workers, both ready."""
    arguments = ["--workers", "2", *options]
    with gateway(folder, backend.url, options=arguments, more=more, environment=environment) as server:
        wait_for_ready(server, 2)
        yield server


def wait_for_ready(server: Running, count: int) -> None:
    """Wait until the log has `count` lines about a ready worker."""
    lines = list(server.log.all)
    while sum(READY in line for line in lines) < count:
        server.log.wait(READY, seen=len(lines))
        lines = list(server.log.all)


@contextmanager
def workers(server: Running) -> Iterator[tuple[Child, Child]]:
    with ExitStack() as stack:
        one, other = (stack.enter_context(Child(pid)) for pid in children(server.process.pid))
        yield one, other


@contextmanager
def suspended(child: Child) -> Iterator[None]:
    """Suspend a worker, so that the other one serves all requests."""
    child.suspend()
    try:
        yield
    finally:
        child.resume()


def test_a_killed_worker_is_replaced_and_the_streams_of_the_other_continue(tmp_path: Path, backend: Upstream) -> None:
    with two_workers(tmp_path, backend) as server, workers(server) as (one, other):
        with ExitStack() as stack:
            with suspended(one):
                surviving = stack.enter_context(start_chat(server, model="slow"))
                surviving.wait(b"Hello")
            with suspended(other):
                lost = stack.enter_context(start_chat(server, model="stalls"))
                lost.wait(b"Hello")
            one.kill()
            one.wait()
            while lost.read():
                pass
            assert not lost.received.endswith(b"0\r\n\r\n")
            backend.wait_until(lambda mock: any(request.end == "left" for request in mock.requests))
            server.log.wait("worker was ended by SIGKILL")
            wait_for_ready(server, 3)
            assert len(set(children(server.process.pid)) - {other.pid}) == 1
            assert parse_valid(surviving.reply()).text == "Hello" * 41
        with suspended(other):
            assert chat_once(server).text == "Hello"  # served by the new worker
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_lets_the_streams_of_all_workers_finish_and_removes_temporary_files(
    tmp_path: Path, backend: Upstream, number: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with (
        two_workers(tmp_path, backend, environment={"TMPDIR": str(temporary)}) as server,
        workers(server) as (one, other),
    ):
        assert list(temporary.iterdir())
        with ExitStack() as stack:
            connections = []
            for worker in (one, other):
                with suspended(worker):
                    connections.append(stack.enter_context(start_chat(server, model="slow")))
                    connections[-1].wait(b"Hello")
            server.process.send_signal(number)
            wait_until_refused(server)
            for connection in connections:
                assert parse_valid(connection.reply()).text == "Hello" * 41
        assert server.process.wait(LIMIT_S) == 0
        one.wait()
        other.wait()
        assert "Traceback" not in server.log.join()
    assert list(temporary.iterdir()) == []


def test_sighup_ends_neither_the_parent_nor_a_worker(tmp_path: Path, backend: Upstream) -> None:
    with two_workers(tmp_path, backend) as server, workers(server) as (one, other):
        for pid in (one.pid, other.pid, server.process.pid):
            os.kill(pid, signal.SIGHUP)
        server.log.wait("the configuration was read again and is unchanged")
        assert set(children(server.process.pid)) == {one.pid, other.pid}
        assert chat_once(server).text == "Hello"
        assert server.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_all_workers_at_once(tmp_path: Path, backend: Upstream, number: signal.Signals) -> None:
    with (
        two_workers(tmp_path, backend, "--drain", "3600") as server,
        workers(server) as (one, other),
        ExitStack() as stack,
    ):
        connections = []
        for worker in (one, other):
            with suspended(worker):
                connections.append(stack.enter_context(start_chat(server, model="stalls")))
                connections[-1].wait(b"Hello")
        server.process.send_signal(number)
        wait_until_refused(server)
        server.process.send_signal(number)
        for connection in connections:
            assert stream_error(connection.reply())["code"] == "shutting_down"
        assert server.process.wait(LIMIT_S) == 0
        one.wait()
        other.wait()


def test_metrics_are_summed_over_all_workers(tmp_path: Path, backend: Upstream) -> None:
    with two_workers(tmp_path, backend) as server, workers(server) as both:
        for other in both:
            with suspended(other):
                for _ in range(5):
                    assert chat_once(server).text == "Hello"
        assert metric(server, "welldone_workers_missing") == 0
        assert metric(server, 'welldone_upstream_attempts_total{upstream="a"}') == 10
        assert metric(server, 'welldone_requests_total{endpoint="chat",model="hello",status="200"}') == 10
        assert server.end() == 0
        log = server.log.join()
    assert {len(re.findall(rf"request worker={number} .*{CHAT}", log)) for number in (1, 2)} == {5}


def test_the_rate_limit_of_a_key_is_shared_by_all_workers(tmp_path: Path, backend: Upstream) -> None:
    key = "wd-of-ci-0123456789"
    more = f'[keys.ci]\nkey = "{key}"\nrequests_per_minute = {PER_MINUTE}\n'
    statuses = []
    with two_workers(tmp_path, backend, more=more) as server, workers(server) as both:
        for other in both:
            with suspended(other):
                for _ in range(PER_MINUTE):
                    body = {"model": "hello", "messages": [{"role": "user", "content": "Hi"}]}
                    with RawConnection(server, CHAT, body, headers={"Authorization": f"Bearer {key}"}) as connection:
                        statuses.append(connection.reply().status)
        # The limit refills one request every ten seconds, which a slow machine may reach.
        assert statuses[:PER_MINUTE] == [200] * PER_MINUTE
        assert statuses.count(429) >= PER_MINUTE - 2
        assert chat_once(server).text == "Hello"  # with another key
        assert server.end() == 0


def test_a_disconnect_from_a_worker_cancels_the_upstream_request(tmp_path: Path, backend: Upstream) -> None:
    with two_workers(tmp_path, backend) as server, workers(server) as both:
        for other in both:
            with suspended(other), start_chat(server, model="stalls") as connection:
                connection.wait(b"Hello")
        backend.wait_until(lambda mock: [request.end for request in mock.requests] == ["left", "left"])
        eventually(lambda: metric(server, "welldone_active_streams") == 0)
