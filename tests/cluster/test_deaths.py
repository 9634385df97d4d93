"""What dies in the midst of answers: its streams end with an error, and nobody else is hurt."""

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.cluster.load import ON_RAY, Begun, Load, Outcome, loaded

if TYPE_CHECKING:
    from tests.cluster.cluster import OnRay

pytestmark = ON_RAY

ENGINES = "engine-many-1"
CLIENTS = 6
SHORT, LONG = 20, 80
"""Tokens: one second, and four."""
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
def cluster(on_ray: "OnRay", says_who: str) -> "OnRay":
    on_ray.deploy(_CONFIG.format(command=says_who), model="many")
    return on_ray


@pytest.fixture
def load(cluster: "OnRay") -> Iterator[Load]:
    """Clients who ask before, meanwhile and afterwards. No request of theirs may be lost."""
    with loaded(cluster, CLIENTS, tokens=SHORT) as made:
        cluster.until(
            lambda: len({one.engine for one in made.wait(CLIENTS) if one.kind == "whole"}) == 2, "two engines"
        )
        yield made
        made.wait(2 * CLIENTS)
    assert [outcome for outcome in made.outcomes if not outcome.is_fair] == []


def _begin(cluster: "OnRay") -> list[Begun]:
    """Streams that have said something, on two engines."""
    begun = [Begun(cluster, tokens=LONG) for _ in range(CLIENTS)]
    assert len({one.heard() for one in begun}) == 2
    return begun


def test_a_node_dies(cluster: "OnRay", load: Load) -> None:
    begun = _begin(cluster)
    node = cluster.node_of(begun[0].engine)
    expected = {one: "error" if cluster.node_of(one.engine) == node else "whole" for one in begun}
    cluster.kill_node(node)
    assert [one.outcome().kind for one in begun] == list(expected.values())
    cluster.until(lambda: _has_two(cluster, ENGINES), "a replica elsewhere")
    cluster.add_node()


def test_the_engine_of_a_replica_dies(cluster: "OnRay", load: Load) -> None:
    begun = _begin(cluster)
    os.kill(begun[0].engine, signal.SIGKILL)
    _assert_only_its_streams_broke(begun, begun[0].engine)


def test_a_replica_of_an_engine_dies(cluster: "OnRay", load: Load) -> None:
    begun = _begin(cluster)
    os.kill(cluster.replica_of(begun[0].engine, ENGINES), signal.SIGKILL)
    _assert_only_its_streams_broke(begun, begun[0].engine)
    cluster.until(lambda: _has_two(cluster, ENGINES), "another replica")


def test_a_front_dies(cluster: "OnRay", load: Load) -> None:
    begun = _begin(cluster)
    os.kill(cluster.busiest("front"), signal.SIGKILL)
    kinds = {one.outcome().kind for one in begun}
    assert "error" in kinds
    assert kinds <= {"error", "whole"}
    cluster.until(lambda: _has_two(cluster, "front"), "another front")


def _has_two(cluster: "OnRay", deployment: str) -> bool:
    """Whether there are two replicas, and Ray knows that they are well."""
    return len(cluster.replicas(deployment)) == cluster.running(deployment) == 2


def _assert_only_its_streams_broke(begun: list[Begun], engine: int) -> None:
    expected = [Outcome("error" if one.engine == engine else "whole", one.engine) for one in begun]
    assert [one.outcome() for one in begun] == expected
