"""All routes of the server, and those that need no API key."""

import asyncio
from pathlib import Path

from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.server.context import Route
from welldone.server.inspector.assets import StaticSite
from welldone.server.server import Server

OPEN = {"/", "/health", "/livez", "/readyz", "/page/assets/*"}


def all_routes(folder: Path) -> dict[str, Route]:
    """All routes, including those that a setting enables."""

    async def make() -> dict[str, Route]:
        config = Config(server=ServeSettings(slots=True), models=(ModelSettings(name="m", file=folder),))
        return Server(config, keys=(), folder=folder, environment={}, site=StaticSite("page/assets")).routes._routes

    return asyncio.run(make())
