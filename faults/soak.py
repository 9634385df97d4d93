"""A long time of plain work, with a few who leave and a few that fail: nothing may pile up."""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from faults.asking import CHAT, chat, post, say
from faults.case import EVIDENCE_LIMIT, Case, Figure, Outcome, Stage
from faults.dialects import MESSAGES, OLLAMA_CHAT, RESPONSES, request
from faults.light import TEXTS, Caller, Desk, between, call, hang_up, settled, upstream
from tests.live.faults import engine_of, files_of, memory_of, metric, small
from tests.live.server import Running
from tests.live.upstream import ACTIVE, RUNNING

REQUESTS, REQUESTS_SHORT = 100_000, 300
LOCAL_REQUESTS, LOCAL_REQUESTS_SHORT, LOCAL_PER = 5_000, 30, 1_000
LOCAL_CALLERS = 4
"""Clients at once: two have a slot, and two wait."""
CALLERS = 16
"""Clients at once: enough that the server is never idle."""
LEAVING, FAILING, RENEWING = 0.01, 0.02, 0.1
"""Of the requests: whose client leaves, that the upstream fails, and that come on a new connection."""
CHUNKS = TEXTS + 2
"""Chunks of an answer, with its role and its end."""
LOOKS = 100
WARM = 0.3
"""Of the looks, those at the beginning: until then buffers, caches and tables are still filled."""
SLOPE_MB = 1.0
"""Growth that is none: memory of a process goes up and down by some hundred kilobytes while nothing is kept."""
TASKS = "welldone_tasks"
MB = 2**20


class Way(msgspec.Struct, frozen=True):
    """A kind of request, and how a whole answer to it looks."""

    path: str
    body: bytes
    whole: bytes

    def said(self, port: int) -> bytes:
        """The request, on a connection that stays."""
        return post(self.body, port, path=self.path, headers={"Connection": "keep-alive"})


WAYS = (
    Way(CHAT, chat(), b"data: [DONE]\n\n"),
    Way(CHAT, chat(stream=False), b'"finish_reason":"stop"'),
    Way(RESPONSES, request(RESPONSES), b"event: response.completed\n"),
    Way(MESSAGES, request(MESSAGES), b"event: message_stop\n"),
    Way(OLLAMA_CHAT, request(OLLAMA_CHAT), b'"done":true'),
    Way("/v1/embeddings", chat(), b"data: [DONE]\n\n"),
)
"""The dialects, and what only passes through: there the upstream's answer is told as it is."""
FAILURES = {"fails": ("refused", "error event"), "cut": ("error event",)}
"""Models of the upstream that fail, and how their clients may hear of it: who had to wait has the head already."""


