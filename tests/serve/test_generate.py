"""How an answer is begun and counted."""

from types import SimpleNamespace
from typing import cast

import pytest

from tests.engines.lab import upstream
from tests.net.aio import run
from welldone.engines.names import Group, Member
from welldone.net import outbound
from welldone.net.inbound import Call
from welldone.serve.admission import Gate
from welldone.serve.app import Ask
from welldone.serve.backends import Remote
from welldone.serve.generate import Generator, Order
from welldone.serve.keys import Keys
from welldone.serve.limits import Limits
from welldone.serve.metrics import Metrics
from welldone.serve.settings import ServeSettings


def broken_clock() -> float:
    raise ZeroDivisionError


async def no_news(within_s: float) -> None:
    raise AssertionError


def test_an_answer_that_could_not_be_begun_is_not_counted_as_active() -> None:
    async def work() -> None:
        settings, metrics = ServeSettings(), Metrics(["m"])
        limits = Limits(requests_per_minute=0, tokens_per_minute=0)
        generator = Generator(
            settings, metrics, limits, keys=Keys([]), recorder=None, head=lambda _: {}, now=broken_clock
        )
        lab = upstream("lab")
        backend = Remote(
            Group("m", (Member(lab, "m"),)),
            {"lab": Gate(1, 1, 1.0)},
            send=outbound.send,
            settings=settings,
            on_report=lambda *_: None,
            news=no_news,
        )
        call = cast("Call", SimpleNamespace(headers={}, stream=None))
        order = Order(body={"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, id="chatcmpl-1")
        with pytest.raises(ZeroDivisionError):
            await generator.answer(Ask(call, "req_1", 0.0, {}), backend, order)
        assert b"welldone_active_streams 0.0" in metrics.render()[1]
        assert generator.answers == set()

    run(work())
