"""Replicas: fronts, gateways whose upstreams are the engines of the cluster, and engines, servers with one model.

Requests arrive at a front through Ray's proxy and `asgi_relay`, or on a port of its own, without Ray. Ray reports the
engines to the fronts; requests to them do not pass through Ray. An engine reports its address, its number of streams
and its health to Ray. Both drain before they end.
"""

import asyncio
import dataclasses
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from welldone.cluster import asgi_relay, replica_registry
from welldone.cluster.deployment_config import STREAMS_METRIC, dynamic_upstreams_of, front_config
from welldone.config.server import Config
from welldone.engines.models.pull import ModelPuller, needs_download
from welldone.engines.models.store import models_folder
from welldone.engines.supervisor import ModelState, make_socket_folder
from welldone.gateway.registry import DynamicUpstreams
from welldone.http.address import Address
from welldone.http.sockets import BACKLOG
from welldone.server.access.keys import make_key
from welldone.server.inspector.assets import ASSETS_PATH, StaticSite
from welldone.server.observe.log import make_log_handler
from welldone.server.server import Server

_SOCKET_NAME = "front.sock"


@serve.ingress(asgi_relay.build_relay_app)
class FrontReplica:
    """A front replica. Ray calls all of its methods."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: Config, keys: Sequence[str], engines: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        """Start the gateway. Requests wait for engine replicas that start later."""
        self._log = make_log_handler(config.server, (*keys, *config.secrets))
        self._log.start()
        own = front_config(config)
        self._folder = make_socket_folder(os.environ)
        try:
            sockets = _open_sockets(config, self._folder / _SOCKET_NAME)
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)  # Ray retries, with a new folder each time
            raise
        self._server = Server(own, keys=keys, folder=models_folder(os.environ), site=StaticSite(ASSETS_PATH.strip("/")))
        await self._server.start(sockets)
        asgi_relay.set_destination(
            self._folder / _SOCKET_NAME, limit_bytes=max(own.server.body_limit_bytes, own.server.upload_limit_bytes)
        )
        upstreams = {upstream.name: upstream for upstream in self._server.upstreams.all}
        for model in config.models:
            dynamic = DynamicUpstreams([upstreams[settings.name] for settings in dynamic_upstreams_of(config, model)])
            self._subscribe_to_replicas(engines[model.name], dynamic)

    def _subscribe_to_replicas(self, engines: DeploymentHandle[Any], dynamic_upstreams: DynamicUpstreams) -> None:
        loop = asyncio.get_running_loop()

        def update(replicas: Mapping[str, Mapping[str, Any]]) -> None:
            addresses = {name: _address(metadata) for name, metadata in replicas.items() if metadata}
            loop.call_soon_threadsafe(dynamic_upstreams.update_replicas, addresses)

        replica_registry.subscribe(engines.deployment_name, update)
        engines.hello.remote()  # a handle receives updates of its replicas only after its first call

    async def __del__(self) -> None:
        """Drain and stop. Ray sends no new requests, and waits up to `graceful_shutdown_timeout_s`."""
        if hasattr(self, "_server"):
            await self._server.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._log.close()


def _address(replica: Mapping[str, Any]) -> Address:
    return Address(host=replica["host"], port=replica["port"], key=replica["key"], prefix="/v1")


def _open_sockets(config: Config, path: Path) -> list[socket.socket]:
    """Open the listening sockets: for the relay and, if a port is configured, for clients."""
    sockets = [socket.create_server(str(path), family=socket.AF_UNIX, backlog=BACKLOG)]
    if port := config.scale.front.port:
        is_ipv6 = ":" in config.server.host
        client_socket = socket.create_server(
            (config.server.host, port),
            family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
            backlog=BACKLOG,
            reuse_port=True,  # for other front replicas on this machine, and the successor of this one
            dualstack_ipv6=is_ipv6,
        )
        sockets.insert(0, client_socket)
    for sock in sockets:
        sock.setblocking(False)
    return sockets


class EngineReplica:
    """An engine replica. Ray calls all of its methods."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Ray awaits it
        """Load the model. If it fails, Ray shows the error in the status of the deployment."""
        host = ray.util.get_node_ip_address()
        self._key = make_key()  # fronts receive it from Ray; other clients that reach the port do not have it
        config = dataclasses.replace(config, server=dataclasses.replace(config.server, host=host))
        folder = models_folder(os.environ)
        (model,) = config.models
        if needs_download(folder, model):
            await asyncio.to_thread(ModelPuller(folder).pull_configured, model)
        self._log = make_log_handler(config.server, (self._key, *config.secrets))
        self._log.start()
        self._server = Server(config, keys=[self._key], folder=folder)
        await self._server.start()
        self._host = host
        try:
            await self._server.supervisor.models[0].ensure_ready()
        except BaseException:
            await self._server.stop()
            self._log.close()
            raise

    def record_replica_metadata(self) -> dict[str, Any]:
        """Return the address and key for the front replicas."""
        return {"host": self._host, "port": self._server.port, "key": self._key}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the number of answers in progress and queued."""
        return {STREAMS_METRIC: float(len(self._server.routes.answers))}

    async def check_health(self) -> None:
        """Raise an error if the engine cannot be restarted: Ray then replaces this replica."""
        (model,) = self._server.supervisor.models
        if model.state is ModelState.FAILED:
            raise RuntimeError(str(model.last_error))

    async def hello(self) -> None:
        """Do nothing: a handle receives updates of its replicas only after its first call."""

    async def __del__(self) -> None:
        """Drain and stop. Ray sends no new requests, and waits up to `graceful_shutdown_timeout_s`."""
        if hasattr(self, "_server"):
            await self._server.stop()
            self._log.close()
