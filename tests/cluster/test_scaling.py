"""More replicas and fewer, other ones, and none: whatever runs meanwhile is finished."""

from typing import TYPE_CHECKING

import pytest

from tests.cluster.load import ON_RAY, Begun, loaded

if TYPE_CHECKING:
    from tests.cluster.cluster import OnRay

pytestmark = ON_RAY

ENGINES = "engine-many-1"
SHORT, LONG = 20, 240
"""Tokens: one second, and twelve."""
_CONFIG = """
[models.many]
command = {command}
[scale]
upscale_delay_s = 0.5
downscale_delay_s = 0.5
look_back_s = 1
[scale.front]
num_cpus = 0.25
[scale.engine]
num_cpus = 0
num_gpus = 1
max_replicas = 3
streams = {streams}
"""


@pytest.fixture(scope="module")
def cluster(on_ray: "OnRay", says_who: str) -> "OnRay":
    on_ray.deploy(_CONFIG.format(command=says_who, streams=4), model="many")
    return on_ray


def test_from_one_replica_to_three_and_back_no_request_fails(cluster: "OnRay") -> None:
    assert cluster.running(ENGINES) == 1
    with loaded(cluster, 10, tokens=SHORT) as load:
        cluster.until(lambda: cluster.running(ENGINES) == 3, "three replicas")
        load.wait(10)
        last = [Begun(cluster, tokens=LONG) for _ in range(4)]
        answering = {one.heard() for one in last}
        spread = {outcome.engine for outcome in load.wait(10)}
    assert len(spread) == 3
    assert len(answering) > 1
    cluster.until(lambda: cluster.running(ENGINES) == 1, "one replica")
    assert not any(one.is_over() for one in last)  # and so some are with a replica that is ending
    outcomes = [*load.outcomes, *(one.outcome() for one in last)]
    assert {outcome.kind for outcome in outcomes} == {"whole"}


def test_other_settings_take_over_without_a_failed_request(cluster: "OnRay", says_who: str) -> None:
    with loaded(cluster, 4, tokens=SHORT) as load:
        load.wait(4)
        before = {*cluster.replicas(ENGINES), *cluster.replicas("front")}
        cluster.deploy(_CONFIG.format(command=says_who.replace("$$ ", "$$ anew "), streams=50), model="many")
        load.wait(8)
        cluster.until(lambda: not before & {*cluster.replicas(ENGINES), *cluster.replicas("front")}, "only new ones")
        load.wait(4)
    assert {outcome.kind for outcome in load.outcomes} == {"whole"}


def test_what_runs_is_finished_when_all_is_ended(cluster: "OnRay") -> None:
    running = [Begun(cluster, tokens=4 * SHORT, stream=stream) for stream in (True, True, False, False)]
    for one in running[:2]:
        one.heard()
    cluster.delete()
    assert {one.outcome().kind for one in running} == {"whole"}
