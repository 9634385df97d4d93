"""Nemesis against the gateway: clients of all dialects over three upstreams with random faults."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import takewhile

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import connect
from faults.continued_answers import CONTINUATIONS
from faults.nemesis import dialects
from faults.nemesis.chaos import Nemesis, UpstreamProcess
from faults.nemesis.client import Client
from faults.nemesis.client_actions import UPSTREAMS, ClientAction, draw
from faults.nemesis.totals import RunTotals, check_alive
from faults.nemesis.toxics import Proxy
from faults.nemesis.upstream_actions import Json
from tests.support.faults import children, metric, open_files_of
from tests.support.server import Running
from tests.support.upstream import ACTIVE, RUNNING, gateway

_KEYS = {f"client-{number}": f"wd-nemesis-key-{number:08}" for number in range(5)}
_OURS = ("a request failed", "a response failed", "a response could not be ended")
"""Log messages of internal errors."""
_CONTINUES = {"a": "prefill", "b": "prefill", "c": "replay"}
_TRACEBACK_LINES = 8
_REST_LIMIT_S = 30.0
"""Time for requests to end: the gateway's timeouts are seconds."""


def one(context: CaseContext) -> Outcome:
    """One process."""
    return _play(context, "nemesis", context.times(20 * 60, 2))


def workers(context: CaseContext) -> Outcome:
    """Two processes behind one port."""
    return _play(context, "nemesis-workers", context.times(3 * 60, 2), "--workers", "2")


def _play(context: CaseContext, name: str, seconds: float, *options: str) -> Outcome:
    if sys.platform != "linux":
        return Outcome(not_run="needs /proc of Linux")
    return asyncio.run(_run(context, name, seconds=seconds, options=options))


async def _run(context: CaseContext, name: str, *, seconds: float, options: tuple[str, ...]) -> Outcome:
    totals = RunTotals()
    async with _upstreams(totals) as lives:
        async with _gateway(context, lives, options) as server:
            pids = children(server.process.pid) if options else [server.process.pid]
            files = {pid: open_files_of(pid) for pid in pids}
            nemesis = Nemesis(lives, context.seed, most_s=context.times(6000, 1000) / 1000)
            await _rage(context, server, totals, nemesis, seconds)
            check_alive(server)
            survivals = await asyncio.to_thread(_survivals, server)
            rest_s, in_flight = await _rest(server, lives)
            for life in lives.values():
                await life.proxy.down()
            left = await _files_left(files)
            check_alive(server)
        log_errors = mistakes(server.log.all)
    problems = [*totals.problems, *totals.late(), *log_errors]
    faults = sum(nemesis.done.values())
    return Outcome(
        count=totals.requests,
        happened=_happened(totals, nemesis),
        figures=(
            *totals.figures(),
            *survivals,
            Figure("faults injected into upstreams", faults, least=1),
            Figure("complete responses", totals.endings["whole"], least=1),
            Figure("attempts per request", round(totals.attempts / max(1, totals.requests), 3), most=2),
            Figure("no request in flight after", round(rest_s * 1000), "ms", most=1000, is_timing=True),
            Figure("still in flight", in_flight, most=0),
            Figure("leaked file descriptors", left, most=0),
            Figure("internal errors in the server log", len(log_errors), most=0),
        ),
        problems=tuple(f"{words} (--only {name} --seed {context.seed})" for words in problems),
    )


def _happened(totals: RunTotals, nemesis: Nemesis) -> str:
    found = len(totals.problems) + len(totals.late())
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(nemesis.done.items()))
    return f"injected faults: {kinds}; requests: {totals.ends}; {found} violations; the server kept running"


def _survivals(server: Running) -> list[Figure]:
    """Answers that broke off after a part was sent, by their end, and streams that were resumed."""
    ends = [f"{way}, {end}" for way in ("prefill", "replay") for end in ("complete", "differed", "failed")]
    ends.append("none, failed")
    figures = []
    for name in ends:
        way, _, end = name.partition(", ")
        count = metric(server, f'{CONTINUATIONS}{{outcome="{end}",way="{way}"}}')
        # Few of a short run break off.
        least = 1 if end == "complete" else None
        figures.append(Figure(f"broke off, {name}", count, least=least, is_timing=True))
    resumed = metric(server, 'welldone_resumes_total{outcome="resumed"}')
    return [*figures, Figure("streams resumed", resumed, least=1, is_timing=True)]


def mistakes(log: Sequence[str]) -> list[str]:
    """Internal errors in the log, each with the end of its traceback."""
    found = []
    for at, line in enumerate(log):
        if any(words in line for words in _OURS):
            below = takewhile(lambda one: one.startswith(" "), log[at + 1 :])
            found.append(" | ".join([line, *(one.strip() for one in list(below)[-_TRACEBACK_LINES:])]))
    return found


