"""Graceful shutdown of the gateway while upstreams stream: answers finish in time or end with an error."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import LINUX, start_chat, stream_error, wait_until_refused
from tests.support.raw import RawConnection, parse_valid
from tests.support.server import LIMIT_S
from tests.support.upstream import DONE, ROLE, STOP, TEXT, Upstream, gateway, upstream
from welldone.mock.script import MockChunk, MockReply

pytestmark = [LINUX, pytest.mark.tier2]


@pytest.fixture
def backend() -> Iterator[Upstream]:
    with upstream() as started:
        yield started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_running_answers_finish_during_a_drain(tmp_path: Path, number: signal.Signals) -> None:
    slow = MockReply((ROLE, TEXT, *[MockChunk(TEXT.text, after_s=0.05)] * 20, STOP, DONE))
    with upstream(lambda request: slow) as one, gateway(tmp_path, one.url) as server:
        with start_chat(server) as connection, start_chat(server, stream=False) as whole:
            connection.wait(b"Hello")
            one.wait_until(lambda mock: len(mock.requests) == 2)
            server.process.send_signal(number)
            wait_until_refused(server)
            assert parse_valid(connection.reply()).text == "Hello" * 21
            assert whole.reply().ok()["choices"][0]["message"]["content"] == "Hello" * 21
        assert server.process.wait(LIMIT_S) == 0
        assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("model", ["stalls", "silent"])
def test_hung_answers_end_with_an_error_after_the_drain_time(tmp_path: Path, backend: Upstream, model: str) -> None:
    options = ["--drain", "1", "--early", "0.1"]
    with gateway(tmp_path, backend.url, options=options) as server:
        with start_chat(server, model=model) as connection, start_chat(server, model=model, stream=False) as whole:
            connection.wait(b"Hello" if model == "stalls" else b"HTTP/1.1 200 OK")
            backend.wait_until(lambda mock: len(mock.requests) == 2)
            server.process.terminate()
            assert stream_error(connection.reply())["code"] == "shutting_down"
            reply = whole.reply()
            assert reply.status == 503
            assert reply.error()["code"] == "shutting_down"
        assert server.process.wait(LIMIT_S) == 0
        backend.wait_until(lambda mock: all(request.end == "left" for request in mock.requests))
        assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_gateway_at_once(tmp_path: Path, backend: Upstream, number: signal.Signals) -> None:
    with (
        gateway(tmp_path, backend.url, options=["--drain", "3600"]) as server,
        start_chat(server, model="stalls") as connection,
    ):
        connection.wait(b"Hello")
        server.process.send_signal(number)
        wait_until_refused(server)
        server.process.send_signal(number)
        assert stream_error(connection.reply())["code"] == "shutting_down"
        assert server.process.wait(LIMIT_S) == 0
        backend.wait_until(lambda mock: mock.requests[-1].end == "left")


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/embeddings"])
def test_passthrough_responses_are_cut_after_the_drain_time(tmp_path: Path, backend: Upstream, path: str) -> None:
    with gateway(tmp_path, backend.url, options=["--drain", "1"]) as server:
        with RawConnection(server, path, {"model": "stalls", "input": "Hi"}) as connection:
            connection.wait(b"Hello")
            server.process.terminate()
            assert connection.reply().trace.complete is False
        assert server.process.wait(LIMIT_S) == 0
        assert "Traceback" not in server.log.join()
