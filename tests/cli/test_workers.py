"""Several processes on one port: who dies is replaced, all end together, and their numbers are one."""

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

from tests.cli.crew import HURRIED, PER_MINUTE
from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S
from welldone.cli.supervisor import WorkerNumberFilter, worker_config
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.server.observe.log import LineFormatter, Redactor

ROOT = Path(__file__).parents[2]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="watches processes that are not its own by pidfd")


class Crew(AbstractContextManager["Crew"]):
    """The program, running."""

    def __init__(self, kind: str = "serve") -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.crew", kind], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe
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
        """Read its log until something was said so often; the last line that said it."""
        assert self.process.stderr is not None
        said = []
        while times > 0:
            line = self.process.stderr.readline().decode()
            said.append(line)
            assert line, f"it ended without {text!r}: {said}"
            times -= line.count(text)  # two workers may write at once, and their lines run together
        return said[-1]

    def end(self) -> tuple[int, bytes, bytes]:
        """How it ends by itself, and what it said."""
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
        """One worker, and the other: while the one is stopped, only the other can answer."""
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
    """Whether a process that is not our child ends in time."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        has_ended = bool(select.select([watch], [], [], LIMIT_S)[0])
        if not has_ended:
            signal.pidfd_send_signal(watch, signal.SIGKILL)
    finally:
        os.close(watch)
    return has_ended


def _values(page: bytes) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(number) for name, _, number in lines}


def test_workers_share_a_port_and_have_their_own_numbers() -> None:
    with Crew() as crew:
        one, other = crew.both()
        assert {one["worker"], other["worker"]} == {1, 2}
        assert one["pid"] != other["pid"] != crew.process.pid


@pytest.mark.tier3
def test_the_terminals_ctrl_c_is_for_the_parent_alone() -> None:
    with Crew() as crew:
        assert all(facts["session"] == facts["pid"] for facts in crew.both())


@ON_LINUX
def test_who_is_killed_is_replaced_and_the_other_serves_on() -> None:
    with Crew() as crew:
        one, other = crew.both()
        with stopped(other["pid"]):  # nobody answers now but who replaces the first
            os.kill(one["pid"], signal.SIGKILL)
            said = json.loads(crew.wait_for("was ended by SIGKILL"))
            assert (said["level"], said["worker"]) == ("error", one["worker"])
            crew.wait_for("worker is ready")
            new = crew.facts()
        assert new["worker"] == one["worker"]
        assert new["pid"] != one["pid"]
        with stopped(new["pid"]):
            assert crew.facts() == other


@pytest.mark.tier3
@ON_LINUX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_end_together_when_the_parent_is_told_to(number: signal.Signals) -> None:
    with Crew() as crew:
        pids = [facts["pid"] for facts in crew.both()]
        crew.process.send_signal(number)
        assert crew.process.wait(LIMIT_S) == 0
        assert [_has_ended(pid) for pid in pids] == [True, True]


@pytest.mark.tier3
def test_what_runs_may_finish_until_somebody_is_in_a_hurry() -> None:
    with Crew() as crew:
        connection = http.client.HTTPConnection("127.0.0.1", crew.port, timeout=LIMIT_S)
        connection.request("GET", "/wait")
        reply = connection.getresponse()
        assert reply.readline() == b"begun\n"
        crew.process.terminate()
        crew.wait_for("draining", 2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", crew.port), LIMIT_S)
        crew.process.terminate()
        assert crew.process.wait(LIMIT_S) == HURRIED
        connection.close()


@pytest.mark.tier3
@ON_LINUX
def test_workers_end_with_a_parent_that_is_killed() -> None:
    with Crew() as crew:
        pids = [facts["pid"] for facts in crew.both()]
        crew.process.kill()
        assert [_has_ended(pid) for pid in pids] == [True, True]


@pytest.mark.tier3
@ON_LINUX
def test_nothing_of_it_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Crew() as crew:
        assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o700]
        crew.process.terminate()
        assert crew.process.wait(LIMIT_S) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.tier3
def test_what_a_worker_refuses_at_the_start_ends_all() -> None:
    code, out, error = Crew("refuse").end()
    assert code == 2
    assert out == b""
    assert set(error.splitlines()) == {b"there is something that the user can mend"}


@pytest.mark.tier3
def test_a_crew_that_never_gets_ready_is_given_up() -> None:
    code, out, error = Crew("crash").end()
    assert code == 128 + signal.SIGKILL
    assert out == b""
    assert b"was ended by SIGKILL" in error


@pytest.mark.tier3
def test_a_crew_that_was_ready_once_is_never_given_up() -> None:
    with Crew("crash-late") as crew:
        crew.wait_for("was ended by SIGKILL", 12)
        crew.process.terminate()
        assert crew.process.wait(LIMIT_S) in (0, 128 + signal.SIGKILL)  # one may have been about to


@pytest.mark.tier3
def test_the_page_of_metrics_is_that_of_all_workers() -> None:
    with Crew() as crew:
        one, _ = crew.both()
        values = _values(crew.get("/metrics")[1])
        assert values["welldone_workers_missing"] == 0
        assert values["welldone_client_disconnects_total"] == 2
        assert values['welldone_upstream_attempts_total{upstream="lab"}'] == 0
        with stopped(one["pid"]):
            values = _values(crew.get("/metrics")[1])
        assert values["welldone_workers_missing"] == 1
        assert values["welldone_client_disconnects_total"] == 1


def test_rates_hold_over_all_workers() -> None:
    with Crew() as crew:
        one, other = crew.both()
        statuses = [crew.get("/take")[0]]
        with stopped(one["pid"]):
            statuses += [crew.get("/take")[0] for _ in range(PER_MINUTE)]
        with stopped(other["pid"]):
            statuses += [crew.get("/take")[0]]
        assert statuses == [200] * PER_MINUTE + [429] * 2


@pytest.mark.tier3
def test_each_line_of_a_workers_log_has_its_number() -> None:
    record = logging.makeLogRecord({"name": "welldone", "msg": "x", "fields": {"model": "m"}})
    assert WorkerNumberFilter(3).filter(record)
    line = json.loads(LineFormatter("json", Redactor()).format(record))
    assert (line["worker"], line["model"]) == (3, "m")
    assert WorkerNumberFilter(3).filter(logging.makeLogRecord({"name": "aiohttp"}))


@pytest.mark.parametrize(("limit", "queue", "shared"), [(256, 64, (64, 16)), (7, 5, (1, 2)), (1, 0, (1, 0))])
def test_together_the_workers_keep_to_the_limits_of_an_upstream(
    limit: int, queue: int, shared: tuple[int, int]
) -> None:
    upstream = UpstreamSettings(name="lab", url="http://lab/v1", limit=limit, queue=queue)
    config = worker_config(Config(server=ServeSettings(workers=4), models=(), upstreams=(upstream,)))
    assert [(one.name, one.limit, one.queue) for one in config.upstreams] == [("lab", *shared)]


def test_the_command_serves_with_workers_and_ends_well() -> None:
    words = ["serve", "--upstream", "http://127.0.0.1:9/v1", "--workers", "2", "--port", "0"]
    pipe = subprocess.PIPE
    process = subprocess.Popen([COMMAND, *words], env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe)
    with watched(process):
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        port = int(said.rpartition(":")[2].removesuffix("/v1\n"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        connection.request("GET", "/v1/models")
        assert connection.getresponse().read()
        connection.close()
        process.terminate()
        out, error = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert b" serves " not in out  # the banner stands there once
    assert b"request worker=" in error
