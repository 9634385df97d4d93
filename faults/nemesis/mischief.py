"""What is done to the upstreams, one thing after the other, drawn from the seed: killed, stopped, made ill."""

import asyncio
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Self

import msgspec

from faults.nemesis.toxics import KINDS, Kind, Proxy
from faults.nemesis.wish import UPSTREAMS

LIMIT_S = 120.0
"""No process takes that long to start, also on a busy machine."""
_ROOT = Path(__file__).parent.parent.parent
PROCESS_FAULTS = ("kill", "stop", "garbage")
_TOXICS: dict[str, Kind] = {kind: kind for kind in KINDS}


class Fault(msgspec.Struct, frozen=True):
    """Something done to an upstream for a while."""

    kind: str
    upstream: str
    after_s: float
    """How long all is left alone before."""
    lasts_s: float


def draw(seed: int, number: int, most_s: float) -> Fault:
    """The fault of this number."""
    random = Random(f"{seed}/fault/{number}")
    return Fault(
        kind=random.choice((*PROCESS_FAULTS, *PROCESS_FAULTS, *KINDS)),
        upstream=random.choice(UPSTREAMS),
        after_s=round(random.uniform(0.0, most_s / 2), 3),
        lasts_s=round(random.uniform(most_s / 10, most_s), 3),
    )


class Life:
    """An upstream behind its proxy, through all its lives."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._lives = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begin a new life."""
        self._lives += 1
        words = ["-m", "faults.nemesis.upstream", self.proxy.name, str(self._lives)]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE, env=environment
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            self.proxy.behind = int(await self._process.stdout.readline())

    async def kill(self) -> None:
        """End this life, as a crash does."""
        self.proxy.behind = None
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        """Tell it something."""
        assert self._process is not None
        self._process.send_signal(number)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()


class Nemesis:
    """Does one fault after the other, until it is cancelled; then all is well again."""

    def __init__(self, lives: dict[str, Life], seed: int, most_s: float) -> None:
        self.done: Counter[str] = Counter()
        self._lives = lives
        self._seed = seed
        self._most_s = most_s

    async def rage(self) -> None:
        """Until cancelled."""
        number = 0
        while True:
            fault = draw(self._seed, number, self._most_s)
            number += 1
            await asyncio.sleep(fault.after_s)
            self.done[fault.kind] += 1
            await self._do(fault)

    async def _do(self, fault: Fault) -> None:
        life = self._lives[fault.upstream]
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
            await asyncio.sleep(fault.lasts_s)
