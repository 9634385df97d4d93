"""Failures during answers: affected streams end with an error, others are not affected."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.load import ON_RAY, Load, Outcome, PendingRequest, running_load

if TYPE_CHECKING:
    from tests.cluster.cluster import RayCluster

pytestmark = ON_RAY

ENGINES = "engine-many-1"
CLIENTS = 6
SHORT, LONG = 20, 80
"""Tokens of one and four seconds."""
_CONFIG = """
[models.many]
command = {command}
[scale.front]
num_cpus = 0.25
min_replicas = 2
max_replicas = 2
[scale.engine]
num_cpus = 0
num_gpus = 1
min_replicas = 2
max_replicas = 2
"""


@pytest.fixture(scope="module")
def cluster(on_ray: "RayCluster", pid_engine: str) -> "RayCluster":
    on_ray.deploy(_CONFIG.format(command=pid_engine), model="many")
    return on_ray


@pytest.fixture
def load(cluster: "RayCluster") -> Iterator[Load]:
    """Clients that send requests before, during and after a failure. No request may be lost."""
    with running_load(cluster, CLIENTS, tokens=SHORT) as created:
        cluster.until(
            lambda: len({request.engine for request in created.wait(CLIENTS) if request.kind == "whole"}) == 2,
            "two engines",
        )
        yield created
        created.wait(2 * CLIENTS)
    assert [outcome for outcome in created.outcomes if not outcome.is_allowed] == []


def _begin(cluster: "RayCluster") -> list[PendingRequest]:
    """Start streams on two engines."""
    requests = [PendingRequest(cluster, tokens=LONG) for _ in range(CLIENTS)]
    assert len({request.wait_for_engine() for request in requests}) == 2
    return requests


def test_a_node_dies(cluster: "RayCluster", load: Load) -> None:
    requests = _begin(cluster)
    node = cluster.node_of(requests[0].engine)
    expected = {request: "error" if cluster.node_of(request.engine) == node else "whole" for request in requests}
    cluster.kill_node(node)
    assert [request.outcome().kind for request in requests] == list(expected.values())
    cluster.until(lambda: _has_two(cluster, ENGINES), "a replica on another node")
    cluster.add_node()


def test_the_engine_process_of_a_replica_dies(cluster: "RayCluster", load: Load) -> None:
    requests = _begin(cluster)
    os.kill(requests[0].engine, signal.SIGKILL)
    _assert_only_its_streams_broke(requests, requests[0].engine)


def test_an_engine_replica_dies(cluster: "RayCluster", load: Load) -> None:
    requests = _begin(cluster)
    os.kill(cluster.replica_of(requests[0].engine, ENGINES), signal.SIGKILL)
    _assert_only_its_streams_broke(requests, requests[0].engine)
    cluster.until(lambda: _has_two(cluster, ENGINES), "another replica")


def test_a_front_replica_dies(cluster: "RayCluster", load: Load) -> None:
    requests = _begin(cluster)
    os.kill(cluster.busiest("front"), signal.SIGKILL)
    kinds = {request.outcome().kind for request in requests}
    assert "error" in kinds
    assert kinds <= {"error", "whole"}
    cluster.until(lambda: _has_two(cluster, "front"), "another front")


def _has_two(cluster: "RayCluster", deployment: str) -> bool:
    """Return whether there are two replicas, and Ray considers them healthy."""
    return len(cluster.replicas(deployment)) == cluster.running(deployment) == 2


def _assert_only_its_streams_broke(requests: list[PendingRequest], engine: int) -> None:
    expected = [Outcome("error" if request.engine == engine else "whole", request.engine) for request in requests]
    assert [request.outcome() for request in requests] == expected
