"""Nemesis against the gateway: clients of all dialects over three upstreams, which are harmed all the time."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import takewhile

from faults.asking import say
from faults.case import Case, Figure, Outcome, Stage
from faults.nemesis import dialects
from faults.nemesis.client import Client
from faults.nemesis.mischief import Life, Nemesis
from faults.nemesis.order import Json
from faults.nemesis.tally import Tally, check_alive
from faults.nemesis.toxics import Proxy
from faults.nemesis.wish import UPSTREAMS, Wish, draw
from tests.live.faults import children, files_of, metric
from tests.live.server import Running
from tests.live.upstream import ACTIVE, RUNNING, gateway

_KEYS = {f"client-{number}": f"wd-nemesis-key-{number:08}" for number in range(5)}
_OURS = ("a request failed", "an answer failed", "an answer could not be ended")
"""What the log says where the mistake is the server's own."""
_TRACEBACK_LINES = 8
_REST_LIMIT_S = 30.0
"""What has not ended by then never does: the gateway's limits are seconds."""


def one(stage: Stage) -> Outcome:
    """One process."""
    return _play(stage, "nemesis", stage.times(20 * 60, 2))


def workers(stage: Stage) -> Outcome:
    """Two processes behind one port."""
    return _play(stage, "nemesis-workers", stage.times(3 * 60, 2), "--workers", "2")


def _play(stage: Stage, name: str, seconds: float, *options: str) -> Outcome:
    if sys.platform != "linux":
        return Outcome(not_run="processes are looked at as Linux shows them")
    return asyncio.run(_run(stage, name, seconds=seconds, options=options))


async def _run(stage: Stage, name: str, *, seconds: float, options: tuple[str, ...]) -> Outcome:
    tally = Tally()
    async with _upstreams(tally) as lives:
        async with _gateway(stage, lives, options) as server:
            pids = children(server.process.pid) if options else [server.process.pid]
            files = {pid: files_of(pid) for pid in pids}
            nemesis = Nemesis(lives, stage.seed, most_s=stage.times(6000, 1000) / 1000)
            await _rage(stage, server, tally, nemesis, seconds)
            check_alive(server)
            rest_s, in_flight = await _rest(server, lives)
            for life in lives.values():
                await life.proxy.down()
            left = await _files_left(files)
            check_alive(server)
        said = mistakes(server.log.all)
    troubles = [*tally.troubles, *tally.late(), *said]
    faults = sum(nemesis.done.values())
    return Outcome(
        count=tally.requests,
        happened=_happened(tally, nemesis),
        figures=(
            *tally.figures(),
            Figure("faults done to upstreams", faults, least=1),
            Figure("whole answers", tally.endings["whole"], least=1),
            Figure("attempts per request", round(tally.attempts / max(1, tally.requests), 3), most=2),
            Figure(
                "in flight at the gateway is zero again after", round(rest_s * 1000), "ms", most=1000, is_timing=True
            ),
            Figure("still in flight", in_flight, most=0),
            Figure("files left open", left, most=0),
            Figure("mistakes of the server in its log", len(said), most=0),
        ),
        troubles=tuple(f"{words} (--only {name} --seed {stage.seed})" for words in troubles),
    )


def _happened(tally: Tally, nemesis: Nemesis) -> str:
    found = len(tally.troubles) + len(tally.late())
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(nemesis.done.items()))
    return f"upstreams suffered {kinds}; requests ended {tally.ends}; {found} violations; the server runs on"


def mistakes(log: Sequence[str]) -> list[str]:
    """What the log says of the server's own mistakes, each with the end of its traceback, which is indented."""
    found = []
    for at, line in enumerate(log):
        if any(words in line for words in _OURS):
            below = takewhile(lambda one: one.startswith(" "), log[at + 1 :])
            found.append(" | ".join([line, *(one.strip() for one in list(below)[-_TRACEBACK_LINES:])]))
    return found


@asynccontextmanager
async def _upstreams(tally: Tally) -> AsyncIterator[dict[str, Life]]:
    async with AsyncExitStack() as stack:
        lives = {}
        for name in UPSTREAMS:
            proxy = await stack.enter_async_context(Proxy(name, tally.asked))
            lives[name] = Life(proxy)
        for life in lives.values():
            stack.push_async_callback(life.kill)
        await asyncio.gather(*(life.start() for life in lives.values()))
        yield lives


