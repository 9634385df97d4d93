"""Minimal reproductions of faults in connection reuse and memory."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from faults.client import chat, send_request
from faults.connections import Fickle
from faults.lightweight import UpstreamState, between, upstream
from tests.http.aio import run
from tests.http.test_client import RecordingReceiver
from welldone.gateway.backends import BackendLease
from welldone.gateway.error_mapping import ERROR_LIMIT_BYTES
from welldone.http.address import Address
from welldone.http.client import ConnectionPool, send
from welldone.http.messages import HttpRequest
from welldone.server.context import RequestContext
from welldone.server.generation.passthrough import PassthroughEndpoint, PassthroughRequest
from welldone.server.requests.upstream_body import PassthroughBody


def test_a_retry_uses_a_new_connection() -> None:
    async def work() -> list[int]:
        state, counts, pool = UpstreamState(), list[int](), ConnectionPool()
        async with upstream(state) as port:
            for is_fresh in (False, False, True):
                receiver = RecordingReceiver()
                await send(Address(port=port), "POST", "/", receiver, pool=pool, is_fresh=is_fresh)
                await receiver.ended.wait()
                counts.append(len(state.open))
            await pool.close()
        return counts

    assert run(work()) == [1, 1, 2]


def test_every_choice_may_hit_a_dead_connection(tmp_path: Path) -> None:
    choices = 4

    async def work() -> list[str]:
        state = UpstreamState()
        async with upstream(state, Fickle) as port, between(tmp_path, port, each={"n": "each"}) as server:
            # The first request opens the connections; the second finds all of them dead.
            return [(await send_request(server, chat("resets", stream=False, n=choices))).ending for _ in range(2)]

    assert run(work()) == ["whole", "whole"]


def test_data_before_the_response_starts_is_limited() -> None:
    log: list[str] = []

    async def work() -> None:
        stream = SimpleNamespace(has_backpressure=False)
        stream.on_backpressure = lambda callback: None

        async def drain() -> None:
            log.append("drain")

        async def open_stream(headers: dict[str, str], *, first: bytes, **_: object) -> SimpleNamespace:
            log.append(f"open with {len(first)}")
            return stream

        async def end(*_: object, **__: object) -> None:
            log.append("end")

        stream.end, stream.drain = end, drain
        call = SimpleNamespace(method="POST", headers={}, start_stream=open_stream)
        ctx = RequestContext(cast("HttpRequest", call), "id", 0.0, {}, log_fields={})
        endpoint = PassthroughEndpoint("/x", "x")
        relay = PassthroughRequest(ctx, "/x", endpoint, PassthroughBody(), write_s=30.0, charge_tokens=lambda *_: None)

        def resume() -> None:
            log.append("resume")
            relay.end(None)

        def flood() -> None:
            relay.head(200, {})
            relay.data(b"w" * ERROR_LIMIT_BYTES)

        async def begin(*_: object, **__: object) -> SimpleNamespace:
            asyncio.get_running_loop().call_soon(flood)
            reading = {"pause_reading": lambda: log.append("pause"), "resume_reading": resume}
            return SimpleNamespace(close=lambda: None, **reading)

        times = {"first_byte_s": 30.0, "idle_s": 30.0}
        of_upstream = {"address": None, "upstream": None, "model": "m", "trace_headers": ()}
        lease = SimpleNamespace(send=begin, report=lambda _: None, **of_upstream, **times)
        assert await relay.run_attempt(cast("BackendLease", lease), 0, 1) is None

    run(work())
    # The first pause is immediate; the second comes from the task, which wakes later.
    assert log == ["pause", f"open with {ERROR_LIMIT_BYTES}", "pause", "drain", "resume", "end"]
