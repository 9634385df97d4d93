"""Graceful shutdown: requests finish within the drain time or get an error, and nothing is left behind."""

import signal
import socket
import tempfile
from pathlib import Path

import pytest

from tests.support.faults import (
    LINUX,
    LONG_ANSWER,
    engine_of,
    small_server,
    start_chat,
    stream_error,
    wait_until_accepted,
    wait_until_refused,
)
from tests.support.raw import parse_valid
from tests.support.server import LIMIT_S

pytestmark = [LINUX, pytest.mark.tier2]


@pytest.mark.parametrize(("stream", "number"), [(True, signal.SIGTERM), (False, signal.SIGINT)])
def test_running_and_queued_requests_finish_during_a_drain(
    tiny_model: Path, stream: bool, number: signal.Signals
) -> None:
    with small_server(tiny_model, "--early", "0.1") as server, engine_of(server) as engine:
        engine.suspend()
        with start_chat(server, stream=stream) as connection, start_chat(server, stream=stream) as waiting:
            wait_until_accepted(server, connection)
            wait_until_accepted(server, waiting)
            server.process.send_signal(number)
            wait_until_refused(server)
            engine.resume()
            assert parse_valid(connection.reply()).choice.finish == "length"
            assert parse_valid(waiting.reply()).choice.finish == "length"
        assert server.process.wait(LIMIT_S) == 0
        engine.wait()


def test_requests_that_exceed_the_drain_time_get_an_error(tiny_model: Path) -> None:
    with (
        small_server(tiny_model, "-np", "2", "--drain", "0.2", "--early", "0.1") as server,
        engine_of(server) as engine,
    ):
        with start_chat(server, max_tokens=LONG_ANSWER) as connection:
            connection.wait(rb'"content":"[^"]')
            engine.suspend()
            with start_chat(server, stream=False) as whole, start_chat(server) as waiting:
                wait_until_accepted(server, waiting)
                wait_until_accepted(server, whole)
                server.process.terminate()
                for stream in (connection, waiting):
                    assert stream_error(stream.reply())["code"] == "shutting_down"
                reply = whole.reply()
                assert reply.status == 503
                assert reply.error()["code"] == "shutting_down"
        engine.resume()
        assert server.process.wait(LIMIT_S) == 0


def test_a_second_signal_ends_the_server_at_once(tiny_model: Path) -> None:
    with small_server(tiny_model, "--drain", "3600") as server, engine_of(server) as engine:
        with start_chat(server, max_tokens=LONG_ANSWER) as connection:
            connection.wait(rb'"content":"[^"]')
            engine.suspend()
            server.process.send_signal(signal.SIGINT)
            wait_until_refused(server)
            server.process.send_signal(signal.SIGINT)
            assert stream_error(connection.reply())["code"] == "shutting_down"
        engine.resume()
        assert server.process.wait(LIMIT_S) == 0


def test_an_idle_keep_alive_connection_does_not_delay_the_shutdown(tiny_model: Path) -> None:
    with (
        small_server(tiny_model, "--drain", "3600") as server,
        socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection,
    ):
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert server.end() == 0
        while connection.recv(65536):
            pass


def test_shutdown_removes_all_temporary_files(tiny_model: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="wd") as folder:
        with small_server(tiny_model, environment={"TMPDIR": folder}) as server:
            (private,) = Path(folder).iterdir()
            assert private.stat().st_mode & 0o777 == 0o700
            assert server.end() == 0
        assert list(Path(folder).iterdir()) == []
