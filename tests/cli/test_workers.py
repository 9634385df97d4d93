"""Worker processes on one port: they are restarted, stop together, and share limits and metrics."""

import http.client
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S
from tests.cli.worker_program import ABORTED, PER_MINUTE
from welldone.cli.supervisor import WorkerNumberFilter, worker_config
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.server.observe.log import LineFormatter, Redactor

ROOT = Path(__file__).parents[2]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="uses pidfd_open")


class WorkerProgram(AbstractContextManager["WorkerProgram"]):
    """The running program."""

    def __init__(self, kind: str = "serve") -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.worker_program", kind], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self._stack = ExitStack()
        self._stack.enter_context(watched(self.process))
        self.port = 0

    def __enter__(self) -> Self:
        self.wait_for("worker is ready", 2)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def wait_for(self, text: str, times: int = 1) -> str:
        """Read the log until the text has occurred so often; return its last line."""
        assert self.process.stderr is not None
        lines = []
        while times > 0:
            line = self.process.stderr.readline().decode()
            lines.append(line)
            assert line, f"it ended without {text!r}: {lines}"
            times -= line.count(text)  # lines of two workers may run together
        return lines[-1]

    def end(self) -> tuple[int, bytes, bytes]:
        """Wait until it exits; return its exit code and output."""
        with self._stack:
            out, error = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, error

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.get("/")[1])
        return facts

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the facts of both workers: while one is stopped, only the other can answer."""
        one = self.facts()
        with stopped(one["pid"]):
            return one, self.facts()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _has_ended(pid: int) -> bool:
    """Whether a process that is not our child exits in time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        has_ended = bool(select.select([pidfd], [], [], LIMIT_S)[0])
        if not has_ended:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return has_ended


def _values(page: bytes) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(number) for name, _, number in lines}


def test_workers_share_a_port_and_have_their_own_numbers() -> None:
    with WorkerProgram() as program:
        one, other = program.both()
        assert {one["worker"], other["worker"]} == {1, 2}
        assert one["pid"] != other["pid"] != program.process.pid


@pytest.mark.tier3
def test_workers_do_not_receive_ctrl_c_from_the_terminal() -> None:
    with WorkerProgram() as program:
        assert all(facts["session"] == facts["pid"] for facts in program.both())


@ON_LINUX
def test_a_killed_worker_is_replaced_while_the_other_serves_on() -> None:
    with WorkerProgram() as program:
        one, other = program.both()
        with (
            stopped(other["pid"]),  # only the first, and then its replacement, can answer
            socket.create_connection(("127.0.0.1", program.port), timeout=LIMIT_S) as cut,
        ):
            cut.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with cut.makefile("rb") as lines:
                while b"started" not in lines.readline():
                    pass
                os.kill(one["pid"], signal.SIGKILL)
                line = json.loads(program.wait_for("was ended by SIGKILL"))
                assert (line["level"], line["worker"], line["requests_cut"]) == ("error", one["worker"], 1)
                assert lines.read() in (b"", b"\r\n")  # no end of the body
            program.wait_for("worker is ready")
            new = program.facts()
            values = _values(program.get("/metrics")[1])
            assert values["welldone_worker_deaths_total"] == values["welldone_worker_cut_requests_total"] == 1
        assert new["worker"] == one["worker"]
        assert new["pid"] != one["pid"]
        with stopped(new["pid"]):
            assert program.facts() == other


@pytest.mark.tier3
@ON_LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_workers_stop_when_the_supervisor_receives_a_signal(number: signal.Signals) -> None:
    with WorkerProgram() as program:
        pids = [facts["pid"] for facts in program.both()]
        program.process.send_signal(number)
        assert program.process.wait(LIMIT_S) == 0
        assert [_has_ended(pid) for pid in pids] == [True, True]


