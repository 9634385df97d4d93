"""The engine of a local model dies or hangs, by a signal or by a request. Only running requests are lost."""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, chat, connect, post, send_request
from faults.hostile_requests import draw, shown
from tests.models import encoders, vision
from tests.support.fake_engine import fake_engine
from tests.support.faults import LONG_ANSWER, RESTARTS, Child, children, metric
from tests.support.server import Running, serving

SIGNALS = (signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL, signal.SIGABRT, signal.SIGBUS)
"""Signals of native crashes, of the OOM killer, and of a hang."""
IDLE_S = 1.0
"""Idle timeout within an answer: a hung engine is noticed after twice as long."""
SLOTS, WAITING, OTHERS = 2, 4, 8
HANG_S = 20.0
"""Longer than a short request to a tiny model takes on a busy machine."""
DEATHS = 5
"""Consecutive failed starts before the server stops restarting an engine."""

PROGRAM = fake_engine(
    """
    if b"poison" in body:
        os._exit(139)
    if b"hog" in body:
        hoard = [os.urandom(2**20) for _ in range(4096)]
    """,
    """
    if sys.argv[3] == "dead":
        with open(sys.argv[2], "a") as starts:
            starts.write("start\\n")
        sys.exit(3)
    """,
)
"""Fake engine that crashes or allocates memory on a keyword, or never gets ready; it records its starts."""


class Observations(msgspec.Struct):
    """Observations of one crash."""

    number: signal.Signals
    begun: list[str]
    """Endings of the running streams."""
    waiting: list[str]
    others: list[str]
    """Endings of another model's streams."""
    deaths: float
    back_s: float

    @property
    def is_right(self) -> bool:
        """Whether only running streams failed, each with an error."""
        return {*self.begun} == {"error event"} and {*self.waiting, *self.others} == {"whole"} and self.deaths == 1


def engine_crash(context: CaseContext) -> Outcome:
    """Kill the engine of one of two models with running and queued requests."""
    observations = []
    for number in SIGNALS[: context.times(len(SIGNALS), 1)]:
        context.note(number.name)
        with _two_models(context) as (server, engine):
            observations.append(asyncio.run(_die(server, engine, number)))
    begun = Counter(ending for one in observations for ending in one.begun)
    answered = Counter(ending for one in observations for ending in one.waiting)
    others = Counter(ending for one in observations for ending in one.others)
    died = [one.back_s for one in observations if one.number != signal.SIGSTOP]
    stood = [one.back_s for one in observations if one.number == signal.SIGSTOP]
    return Outcome(
        count=len(observations),
        happened=(
            f"{begun['error event']} of {begun.total()} started streams ended with an error event; "
            f"{answered['whole']} of {answered.total()} queued requests were answered by the restarted engine; "
            f"{others['whole']} of {others.total()} streams of another model completed"
        ),
        figures=(
            Figure("started streams without an error event", begun.total() - begun["error event"], most=0),
            Figure("queued requests lost", answered.total() - answered["whole"], most=0),
            Figure("other requests lost", others.total() - others["whole"], most=0),
            Figure("longest time from a crash to the next response", round(max(died), 2), "s", most=5, is_timing=True),
            *(
                Figure(f"the same after a hang, with --idle {IDLE_S:g}", round(one, 2), "s", is_timing=True)
                for one in stood
            ),
        ),
        problems=tuple(
            f"{one.number.name}: begun {one.begun}, waiting {one.waiting}, others {one.others}, {one.deaths:g} deaths"
            for one in observations
            if not one.is_right
        ),
    )


