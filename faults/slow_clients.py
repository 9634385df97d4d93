"""Clients that open connections and say too little: each is hung up on in time, and nobody else is kept waiting."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from faults.asking import LIMIT_S, Talk, ask, chat, health, parse, percentile, post, say
from faults.case import Case, Figure, Outcome, Stage
from faults.light import settled
from faults.pulse import Pulse, beating, listening
from tests.live.faults import children, files_of, memory_of
from tests.live.server import Running
from tests.live.upstream import gateway

SOCKETS, SOCKETS_SHORT = 1_100, 60
AT_ONCE = 100
"""Connections that are being made at the same time: a listening socket of ours has room for 1,024."""
LIMIT_OF_US_S, LIMIT_OF_US_SHORT_S = 5.0, 1.0
"""What the server gives for a head, and for a body. By default it is 10 s and 30 s, and the plan would take as long."""
LINGER_S = 1.0
"""What the server waits after its reply for the rest of a body, so that the reply is not lost."""
LATE_S = 1.0
"""That the slowest of a thousand may be late, and so may be what this side notes of it."""
DRIP_S = 0.5
PROBE_S = 0.05
BODY = chat("beat")


class Form(msgspec.Struct, frozen=True):
    """A way to say too little."""

    name: str
    said: Callable[[int], bytes]
    """At once, to a server on this port."""
    dripped: bytes = b""
    """What comes then, a byte at a time."""
    linger_s: float = 0.0


def _head(port: int) -> bytes:
    return post(BODY, port).partition(b"\r\n\r\n")[0]


FORMS = (
    Form("say nothing", lambda port: b""),
    Form("say half a head", _head),
    Form("drip a head", _head, b"\r\nX-Drip: " + b"a" * 1_000),
    Form("say half a body", lambda port: post(BODY, port)[:-10], linger_s=LINGER_S),
    Form("drip a body", lambda port: post(BODY + b" " * 1_000, port)[:-1_000], b" " * 999, linger_s=LINGER_S),
    Form("ask once, and stay", lambda port: b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port),
)


class Slow(msgspec.Struct):
    """One of those clients."""

    form: Form
    talk: Talk
    began_s: float
    opened_s: float
    closed_s: float | None = None

    async def stay(self) -> None:
        """Stay until hung up on."""
        try:
            while await self.talk.reader.read(65536):
                pass
        except ConnectionError:
            pass  # so it can be told, too
        self.closed_s = time.monotonic()


class Seen(msgspec.Struct):
    """What was seen in all waves."""

    count: int = 0
    open_after: int = 0
    late_s: list[float] = []
    early_s: list[float] = []
    health_ms: list[float] = []
    growth_bytes: float = 0.0
    """For each socket, in the worst wave."""
    troubles: list[str] = []


def one(stage: Stage) -> Outcome:
    """A server of one process: each form in a wave of its own, or in short all of them in one."""
    return _do(stage, _waves(stage))


def workers(stage: Stage) -> Outcome:
    """The same with two workers, and all forms at the same time."""
    return _do(stage, _mixed(stage.times(SOCKETS, SOCKETS_SHORT)), "--workers", "2")


def _waves(stage: Stage) -> list[Sequence[Form]]:
    return _mixed(SOCKETS_SHORT) if stage.is_short else [[form] * SOCKETS for form in FORMS]


def _mixed(count: int) -> list[Sequence[Form]]:
    return [[FORMS[number % len(FORMS)] for number in range(count)]]


def _do(stage: Stage, waves: Sequence[Sequence[Form]], *options: str) -> Outcome:
    limit_s = LIMIT_OF_US_SHORT_S if stage.is_short else LIMIT_OF_US_S
    limits = ["--head-time", str(limit_s), "--body-time", str(limit_s), "--connections", str(2 * SOCKETS)]
    with beating() as beats, gateway(stage.folder, beats, options=["--quiet", *limits, *options]) as server:
        return asyncio.run(_attack(stage, server, waves, limit_s))


async def _attack(stage: Stage, server: Running, waves: Sequence[Sequence[Form]], limit_s: float) -> Outcome:
    seen = Seen()
    async with listening(server, BODY) as pulse, _probed(server, seen):
        await _until(lambda: len(seen.health_ms) > 2)  # it has all that it needs for both
        pulse.worst.clear()
        base = files(server)
        for number, wave in enumerate(waves, 1):
            stage.note(f"wave {number} of {len(waves)}: {len(wave):,} that {wave[0].name}")
            await _wave(server, wave, limit_s, seen)
        left = await settled(lambda: max(0, files(server) - base))
    return _outcome(seen, pulse, left, limit_s)


async def _wave(server: Running, forms: Sequence[Form], limit_s: float, seen: Seen) -> None:
    before = memory(server)
    door = asyncio.Semaphore(AT_ONCE)

    async def come(form: Form) -> Slow:
        async with door:
            began_s = time.monotonic()
            talk = await say(server.port, form.said(server.port))
            return Slow(form, talk, began_s, time.monotonic())

    slow = await asyncio.gather(*map(come, forms))
    seen.growth_bytes = max(seen.growth_bytes, (memory(server) - before) / len(slow))
    stays = [asyncio.create_task(client.stay()) for client in slow]
    drips = asyncio.create_task(_drip([client for client in slow if client.form.dripped]))
    await asyncio.wait(stays, timeout=3 * limit_s + 10)
    for task in (*stays, drips):
        task.cancel()
    await asyncio.wait([*stays, drips])
    for client in slow:
        client.talk.leave(is_rude=True)
    seen.count += len(slow)
    _judge(slow, limit_s, seen)


async def _drip(slow: Sequence[Slow]) -> None:
    """A byte from each, again and again."""
    for place in range(max((len(client.form.dripped) for client in slow), default=0)):
        await asyncio.sleep(DRIP_S)
        for client in slow:
            if client.closed_s is None and place < len(client.form.dripped):
                client.talk.writer.write(client.form.dripped[place : place + 1])


def _judge(slow: Sequence[Slow], limit_s: float, seen: Seen) -> None:
    for client in slow:
        if client.closed_s is None:
            seen.open_after += 1
            seen.troubles.append(f"still open: a client that would {client.form.name}")
        else:
            seen.late_s.append(client.closed_s - client.opened_s - limit_s - client.form.linger_s)
            seen.early_s.append(client.began_s + limit_s - client.closed_s)


@asynccontextmanager
async def _probed(server: Running, seen: Seen) -> AsyncIterator[None]:
    """Asks for the server's health on one new connection after the other, for so long."""

    async def probe() -> None:
        while True:
            began = time.monotonic()
            status = await health(server)
            seen.health_ms.append((time.monotonic() - began) * 1000)
            if status != 200:
                seen.troubles.append(f"/health: status {status}")
            await asyncio.sleep(PROBE_S)

    task = asyncio.create_task(probe())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()  # it fell


