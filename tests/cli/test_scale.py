"""`welldone scale` before a cluster that a test makes up: what it says, and how it ends."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.cli.run import run_python
from welldone.cli import scale
from welldone.cli.main import run
from welldone.config.server import Config

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
    """As `scale/cluster.py` has it."""

    name: str
    status: str = "HEALTHY"
    running: int = 1
    coming: int = 0
    message: str = ""


class View(NamedTuple):
    """As `scale/cluster.py` has it."""

    groups: Sequence[Group]
    is_running: bool = True
    is_failed: bool = False
    message: str = ""


class Cluster(ModuleType):
    """What `scale/cluster.py` does, without Ray."""

    class ClusterError(Exception):
        """As there."""

    def __init__(self) -> None:
        super().__init__("welldone.cluster.ray_cluster")
        self.did: list[str] = []
        self.is_ours = True
        self.now: View | None = None
        self.error: Exception | None = None
        self.on_look: Callable[[], None] = lambda: None
        self.may_deploy = threading.Event()
        self.may_deploy.set()

    def connect(self, address: str | None, *, may_start: bool) -> bool:
        self.did.append(f"connect {address} {may_start}")
        if address == "nowhere:1":
            raise self.ClusterError("no Ray cluster answers at nowhere:1")
        return self.is_ours

    def leave(self) -> None:
        self.did.append("leave")

    def machines(self) -> tuple[int, dict[str, float]]:
        return 3, {"CPU": 12.0, "GPU": 0.0}

    def deploy(self, config: Config, keys: Sequence[str], name: str) -> None:
        self.did.append(f"deploy {name} {len(keys)}")
        self.may_deploy.wait(60)
        if self.error is not None:
            raise self.error
        self.now = View([Group("front"), Group("engine-m-1")])

    def view(self, name: str) -> View | None:
        self.on_look()
        return self.now

    def end(self, name: str) -> None:
        self.did.append(f"end {name}")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster, and a file of settings where the command is run."""
    application: Any = ModuleType("welldone.cluster.application")
    application.keys_of = lambda config: list(config.server.api_keys)
    made = Cluster()
    monkeypatch.setitem(sys.modules, "welldone.cluster.ray_cluster", made)
    monkeypatch.setitem(sys.modules, "welldone.cluster.application", application)
    monkeypatch.setattr(scale, "_LOOK_S", 0.01)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "welldone.toml").write_text(SETTINGS)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


def looks(cluster: Cluster, *steps: Callable[[], None]) -> None:
    """What happens at the first look that comes after the deployment, at the next, and so on."""
    left = list(steps)

    def look() -> None:
        if left and any(did.startswith("deploy") for did in cluster.did):
            left.pop(0)()

    cluster.on_look = look


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_help_needs_no_ray(tmp_path: Path) -> None:
    ran = run_python(ABSENT, "scale", "--help", cwd=tmp_path)
    assert (ran.code, ran.notes) == (0, "")
    assert "--detach" in ran.out.decode()


@pytest.mark.parametrize("option", [(), ("--status",), ("--stop",)])
def test_without_ray_it_says_how_to_get_it(tmp_path: Path, option: tuple[str, ...]) -> None:
    ran = run_python(ABSENT, "scale", *option, cwd=tmp_path)
    assert (ran.code, ran.notes.count("\n")) == (2, 1)
    assert "pip install 'welldone[ray]'" in ran.notes