class Load:
    """So many requests by a few clients at once, and what was wrong with their answers."""

    def __init__(self, port: int, requests: int, draw: random.Random, on_step: Callable[[int], None]) -> None:
        self.whole = self.left = self.failed = 0
        self.troubles: list[str] = []
        self._port = port
        self._draw = draw
        self._numbers = iter(range(requests))
        self._step = max(1, requests // LOOKS)
        self._on_step = on_step
        self._plain = [(way, way.said(port)) for way in WAYS]

    async def run(self, callers: int = CALLERS) -> None:
        """All of them."""
        await asyncio.gather(*(self._ask_often() for _ in range(callers)))

    async def _ask_often(self) -> None:
        caller = await call(self._port)
        try:
            for number in self._numbers:  # all draw from it
                if number % self._step == 0:
                    self._on_step(number)
                if not caller.is_open or self._draw.random() < RENEWING:
                    caller.transport.abort()
                    caller = await call(self._port)
                await self._ask(caller)
        finally:
            caller.transport.abort()

    async def _ask(self, caller: Caller) -> None:
        drawn = self._draw.random()
        if drawn < LEAVING:
            await self._leave()
        elif drawn < LEAVING + FAILING:
            await self._fail(caller)
        else:
            way, said = self._draw.choice(self._plain)
            heard = await caller.ask(said)
            if heard.status == 200 and heard.is_whole and way.whole in heard.body:
                self.whole += 1
            else:
                self._trouble(f"{way.path}: status {heard.status}, {heard.body[-200:]!r}")

    async def _leave(self) -> None:
        talk = await say(self._port, post(chat("stalls"), self._port))
        await talk.first(b" well")
        talk.leave(is_rude=self._draw.random() < 0.5)
        self.left += 1

    async def _fail(self, caller: Caller) -> None:
        model, endings = self._draw.choice(tuple(FAILURES.items()))
        heard = await caller.ask(post(chat(model), self._port, headers={"Connection": "keep-alive"}))
        if heard.ending in endings:
            self.failed += 1
        else:
            self._trouble(f"{model}: {heard.ending}, status {heard.status}, {heard.body[-200:]!r}")

    def _trouble(self, words: str) -> None:
        if len(self.troubles) < EVIDENCE_LIMIT:
            self.troubles.append(words)


def through_the_gateway(stage: Stage) -> Outcome:
    """Ask the gateway."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_through_the_gateway(stage))


async def _through_the_gateway(stage: Stage) -> Outcome:
    requests = stage.times(REQUESTS, REQUESTS_SHORT)
    desk, looks = Desk(), list[int]()
    options = ["--stored-responses", "100"]  # so that they are full soon
    async with upstream(desk) as port, between(stage.folder, port, options=options) as server:
        pid = server.process.pid
        warm = Load(server.port, CALLERS * len(WAYS), random.Random(stage.seed), lambda _: None)
        await warm.run()
        before = await _left(desk, server)

        def look(number: int) -> None:
            looks.append(memory_of(pid))
            stage.note(f"{number:,} of {requests:,} requests, {looks[-1] / MB:.1f} MB")

        load = Load(server.port, requests, random.Random(stage.seed), look)
        await load.run()
        after = await _left(desk, server, before)
    whole, troubles = load.whole, (*warm.troubles, *load.troubles)
    happened = (
        f"{whole:,} answers were whole, {load.failed:,} failures were told and {load.left:,} clients left;"
        f" {looks[-1] / MB:.0f} MB at the end"
    )
    figures = (
        Figure("requests", requests, least=requests),
        Figure("chunks", whole * CHUNKS, least=stage.times(10**6, 0)),
        Figure("wrong answers", requests - whole - load.failed - load.left, most=0),
        Figure(
            "memory, growth", _slope(looks, requests, REQUESTS), "MB in 100,000 requests", most=SLOPE_MB, is_timing=True
        ),
        *(Figure(f"{name}, growth", after[name] - before[name], most=0) for name in before),
    )
    return Outcome(requests, happened, figures, troubles)


async def _left(desk: Desk, server: Running, wanted: dict[str, float] | None = None) -> dict[str, float]:
    """What the server has open when nobody asks; looked at until it is as wanted, or should have been."""
    await settled(lambda: desk.running)
    hang_up(desk)
    pid, goal = server.process.pid, wanted or {}
    open_files = await settled(lambda: files_of(pid), goal["files"]) if wanted else await _steady(pid)
    seen = {"files": open_files}
    for name, key in (("tasks", TASKS), ("requests that run", RUNNING), ("open streams", ACTIVE)):
        seen[name] = await asyncio.to_thread(metric, server, key)
    seen["threads"] = _threads(pid)
    return seen


async def _steady(pid: int) -> float:
    """Open files when their number stays."""
    last = -1.0
    while (now := float(files_of(pid))) != last:
        last = now
        await asyncio.sleep(0.2)
    return now


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def _slope(looks: list[int], requests: int, per: int) -> float:
    """Growth in MB over `per` requests, of the line that fits the looks after the warm-up best."""
    late = looks[int(len(looks) * WARM) :]
    middle, mean = (len(late) - 1) / 2, sum(late) / len(late)
    above = sum((at - middle) * (look - mean) for at, look in enumerate(late))
    below = sum((at - middle) ** 2 for at in range(len(late)))
    return above / below * len(looks) / requests * per / MB if below else 0.0


# A local model.


def local(stage: Stage) -> Outcome:
    """Ask a model that runs here."""
    # The engine keeps prompts that may come again, up to a limit of its own: here that would look like a leak.
    with small(stage.model, "-np", "2", "--cache-ram", "0", "--quiet", is_awaited=False) as server:
        return asyncio.run(_local(stage, server))


async def _local(stage: Stage, server: Running) -> Outcome:
    requests = stage.times(LOCAL_REQUESTS, LOCAL_REQUESTS_SHORT)
    draw, troubles = random.Random(stage.seed), list[str]()
    await _load(server, draw)
    with engine_of(server) as engine:
        pids = {"server": server.process.pid, "engine": engine.pid}
        looks = {name: list[int]() for name in pids}
        files = {name: await _steady(pid) for name, pid in pids.items()}
        numbers = iter(range(requests))

        async def ask_often() -> None:
            caller = await call(server.port)
            for number in numbers:  # all draw from it
                if number % max(1, requests // LOOKS) == 0:
                    for name, pid in pids.items():
                        looks[name].append(memory_of(pid))
                    stage.note(f"{number:,} of {requests:,} requests")
                heard = await caller.ask(_question(server, draw, number))
                if heard.ending != "whole":
                    troubles.append(f"{heard.ending} {heard.status} {heard.body[-200:]!r}")
            caller.transport.abort()

        await asyncio.gather(*(ask_often() for _ in range(LOCAL_CALLERS)))
        more = {name: await settled(partial(_files_since, pid, files[name])) for name, pid in pids.items()}
    happened = f"{requests - len(troubles):,} answers were whole; " + ", ".join(
        f"the {name} had {seen[-1] / MB:.0f} MB at the end" for name, seen in looks.items()
    )
    unit = f"MB in {LOCAL_PER:,} requests"
    figures = (
        Figure("wrong answers", len(troubles), most=0),
        *(
            Figure(
                f"memory of the {name}, growth", _slope(seen, requests, LOCAL_PER), unit, most=SLOPE_MB, is_timing=True
            )
            for name, seen in looks.items()
        ),
        *(Figure(f"files of the {name}, growth", number, most=0) for name, number in more.items()),
    )
    return Outcome(requests, happened, figures, tuple(troubles))


async def _load(server: Running, draw: random.Random) -> None:
    """Wait until the model has answered."""
    caller = await call(server.port)
    heard = await caller.ask(_question(server, draw, 0))
    caller.transport.abort()
    assert heard.ending == "whole", heard


def _files_since(pid: int, before: float) -> float:
    return files_of(pid) - before


def _question(server: Running, draw: random.Random, number: int) -> bytes:
    """A short request. The number is in it, so that no two are the same."""
    body = chat(server.model, f"Hello {number}", stream=draw.random() < 0.5, max_tokens=4, temperature=0)
    return post(body, server.port, headers={"Connection": "keep-alive"})


CASES = (
    Case(
        "soak",
        "100,000 answers of eleven chunks through the gateway, in all dialects, 3 % of them broken off",
        through_the_gateway,
    ),
    Case("soak-local", "many short answers of a local model", local),
)
