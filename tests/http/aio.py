"""Helpers for tests with sockets: a limit for every wait, and a server with a given handler."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

Value = TypeVar("Value")

LIMIT_S = 120.0
"""Far more than any wait in these tests takes: a hang fails the test."""


def run(
    work: Coroutine[Any, Any, Value],
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    limit_s: float = LIMIT_S,
) -> Value:
    """Run a coroutine with a time limit."""

    async def bounded() -> Value:
        async with asyncio.timeout(limit_s):
            return await work

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(bounded())


@asynccontextmanager
async def serving(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Run a server on a free port; `answer` handles each connection, which is then closed."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, backlog=1024)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
