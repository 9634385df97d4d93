"""The server is told to end: what runs may finish, what does not is told so, and nothing is left."""

import signal
import socket
import tempfile
from pathlib import Path

import pytest

from tests.live.faults import LINUX, LONG, begin, broken_off, engine_of, queued, small, until_refused
from tests.live.raw import judged
from tests.live.server import LIMIT_S

pytestmark = [LINUX, pytest.mark.tier2]


@pytest.mark.parametrize(("stream", "number"), [(True, signal.SIGTERM), (False, signal.SIGINT)])
def test_what_runs_and_what_waits_may_finish(tiny_model: Path, stream: bool, number: signal.Signals) -> None:
    with small(tiny_model, "--early", "0.1") as server, engine_of(server) as engine:
        engine.hold()
        with begin(server, stream=stream) as line, begin(server, stream=stream) as waiting:
            queued(server, line)
            queued(server, waiting)
            server.process.send_signal(number)
            until_refused(server)
            engine.go()
            assert judged(line.reply()).one.finish == "length"
            assert judged(waiting.reply()).one.finish == "length"
        assert server.process.wait(LIMIT_S) == 0
        engine.wait()


def test_what_does_not_finish_in_time_is_told_so(tiny_model: Path) -> None:
    with small(tiny_model, "-np", "2", "--drain", "0.2", "--early", "0.1") as server, engine_of(server) as engine:
        with begin(server, max_tokens=LONG) as line:
            line.wait(rb'"content":"[^"]')
            engine.hold()
            with begin(server, stream=False) as whole, begin(server) as waiting:
                queued(server, waiting)
                queued(server, whole)
                server.process.terminate()
                for stream in (line, waiting):
                    assert broken_off(stream.reply())["code"] == "shutting_down"
                reply = whole.reply()
                assert reply.status == 503
                assert reply.error()["code"] == "shutting_down"
        engine.go()
        assert server.process.wait(LIMIT_S) == 0


def test_a_second_signal_ends_it_at_once(tiny_model: Path) -> None:
    with small(tiny_model, "--drain", "3600") as server, engine_of(server) as engine:
        with begin(server, max_tokens=LONG) as line:
            line.wait(rb'"content":"[^"]')
            engine.hold()
            server.process.send_signal(signal.SIGINT)
            until_refused(server)
            server.process.send_signal(signal.SIGINT)
            assert broken_off(line.reply())["code"] == "shutting_down"
        engine.go()
        assert server.process.wait(LIMIT_S) == 0


def test_a_connection_that_waits_for_its_next_request_does_not_hold_the_end_up(tiny_model: Path) -> None:
    with (
        small(tiny_model, "--drain", "3600") as server,
        socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection,
    ):
        connection.sendall(f"GET /health HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert server.end() == 0
        while connection.recv(65536):
            pass


def test_nothing_is_left_in_the_folder_for_temporary_files(tiny_model: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="wd") as folder:
        with small(tiny_model, environment={"TMPDIR": folder}) as server:
            (private,) = Path(folder).iterdir()
            assert private.stat().st_mode & 0o777 == 0o700
            assert server.end() == 0
        assert list(Path(folder).iterdir()) == []