@contextmanager
def _two_models(context: CaseContext) -> Iterator[tuple[Running, int]]:
    """Run two loaded models; yields the server and the first engine's process id."""
    each = f'file = "{context.model}"\nthreads = 1\nparallel = {SLOTS}\nctx_size = {2048 * SLOTS}\n'
    (context.folder / "welldone.toml").write_text(f"[models.one]\npreload = true\n{each}[models.other]\n{each}")
    options = ["--idle", str(IDLE_S), "--first-byte", "60", "--early", "0.1", "--continue", "off"]
    with serving(options, folder=context.folder) as server:
        (engine,) = children(server.process.pid)
        assert asyncio.run(send_request(server, chat("other", max_tokens=1))).ending == "whole"
        yield server, engine


async def _die(server: Running, engine: int, number: signal.Signals) -> Observations:
    """Start streams and queued requests, then send the signal to the engine."""
    with Child(engine) as child:
        connections = [await connect(server.port, _post(server, "one", LONG_ANSWER)) for _ in range(SLOTS)]
        heads = [await connection.read_until(b"data: ") for connection in connections]
        child.suspend()  # no running stream ends before the signal
        queue = [await connect(server.port, _post(server, "one", 4)) for _ in range(WAITING)]
        queue_heads = [await connection.read_until() for connection in queue]  # queued requests receive the head early
        others = [asyncio.create_task(send_request(server, chat("other", max_tokens=64))) for _ in range(OTHERS)]
        began = time.monotonic()
        if number != signal.SIGSTOP:
            os.kill(engine, number)
            with suppress(ProcessLookupError):  # SIGKILL does not wait for it
                child.resume()
        begun = [await connection.read_reply(head) for connection, head in zip(connections, heads, strict=True)]
        waited = [await connection.read_reply(head) for connection, head in zip(queue, queue_heads, strict=True)]
        back_s = time.monotonic() - began
        elsewhere = await asyncio.gather(*others)
        for connection in (*connections, *queue):
            connection.disconnect()
    deaths = await asyncio.to_thread(metric, server, RESTARTS)
    return Observations(number, _endings(begun), _endings(waited), _endings(elsewhere), deaths, back_s)


def _post(server: Running, model: str, tokens: int) -> bytes:
    return post(chat(model, max_tokens=tokens, temperature=0), server.port, key=server.key)


def _endings(received: list[ClientReply]) -> list[str]:
    return [one.ending for one in received]


def poison(context: CaseContext) -> Outcome:
    """A request that crashes every engine, and an engine that crashes at every start."""
    program, starts = context.folder / "engine.py", context.folder / "starts"
    program.write_text(PROGRAM)
    starts.touch()
    command = [sys.executable, str(program), "{port}", str(starts)]
    (context.folder / "welldone.toml").write_text(
        f"[models.fragile]\npreload = true\ncommand = {[*command, 'alive']}\n"
        f"[models.dead]\ncommand = {[*command, 'dead']}\n"
    )
    rounds = context.times(3, 1)
    with serving([], folder=context.folder) as server:
        poisoned = [asyncio.run(send_request(server, chat("fragile", "poison"))) for _ in context.each(range(rounds))]
        after = asyncio.run(send_request(server, chat("fragile")))
        deaths = metric(server, RESTARTS)
        refusals = [asyncio.run(send_request(server, chat("dead", stream=False))) for _ in range(context.times(5, 0))]
        failed = len(starts.read_text().splitlines())
    is_clear = all(one.status == 503 and b"\r\nretry-after:" in one.head.lower() for one in refusals)
    return Outcome(
        count=len(poisoned) + len(refusals),
        happened=(
            f"each such request killed {deaths / rounds:.1f} engines and got an error; "
            f"the next request was {after.ending}"
            + (f"; an engine that cannot start was tried {failed} times, and clients got an error" if refusals else "")
        ),
        figures=(
            Figure("engines killed per request", round(deaths / rounds, 1), most=2),
            Figure("start attempts of an engine that cannot start", failed, most=DEATHS),
            Figure("errors without Retry-After", int(not is_clear), most=0),
            Figure("requests lost afterwards", int(after.ending != "whole"), most=0),
        ),
        problems=tuple(
            f"{one.status} {one.body[-300:].decode(errors='replace')}"
            for one in (*poisoned, *refusals, after)
            if one.ending not in (("whole",) if one is after else ("refused", "error event"))
        ),
    )


