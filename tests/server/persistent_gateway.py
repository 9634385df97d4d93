"""A gateway for many requests, with an upstream whose next reply is set per request. What it learns, it keeps."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.http.aio import LIMIT_S
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import RecordedReply
from welldone.config.upstream import UpstreamSettings
from welldone.core.envelope import Endpoint
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.server.server import Server

Value = TypeVar("Value")

PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}


NATIVE_AND_EACH: Mapping[str, Mapping[str, Any]] = {name: {"models": (name,), "n": name} for name in ("native", "each")}
"""Settings of an upstream with two names: `native` forwards `n`, `each` sends one request per choice."""


class PersistentGateway:
    """The gateway, with one upstream under the names of `settings`."""

    def __init__(self, folder: Path, settings: Mapping[str, Mapping[str, Any]] = NATIVE_AND_EACH) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._folder = folder
        self._settings = settings
        self._next = MockReply()
        self._gateway: Gateway | None = None

    def open(self) -> None:
        """Start upstream and gateway."""
        upstream = MockServer(MockScript(), handler=lambda _: self._next)
        self._run(upstream.listen())
        self._run(self._stack.enter_async_context(upstream))
        url = f"http://127.0.0.1:{upstream.port}/v1"
        upstreams = tuple(
            UpstreamSettings(name=name, url=url, probe_s=0.0, **settings) for name, settings in self._settings.items()
        )
        opened = self._stack.enter_async_context(gateway(self._folder, config={"upstreams": upstreams}))
        self._gateway = self._run(opened)

    def close(self) -> None:
        """Stop upstream and gateway."""
        self._run(self._stack.aclose())
        self._runner.close()

    @property
    def server(self) -> Server:
        """The server."""
        assert self._gateway is not None
        return self._gateway.server

    def post(self, reply: MockReply, request: dict[str, Any], endpoint: Endpoint | str) -> RecordedReply:
        """The client's response when the upstream sends this reply. The endpoint may be a path."""
        assert self._gateway is not None
        self._next = reply
        path = PATHS[endpoint] if isinstance(endpoint, Endpoint) else endpoint
        return self._run(self._gateway.post(request, path))

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        async def bounded() -> Value:
            async with asyncio.timeout(LIMIT_S):
                return await work

        return self._runner.run(bounded())


@contextmanager
def persistent_gateway(
    folder: Path, settings: Mapping[str, Mapping[str, Any]] = NATIVE_AND_EACH
) -> Iterator[PersistentGateway]:
    """A gateway for the duration of the `with` block."""
    running_gateway = PersistentGateway(folder, settings)
    running_gateway.open()
    try:
        yield running_gateway
    finally:
        running_gateway.close()
