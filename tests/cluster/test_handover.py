"""An engine replica that stops hands over the streams that it cannot finish in its drain time."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.load import FAST_SCALING, ON_RAY
from tests.support.faults import metric
from tests.support.raw import CHAT, Json, RawConnection, parse_valid

if TYPE_CHECKING:
    from tests.cluster.cluster import RayCluster

pytestmark = ON_RAY

ENGINES = "engine-default-1"
TOKENS = 500
"""Enough for a replica to stop before the end of the answer."""
_CONFIG = """
[server]
drain_s = 0.5
[models.default]
file = "{default}"
threads = 1
parallel = 4
ctx_size = 4096
{scale}[scale.engine]
num_cpus = 0
num_gpus = 1
max_replicas = 2
streams = 2
"""


@pytest.fixture(scope="module")
def cluster(on_ray: "RayCluster", default_model: Path) -> "RayCluster":
    on_ray.deploy(_CONFIG.format(default=default_model, scale=FAST_SCALING), model="default")
    return on_ray


def _begin(cluster: "RayCluster") -> RawConnection:
    body: Json = {
        "model": "default",
        "messages": [{"role": "user", "content": "Count from 1 to 1000."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = RawConnection(cluster, CHAT, body)
    connection.wait(rb'"content":"[^"]')
    return connection


def test_streams_go_on_when_their_replica_is_removed(cluster: "RayCluster") -> None:
    with _begin(cluster) as first:
        with _begin(cluster), _begin(cluster):
            cluster.until(lambda: cluster.running(ENGINES) == 2, "two replicas")
            last = _begin(cluster)  # at the replica without streams
        with last:
            # Two streams need one replica: Ray stops the other one, which has a stream.
            cluster.until(lambda: cluster.running(ENGINES) == 1, "one replica")
            for connection in (first, last):
                answer = parse_valid(connection.reply())
                assert answer.choice.finish == "length"
                assert answer.counts[1] == TOKENS
    assert metric(cluster, "welldone_continuations_total") == 1