@asynccontextmanager
async def _gateway(stage: Stage, lives: dict[str, Life], options: tuple[str, ...]) -> AsyncIterator[Running]:
    """The gateway. It is waited for in a thread: it asks our proxies while it starts, and when it ends."""
    tables = [f"[keys.{name}]\nkey = {json.dumps(key)}\n" for name, key in _KEYS.items()]
    patience_s = stage.times(2000, 700) / 1000  # short, so that many of those who are silent for too long are met
    limits = {"first_byte_s": patience_s, "idle_s": patience_s, "probe_s": 1}
    urls = [life.proxy.url for life in lives.values()]
    made = gateway(stage.folder, *urls, each=limits, more="\n".join(tables), options=options)
    server = await asyncio.to_thread(made.__enter__)
    try:
        if options:
            await asyncio.to_thread(_wait_for_workers, server)
        yield server
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


def _wait_for_workers(server: Running) -> None:
    first = server.log.wait("worker is ready")
    server.log.wait("worker is ready", seen=server.log.all.index(first.string) + 1)


async def _rage(stage: Stage, server: Running, tally: Tally, nemesis: Nemesis, seconds: float) -> None:
    """Clients ask and the nemesis rages for so long; then each client hears its last answer to the end."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    raging = asyncio.create_task(nemesis.rage())
    telling = asyncio.create_task(_tell(stage, tally, nemesis))
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(stage.times(50, 10)):
                group.create_task(_client(stage.seed, number, server, tally, until))
    finally:
        nemesis.calm()
        telling.cancel()
        await asyncio.gather(raging, telling, return_exceptions=True)
    raging.result()


async def _client(seed: int, number: int, server: Running, tally: Tally, until: float) -> None:
    keys = list(_KEYS.values())
    client = Client(server.port, keys[number % len(keys)], tally.moments, _body)
    asked = 0
    try:
        while asyncio.get_running_loop().time() < until and server.process.poll() is None:
            wish = draw(seed, number, asked)
            asked += 1
            tally.ended(wish, await client.ask(wish))
    finally:
        client.close()


def _body(wish: Wish) -> Json:
    return dialects.body_of(wish, wish.order.encode())


async def _tell(stage: Stage, tally: Tally, nemesis: Nemesis) -> None:
    began = asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(1)
        minutes, seconds = divmod(int(asyncio.get_running_loop().time() - began), 60)
        faults = sum(nemesis.done.values())
        words = f"{tally.requests} requests, {faults} faults, {len(tally.troubles)} violations"
        stage.note(f"{minutes}:{seconds:02}  {words}")


async def _rest(server: Running, lives: dict[str, Life]) -> tuple[float, float]:
    """Seconds until the gateway has nothing in flight; and what is in flight, here and at upstreams, if that stays so.

    Upstreams are not timed: one that was stopped has yet to read that nobody asks it any more.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    rest_s: float | None = None
    while True:
        here = await asyncio.to_thread(lambda: metric(server, ACTIVE) + metric(server, RUNNING))
        if not here and rest_s is None:
            rest_s = loop.time() - began
        in_flight = here + sum([await _running(life) for life in lives.values()])
        took_s = loop.time() - began
        if not in_flight or took_s > _REST_LIMIT_S:
            return took_s if rest_s is None else rest_s, in_flight


async def _running(life: Life) -> int:
    """The requests that an upstream has not ended yet."""
    assert life.proxy.behind is not None
    talk = await say(life.proxy.behind, b"GET /seen HTTP/1.1\r\nConnection: close\r\n\r\n")
    try:
        return (await talk.heard()).body.count(b'"end":"running"')
    finally:
        talk.leave()


async def _files_left(files: dict[int, int]) -> int:
    """Files and connections beyond those that were open at the start. Probes come and go: the fewest count."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _REST_LIMIT_S
    while True:
        left = sum(max(0, files_of(pid) - before) for pid, before in files.items())
        if not left or loop.time() > until:
            return left
        await asyncio.sleep(0)


CASES = (
    Case("nemesis", "random faults of three upstreams and their network under 50 clients, every token marked", one),
    Case("nemesis-workers", "the same with two workers", workers),
)
