"""The server that is measured, in a program of its own, as `welldone serve` runs it; its arguments are the same.

It says where it and its engine listen, so that both can be asked. Then it answers each line of standard input with the
CPU that it has taken so far, and ends with its input.
"""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from welldone.cli.serve import read_serve_config
from welldone.cli.ui import UsageError
from welldone.engines.errors import EngineError
from welldone.engines.models.store import models_folder
from welldone.server.observe.log import LogHandler
from welldone.server.server import Server


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where to ask."""

    model: str
    port: int
    """Of the server."""
    engine_socket: str | None
    engine_port: int
    engine_key: str | None

    def __repr__(self) -> str:
        """Without the key."""
        return f"Place({self.model}, {self.port})"


class Cpu(msgspec.Struct, frozen=True):
    """What this process has taken so far. The engine is another process, and not counted."""

    seconds: float


def say(message: Place | Cpu) -> None:
    """One line."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def serve(arguments: list[str]) -> None:
    """Serve until the input ends."""
    # No setting but those of the command line: a benchmark must not depend on the folder that it is started in.
    config = read_serve_config(arguments, {}, Path(__file__).parent)
    server = Server(config, keys=(), folder=models_folder(os.environ))
    await server.start()
    try:
        model = server.fleet.models[0]
        address = await model.ensure_ready()
        say(
            Place(
                model=model.name,
                port=server.port,
                engine_socket=address.socket,
                engine_port=address.port,
                engine_key=address.key,
            )
        )
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            say(Cpu(time.process_time()))
    finally:
        await server.stop()


def main() -> None:
    """Serve, with a log as users have it."""
    with LogHandler(level=logging.INFO), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(sys.argv[1:]))
        except (UsageError, EngineError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
