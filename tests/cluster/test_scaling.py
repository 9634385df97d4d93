"""Scaling up and down, redeployment and deletion: requests in progress are finished."""

from typing import TYPE_CHECKING

import pytest

from tests.cluster.load import FAST_SCALING, ON_RAY, PendingRequest, running_load

if TYPE_CHECKING:
    from tests.cluster.cluster import RayCluster

pytestmark = ON_RAY

ENGINES = "engine-many-1"
SHORT, LONG = 20, 480
"""Tokens of one and twenty-four seconds: a replica stops later on a busy machine."""
_CONFIG = """
[models.many]
command = {command}
{scale}[scale.engine]
num_cpus = 0
num_gpus = 1
max_replicas = 3
streams = {streams}
"""


@pytest.fixture(scope="module")
def cluster(on_ray: "RayCluster", pid_engine: str) -> "RayCluster":
    on_ray.deploy(_CONFIG.format(scale=FAST_SCALING, command=pid_engine, streams=4), model="many")
    return on_ray


def test_scaling_from_one_replica_to_three_and_back_fails_no_request(cluster: "RayCluster") -> None:
    assert cluster.running(ENGINES) == 1
    with running_load(cluster, 10, tokens=SHORT) as load:
        cluster.until(lambda: cluster.running(ENGINES) == 3, "three replicas")
        load.wait(10)
        long_requests = [PendingRequest(cluster, tokens=LONG) for _ in range(4)]
        engines = {request.wait_for_engine() for request in long_requests}
        load_engines = {outcome.engine for outcome in load.wait(10)}
    assert len(load_engines) == 3
    assert len(engines) > 1
    cluster.until(lambda: cluster.running(ENGINES) == 1, "one replica")
    assert not any(
        request.has_ended() for request in long_requests
    )  # so some of them run on replicas that are stopping
    outcomes = [*load.outcomes, *(request.outcome() for request in long_requests)]
    assert {outcome.kind for outcome in outcomes} == {"whole"}


def test_a_redeployment_fails_no_request(cluster: "RayCluster", pid_engine: str) -> None:
    with running_load(cluster, 4, tokens=SHORT) as load:
        load.wait(4)
        start = {*cluster.replicas(ENGINES), *cluster.replicas("front")}
        cluster.deploy(
            _CONFIG.format(scale=FAST_SCALING, command=pid_engine.replace("$$ ", "$$ anew "), streams=50), model="many"
        )
        load.wait(8)
        cluster.until(lambda: not start & {*cluster.replicas(ENGINES), *cluster.replicas("front")}, "only new replicas")
        load.wait(4)
    assert {outcome.kind for outcome in load.outcomes} == {"whole"}


def test_requests_in_progress_are_finished_when_the_application_is_deleted(cluster: "RayCluster") -> None:
    running = [PendingRequest(cluster, tokens=4 * SHORT, stream=stream) for stream in (True, True, False, False)]
    for request in running[:2]:
        request.wait_for_engine()
    cluster.delete()
    assert {request.outcome().kind for request in running} == {"whole"}
