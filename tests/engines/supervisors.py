"""Helpers for tests with engines: a running supervisor, models that are commands, and requests to an engine."""

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
LIMIT_S = 120.0  # these tests take seconds; the limit is for a busy machine
NO_FOLDER = Path("no-such-folder")

READY_SERVER = (sys.executable, "-S", str(Path(__file__).with_name("ready_server.py")))
"""Command of an engine that starts at once, without its address."""
READY = (*READY_SERVER, "--socket", "{socket}")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine with a time limit."""

    async def limited() -> Result:
        async with asyncio.timeout(LIMIT_S):
            return await main

    return asyncio.run(limited())


@asynccontextmanager
async def running_supervisor(
    *models: ModelSettings,
    **options: Any,  # noqa: ANN401 - those of EngineSupervisor
) -> AsyncIterator[EngineSupervisor]:
    """Start a supervisor, and stop it at the end."""
    supervisor = EngineSupervisor(models, folder=NO_FOLDER, environment=os.environ, **options)
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop(timeout_s=5)


def command(*words: str, name: str = "m", **settings: Any) -> ModelSettings:  # noqa: ANN401 - those of ModelSettings
    """Return the settings of a model that is a command."""
    return ModelSettings(name=name, command=words, **settings)


def python(program: str, *words: str, **settings: Any) -> ModelSettings:  # noqa: ANN401 - those of ModelSettings
    """Return the settings of a model that is a Python program. `{socket}` is its first argument."""
    return command(sys.executable, "-c", program, "{socket}", *words, **settings)


async def fetch_json(address: Address, path: str, body: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of a successful reply."""
    reply = await fetch_reply(address, path, body)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def fetch_reply(address: Address, path: str, body: dict[str, Any] | None = None) -> BufferedResponse:
    """Send a GET, or a POST if there is a body."""
    data = b"" if body is None else json.dumps(body).encode()
    return await fetch(address, "GET" if body is None else "POST", path, body=data, timeout_s=LIMIT_S)


async def short_answer(address: Address) -> str:
    """Return the first tokens of a chat model's answer."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}
    reply = await fetch_json(address, "/v1/chat/completions", body)
    content: str = reply["choices"][0]["message"]["content"]
    return content


class ProcessWatch:
    """Waits for the end of a process that need not be a child."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def has_ended(self, timeout_s: float = LIMIT_S) -> bool:
        """Wait for the end; return whether it came in time."""
        readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
        return bool(readable)

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._descriptor)
