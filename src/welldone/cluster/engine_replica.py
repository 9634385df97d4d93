"""Engine replica: a server with one model, which the front replicas use as an upstream.

It reports its address, its number of streams and its health to Ray, and drains before it ends.
"""

import asyncio
import dataclasses
import os
from typing import Any

import ray

from welldone.cluster.autoscaling import STREAMS_METRIC
from welldone.config.server import Config
from welldone.engines.models.pull import ModelPuller, needs_download
from welldone.engines.models.store import models_folder
from welldone.engines.supervisor import ModelState
from welldone.server.access.keys import make_key
from welldone.server.observe.log import make_log_handler
from welldone.server.server import Server


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
