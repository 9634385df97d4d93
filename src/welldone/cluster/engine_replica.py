"""A replica of a model: a server with one engine, which the fronts of the cluster ask over the network.

Ray is told where it is, how many streams it has, and whether it is well. What Ray wants to end drains first.
"""

import asyncio
import dataclasses
import os
from typing import Any

import ray

from welldone.cluster.autoscaling import STREAMS_METRIC
from welldone.config import builtin_model
from welldone.config.server import Config
from welldone.engines.models.pull import pull
from welldone.engines.models.store import models_folder
from welldone.engines.supervisor import ModelState
from welldone.server.access.keys import make_key
from welldone.server.observe.log import make_log_handler
from welldone.server.server import Server


class EngineReplica:
    """One replica. Ray calls all of its methods."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Ray awaits it
        """Load the model. What cannot be loaded is an error, which Ray shows as the state of the deployment."""
        host = ray.util.get_node_ip_address()
        self._key = make_key()  # Ray tells it to the fronts: who else reaches the port has none
        config = dataclasses.replace(config, server=dataclasses.replace(config.server, host=host))
        folder = models_folder(os.environ)
        (model,) = config.models
        if model.is_builtin and builtin_model.find_builtin(folder) is None:
            await asyncio.to_thread(pull, builtin_model.DEFAULT_MODEL.name, folder=folder)
        self._log = make_log_handler(config.server, (self._key, *config.secrets))
        self._log.start()
        self._server = Server(config, keys=[self._key], folder=folder)
        await self._server.start()
        self._host = host
        try:
            await self._server.fleet.models[0].ensure_ready()
        except BaseException:
            await self._server.stop()
            self._log.close()
            raise

    def record_replica_metadata(self) -> dict[str, Any]:
        """Where it is, for the fronts."""
        return {"host": self._host, "port": self._server.port, "key": self._key}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """How much it has to do: what it answers, and what waits for that."""
        return {STREAMS_METRIC: float(len(self._server.routes.response_tasks))}

    async def check_health(self) -> None:
        """Raise where its engine cannot be started again: then Ray begins anew, perhaps elsewhere."""
        (model,) = self._server.fleet.models
        if model.state is ModelState.FAILED:
            raise RuntimeError(str(model.last_error))

    async def hello(self) -> None:
        """Nothing: who calls it has a handle that knows all replicas from then on."""

    async def __del__(self) -> None:
        """Let what runs finish. Ray sends nobody new, and waits for this within its own limit."""
        if hasattr(self, "_server"):
            await self._server.stop()
            self._log.close()
