"""A gateway for many requests, with an upstream whose next reply is set per request."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.http.aio import LIMIT_S
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import RecordedReply
from welldone.config.upstream import UpstreamSettings
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.protocol.envelope import Endpoint

Value = TypeVar("Value")

PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}


class PersistentGateway:
    """The gateway. Its upstream has two names: `native` forwards `n`, `each` sends one request per choice."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._folder = folder
        self._next = MockReply()
        self._gateway: Gateway | None = None

    def open(self) -> None:
        """Start upstream and gateway."""
        upstream = MockServer(MockScript(), handler=lambda _: self._next)
        self._run(upstream.listen())
        self._run(self._stack.enter_async_context(upstream))
        url = f"http://127.0.0.1:{upstream.port}/v1"
        upstreams = tuple(
            UpstreamSettings(name=kind, url=url, models=(kind,), n=kind, probe_s=0.0) for kind in ("native", "each")
        )
        opened = self._stack.enter_async_context(gateway(self._folder, config={"upstreams": upstreams}))
        self._gateway = self._run(opened)

    def close(self) -> None:
        """Stop upstream and gateway."""
        self._run(self._stack.aclose())
        self._runner.close()

    def post(self, reply: MockReply, request: dict[str, Any], endpoint: Endpoint) -> RecordedReply:
        """The client's response when the upstream sends this reply."""
        assert self._gateway is not None
        self._next = reply
        return self._run(self._gateway.post(request, PATHS[endpoint]))

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        async def bounded() -> Value:
            async with asyncio.timeout(LIMIT_S):
                return await work

        return self._runner.run(bounded())


@contextmanager
def persistent_gateway(folder: Path) -> Iterator[PersistentGateway]:
    """A gateway for the duration of the `with` block."""
    running_gateway = PersistentGateway(folder)
    running_gateway.open()
    try:
        yield running_gateway
    finally:
        running_gateway.close()
