"""The measured server in its own process, with the arguments of `welldone serve`.

The first line of output has the addresses of the server and of its engine, so that both can be measured. Each line of
standard input is then answered with the CPU time of the process so far. The process exits when its input closes.
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
from welldone.cli.service import limit_garbage_collection
from welldone.cli.ui import UsageError
from welldone.engines.errors import EngineError
from welldone.engines.models.store import models_folder
from welldone.server.observe.log import LogHandler
from welldone.server.server import Server


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of the server and of its engine."""

    model: str
    port: int
    """Of the server."""
    engine_socket: str | None
    engine_port: int
    engine_key: str | None

    def __repr__(self) -> str:
        """Without the key."""
        return f"Addresses({self.model}, {self.port})"


class CpuTime(msgspec.Struct, frozen=True):
    """CPU time of this process so far. The engine is another process and not included."""

    seconds: float


def send(message: Addresses | CpuTime) -> None:
    """Write one line of JSON to standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def serve(arguments: list[str]) -> None:
    """Serve until the input closes."""
    # Command-line settings only: a benchmark must not depend on the folder in which it is started.
    config = read_serve_config(arguments, {}, Path(__file__).parent)
    server = Server(config, keys=(), folder=models_folder(os.environ))
    await server.start()
    limit_garbage_collection()  # as `welldone serve` does
    try:
        model = server.supervisor.models[0]
        address = await model.ensure_ready()
        send(
            Addresses(
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
            send(CpuTime(time.process_time()))
    finally:
        await server.stop()


def main() -> None:
    """Serve with the log at its default level."""
    with LogHandler(level=logging.INFO), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(serve(sys.argv[1:]))
        except (UsageError, EngineError) as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
