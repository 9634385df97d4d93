"""Program that supervises one engine and prints its output and its process id, until it is killed."""

import asyncio
import os
import sys
from pathlib import Path

from welldone.config.model import ModelSettings
from welldone.engines.supervisor import EngineSupervisor


async def main() -> None:
    kind, *words = sys.argv[1:]
    settings = (
        ModelSettings(name="m", file=Path(words[0]))
        if kind == "file"
        else ModelSettings(name="m", command=tuple(words))
    )
    supervisor = EngineSupervisor(
        [settings], folder=Path("no-such-folder"), environment=os.environ, on_line=lambda _, line: print_line(line)
    )
    await supervisor.start()
    await supervisor.models[0].ensure_ready()
    process = supervisor.models[0].process
    assert process is not None
    print_line(f"engine {process.pid}")
    await asyncio.Event().wait()


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


asyncio.run(main())
