"""Faults of upstream processes, drawn from the seed: killed, stopped, network faults."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Self

import msgspec

from faults.nemesis.toxics import KINDS, Kind, Proxy

LIMIT_S = 120.0
"""Longer than a process takes to start on a busy machine."""
_ROOT = Path(__file__).parent.parent.parent
PROCESS_FAULTS = ("kill", "stop", "garbage")
_TOXICS: dict[str, Kind] = {kind: kind for kind in KINDS}


class Fault(msgspec.Struct, frozen=True):
    """Fault of an upstream for some time."""

    kind: str
    after_s: float
    """Pause before the fault."""
    lasts_s: float


def draw(seed: int, upstream: str, number: int, most_s: float) -> Fault:
    """Draw the fault with this number; the pauses are mostly longer than the faults."""
    random = Random(f"{seed}/{upstream}/{number}")
    return Fault(
        kind=random.choice((*PROCESS_FAULTS, *PROCESS_FAULTS, *KINDS)),
        after_s=round(random.uniform(0.0, most_s * 2), 3),
        lasts_s=round(random.uniform(most_s / 10, most_s), 3),
    )


class UpstreamProcess:
    """Upstream process behind its proxy, with restarts."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._lives = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process again."""
        self._lives += 1
        words = ["-m", "faults.nemesis.upstream", self.proxy.name, str(self._lives)]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C ends the plan, which ends this
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            self.proxy.upstream_port = int(await self._process.stdout.readline())

    async def kill(self) -> None:
        """Kill the process."""
        self.proxy.upstream_port = None
        if self._process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                self._process.kill()
            await self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Send a command to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


class Nemesis:
    """Injects faults into each upstream until it is stopped, then restores all of them."""

    def __init__(self, lives: Mapping[str, UpstreamProcess], seed: int, most_s: float) -> None:
        self.done: Counter[str] = Counter()
        self._lives = lives
        self._seed = seed
        self._most_s = most_s
        self._calmed = asyncio.Event()

    def calm(self) -> None:
        """Stop without cancelling, so that a restarting upstream comes up."""
        self._calmed.set()

    async def rage(self) -> None:
        """Inject faults until stopped."""
        async with asyncio.TaskGroup() as group:
            for name, life in self._lives.items():
                group.create_task(self._harm(name, life))

    async def _harm(self, name: str, life: UpstreamProcess) -> None:
        for number in count():
            fault = draw(self._seed, name, number, self._most_s)
            await self._wait(fault.after_s)
            if self._calmed.is_set():
                return
            self.done[fault.kind] += 1
            await self._do(fault, life)

    async def _do(self, fault: Fault, life: UpstreamProcess) -> None:
        async with AsyncExitStack() as stack:
            if fault.kind == "kill":
                stack.push_async_callback(life.start)
                await life.kill()
            elif fault.kind == "stop":
                stack.callback(life.signal, signal.SIGCONT)
                life.signal(signal.SIGSTOP)
            elif fault.kind == "garbage":
                stack.callback(life.signal, signal.SIGUSR2)
                life.signal(signal.SIGUSR1)
            else:
                await stack.enter_async_context(life.proxy.ill(_TOXICS[fault.kind]))
            await self._wait(fault.lasts_s)

    async def _wait(self, seconds: float) -> None:
        """Sleep, or return early when stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._calmed.wait()