def hostile_requests(context: CaseContext) -> Outcome:
    """Unusual requests with all forwarded fields, many at once, some with a disconnect: no engine may crash."""
    chance = random.Random(context.seed)
    statuses: Counter[str] = Counter()
    problems: list[str] = []
    deaths = 0.0
    rounds = context.times(400, 3)
    with _zoo(context.folder, context.model) as (server, models):
        for number in range(rounds):
            context.note(f"{number + 1} of {rounds}: {dict(statuses)}")
            requests = [draw(chance, models) for _ in range(4)]
            leaving = [chance.random() < 0.1 for _ in requests]
            received = asyncio.run(_all(server, [(one.path, one.data) for one in requests], leaving))
            statuses.update(received)
            if metric(server, RESTARTS) > deaths:
                deaths = metric(server, RESTARTS)
                problems += [f"died of one of: {words}" for words in shown(requests)]
            if "hang" in received:
                problems.append(f"hangs: {shown(requests)[received.index('hang')]}")
                break  # later requests would only queue behind it
        after = asyncio.run(_one(server, CHAT, chat(models["chat"], max_tokens=2), leaves=False))
    failed = sum(count for status, count in statuses.items() if status.startswith("5"))
    return Outcome(
        count=statuses.total(),
        happened=f"no engine crashed or hung; statuses: {_counted(statuses)}"
        if not problems
        else f"an engine crashed or hung; statuses: {_counted(statuses)}",
        figures=(
            Figure("engines that crashed", deaths, most=0),
            Figure("engines that hung", statuses["hang"], most=0),
            Figure("ordinary requests lost afterwards", int(after != "200"), most=0),
            Figure("responses with status 5xx", failed),
        ),
        problems=tuple(problems),
    )


def _counted(statuses: Counter[str]) -> str:
    return ", ".join(f"{status} ({count})" for status, count in sorted(statuses.items()))


@contextmanager
def _zoo(folder: Path, model: Path) -> Iterator[tuple[Running, dict[str, str]]]:
    """Models for chat, vision, embeddings and ranking."""
    eye = vision.projector().write(folder / "eye.gguf")
    embedding = encoders.embedding_model().write(folder / "embedding.gguf")
    ranking = encoders.rerank_model().write(folder / "ranking.gguf")
    (folder / "welldone.toml").write_text(
        "[defaults]\nthreads = 1\nctx_size = 4096\nparallel = 2\n"
        f'[models.seeing]\nfile = "{model}"\nmmproj = "{eye}"\npreload = true\n'
        f'[models.embedding]\nfile = "{embedding}"\n[models.ranking]\nfile = "{ranking}"\n'
    )
    with serving([], folder=folder) as server:
        yield server, {"chat": "seeing", "seeing": "seeing", "embedding": "embedding", "ranking": "ranking"}


async def _all(server: Running, requests: list[tuple[str, bytes]], leaving: list[bool]) -> list[str]:
    return await asyncio.gather(
        *(_one(server, path, data, leaves=leaves) for (path, data), leaves in zip(requests, leaving, strict=True))
    )


async def _one(server: Running, path: str, data: bytes, *, leaves: bool) -> str:
    """Return the status of one request; `left` or `hang` without one."""
    connection = await connect(server.port, post(data, server.port, path=path, key=server.key))
    try:
        if leaves:
            return "left"
        async with asyncio.timeout(HANG_S):
            return str((await connection.read_reply()).status)
    except TimeoutError:
        return "hang"
    finally:
        connection.disconnect(is_reset=leaves)


CASES = (
    Case("engine-crash", "an engine dies or hangs while it streams", engine_crash),
    Case("engine-poison", "a request that kills engines; an engine that never starts", poison),
    Case("hostile-requests", "unusual requests from all fields that an engine receives", hostile_requests),
)
