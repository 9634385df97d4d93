"""Every path of the server, and which of them are open to all."""

import asyncio
from pathlib import Path

from welldone.engines.settings import ModelSettings
from welldone.serve.app import Route
from welldone.serve.server import Server
from welldone.serve.settings import Config, ServeSettings
from welldone.web.site import StaticSite

OPEN = {"/", "/health", "/livez", "/readyz", "/page/assets/*"}


def all_routes(folder: Path) -> dict[str, Route]:
    """Every path that there is, also those that have to be asked for."""

    async def make() -> dict[str, Route]:
        config = Config(server=ServeSettings(slots=True), models=(ModelSettings(name="m", file=folder),))
        return Server(config, keys=(), folder=folder, environment={}, site=StaticSite("page/assets")).routes._routes

    return asyncio.run(make())