MISTAKES = {
    ("--detatch",): "--detach",
    ("--status", "--stop"): "keep one",
    ("--config", "nowhere.toml"): "nowhere.toml",
    ("extra",): "extra",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_comes_before_the_missing_package(tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = run_python(ABSENT, "scale", *words, cwd=tmp_path)
    assert ran.code == 2
    assert MISTAKES[words] in ran.notes
    assert "Traceback" not in ran.notes


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('workers = 2\n[upstreams.lab]\nurl = "http://lab/v1"', "[scale.front] says how many"),
        ("port = 0", "choose one in [server]"),
        ("prot = 1", "did you mean 'port'"),
    ],
)
def test_a_wrong_file_is_told_before_any_cluster_is_joined(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    (tmp_path / "welldone.toml").write_text(f"[server]\n{line}\n")
    assert run(["scale"]) == 2
    assert said in capsys.readouterr().err
    assert cluster.did == []


def test_it_deploys_says_where_it_is_and_ends_what_runs_when_told(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    looks(cluster, lambda: None, interrupt)
    assert run(["scale", "--name", "prod"]) == 0
    assert cluster.did == ["connect None True", "deploy prod 1", "end prod", "leave"]
    heard = capsys.readouterr()
    assert "http://127.0.0.1:8123/v1" in heard.out
    assert "engine-m-1: 1 running" in heard.err
    assert "sk-of-the-clients" not in heard.out + heard.err


def test_each_change_is_told_once(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    def becomes(*groups: Group) -> Callable[[], None]:
        def change() -> None:
            cluster.now = View(groups)

        return change

    failed = Group("front", "UNHEALTHY", 0, 1, "long story\nthe port is taken\n")
    looks(cluster, becomes(Group("front", coming=2)), becomes(Group("front", coming=2)), becomes(failed), lambda: None)
    look = cluster.on_look

    def look_then_end() -> None:
        look()
        if cluster.now is not None and cluster.now.groups[0] is failed:
            interrupt()

    cluster.on_look = look_then_end
    assert run(["scale"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("front:")]
    assert lines[-2:] == [
        "front: 1 running, 2 that start or end",
        "front: 0 running, 1 that start or end: the port is taken",
    ]
    assert len(lines) == len(set(lines))


@pytest.mark.tier3
def test_what_is_interrupted_while_it_deploys_is_ended(cluster: Cluster) -> None:
    cluster.may_deploy.clear()
    looks(cluster, interrupt)
    try:
        assert run(["scale"]) == 0
        assert cluster.did == ["connect None True", "deploy welldone 1", "end welldone", "leave"]
    finally:
        cluster.may_deploy.set()


def test_who_tells_it_twice_does_not_wait_for_what_runs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "end", lambda _: interrupt())
    looks(cluster, interrupt)
    assert run(["scale"]) == 130
    assert cluster.did[-1] == "leave"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("it wants 64 CPUs, there are 2\nand more\n", "it wants 64 CPUs, there are 2"),
        ("Retrying 2 more times. Error:\n a traceback\nOSError: in use\n", "OSError: in use"),
    ],
    ids=["no room", "tried again"],
)
def test_what_does_not_start_says_why(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], message: str, said: str
) -> None:
    cluster.now = View([Group("engine-m-1", "UPDATING", 0, 1, message)])
    assert run(["scale", "--status"]) == 0
    assert capsys.readouterr().out.endswith(f"0 running, 1 that start or end: {said}\n")


@pytest.mark.parametrize(("is_ours", "did"), [(True, ["end welldone", "leave"]), (False, ["leave"])])
def test_what_fails_is_ended_with_a_cluster_that_ends_with_it(cluster: Cluster, is_ours: bool, did: list[str]) -> None:
    cluster.is_ours, cluster.error = is_ours, cluster.ClusterError("it does not run")
    assert run(["scale"]) == 3
    assert cluster.did[2:] == did


def test_detached_it_goes_on_without_the_command(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.is_ours = False
    assert run(["scale", "--detach", "--address", "10.0.0.1:6379"]) == 0
    assert cluster.did == ["connect 10.0.0.1:6379 True", "deploy welldone 1", "leave"]
    assert capsys.readouterr().out.endswith("--stop --name welldone\n")


def test_what_ends_with_the_command_cannot_be_detached(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "--detach"]) == 2
    assert "ray start --head" in capsys.readouterr().err
    assert cluster.did == ["connect None True", "leave"]


@pytest.mark.parametrize(("kind", "code"), [("cluster", 3), ("value", 2)])
def test_what_cannot_be_deployed_is_an_error_in_one_line(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], kind: str, code: int
) -> None:
    cluster.error = cluster.ClusterError("it does not run") if kind == "cluster" else ValueError("it does not run")
    assert run(["scale"]) == code
    assert capsys.readouterr().err.splitlines()[-1] == "it does not run"
    assert cluster.did[-1] == "leave"


@pytest.mark.parametrize("words", [(), ("--status",), ("--stop",)])
def test_a_cluster_that_is_not_there_is_unreachable(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert run(["scale", *words, "--address", "nowhere:1"]) == 3
    assert "nowhere:1" in capsys.readouterr().err
    assert "leave" not in cluster.did


@pytest.mark.parametrize("option", ["--status", "--stop"])
def test_where_nothing_runs_that_is_said_and_no_cluster_is_started(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run(["scale", option, "--name", "prod"]) == 1
    assert "prod" in capsys.readouterr().err
    assert cluster.did == ["connect None False", "leave"]


def test_the_status_is_a_table(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.now = View([Group("front", running=2), Group("engine-m-1", "UPDATING", 1, 3)])
    assert run(["scale", "--status"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["front", "healthy", "2", "running"]
    assert second.startswith("engine-m-1  updating")
    assert second.endswith("1 running, 3 that start or end")


def test_stop_ends_what_runs(cluster: Cluster) -> None:
    cluster.now = View([Group("front")])
    assert run(["scale", "--stop"]) == 0
    assert cluster.did == ["connect None False", "end welldone", "leave"]
