"""Ray cluster of three nodes on this machine, with welldone deployed.

The head has CPUs and no GPUs, the others have fake GPUs and no CPUs. So fronts run on the head, beside Ray's proxy,
and engines on the others: a node can die without a front.
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

from tests.cluster.load import RemoteServer
from tests.support.server import LIMIT_S
from welldone.cluster import replica_registry
from welldone.cluster.application import app

NAME = "welldone"
"""Name of the application."""
ENGINES_PER_NODE = 2
"""Engines per node."""

_STORE_BYTES = 80 * 2**20  # Ray's minimum: welldone does not use the object store
_POLL_S = 0.1
# Detect a dead node within a second instead of a minute.
_FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 2,
}


class RayCluster(RemoteServer):
    """The cluster, for clients and operators."""

    def __init__(self, cluster: Cluster, port: int, folder: Path) -> None:
        super().__init__(port)
        self._cluster = cluster
        self.folder = folder
        self._nodes: dict[int, Any] = {}
        """All nodes but the head, by the process id of the raylet."""

    def add_node(self) -> None:
        """Add a node for engines."""
        node = self._cluster.add_node(
            wait=False,
            node_ip_address="127.0.0.1",
            num_cpus=0,
            num_gpus=ENGINES_PER_NODE,
            object_store_memory=_STORE_BYTES,
        )
        (started,) = node.all_processes["raylet"]
        self._nodes[started.process.pid] = node

    def node_of(self, pid: int) -> int:
        """Return the node of a process."""
        (found,) = [pid for pid in ancestors(pid) if pid in self._nodes]
        return found

    def kill_node(self, node: int) -> None:
        """Kill all processes of a node at once."""
        pids = [pid for pid in parents() if node in ancestors(pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._cluster.remove_node(self._nodes.pop(node), allow_graceful=False)

    def deploy(self, text: str, *, key: str | None = None, model: str = "") -> None:
        """Deploy this configuration. On return all replicas are healthy."""
        file = self.folder / "welldone.toml"
        file.write_text(text)
        serve.run(app({"config": str(file)}), name=NAME, route_prefix="/")
        self.key, self.model = key, model

    def delete(self) -> None:
        """Delete the application and wait for its end."""
        serve.delete(NAME)

    def running(self, deployment: str) -> int:
        """Return the number of running replicas."""
        found = serve.status().applications[NAME].deployments[deployment]
        return sum(count for state, count in found.replica_states.items() if str(state) == "RUNNING")

    def replica_metadata(self, deployment: str) -> Mapping[str, Any]:
        """Return the metadata of one replica."""
        updates: queue.Queue[replica_registry.ReplicaMetadata] = queue.Queue()
        replica_registry.subscribe(deployment, updates.put)
        serve.get_deployment_handle(deployment, NAME).hello.remote().result(timeout_s=LIMIT_S)
        return next(iter(updates.get(timeout=LIMIT_S).values()))

    def replicas(self, deployment: str) -> list[int]:
        """Return the process ids of the replicas."""
        title = f"ray::ServeReplica:{NAME}:{deployment}"
        raylets = set(self._raylets())
        return [pid for pid, parent in parents().items() if parent in raylets and command_of(pid).startswith(title)]

    def busiest(self, deployment: str) -> int:
        """Return the process id of the replica with the most open files."""
        return max(self.replicas(deployment), key=lambda pid: len(list(Path(f"/proc/{pid}/fd").iterdir())))

    def replica_of(self, pid: int, deployment: str) -> int:
        """Return the replica that a process belongs to."""
        (found,) = set(ancestors(pid)) & set(self.replicas(deployment))
        return found

    def until(self, condition: Callable[[], bool], description: str) -> None:
        """Poll for a condition: Ray has no notification."""
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"timed out: {description}; {serve.status()}"
            time.sleep(_POLL_S)

    def logs(self) -> Iterator[Path]:
        """Return Ray's log files."""
        return (file for file in self.folder.glob("**/session_*/logs/**/*") if file.is_file())

    def _raylets(self) -> list[int]:
        (head,) = self._cluster.head_node.all_processes["raylet"]
        return [head.process.pid, *self._nodes]


@contextmanager
def clustered(folder: Path) -> Iterator[RayCluster]:
    """Run three nodes, with Ray's proxy on the head."""
    cluster = Cluster(shutdown_at_exit=True)
    try:
        cluster.add_node(
            node_ip_address="127.0.0.1",
            num_cpus=2,
            num_gpus=0,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            temp_dir=str(folder),
            _system_config=_FAST_HEALTH_CHECKS,
        )
        port = _free_port()
        created = RayCluster(cluster, port, folder)
        created.add_node()
        created.add_node()
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        try:
            yield created
        finally:
            serve.shutdown()
            ray.shutdown()
    finally:
        cluster.shutdown()


def parents() -> Mapping[int, int]:
    """Return the parent of every process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def ancestors(pid: int) -> list[int]:
    """Return a process and all its ancestors."""
    parent_of = parents()
    found = [pid]
    while found[-1] in parent_of:
        found.append(parent_of[found[-1]])
    return found


def command_of(pid: int) -> str:
    """Return the current command line of a process."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as request:
        request.bind(("127.0.0.1", 0))
        port: int = request.getsockname()[1]
        return port
