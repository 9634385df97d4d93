"""Start and accounting of responses."""

import asyncio
import threading
from types import SimpleNamespace
from typing import cast

import pytest

from tests.gateway.upstreams import upstream
from tests.http.aio import LIMIT_S, run
from welldone.config.server import ServeSettings
from welldone.gateway.backends import UpstreamBackend
from welldone.gateway.queue import RequestQueue
from welldone.gateway.routing import UpstreamGroup, UpstreamModel
from welldone.http import client
from welldone.http.messages import HttpRequest
from welldone.server.access.keys import ApiKeys
from welldone.server.access.limits import RateLimiter
from welldone.server.context import RequestContext
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import GenerationService
from welldone.server.observe.metrics import Metrics
from welldone.server.parts import ServerParts


def broken_clock() -> float:
    raise ZeroDivisionError


async def no_news(within_s: float) -> None:
    raise AssertionError


def test_a_response_that_fails_to_start_is_not_counted_as_active() -> None:
    async def work() -> None:
        settings, metrics = ServeSettings(), Metrics(["m"])
        limits = RateLimiter(requests_per_minute=0, tokens_per_minute=0)
        parts = SimpleNamespace(
            settings=settings, metrics=metrics, limits=limits, keys=ApiKeys([]), page=None, now=broken_clock
        )
        generator = GenerationService(cast("ServerParts", parts))
        lab = upstream("lab")
        backend = UpstreamBackend(
            UpstreamGroup("m", (UpstreamModel(lab, "m"),)),
            {"lab": RequestQueue(1, 1, 1.0)},
            send=client.send,
            settings=settings,
            on_report=lambda *_: None,
            wait_for_change=no_news,
        )
        call = cast("HttpRequest", SimpleNamespace(headers={}, stream=None))
        order = GenerationRequest(body={"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, id="chatcmpl-1")
        with pytest.raises(ZeroDivisionError):
            await generator.generate(RequestContext(call, "req_1", 0.0, {}), backend, order)
        assert b"welldone_active_streams 0.0" in metrics.render()[1]
        assert generator.answers == set()

    run(work())


def test_work_in_a_thread_is_done_one_by_one_though_its_clients_leave() -> None:
    async def work() -> None:
        parts = SimpleNamespace(metrics=Metrics(["m"]), limits=None, page=None)
        generator = GenerationService(cast("ServerParts", parts))
        began, may_end, steps = asyncio.Event(), threading.Event(), list[str]()
        loop = asyncio.get_running_loop()

        def validate() -> None:
            steps.append("begin")
            loop.call_soon_threadsafe(began.set)
            assert may_end.wait(LIMIT_S)
            steps.append("end")

        first = asyncio.create_task(generator.run_in_thread(validate))
        await began.wait()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(generator.run_in_thread(validate))
        await asyncio.to_thread(lambda: None)  # a thread that was asked for later has ended
        may_end.set()
        await second
        assert steps == ["begin", "end", "begin", "end"]

    run(work())