@asynccontextmanager
async def _upstreams(totals: RunTotals) -> AsyncIterator[dict[str, UpstreamProcess]]:
    async with AsyncExitStack() as stack:
        lives = {}
        for name in UPSTREAMS:
            proxy = await stack.enter_async_context(Proxy(name, totals.record_attempt))
            lives[name] = UpstreamProcess(proxy)
        for life in lives.values():
            stack.push_async_callback(life.kill)
        await asyncio.gather(*(life.start() for life in lives.values()))
        yield lives


@asynccontextmanager
async def _gateway(
    context: CaseContext, lives: dict[str, UpstreamProcess], options: tuple[str, ...]
) -> AsyncIterator[Running]:
    """Run the gateway. A thread waits for it, since it probes the proxies of this loop at start and end."""
    tables = [f"[keys.{name}]\nkey = {json.dumps(key)}\n" for name, key in _KEYS.items()]
    patience_s = context.times(2000, 700) / 1000  # short, so that many idle timeouts occur
    limits = {"first_byte_s": patience_s, "idle_s": patience_s, "probe_s": 1}
    tables += [
        f'[upstreams.{name}-continued]\nurl = "{life.proxy.url}"\nmodels = ["{dialects.CONTINUED_MODEL}"]\n'
        f"continues = {json.dumps(_CONTINUES[name])}\n"
        + "".join(f"{limit} = {value}\n" for limit, value in limits.items())
        for name, life in lives.items()
    ]
    each = {**limits, "models": [dialects.MODEL], "continues": "off"}
    urls = [life.proxy.url for life in lives.values()]
    made = gateway(context.folder, *urls, each=each, more="\n".join(tables), options=options)
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


async def _rage(context: CaseContext, server: Running, totals: RunTotals, nemesis: Nemesis, seconds: float) -> None:
    """Run clients and faults for this long; each client reads its last answer to the end."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    raging = asyncio.create_task(nemesis.rage())
    telling = asyncio.create_task(_report_progress(context, totals, nemesis))
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(context.times(50, 10)):
                group.create_task(_client(context.seed, number, server, totals, until))
    finally:
        nemesis.calm()
        telling.cancel()
        await asyncio.gather(raging, telling, return_exceptions=True)
    raging.result()


async def _client(seed: int, number: int, server: Running, totals: RunTotals, until: float) -> None:
    keys = list(_KEYS.values())
    client = Client(server.port, keys[number % len(keys)], totals.moments, _body)
    number_of_requests = 0
    try:
        while asyncio.get_running_loop().time() < until and server.process.poll() is None:
            action = draw(seed, number, number_of_requests)
            number_of_requests += 1
            totals.ended(action, await client.send(action))
    finally:
        client.close()


def _body(action: ClientAction) -> Json:
    return dialects.body_of(action, action.order.encode())


async def _report_progress(context: CaseContext, totals: RunTotals, nemesis: Nemesis) -> None:
    began = asyncio.get_running_loop().time()
    while True:
        await asyncio.sleep(1)
        minutes, seconds = divmod(int(asyncio.get_running_loop().time() - began), 60)
        faults = sum(nemesis.done.values())
        words = f"{totals.requests} requests, {faults} faults, {len(totals.problems)} violations"
        context.note(f"{minutes}:{seconds:02}  {words}")


async def _rest(server: Running, lives: dict[str, UpstreamProcess]) -> tuple[float, float]:
    """Seconds until the gateway has no request in flight, and the requests still in flight there and at upstreams.

    Upstreams are not timed: one that was stopped has yet to notice the closed connections.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    rest_s: float | None = None
    while True:
        local_in_flight = await asyncio.to_thread(lambda: metric(server, ACTIVE) + metric(server, RUNNING))
        if not local_in_flight and rest_s is None:
            rest_s = loop.time() - began
        in_flight = local_in_flight + sum([await _running(life) for life in lives.values()])
        took_s = loop.time() - began
        if not in_flight or took_s > _REST_LIMIT_S:
            return took_s if rest_s is None else rest_s, in_flight


async def _running(life: UpstreamProcess) -> int:
    """Running requests of an upstream."""
    assert life.proxy.upstream_port is not None
    connection = await connect(life.proxy.upstream_port, b"GET /seen HTTP/1.1\r\nConnection: close\r\n\r\n")
    try:
        return (await connection.read_reply()).body.count(b'"end":"running"')
    finally:
        connection.disconnect()


async def _files_left(files: dict[int, int]) -> int:
    """Open files beyond those at the start; the minimum counts, since probes open some temporarily."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _REST_LIMIT_S
    while True:
        left = sum(max(0, open_files_of(pid) - before) for pid, before in files.items())
        if not left or loop.time() > until:
            return left
        await asyncio.sleep(0)


CASES = (
    Case(
        "nemesis",
        "random faults of three upstreams and their network under 50 clients, with marked tokens; answers that broke "
        "off are continued, and clients that left come back",
        one,
    ),
    Case("nemesis-workers", "the same with two workers", workers),
)
