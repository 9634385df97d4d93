"""`welldone scale` with a fake cluster: output, exit codes, signals."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import welldone.cluster
from tests.cli.run import run_python
from welldone.cli import scale
from welldone.cli.main import run
from welldone.config.server import Config
from welldone.config.settings import install_advice

ABSENT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "starlette"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from welldone.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
SETTINGS = """
[server]
port = 8123
api-key = "sk-of-the-clients"

[models.m]
command = ["engine", "--port", "{port}"]
"""


class Group(NamedTuple):
    """As in `cluster/ray_cluster.py`."""

    name: str
    status: str = "HEALTHY"
    running: int = 1
    coming: int = 0
    message: str = ""


class View(NamedTuple):
    """As in `cluster/ray_cluster.py`."""

    groups: Sequence[Group]
    is_running: bool = True
    is_failed: bool = False
    message: str = ""


class FakeCluster(ModuleType):
    """Fake of `cluster/ray_cluster.py`, without Ray."""

    class ClusterError(Exception):
        """As in `cluster/ray_cluster.py`."""

    def __init__(self) -> None:
        super().__init__("welldone.cluster.ray_cluster")
        self.calls: list[str] = []
        self.is_ours = True
        self.now: View | None = None
        self.error: Exception | None = None
        self.on_poll: Callable[[], None] = lambda: None
        self.may_deploy = threading.Event()
        self.may_deploy.set()

    def connect(self, address: str | None, *, may_start: bool) -> bool:
        self.calls.append(f"connect {address} {may_start}")
        if address == "nowhere:1":
            raise self.ClusterError("no Ray cluster answers at nowhere:1")
        return self.is_ours

    def leave(self) -> None:
        self.calls.append("leave")

    def machines(self) -> tuple[int, dict[str, float]]:
        return 3, {"CPU": 12.0, "GPU": 0.0}

    def deploy(self, config: Config, keys: Sequence[str], name: str) -> None:
        self.calls.append(f"deploy {name} {len(keys)}")
        self.may_deploy.wait(60)
        if self.error is not None:
            raise self.error
        self.now = View([Group("front"), Group("engine-m-1")])

    def view(self, name: str) -> View | None:
        self.on_poll()
        return self.now

    def end(self, name: str) -> None:
        self.calls.append(f"end {name}")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCluster]:
    """A fake cluster, and a config file in the current folder."""
    application: Any = ModuleType("welldone.cluster.application")
    application.keys_of = lambda config: list(config.server.api_keys)
    fake = FakeCluster()
    monkeypatch.setitem(sys.modules, "welldone.cluster.ray_cluster", fake)
    monkeypatch.setattr(welldone.cluster, "ray_cluster", fake, raising=False)  # set if another test imported it
    monkeypatch.setitem(sys.modules, "welldone.cluster.application", application)
    monkeypatch.setattr(scale, "_POLL_S", 0.01)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "welldone.toml").write_text(SETTINGS)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield fake
    for number, handler in handlers.items():
        signal.signal(number, handler)


def on_polls(cluster: FakeCluster, *steps: Callable[[], None]) -> None:
    """Run the steps one by one, at each poll of the status after the deployment."""
    remaining = list(steps)

    def poll() -> None:
        if remaining and any(call.startswith("deploy") for call in cluster.calls):
            remaining.pop(0)()

    cluster.on_poll = poll


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_help_needs_no_ray(tmp_path: Path) -> None:
    ran = run_python(ABSENT, "scale", "--help", cwd=tmp_path)
    assert (ran.code, ran.notes) == (0, "")
    assert "--detach" in ran.out.decode()


def test_without_ray_the_message_tells_how_to_install_it(tmp_path: Path) -> None:
    ran = run_python(ABSENT, "scale", "--status", cwd=tmp_path)
    assert (ran.code, ran.notes.count("\n")) == (2, 1)
    assert install_advice("ray") in ran.notes


def test_a_usage_error_is_reported_before_the_missing_package(tmp_path: Path) -> None:
    ran = run_python(ABSENT, "scale", "--config", "nowhere.toml", cwd=tmp_path)
    assert ran.code == 2
    assert "nowhere.toml" in ran.notes
    assert "Traceback" not in ran.notes


USAGE_ERRORS = {
    ("--detatch",): "--detach",
    ("--status", "--stop"): "use one",
    ("--config", "nowhere.toml"): "nowhere.toml",
    ("extra",): "extra",
}


@pytest.mark.parametrize("words", USAGE_ERRORS)
def test_a_usage_error_is_reported_before_a_cluster_is_joined(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(["scale", *words]) == 2
    assert USAGE_ERRORS[words] in capsys.readouterr().err
    assert cluster.calls == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('workers = 2\n[upstreams.lab]\nurl = "http://lab/v1"', "set the number of fronts in [scale.front]"),
        ("port = 0", "choose a port in [server]"),
        ("prot = 1", "did you mean 'port'"),
    ],
)
def test_an_error_in_the_file_is_reported_before_a_cluster_is_joined(
    cluster: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    (tmp_path / "welldone.toml").write_text(f"[server]\n{line}\n")
    assert run(["scale"]) == 2
    assert message in capsys.readouterr().err
    assert cluster.calls == []


def test_a_deployment_prints_the_banner_and_is_stopped_by_a_signal(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    on_polls(cluster, lambda: None, interrupt)
    assert run(["scale", "--name", "prod"]) == 0
    assert cluster.calls == ["connect None True", "deploy prod 1", "end prod", "leave"]
    captured = capsys.readouterr()
    assert "http://127.0.0.1:8123/v1" in captured.out
    assert "engine-m-1: 1 running" in captured.err
    assert "sk-of-the-clients" not in captured.out + captured.err


def test_each_change_of_the_replicas_is_printed_once(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    def changes_to(*groups: Group) -> Callable[[], None]:
        def change() -> None:
            cluster.now = View(groups)

        return change

    failed = Group("front", "UNHEALTHY", 0, 1, "long story\nthe port is taken\n")
    on_polls(
        cluster,
        changes_to(Group("front", coming=2)),
        changes_to(Group("front", coming=2)),
        changes_to(failed),
        lambda: None,
    )
    poll = cluster.on_poll

    def poll_then_end() -> None:
        poll()
        if cluster.now is not None and cluster.now.groups[0] is failed:
            interrupt()

    cluster.on_poll = poll_then_end
    assert run(["scale"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("front:")]
    assert lines[-2:] == [
        "front: 1 running, 2 starting or stopping",
        "front: 0 running, 1 starting or stopping: the port is taken",
    ]
    assert len(lines) == len(set(lines))


@pytest.mark.tier3
def test_an_interrupted_deployment_is_stopped(cluster: FakeCluster) -> None:
    cluster.may_deploy.clear()
    on_polls(cluster, interrupt)
    try:
        assert run(["scale"]) == 0
        assert cluster.calls == ["connect None True", "deploy welldone 1", "end welldone", "leave"]
    finally:
        cluster.may_deploy.set()


def test_a_second_signal_does_not_wait_for_running_requests(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "end", lambda _: interrupt())
    on_polls(cluster, interrupt)
    assert run(["scale"]) == 130
    assert cluster.calls[-1] == "leave"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("it wants 64 CPUs, there are 2\nand more\n", "it wants 64 CPUs, there are 2"),
        ("Retrying 2 more times. Error:\n a traceback\nOSError: in use\n", "OSError: in use"),
    ],
    ids=["no room", "tried again"],
)
def test_the_status_shows_why_a_replica_does_not_start(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], message: str, shown: str
) -> None:
    cluster.now = View([Group("engine-m-1", "UPDATING", 0, 1, message)])
    assert run(["scale", "--status"]) == 0
    assert capsys.readouterr().out.endswith(f"0 running, 1 starting or stopping: {shown}\n")


@pytest.mark.parametrize(("is_ours", "calls"), [(True, ["end welldone", "leave"]), (False, ["leave"])])
def test_a_failed_deployment_is_stopped_if_the_cluster_is_ours(
    cluster: FakeCluster, is_ours: bool, calls: list[str]
) -> None:
    cluster.is_ours, cluster.error = is_ours, cluster.ClusterError("it does not run")
    assert run(["scale"]) == 3
    assert cluster.calls[2:] == calls


def test_a_detached_deployment_keeps_running(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.is_ours = False
    assert run(["scale", "--detach", "--address", "10.0.0.1:6379"]) == 0
    assert cluster.calls == ["connect 10.0.0.1:6379 True", "deploy welldone 1", "leave"]
    assert capsys.readouterr().out.endswith("--stop --name welldone\n")


def test_detach_needs_a_cluster_that_outlives_the_command(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scale", "--detach"]) == 2
    assert "ray start --head" in capsys.readouterr().err
    assert cluster.calls == ["connect None True", "leave"]


@pytest.mark.parametrize(("kind", "code"), [("cluster", 3), ("value", 2)])
def test_a_failed_deployment_is_an_error_of_one_line(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], kind: str, code: int
) -> None:
    cluster.error = cluster.ClusterError("it does not run") if kind == "cluster" else ValueError("it does not run")
    assert run(["scale"]) == code
    assert capsys.readouterr().err.splitlines()[-1] == "it does not run"
    assert cluster.calls[-1] == "leave"


@pytest.mark.parametrize("words", [(), ("--status",), ("--stop",)])
def test_a_cluster_that_does_not_answer_is_unreachable(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(["scale", *words, "--address", "nowhere:1"]) == 3
    assert "nowhere:1" in capsys.readouterr().err
    assert "leave" not in cluster.calls


@pytest.mark.parametrize("option", ["--status", "--stop"])
def test_without_a_deployment_no_cluster_is_started(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run(["scale", option, "--name", "prod"]) == 1
    assert "prod" in capsys.readouterr().err
    assert cluster.calls == ["connect None False", "leave"]


def test_the_status_is_a_table(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.now = View([Group("front", running=2), Group("engine-m-1", "UPDATING", 1, 3)])
    assert run(["scale", "--status"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["front", "healthy", "2", "running"]
    assert second.startswith("engine-m-1  updating")
    assert second.endswith("1 running, 3 starting or stopping")


def test_stop_stops_the_deployment(cluster: FakeCluster) -> None:
    cluster.now = View([Group("front")])
    assert run(["scale", "--stop"]) == 0
    assert cluster.calls == ["connect None False", "end welldone", "leave"]
