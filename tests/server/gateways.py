"""The gateway in this process, in front of upstreams that say what scripts say."""

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.server.scripts import SITE, Serving
from welldone.config.server import Config, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.server.server import Server

NAMES = "abcdefgh"


class Gateway(Serving):
    """A server that runs, and its upstreams."""

    def __init__(self, server: Server, upstreams: list[MockServer]) -> None:
        super().__init__(server)
        self.upstreams = upstreams

    @property
    def asked(self) -> list[int]:
        """How many POSTs each upstream has had."""
        return [len([one for one in upstream.requests if one.method == "POST"]) for upstream in self.upstreams]


@asynccontextmanager
async def gateway(
    folder: Path,
    *scripts: MockScript | Sequence[MockReply],
    each: Mapping[str, Any] | None = None,
    first: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    **settings: Any,  # noqa: ANN401 - each its own
) -> AsyncIterator[Gateway]:
    """A server in front of upstreams `a`, `b`, …, all with the settings `each`, and the first with `first` too."""
    async with AsyncExitStack() as stack:
        upstreams = []
        for script in scripts:
            script = script if isinstance(script, MockScript) else MockScript(posts=tuple(script))
            upstreams.append(await stack.enter_async_context(await MockServer(script).listen()))
        wanted = [
            UpstreamSettings(
                name=name,
                url=f"http://127.0.0.1:{upstream.port}/v1",
                **{"models": ("*",), "probe_s": 0.0, **(each or {}), **((first or {}) if name == "a" else {})},
            )
            for name, upstream in zip(NAMES, upstreams, strict=False)
        ]
        whole = Config(server=ServeSettings(port=0, **settings), models=(), upstreams=tuple(wanted))
        server = Server(dataclasses.replace(whole, **(config or {})), keys=keys, folder=folder, site=SITE)
        await server.start()
        stack.push_async_callback(server.stop)
        yield Gateway(server, upstreams)