@pytest.mark.tier3
def test_running_requests_may_finish_until_a_second_signal() -> None:
    with WorkerProgram() as program:
        connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=LIMIT_S)
        connection.request("GET", "/wait")
        reply = connection.getresponse()
        assert reply.readline() == b"started\n"
        program.process.terminate()
        program.wait_for("draining", 2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", program.port), LIMIT_S)
        program.process.terminate()
        assert program.process.wait(LIMIT_S) == ABORTED
        connection.close()


@pytest.mark.tier3
@ON_LINUX
def test_workers_end_when_the_supervisor_is_killed() -> None:
    with WorkerProgram() as program:
        pids = [facts["pid"] for facts in program.both()]
        program.process.kill()
        assert [_has_ended(pid) for pid in pids] == [True, True]


@pytest.mark.tier3
@ON_LINUX
def test_no_temporary_files_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with WorkerProgram() as program:
        assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o700]
        program.process.terminate()
        assert program.process.wait(LIMIT_S) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.tier3
def test_a_usage_error_in_a_worker_ends_the_program() -> None:
    code, out, error = WorkerProgram("refuse").end()
    assert code == 2
    assert out == b""
    assert set(error.splitlines()) == {b"the settings have an error"}


@pytest.mark.tier3
def test_workers_that_never_become_ready_are_given_up() -> None:
    code, out, error = WorkerProgram("crash").end()
    assert code == 128 + signal.SIGKILL
    assert out == b""
    assert b"was ended by SIGKILL" in error


@pytest.mark.tier3
def test_workers_that_were_ready_once_are_restarted_for_ever() -> None:
    with WorkerProgram("crash-late") as program:
        program.wait_for("was ended by SIGKILL", 12)
        program.process.terminate()
        assert program.process.wait(LIMIT_S) in (0, 128 + signal.SIGKILL)  # a worker may have been about to crash


@pytest.mark.tier3
def test_metrics_are_summed_over_all_workers() -> None:
    with WorkerProgram() as program:
        one, _ = program.both()
        values = _values(program.get("/metrics")[1])
        assert values["welldone_workers_missing"] == 0
        assert values["welldone_client_disconnects_total"] == 2
        assert values['welldone_upstream_attempts_total{upstream="lab"}'] == 0
        with stopped(one["pid"]):
            values = _values(program.get("/metrics")[1])
        assert values["welldone_workers_missing"] == 1
        assert values["welldone_client_disconnects_total"] == 1


def test_rate_limits_are_shared_by_all_workers() -> None:
    with WorkerProgram() as program:
        one, other = program.both()
        statuses = [program.get("/take")[0]]
        with stopped(one["pid"]):
            statuses += [program.get("/take")[0] for _ in range(PER_MINUTE)]
        with stopped(other["pid"]):
            statuses += [program.get("/take")[0]]
        assert statuses == [200] * PER_MINUTE + [429] * 2


@pytest.mark.tier3
def test_each_log_line_of_a_worker_has_its_number() -> None:
    record = logging.makeLogRecord({"name": "welldone", "msg": "x", "fields": {"model": "m"}})
    assert WorkerNumberFilter(3).filter(record)
    line = json.loads(LineFormatter("json", Redactor()).format(record))
    assert (line["worker"], line["model"]) == (3, "m")
    assert WorkerNumberFilter(3).filter(logging.makeLogRecord({"name": "aiohttp"}))


@pytest.mark.parametrize(("limit", "queue", "shared"), [(256, 64, (64, 16)), (7, 5, (1, 2)), (1, 0, (1, 0))])
def test_the_limits_of_an_upstream_are_divided_among_the_workers(
    limit: int, queue: int, shared: tuple[int, int]
) -> None:
    upstream = UpstreamSettings(name="lab", url="http://lab/v1", limit=limit, queue=queue)
    config = worker_config(Config(server=ServeSettings(workers=4), models=(), upstreams=(upstream,)))
    assert [(one.name, one.limit, one.queue) for one in config.upstreams] == [("lab", *shared)]


def test_the_command_serves_with_workers_and_exits_cleanly() -> None:
    words = ["serve", "--upstream", "http://127.0.0.1:9/v1", "--workers", "2", "--port", "0"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([COMMAND, *words], env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe)
    with watched(process):
        assert process.stdout is not None
        first_line = process.stdout.readline().decode()
        port = int(first_line.rpartition(":")[2].removesuffix("/v1\n"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().read()
        connection.close()
        process.terminate()
        out, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert b" serves " not in out  # the banner is printed once
    assert b"request worker=" in error
