"""Nemesis against a local model: more clients than slots connect and disconnect while the engine is killed.

A schema with a single value makes the model write the marked tokens, so that they are checked like those of upstreams.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.nemesis import client_actions, dialects
from faults.nemesis.client import Client
from faults.nemesis.client_actions import ClientAction, Dialect
from faults.nemesis.gateway import mistakes
from faults.nemesis.totals import RunTotals, check_alive
from faults.nemesis.upstream_actions import Json
from tests.support.faults import (
    DEFERRED,
    ENGINE,
    PROCESSING,
    Child,
    children,
    command_line,
    metric,
    open_files_of,
    small_server,
)
from tests.support.server import KEY, Running

_DIALECTS: tuple[Dialect, ...] = ("chat", "completions", "responses", "ollama")
"""Dialects with a schema."""
_SLOTS, _QUEUE, _CLIENTS = 2, 4, 8
"""More clients than slots and queue entries, so that some are rejected."""
_TOKENS_LIMIT = 20
_AGAIN_S = 0.05
"""Delay before a rejected client retries."""
_BACK_LIMIT_S = 90.0
"""The restart delay of an engine is at most 30 seconds, plus its load time."""
_REST_LIMIT_S = 30.0
"""Time for requests to end."""


def local(context: CaseContext) -> Outcome:
    """A tiny model with two slots."""
    if sys.platform != "linux":
        return Outcome(not_run="needs /proc of Linux")
    return asyncio.run(_run(context, seconds=context.times(120, 3)))


async def _run(context: CaseContext, seconds: float) -> Outcome:
    totals = RunTotals()
    async with _server(context) as server:
        files = open_files_of(server.process.pid)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        killed: list[int] = []
        killing = asyncio.create_task(_kill(context, server, killed))
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(_CLIENTS):
                    group.create_task(_client(context, number, server, totals, until))
        finally:
            killing.cancel()
            await asyncio.wait({killing})
        check_alive(server)
        in_flight, left = await _rest(server, files)
        is_whole = await _answers(context, server)
        log_errors = mistakes(server.log.all)
    violations = len(totals.problems)
    return Outcome(
        count=totals.requests,
        happened=f"the engine was killed {len(killed)} times; requests: {totals.ends}; {violations} violations; "
        + ("the next request was answered" if is_whole else "the next request was not answered"),
        figures=(
            *totals.figures(),
            Figure("engines killed", len(killed), least=1),
            Figure("slots and queue entries in use at the end", in_flight, most=0),
            Figure("leaked file descriptors", left, most=0),
            Figure("internal errors in the server log", len(log_errors), most=0),
            Figure("answered at the end", int(is_whole), least=1),
        ),
        problems=tuple(
            f"{words} (--only nemesis-local --seed {context.seed})" for words in [*totals.problems, *log_errors]
        ),
    )


@asynccontextmanager
async def _server(context: CaseContext) -> AsyncIterator[Running]:
    made = small_server(context.model, "-np", str(_SLOTS), "--queue", str(_QUEUE), "--alias", dialects.MODEL)
    server = await asyncio.to_thread(made.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


async def _kill(context: CaseContext, server: Running, killed: list[int]) -> None:
    """Kill the engine repeatedly. The restart delay grows, and so do the pauses."""
    for number in range(context.times(100, 2)):
        random = Random(f"{context.seed}/kill/{number}")
        await asyncio.sleep(random.uniform(1.0, 2.0) if context.is_short else random.uniform(3.0, 12.0))
        for pid in children(server.process.pid):
            if ENGINE in command_line(pid):
                with Child(pid) as engine:
                    engine.kill()
                    killed.append(pid)


def draw(seed: int, client: int, number: int) -> ClientAction:
    """An action that a local model can perform."""
    drawn = client_actions.draw(seed, client, number)
    order = msgspec.structs.replace(drawn.order, tokens=1 + drawn.order.tokens % _TOKENS_LIMIT, pad=0, fault="")
    leaves_after = None if drawn.leaves_after is None else drawn.leaves_after % order.tokens
    dialect = _DIALECTS[number % len(_DIALECTS)]
    return msgspec.structs.replace(drawn, order=order, leaves_after=leaves_after, dialect=dialect, is_continued=False)


def _body(one: ClientAction) -> Json:
    schema = {"const": one.order.text("")}
    if one.dialect == "ollama":
        more: Json = {"format": schema}
    elif one.dialect == "completions":
        more = {"json_schema": schema, "max_tokens": 1000}  # the default would be 16
    elif one.dialect == "responses":
        more = {"text": {"format": {"type": "json_schema", "name": "tokens", "schema": schema}}}
    else:
        more = {"response_format": {"type": "json_schema", "json_schema": {"name": "tokens", "schema": schema}}}
    return dialects.body_of(one, "Say it.") | more


async def _client(context: CaseContext, number: int, server: Running, totals: RunTotals, until: float) -> None:
    client = Client(server.port, KEY, totals.moments, _body)
    number_of_requests = 0
    try:
        while asyncio.get_running_loop().time() < until and server.process.poll() is None:
            one = draw(context.seed, number, number_of_requests)
            number_of_requests += 1
            observed = await client.send(one)
            observed.text = observed.text.removeprefix('"').removesuffix('"')  # it is JSON
            totals.ended(one, observed)
            if observed.ending == "refused":
                await asyncio.sleep(_AGAIN_S)
            if not number:
                context.note(f"{totals.requests} requests, {len(totals.problems)} violations")
    finally:
        client.close()


async def _rest(server: Running, files: int) -> tuple[float, int]:
    """Requests in flight and additional open files, when both are 0 or time is up."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _REST_LIMIT_S
    while True:
        in_flight = await asyncio.to_thread(lambda: metric(server, PROCESSING) + metric(server, DEFERRED))
        left = max(0, open_files_of(server.process.pid) - files)
        if not in_flight + left or loop.time() > until:
            return in_flight, left


async def _answers(context: CaseContext, server: Running) -> bool:
    """Whether a request is answered after the engine has restarted."""
    client = Client(server.port, KEY, RunTotals().moments, _body)
    loop = asyncio.get_running_loop()
    until = loop.time() + _BACK_LIMIT_S
    try:
        while (await client.send(ClientAction(draw(context.seed, _CLIENTS, 0).order))).ending != "whole":
            if loop.time() > until:
                return False
    finally:
        client.close()
    return True


CASES = (
    Case(
        "nemesis-local", "the engine of a local model is killed at random while clients connect and disconnect", local
    ),
)
