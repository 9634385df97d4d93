"""Front replica: a gateway whose upstreams are the engine replicas of the cluster.

Requests arrive through Ray's proxy and `asgi_relay`, or on a port of its own, without Ray. Ray reports the engine
replicas; requests to them do not pass through Ray.
"""

import asyncio
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from welldone.cluster import asgi_relay, replica_registry
from welldone.cluster.deployment_config import dynamic_upstreams_of, front_config
from welldone.config.server import Config
from welldone.engines.models.store import models_folder
from welldone.engines.supervisor import make_socket_folder
from welldone.gateway.registry import DynamicUpstreams
from welldone.http.address import Address
from welldone.http.sockets import BACKLOG
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
