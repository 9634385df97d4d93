"""A replica that speaks to clients: a gateway whose upstreams are the engines of the cluster.

Ray's own proxy hands it requests, which `relay` gives to the server; with a port of its own clients reach it without
Ray. Which engines there are it hears from Ray, and asks them itself.
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
from welldone.server.inspector.assets import ASSETS_PATH, StaticSite
from welldone.server.observe.log import make_log_handler
from welldone.server.server import Server

_BACKLOG = 1024  # as for a server of one machine
_SOCKET_NAME = "front.sock"


@serve.ingress(asgi_relay.build_relay_app)
class FrontReplica:
    """One replica. Ray calls all of its methods."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, config: Config, keys: Sequence[str], engines: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        """Listen. Engines may come later: requests wait for them."""
        self._log = make_log_handler(config.server, (*keys, *config.secrets))
        self._log.start()
        own = front_config(config)
        self._folder = make_socket_folder(os.environ)
        try:
            sockets = _open_sockets(config, self._folder / _SOCKET_NAME)
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)  # Ray tries again, and each time elsewhere
            raise
        self._server = Server(own, keys=keys, folder=models_folder(os.environ), site=StaticSite(ASSETS_PATH.strip("/")))
        await self._server.start(sockets)
        asgi_relay.set_destination(
            self._folder / _SOCKET_NAME, limit_bytes=max(own.server.body_limit_bytes, own.server.upload_limit_bytes)
        )
        upstreams = {upstream.name: upstream for upstream in self._server.upstreams.all}
        for model in config.models:
            places = DynamicUpstreams([upstreams[place.name] for place in dynamic_upstreams_of(config, model)])
            self._subscribe_to_replicas(engines[model.name], places)

    def _subscribe_to_replicas(self, engines: DeploymentHandle[Any], dynamic_upstreams: DynamicUpstreams) -> None:
        """Have the places settled whenever replicas come or go."""
        loop = asyncio.get_running_loop()

        def hear(found: Mapping[str, Mapping[str, Any]]) -> None:
            settled = {name: _address(said) for name, said in found.items() if said}
            loop.call_soon_threadsafe(dynamic_upstreams.update_replicas, settled)

        replica_registry.subscribe(engines.deployment_name, hear)
        engines.hello.remote()  # a handle hears of replicas from its first call on

    async def __del__(self) -> None:
        """Let what runs finish. Ray sends nobody new, and waits for this within its own limit."""
        if hasattr(self, "_server"):
            await self._server.stop()
            shutil.rmtree(self._folder, ignore_errors=True)
            self._log.close()


def _address(replica: Mapping[str, Any]) -> Address:
    return Address(host=replica["host"], port=replica["port"], key=replica["key"], prefix="/v1")


def _open_sockets(config: Config, path: Path) -> list[socket.socket]:
    """Where it listens: for the relay, and for clients if they are to come straight here."""
    inner = socket.socket(socket.AF_UNIX)
    inner.bind(str(path))
    sockets = [inner]
    if port := config.scale.front.port:
        family = socket.AF_INET6 if ":" in config.server.host else socket.AF_INET
        outer = socket.socket(family)
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        outer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # others on this machine, and who comes after us
        outer.bind((config.server.host, port))
        sockets.insert(0, outer)
    for one in sockets:
        one.listen(_BACKLOG)
        one.setblocking(False)
    return sockets
