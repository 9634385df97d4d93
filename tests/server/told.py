"""A gateway that stays for many requests, in front of an upstream that says what it is told to."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.http.aio import LIMIT_S
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import Heard
from welldone.config.upstream import UpstreamSettings
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer
from welldone.protocol.envelope import Endpoint

Value = TypeVar("Value")

PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}


class Bench:
    """The gateway. The upstream has two names: it makes several choices as `native`, and one as `each`."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._folder = folder
        self._next = MockReply()
        self._gateway: Gateway | None = None

    def open(self) -> None:
        """Start both."""
        upstream = MockServer(MockScript(), handler=lambda seen: self._next)
        self._run(upstream.listen())
        self._run(self._stack.enter_async_context(upstream))
        url = f"http://127.0.0.1:{upstream.port}/v1"
        upstreams = tuple(
            UpstreamSettings(name=kind, url=url, models=(kind,), n=kind, probe_s=0.0) for kind in ("native", "each")
        )
        # A stream waits for its first word, however long that takes here: what fails at once is a status.
        opening = gateway(self._folder, config={"upstreams": upstreams}, early_s=30.0)
        self._gateway = self._run(self._stack.enter_async_context(opening))

    def close(self) -> None:
        """End both."""
        self._run(self._stack.aclose())
        self._runner.close()

    def ask(self, reply: MockReply, request: dict[str, Any], endpoint: Endpoint) -> Heard:
        """What the client hears when the upstream says this."""
        assert self._gateway is not None
        self._next = reply
        return self._run(self._gateway.ask(request, PATHS[endpoint]))

    def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        async def bounded() -> Value:
            async with asyncio.timeout(LIMIT_S):
                return await work

        return self._runner.run(bounded())


@contextmanager
def benched(folder: Path) -> Iterator[Bench]:
    """A gateway for as long as the `with` block lasts."""
    bench = Bench(folder)
    bench.open()
    try:
        yield bench
    finally:
        bench.close()
