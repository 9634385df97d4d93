"""Ray cluster operations of `welldone scale`: connect or start, deploy, show the status, delete."""

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
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    # Report early what a replica waits for: a single machine gets no more resources by waiting.
    "RAY_SERVE_SLOW_STARTUP_WARNING_S": "10",
    "RAY_SERVE_SLOW_STARTUP_WARNING_PERIOD_S": "10",
}
"""Environment of a cluster that this process starts."""

_LOCAL_ADDRESS = "local"
"""Ray's address for a new cluster in this process."""

_AUTO_ADDRESS = "auto"
"""Ray's address for the cluster that runs on this machine."""

_POLL_S = 0.5  # between two reads of the status


class ClusterError(Exception):
    """A cluster operation failed; the message is for the user."""


class DeploymentStatus(NamedTuple):
    """Status of one deployment: the fronts, or the engines of a model."""

    name: str
    status: str
    running: int
    coming: int
    """Replicas that are starting or stopping."""
    message: str


class ClusterStatus(NamedTuple):
    """Status of the application."""

    is_running: bool
    is_failed: bool
    groups: tuple[DeploymentStatus, ...]
    message: str


def connect(address: str | None, *, may_start: bool) -> bool:
    """Connect to the cluster at an address, or on this machine, or start one; return whether it was started.

    Raises:
        ClusterError: there is no cluster at the address, or none at all and `may_start` is False.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # `welldone scale` prints its own progress
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address != _LOCAL_ADDRESS and (address is not None or _may_run_here()):
        try:
            ray.init(address=address or _AUTO_ADDRESS, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            if address is not None:
                message = f"no Ray cluster answers at {address}: {error}; `--address local` starts one here"
                raise ClusterError(message) from None
        else:
            return False
    if not may_start:
        raise ClusterError("no Ray cluster runs on this machine: give the address of one with --address")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray.init(address=_LOCAL_ADDRESS, log_to_driver=False, logging_level="error", include_dashboard=False)
    return True


def _may_run_here() -> bool:
    """Return whether a cluster may run on this machine. Ray's `auto` waits long for one that has crashed.

    The function is not public in Ray: if a version of Ray removes it, `auto` is used.
    """
    find = getattr(services, "find_gcs_addresses", None)
    return find is None or bool(find())


def leave() -> None:
    """Disconnect from the cluster; a cluster that this process started ends."""
    ray.shutdown()


def machines() -> tuple[int, dict[str, float]]:
    """Return the number of live nodes and their total resources."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    resources = ray.cluster_resources()
    return len(nodes), {name: resources.get(name, 0.0) for name in ("CPU", "GPU")}


def deploy(config: Config, keys: Sequence[str], name: str) -> None:
    """Deploy or update the application; return when it runs, or when it was deleted.

    Raises:
        ClusterError: the deployment failed; the message is Ray's.
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
    except (RuntimeError, RayError) as error:  # the message may be a traceback: its last line is the error
        raise ClusterError(str(error).strip().splitlines()[-1]) from None
    # `view` would start another cluster after a disconnect.
    while ray.is_initialized() and (status := view(name)) is not None and not status.is_running:
        if status.is_failed:
            raise ClusterError(f"{name} does not run: {status.message}")
        time.sleep(_POLL_S)


def view(name: str) -> ClusterStatus | None:
    """Return the status of the application; None if there is none with this name."""
    application = serve.status().applications.get(name)
    if application is None:
        return None
    groups = []
    for deployment_name, deployment in application.deployments.items():
        states = {str(getattr(state, "value", state)): count for state, count in deployment.replica_states.items()}
        running = states.get("RUNNING", 0)
        coming = sum(states.values()) - running
        groups.append(DeploymentStatus(deployment_name, deployment.status.value, running, coming, deployment.message))
    is_failed = application.status is ApplicationStatus.DEPLOY_FAILED
    is_running = application.status is ApplicationStatus.RUNNING
    return ClusterStatus(is_running, is_failed, tuple(groups), application.message)


def end(name: str) -> None:
    """Delete the application; return when its requests have finished or its shutdown timeout is over."""
    while view(name) is not None:  # Ray ends it within `graceful_shutdown_timeout_s`
        with suppress(TimeoutError):  # serve.delete waits a minute only
            serve.delete(name)