def _outcome(seen: Seen, pulse: Pulse, left: float, limit_s: float) -> Outcome:
    silence_ms = max(pulse.worst.values(), default=0.0)
    return Outcome(
        seen.count,
        f"{len(seen.late_s):,} were hung up on at the limit of {limit_s:g} s; "
        f"{len(seen.health_ms):,} asked for its health meanwhile, half of them for less than "
        f"{percentile(seen.health_ms, 50):.0f} ms",
        (
            Figure("never hung up on", seen.open_after, most=0),
            Figure(
                "latest after its limit", max(seen.late_s, default=0) * 1000, "ms", most=LATE_S * 1000, is_timing=True
            ),
            Figure("earliest before its limit", max(seen.early_s, default=0) * 1000, "ms", most=250, is_timing=True),
            Figure("/health p99", percentile(seen.health_ms, 99), "ms", most=100, is_timing=True),
            Figure("longest silence of a stream beside", silence_ms, "ms", most=200, is_timing=True),
            Figure("memory for each", seen.growth_bytes / 1024, "KB", most=32, is_timing=True),
            Figure("files left open", left, most=0),
        ),
        tuple(seen.troubles),
    )


def crowd(stage: Stage) -> Outcome:
    """More silent connections than there is room for, and then as many half requests as may be answered at once."""
    limits = ["--connections", "8", "--body-time", "1"]  # so there is room for 80 connections
    with beating() as beats, gateway(stage.folder, beats, options=["--quiet", *limits]) as server:
        return asyncio.run(_crowd(stage, server))


async def _crowd(stage: Stage, server: Running) -> Outcome:
    count = stage.times(SOCKETS, 2 * SOCKETS_SHORT)
    short = chat("beat", max_tokens=2)
    asked = kept_out = 0
    silent: list[Talk] = []
    for number in stage.each(range(count)):
        silent.append(await say(server.port, b""))
        if number % 20 == 19:
            asked += 1
            kept_out += await _ending(server, short) != "whole"
    halves = [await say(server.port, post(BODY, server.port)[:-10]) for _ in range(8)]
    refused = await _refused(server, short)
    status = await health(server)
    answers = [parse(await half.first()) for half in halves]
    after = await _ending(server, short)
    for talk in (*silent, *halves):
        talk.leave(is_rude=True)
    return Outcome(
        count,
        f"{asked - kept_out} of {asked} others were answered; with all places taken by half requests, others "
        f"were told {refused}, /health said {status}; after the time for a body, an answer was {after}",
        (
            Figure("others kept out", kept_out, most=0),
            Figure("half requests that were told 408", sum(one.status == 408 for one in answers), least=8, most=8),
        ),
        tuple(
            words
            for words, is_so in (
                (f"with all places taken, others were told {refused}", refused != "503 server_busy"),
                (f"with all places taken, /health said {status}", status != 200),
                (f"afterwards an answer was {after}", after != "whole"),
            )
            if is_so
        ),
    )


async def _ending(server: Running, body: bytes) -> str:
    try:
        return (await ask(server, body)).ending
    except ConnectionError:
        return "kept out"


async def _refused(server: Running, body: bytes) -> str:
    """What one more is told, when all of the halves have come that far."""
    deadline = time.monotonic() + LIMIT_S
    while (heard := await ask(server, body)).status == 200:
        assert time.monotonic() < deadline
    return heard.told


def files(server: Running) -> int:
    """The files and connections that a server has open, with its workers."""
    return sum(files_of(pid) for pid in _processes(server))


def memory(server: Running) -> int:
    """The bytes of memory that it holds, with its workers."""
    return sum(memory_of(pid) for pid in _processes(server))


def _processes(server: Running) -> list[int]:
    return [server.process.pid, *children(server.process.pid)]


async def _until(is_so: Callable[[], bool]) -> None:
    assert await settled(lambda: float(is_so()), 1.0)


CASES = (
    Case("slow-clients", "1,100 clients that say nothing, half a head or half a body, or drip it, or stay idle", one),
    Case("slow-clients-workers", "all of them at the same time, to two workers", workers),
    Case("silent-crowd", "more silent connections than there is room for, and half requests on all places", crowd),
)
