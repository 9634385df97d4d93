"""The gateway in the test process, with mock upstreams that reply from scripts."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.server.running_server import SITE, RunningServer
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.server.reload import ReloadResult
from welldone.server.server import Server

NAMES = "abcdefgh"


class Gateway(RunningServer):
    """A running gateway and its upstreams."""

    def __init__(self, server: Server, upstreams: list[MockServer]) -> None:
        super().__init__(server)
        self.upstreams = upstreams

    @property
    def post_counts(self) -> list[int]:
        """Number of POSTs that each upstream has received."""
        return [len([one for one in upstream.requests if one.method == "POST"]) for upstream in self.upstreams]


@asynccontextmanager
async def gateway(
    folder: Path,
    *scripts: MockScript | Sequence[MockReply],
    each: Mapping[str, Any] | None = None,
    first: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    on_reload: Callable[[], Awaitable[ReloadResult]] | None = None,
    **settings: Any,  # noqa: ANN401 - fields of ServeSettings
) -> AsyncIterator[Gateway]:
    """A gateway with upstreams `a`, `b`, …: settings `each` for all of them, `first` for the first."""
    async with AsyncExitStack() as stack:
        upstreams = []
        for script in scripts:
            script = script if isinstance(script, MockScript) else MockScript(posts=tuple(script))
            upstreams.append(await stack.enter_async_context(await MockServer(script).listen()))
        upstream_settings = [
            UpstreamSettings(
                name=name,
                url=f"http://127.0.0.1:{upstream.port}/v1",
                **{"models": ("*",), "probe_s": 0.0, **(each or {}), **((first or {}) if name == "a" else {})},
            )
            for name, upstream in zip(NAMES, upstreams, strict=False)
        ]
        # With the default of one second, a slow machine would get an error event instead of a status.
        server_settings = ServeSettings(port=0, **{"early_s": 30.0, **settings})
        base = Config(server=server_settings, models=(), upstreams=tuple(upstream_settings))
        config_of_all = dataclasses.replace(base, **(config or {}))
        server = Server(config_of_all, keys=keys, folder=folder, site=SITE, on_reload=on_reload)
        await server.start()
        stack.push_async_callback(server.stop)
        yield Gateway(server, upstreams)
