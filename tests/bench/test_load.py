"""The load of one step: how many are under way, who waits, and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, repeat
from typing import Any

import pytest

from tests.check.serving import serving
from tests.http.aio import run
from welldone.bench.load import LoadGenerator
from welldone.bench.prompts import PromptRequest
from welldone.bench.record import RequestOutcome
from welldone.http.address import parse_url
from welldone.mock.faults import FAULT_REPLIES, error_reply
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

Work = Callable[[LoadGenerator], Awaitable[None]]


class Same:
    """One question again and again."""

    def next(self) -> PromptRequest:
        return PromptRequest([{"role": "user", "content": "Say hello."}], 5, None, None)

    def add_answer(self, request: PromptRequest, text: str) -> None:
        pass


class Silent(Same):
    """Has nothing to ask."""

    def next(self) -> PromptRequest:
        raise LookupError("nothing to ask")


def made(url: str, stop: asyncio.Event | None = None, **more: Any) -> LoadGenerator:  # noqa: ANN401 - any setting
    usual: dict[str, Any] = {"prompts": Same(), "timeout_s": 30.0, "grace_s": 30.0, "stop": stop or asyncio.Event()}
    return LoadGenerator(parse_url(url), common_fields={"model": "ideal"}, **{**usual, **more})


def loaded(work: Work, choose: Callable[[MockHttpRequest], MockReply], **more: Any) -> LoadGenerator:  # noqa: ANN401 - any setting
    async def measure() -> LoadGenerator:
        async with serving(choose) as url:
            load = made(url, **more)
            await asyncio.wait_for(work(load), 60)
            return load

    return run(measure())


@pytest.mark.parametrize("most", [1, 3, 200])
def test_a_burst_does_not_go_beyond_the_limit(most: int) -> None:
    load = loaded(lambda load: load.run_open_loop(repeat(0.0, 100), 0.01, most), ReferenceServer(gap_s=0.01).answer)
    assert (load.counts.due, len(load.records)) == (100, min(most, 100))
    assert load.counts.skipped == 100 - len(load.records)
    assert {record.outcome for record in load.records} == {RequestOutcome.OK}


def test_requests_go_on_while_others_are_overdue() -> None:
    """A schedule that is never ahead of the clock: nobody waits for it, and answers come in all the same."""

    def late(load: LoadGenerator) -> Iterator[float]:
        for _ in range(100_000):
            if len(load.records) >= 20:
                return
            yield 0.0

    load = loaded(lambda load: load.run_open_loop(late(load), 0.001, 2), ReferenceServer().answer)
    assert len(load.records) >= 20


def test_who_was_refused_waits_before_asking_again() -> None:
    load = loaded(lambda load: load.run_closed_loop(2, 0.25), lambda _: error_reply(429, "later"))
    assert {record.outcome for record in load.records} == {RequestOutcome.REFUSED}
    assert len(load.records) <= 2 * 3  # at 0, 0.1 and 0.3 seconds at the soonest


def test_who_stops_waits_for_nobody() -> None:
    async def measure() -> LoadGenerator:
        stop, posts = asyncio.Event(), count(1)

        def choose(_: MockHttpRequest) -> MockReply:
            if next(posts) == 3:
                asyncio.get_running_loop().call_later(0.2, stop.set)  # the step is over then, and nobody answers
            return FAULT_REPLIES["hang"]

        async with serving(choose) as url:
            load = made(url, stop, grace_s=3600.0, timeout_s=3600.0)
            await asyncio.wait_for(load.run_closed_loop(3, 0.05), 60)
            return load

    load = run(measure())
    assert [record.outcome for record in load.records] == [RequestOutcome.UNFINISHED] * 3
    assert load.seconds == 0.05


@pytest.mark.parametrize("keeps", [True, False])
def test_answers_are_kept_for_who_counts_them_only(keeps: bool) -> None:
    load = loaded(lambda load: load.run_open_loop(iter([0.0]), 0.01, 1), ReferenceServer().answer, keeps_texts=keeps)
    assert len(load.texts) == keeps


def test_a_mistake_of_ours_is_not_taken_for_a_smaller_load() -> None:
    with pytest.raises(LookupError, match="nothing to ask"):
        loaded(lambda load: load.run_closed_loop(2, 0.01), ReferenceServer().answer, prompts=Silent())
