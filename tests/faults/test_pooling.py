"""What the plan found of connections and memory, each by the smallest thing that shows it."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from faults.asking import LIMIT_S, ask, chat
from faults.connections import Fickle
from faults.light import Desk, between, upstream
from tests.http.aio import run
from welldone.gateway.backends import BackendLease
from welldone.gateway.error_mapping import ERROR_LIMIT_BYTES
from welldone.http.address import Address
from welldone.http.client import ConnectionPool, fetch
from welldone.http.server import HttpRequest
from welldone.server.generation.passthrough import PassthroughExchange


def test_who_asks_again_gets_a_connection_that_nobody_had() -> None:
    async def work() -> list[int]:
        desk, counts, pool = Desk(), list[int](), ConnectionPool()
        async with upstream(desk) as port:
            for is_fresh in (False, False, True):
                await fetch(Address(port=port), "POST", "/", timeout_s=LIMIT_S, pool=pool, is_fresh=is_fresh)
                counts.append(len(desk.open))
            await pool.close()
        return counts

    assert run(work()) == [1, 1, 2]


def test_each_choice_may_meet_a_dead_connection(tmp_path: Path) -> None:
    choices = 4

    async def work() -> list[str]:
        desk = Desk()
        async with upstream(desk, Fickle) as port, between(tmp_path, port, each={"n": "each"}) as server:
            # The first makes the connections, and the second finds them all dead.
            return [(await ask(server, chat("resets", stream=False, n=choices))).ending for _ in range(2)]

    assert run(work()) == ["whole", "whole"]


def test_what_comes_before_the_stream_is_open_is_bounded() -> None:
    log: list[str] = []

    async def work() -> None:
        stream = SimpleNamespace(is_congested=False, write=lambda data: log.append(f"write {len(data)}"))

        async def open_stream(headers: dict[str, str], *, status: int) -> SimpleNamespace:
            log.append("open")
            return stream

        async def end() -> None:
            log.append("end")

        stream.end = end
        relay = PassthroughExchange(
            cast("HttpRequest", SimpleNamespace(headers={}, open=open_stream)), {}, write_s=30.0
        )

        def resume() -> None:
            log.append("resume")
            relay.end(None)

        def flood() -> None:
            relay.head(200, {})
            relay.data(b"w" * ERROR_LIMIT_BYTES)

        async def begin(*_: object, **__: object) -> SimpleNamespace:
            asyncio.get_running_loop().call_soon(flood)
            return SimpleNamespace(pause=lambda: log.append("pause"), resume=resume, close=lambda: None)

        seat = SimpleNamespace(address=None, send=begin, first_byte_s=30.0, idle_s=30.0)
        assert await relay.run(cast("BackendLease", seat), "POST", "/x", body=b"", content_type="x") is None

    run(work())
    # The first pause is at once; the second one is the task's own, which wakes later.
    assert log == ["pause", "pause", "open", f"write {ERROR_LIMIT_BYTES}", "resume", "end"]
