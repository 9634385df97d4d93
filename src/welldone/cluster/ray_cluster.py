"""A Ray cluster as `welldone scale` uses it: found or started, with an application that is deployed, seen and ended."""

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import ray
from ray import serve
from ray._private import services
from ray.exceptions import RayError
from ray.serve import RunTarget
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.schema import ApplicationStatus

from welldone.cluster.application import build_application
from welldone.cluster.proxy import CALLBACK, CALLBACK_VARIABLE
from welldone.config.server import Config

_ENVIRONMENT = {
    CALLBACK_VARIABLE: CALLBACK,
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told of what runs here
    # After so long Ray says what a replica waits for: this machine does not grow.
    "RAY_SERVE_SLOW_STARTUP_WARNING_S": "10",
    "RAY_SERVE_SLOW_STARTUP_WARNING_PERIOD_S": "10",
}
"""Of a cluster that is started here."""

_LOCAL_ADDRESS = "local"
"""The address of a cluster that is started here, as Ray has it."""

_AUTO_ADDRESS = "auto"
"""The address of a cluster that runs on this machine, whichever it is."""

_POLL_S = 0.5  # between two looks at what is deployed or ended


class ClusterError(Exception):
    """Something is wrong with the cluster; the message is for the user."""


class DeploymentStatus(NamedTuple):
    """One deployment: the fronts, or the engines of a model."""

    name: str
    status: str
    running: int
    coming: int
    """Replicas that start, or end."""
    message: str


class ClusterStatus(NamedTuple):
    """What runs."""

    is_running: bool
    is_failed: bool
    groups: tuple[DeploymentStatus, ...]
    message: str


def connect(address: str | None, *, may_start: bool) -> bool:
    """Join the cluster at an address, or the one of this machine; if there is none, start one here. Whether it was.

    Raises:
        ClusterError: there is none at the address, or none at all and none may be started.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # what else it says, we say in fewer words
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address != _LOCAL_ADDRESS and (address is not None or _may_run_here()):
        try:
            ray.init(address=address or _AUTO_ADDRESS, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            if address is not None:
                why = f"no Ray cluster answers at {address}: {error}; `--address local` starts one here"
                raise ClusterError(why) from None
        else:
            return False
    if not may_start:
        raise ClusterError("no Ray cluster runs on this machine: --address says where one does")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray.init(address=_LOCAL_ADDRESS, log_to_driver=False, logging_level="error", include_dashboard=False)
    return True


def _may_run_here() -> bool:
    """Whether a cluster runs on this machine. Ray's own search, `auto`, waits for long for one that has crashed.

    How to look is no public part of Ray: where it is gone one day, the search will do.
    """
    find = getattr(services, "find_gcs_addresses", None)
    return find is None or bool(find())


def leave() -> None:
    """Leave the cluster. One that was started here ends with that."""
    ray.shutdown()


def machines() -> tuple[int, dict[str, float]]:
    """How many there are, and what they have together."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    resources = ray.cluster_resources()
    return len(nodes), {name: resources.get(name, 0.0) for name in ("CPU", "GPU")}


def deploy(config: Config, keys: Sequence[str], name: str) -> None:
    """Run the application under this name, or change the one that runs. Returns when it does, or when it was ended.

    Raises:
        ClusterError: it does not run; the message says why, as far as Ray knows.
    """
    server = config.server
    http = HTTPOptions(
        host=server.host,
        port=server.port,
        ssl_certfile=None if server.ssl_cert_file is None else str(server.ssl_cert_file),
        ssl_keyfile=None if server.ssl_key_file is None else str(server.ssl_key_file),
    )
    target = RunTarget(build_application(config, keys), name=name, route_prefix="/")
    try:
        serve.start(proxy_location=ProxyLocation.EveryNode, http_options=http)
        serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    except (RuntimeError, RayError) as error:  # of a proxy it has the whole traceback: the last line says what is wrong
        raise ClusterError(str(error).strip().splitlines()[-1]) from None
    # Who has left the cluster does not look: Ray would start another for that.
    while ray.is_initialized() and (found := view(name)) is not None and not found.is_running:
        if found.is_failed:
            raise ClusterError(f"{name} does not run: {found.message}")
        time.sleep(_POLL_S)


def view(name: str) -> ClusterStatus | None:
    """What runs under this name; None: nothing."""
    found = serve.status().applications.get(name)
    if found is None:
        return None
    groups = []
    for deployment, one in found.deployments.items():
        states = {str(getattr(state, "value", state)): count for state, count in one.replica_states.items()}
        running = states.get("RUNNING", 0)
        groups.append(
            DeploymentStatus(deployment, one.status.value, running, sum(states.values()) - running, one.message)
        )
    is_failed = found.status is ApplicationStatus.DEPLOY_FAILED
    return ClusterStatus(found.status is ApplicationStatus.RUNNING, is_failed, tuple(groups), found.message)


def end(name: str) -> None:
    """End what runs under this name. Returns when what was running has finished, or its time was over."""
    while view(name) is not None:  # Ray ends it within `graceful_shutdown_timeout_s`
        with suppress(TimeoutError):  # it waits for a minute, and that may be more
            serve.delete(name)
