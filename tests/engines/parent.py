"""A server that does nothing but keep one engine: says the engine's process and what the engine logs, for ever."""

import asyncio
import os
import sys
from pathlib import Path

from welldone.config.model import ModelSettings
from welldone.engines.supervisor import EngineSupervisor


async def main() -> None:
    """Runs until it is killed."""
    kind, *words = sys.argv[1:]
    settings = (
        ModelSettings(name="m", file=Path(words[0]))
        if kind == "file"
        else ModelSettings(name="m", command=tuple(words))
    )
    fleet = EngineSupervisor(
        [settings], folder=Path("no-such-folder"), environment=os.environ, on_line=lambda _, line: say(line)
    )
    await fleet.start()
    await fleet.models[0].ensure_ready()
    process = fleet.models[0].process
    assert process is not None
    say(f"engine {process.pid}")
    await asyncio.Event().wait()


def say(line: str) -> None:
    """One line to who started us."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


asyncio.run(main())
