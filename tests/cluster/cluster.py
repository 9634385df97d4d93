"""A Ray cluster of three nodes on this machine, and welldone on it.

The head has CPUs and no GPUs, the others have what Ray takes for GPUs and no CPUs. So fronts are on the head, beside
Ray's proxy, and engines are on the others: a node can die without taking a front with it.
"""

import os
import queue
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

from tests.cluster.load import Reached
from tests.live.server import LIMIT_S
from welldone.cluster import replica_registry
from welldone.cluster.application import app

NAME = "welldone"
"""Of the application."""
ROOM = 2
"""Engines that a node has room for."""

_STORE_BYTES = 80 * 2**20  # Ray's least: nothing of ours lies in its store
_LOOK_S = 0.1
# A node that is gone is found in a second, not in a minute.
_QUICK = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 2}


class OnRay(Reached):
    """The cluster, as a client meets it and as an operator does."""

    def __init__(self, cluster: Cluster, port: int, folder: Path) -> None:
        super().__init__(port)
        self._cluster = cluster
        self.folder = folder
        self._nodes: dict[int, Any] = {}
        """All but the head, by the process that speaks for a node."""

    def add_node(self) -> None:
        """One more, with room for engines."""
        node = self._cluster.add_node(
            wait=False, node_ip_address="127.0.0.1", num_cpus=0, num_gpus=ROOM, object_store_memory=_STORE_BYTES
        )
        (started,) = node.all_processes["raylet"]
        self._nodes[started.process.pid] = node

    def node_of(self, pid: int) -> int:
        """On which node a process is."""
        (found,) = [pid for pid in ancestors(pid) if pid in self._nodes]
        return found

    def kill_node(self, node: int) -> None:
        """Pull its plug: no process of it can say a last word."""
        doomed = [pid for pid in parents() if node in ancestors(pid)]
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._cluster.remove_node(self._nodes.pop(node), allow_graceful=False)

    def deploy(self, text: str, *, key: str | None = None, model: str = "") -> None:
        """Have the cluster run this config file. All replicas are well when this returns."""
        file = self.folder / "welldone.toml"
        file.write_text(text)
        serve.run(app({"config": str(file)}), name=NAME, route_prefix="/")
        self.key, self.model = key, model

    def delete(self) -> None:
        """End it, and wait until it has ended."""
        serve.delete(NAME)

    def running(self, deployment: str) -> int:
        """How many replicas there are that run."""
        found = serve.status().applications[NAME].deployments[deployment]
        return sum(count for state, count in found.replica_states.items() if str(state) == "RUNNING")

    def place(self, deployment: str) -> Mapping[str, Any]:
        """What one of its replicas has told the fronts of itself."""
        heard: queue.Queue[replica_registry.ReplicaMetadata] = queue.Queue()
        replica_registry.subscribe(deployment, heard.put)
        serve.get_deployment_handle(deployment, NAME).hello.remote().result(timeout_s=LIMIT_S)
        return next(iter(heard.get(timeout=LIMIT_S).values()))

    def replicas(self, deployment: str) -> list[int]:
        """The processes of its replicas."""
        title = f"ray::ServeReplica:{NAME}:{deployment}"
        mine = set(self._raylets())
        return [pid for pid, above in parents().items() if above in mine and command_of(pid).startswith(title)]

    def busiest(self, deployment: str) -> int:
        """The replica with the most connections."""
        return max(self.replicas(deployment), key=lambda pid: len(list(Path(f"/proc/{pid}/fd").iterdir())))

    def replica_of(self, pid: int, deployment: str) -> int:
        """The replica whose child a process is."""
        (found,) = set(ancestors(pid)) & set(self.replicas(deployment))
        return found

    def until(self, what: Callable[[], bool], says: str) -> None:
        """Look until it is so: Ray tells nobody when it has done something."""
        end = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < end, f"never came: {says}; {serve.status()}"
            time.sleep(_LOOK_S)

    def logs(self) -> Iterator[Path]:
        """All that Ray wrote."""
        return (file for file in self.folder.glob("**/session_*/logs/**/*") if file.is_file())

    def _raylets(self) -> list[int]:
        (head,) = self._cluster.head_node.all_processes["raylet"]
        return [head.process.pid, *self._nodes]


@contextmanager
def clustered(folder: Path) -> Iterator[OnRay]:
    """Three nodes, and Ray's proxy on the head. Nothing of it is left at the end."""
    cluster = Cluster(shutdown_at_exit=True)
    try:
        cluster.add_node(
            node_ip_address="127.0.0.1",
            num_cpus=2,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            temp_dir=str(folder),
            _system_config=_QUICK,
        )
        port = _free_port()
        made = OnRay(cluster, port, folder)
        made.add_node()
        made.add_node()
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        try:
            yield made
        finally:
            serve.shutdown()
            ray.shutdown()
    finally:
        cluster.shutdown()


def parents() -> Mapping[int, int]:
    """Every process, and who is above it."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def ancestors(pid: int) -> list[int]:
    """A process and all above it."""
    known = parents()
    found = [pid]
    while found[-1] in known:
        found.append(known[found[-1]])
    return found


def command_of(pid: int) -> str:
    """The command line of a process, as it is now."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
