"""A local model under load: clients leave at random moments, and its engine is killed again and again."""

import asyncio
import time
from collections import Counter
from random import Random

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import LIMIT_S, chat, connect, post, send_request
from faults.lightweight import settled
from tests.support.faults import (
    DEFERRED,
    LONG_ANSWER,
    PROCESSING,
    RESTARTS,
    engine_of,
    memory_of,
    metric,
    open_files_of,
    small_server,
)
from tests.support.server import Running

AT_ONCE = 8
WARM = 100
"""Clients that leave before the measurement: permanent allocations are done then."""
MOST_EVENTS = 40
"""A client leaves after up to so many events of its stream, or before it has read anything."""
GROWTH_MB = 4
KILLS = 6
"""In a row, of the engine of one server: the delay before a restart doubles with each."""
BACK_S = 45
"""The longest delay before a restart is 30 seconds."""
KILLS_PER_START_S = 1.0
"""The engine is killed at a random moment within this time after the last one was replaced."""


def leaving(context: CaseContext) -> Outcome:
    """Disconnect, with FIN or RST, at random moments."""
    count = context.times(500, 10)
    with small_server(context.model, "-np", "2", "--queue", "16") as server:
        pid = server.process.pid
        asyncio.run(_leave(context, server, range(-context.times(WARM, 4), 0)))
        base_files, base_bytes = open_files_of(pid), memory_of(pid)
        asyncio.run(_leave(context, server, range(count)))
        running, files = asyncio.run(_rest(server, base_files))
        growth_mb = (memory_of(pid) - base_bytes) / 2**20
        last = asyncio.run(send_request(server, chat("tiny", max_tokens=8)))
        restarts = metric(server, RESTARTS)
    return Outcome(
        count,
        f"{count} clients left at random moments; the next request was {last.ending}",
        (
            Figure("slots and queue entries in use at the end", running, most=0),
            Figure("leaked file descriptors", files, most=0),
            Figure("growth of memory", round(growth_mb, 1), "MB", most=GROWTH_MB),
            Figure("engine restarts", restarts, most=0),
            Figure("requests lost afterwards", int(last.ending != "whole"), most=0),
        ),
    )


async def _leave(context: CaseContext, server: Running, numbers: range) -> None:
    todo = iter(numbers)

    async def client() -> None:
        for number in todo:
            context.note(f"{number}")
            chance = Random(f"{context.seed}/{number}")
            body = chat("tiny", max_tokens=LONG_ANSWER, stream=chance.random() < 0.8)
            connection = await connect(server.port, post(body, server.port, key=server.key))
            events = chance.choice((0, chance.randrange(MOST_EVENTS)))
            try:
                async with asyncio.timeout(chance.uniform(0, 0.5) if not events else LIMIT_S):
                    for _ in range(events or MOST_EVENTS):
                        await connection.reader.readuntil(b"\n\n")
            except (TimeoutError, asyncio.IncompleteReadError):  # also the end of a refusal
                pass
            connection.disconnect(is_reset=chance.random() < 0.5)

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))


async def _rest(server: Running, base_files: int) -> tuple[float, float]:
    """Running requests and further open files, when all have ended or time is up."""
    running = await settled(lambda: metric(server, PROCESSING) + metric(server, DEFERRED))
    return running, await settled(lambda: max(0, open_files_of(server.process.pid) - base_files))


def kills(context: CaseContext) -> Outcome:
    """Kill the engine at random moments under load."""
    endings: Counter[str] = Counter()
    back_s: list[list[float]] = []
    still_running = not_answered = 0.0
    for number in range(context.times(5, 1)):
        with small_server(context.model, "-np", "2", "--queue", "16") as server:
            back_s.append(asyncio.run(_kill(context, server, f"{context.seed}/{number}", endings)))
            not_answered += asyncio.run(send_request(server, chat("tiny", max_tokens=8))).ending != "whole"
            running, _ = asyncio.run(_rest(server, open_files_of(server.process.pid)))
            still_running += running
    wrong = endings["aborted"] + endings["truncated"]
    firsts = [times[0] for times in back_s]
    return Outcome(
        sum(map(len, back_s)),
        f"endings of {endings.total():,} requests: "
        + ", ".join(f"{ending} ({number:,})" for ending, number in sorted(endings.items())),
        (
            Figure("responses cut without an error", wrong, most=0),
            Figure("longest time from the first kill to the end of the next response", max(firsts), "s"),
            Figure(f"the same of all {KILLS} in a row", max(map(max, back_s)), "s", most=BACK_S, is_timing=True),
            Figure("slots and queue entries in use at the end", still_running, most=0),
            Figure("requests lost afterwards", not_answered, most=0),
        ),
    )


async def _kill(context: CaseContext, server: Running, seed: str, endings: Counter[str]) -> list[float]:
    """Count the endings of all requests. Returns the seconds from each kill to the end of the next whole answer that
    began after it."""
    chance = Random(seed)
    back_s: list[float] = []
    killed_at, is_back, is_done = 0.0, asyncio.Event(), False

    async def client() -> None:
        while not is_done:
            began = time.monotonic()
            reply = await send_request(server, chat("tiny", max_tokens=32))
            endings[reply.ending] += 1
            if reply.ending == "whole" and began > killed_at and not is_back.is_set():
                back_s.append(time.monotonic() - killed_at)
                is_back.set()

    is_back.set()
    clients = [asyncio.create_task(client()) for _ in range(AT_ONCE)]
    for number in range(context.times(KILLS, 2)):
        context.note(f"{number} kills, {dict(endings)}")
        await asyncio.sleep(chance.uniform(0, KILLS_PER_START_S))
        with engine_of(server) as engine:
            engine.kill()
        is_back.clear()
        killed_at = time.monotonic()
        async with asyncio.timeout(LIMIT_S):
            await is_back.wait()
    is_done = True
    await asyncio.gather(*clients)
    return back_s


CASES = (
    Case("leaving-local", "clients of a local model disconnect, with FIN or RST, at random moments", leaving),
    Case("engine-kills", "the engine of a local model is killed at random moments, under load", kills),
)
