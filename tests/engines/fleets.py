"""Engines for tests: started, asked, and gone at the end."""

import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from welldone.config.model import ModelSettings
from welldone.engines.supervisor import EngineSupervisor
from welldone.http.address import Address
from welldone.http.client import BufferedResponse, fetch

Result = TypeVar("Result")
LIMIT_S = 120.0  # nothing here takes more than some seconds; this is for a machine that is busy
NOWHERE = Path("no-such-folder")

SCRIPTED = (sys.executable, "-m", "welldone.mock.server", "--socket", "{socket}")
"""An engine that is ready in a moment."""


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """What the coroutine gives, within the limit."""

    async def limited() -> Result:
        async with asyncio.timeout(LIMIT_S):
            return await main

    return asyncio.run(limited())


@asynccontextmanager
async def fleet_of(*models: ModelSettings, **options: Any) -> AsyncIterator[EngineSupervisor]:  # noqa: ANN401 - Fleet's own
    """A started fleet, stopped at the end."""
    fleet = EngineSupervisor(models, folder=NOWHERE, environment=os.environ, **options)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.stop(within_s=5)


def command(*words: str, name: str = "m", **settings: Any) -> ModelSettings:  # noqa: ANN401 - ModelSettings' own
    """A model that is a command."""
    return ModelSettings(name=name, command=words, **settings)


def python(program: str, *words: str, **settings: Any) -> ModelSettings:  # noqa: ANN401 - ModelSettings' own
    """A model that is a small program. It names a socket, since an engine must."""
    return command(sys.executable, "-c", program, "{socket}", *words, **settings)


async def ask(address: Address, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a good answer."""
    reply = await get(address, path, body)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def get(address: Address, path: str, body: dict[str, Any] | None = None) -> BufferedResponse:
    """An answer."""
    data = b"" if body is None else json.dumps(body).encode()
    return await fetch(address, "GET" if body is None else "POST", path, body=data, timeout_s=LIMIT_S)


async def say_hello(address: Address) -> str:
    """What a chat model says first."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
    answer = await ask(address, "/v1/chat/completions", body)
    content: str = answer["choices"][0]["message"]["content"]
    return content


class Watched:
    """A process that need not be our child, and whether it has ended."""

    def __init__(self, pid: int) -> None:
        self._end = os.pidfd_open(pid)

    def ends(self, within_s: float = LIMIT_S) -> bool:
        """Waits for its end; whether it came."""
        readable, _, _ = select.select([self._end], [], [], within_s)
        return bool(readable)

    def close(self) -> None:
        """Watches no more."""
        os.close(self._end)
