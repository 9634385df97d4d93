"""Nemesis against a local model: more clients than there are slots come and leave, while the engine is killed.

A schema with a single value makes the model say the marked tokens, so that they are judged as those of upstreams are.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import msgspec

from faults.case import Case, Figure, Outcome, Stage
from faults.nemesis import dialects, wish
from faults.nemesis.client import Client
from faults.nemesis.gateway import mistakes
from faults.nemesis.order import Json
from faults.nemesis.tally import Tally, check_alive
from faults.nemesis.wish import Dialect, Wish
from tests.live.faults import ENGINE, PROCESSING, WAITING, Child, children, command_line, files_of, metric, small
from tests.live.server import KEY, Running

_DIALECTS: tuple[Dialect, ...] = ("chat", "completions", "responses", "ollama")
"""Those that take a schema."""
_SLOTS, _QUEUE, _CLIENTS = 2, 4, 8
"""More clients than slots and places in the queue together, so that some are refused."""
_TOKENS_LIMIT = 20
_AGAIN_S = 0.05
"""After which a client that was refused asks again."""
_BACK_LIMIT_S = 90.0
"""An engine that died often is left alone for 30 seconds at most, and then loaded."""
_REST_LIMIT_S = 30.0
"""What has not ended by then never does."""


def local(stage: Stage) -> Outcome:
    """A tiny model with two slots."""
    if sys.platform != "linux":
        return Outcome(not_run="processes are looked at as Linux shows them")
    return asyncio.run(_run(stage, seconds=stage.times(120, 3)))


async def _run(stage: Stage, seconds: float) -> Outcome:
    tally = Tally()
    async with _server(stage) as server:
        files = files_of(server.process.pid)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        killed: list[int] = []
        killing = asyncio.create_task(_kill(stage, server, killed))
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(_CLIENTS):
                    group.create_task(_client(stage, number, server, tally, until))
        finally:
            killing.cancel()
            await asyncio.wait({killing})
        check_alive(server)
        in_flight, left = await _rest(server, files)
        is_whole = await _answers(stage, server)
        said = mistakes(server.log.all)
    violations = len(tally.troubles)
    return Outcome(
        count=tally.requests,
        happened=f"the engine was killed {len(killed)} times; {tally.ends}; {violations} violations; "
        + ("then the next one was answered" if is_whole else "and the next one was not answered"),
        figures=(
            *tally.figures(),
            Figure("engines killed", len(killed), least=1),
            Figure("slots and places taken at the end", in_flight, most=0),
            Figure("files left open", left, most=0),
            Figure("mistakes of the server in its log", len(said), most=0),
            Figure("answered at the end", int(is_whole), least=1),
        ),
        troubles=tuple(f"{words} (--only nemesis-local --seed {stage.seed})" for words in [*tally.troubles, *said]),
    )


@asynccontextmanager
async def _server(stage: Stage) -> AsyncIterator[Running]:
    made = small(stage.model, "-np", str(_SLOTS), "--queue", str(_QUEUE), "--alias", dialects.MODEL)
    server = await asyncio.to_thread(made.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


async def _kill(stage: Stage, server: Running, killed: list[int]) -> None:
    """Kill the engine, again and again. After each death it is started later, so that the pauses grow too."""
    for number in range(stage.times(100, 2)):
        random = Random(f"{stage.seed}/kill/{number}")
        await asyncio.sleep(random.uniform(1.0, 2.0) if stage.is_short else random.uniform(3.0, 12.0))
        for pid in children(server.process.pid):
            if ENGINE in command_line(pid):
                with Child(pid) as engine:
                    engine.kill()
                    killed.append(pid)


def draw(seed: int, client: int, number: int) -> Wish:
    """A wish that a local model can fulfil."""
    drawn = wish.draw(seed, client, number)
    order = msgspec.structs.replace(drawn.order, tokens=1 + drawn.order.tokens % _TOKENS_LIMIT, pad=0, fault="")
    leaves_after = None if drawn.leaves_after is None else drawn.leaves_after % order.tokens
    dialect = _DIALECTS[number % len(_DIALECTS)]
    return msgspec.structs.replace(drawn, order=order, leaves_after=leaves_after, dialect=dialect)


def _body(one: Wish) -> Json:
    schema = {"const": one.order.text("")}
    if one.dialect == "ollama":
        more: Json = {"format": schema}
    elif one.dialect == "completions":
        more = {"json_schema": schema, "max_tokens": 1000}  # else it says 16
    elif one.dialect == "responses":
        more = {"text": {"format": {"type": "json_schema", "name": "tokens", "schema": schema}}}
    else:
        more = {"response_format": {"type": "json_schema", "json_schema": {"name": "tokens", "schema": schema}}}
    return dialects.body_of(one, "Say it.") | more


async def _client(stage: Stage, number: int, server: Running, tally: Tally, until: float) -> None:
    client = Client(server.port, KEY, tally.moments, _body)
    asked = 0
    try:
        while asyncio.get_running_loop().time() < until and server.process.poll() is None:
            one = draw(stage.seed, number, asked)
            asked += 1
            heard = await client.ask(one)
            heard.text = heard.text.removeprefix('"').removesuffix('"')  # it is JSON
            tally.ended(one, heard)
            if heard.ending == "refused":
                await asyncio.sleep(_AGAIN_S)
            if not number:
                stage.note(f"{tally.requests} requests, {len(tally.troubles)} violations")
    finally:
        client.close()


async def _rest(server: Running, files: int) -> tuple[float, int]:
    """What is still in flight, and the files beyond those of the start, when both are none or time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _REST_LIMIT_S
    while True:
        in_flight = await asyncio.to_thread(lambda: metric(server, PROCESSING) + metric(server, WAITING))
        left = max(0, files_of(server.process.pid) - files)
        if not in_flight + left or loop.time() > until:
            return in_flight, left


async def _answers(stage: Stage, server: Running) -> bool:
    """Whether a request is answered, as soon as the engine is there again."""
    client = Client(server.port, KEY, Tally().moments, _body)
    loop = asyncio.get_running_loop()
    until = loop.time() + _BACK_LIMIT_S
    try:
        while (await client.ask(Wish(draw(stage.seed, _CLIENTS, 0).order))).ending != "whole":
            if loop.time() > until:
                return False
    finally:
        client.close()
    return True


CASES = (Case("nemesis-local", "a local model's engine killed at random under clients that come and leave", local),)
