"""Load generation of one step: concurrency, pauses, and its end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, repeat
from typing import Any

import pytest

from tests.check.serving import serving
from tests.http.aio import run
from welldone.bench.load import LoadGenerator
from welldone.bench.prompts import PromptRequest
from welldone.bench.report import RequestOutcome
from welldone.http.address import parse_url
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES, error_reply

Work = Callable[[LoadGenerator], Awaitable[None]]


class RepeatedPrompt:
    """The same prompt for every request."""

    def next(self) -> PromptRequest:
        return PromptRequest([{"role": "user", "content": "Say hello."}], 5, None)

    def add_answer(self, request: PromptRequest, text: str) -> None:
        pass


class FailingPrompts(RepeatedPrompt):
    """Raises for every request."""

    def next(self) -> PromptRequest:
        raise LookupError("nothing to ask")


def made(url: str, stop: asyncio.Event | None = None, **more: Any) -> LoadGenerator:  # noqa: ANN401 - any setting
    usual: dict[str, Any] = {
        "prompts": RepeatedPrompt(),
        "timeout_s": 30.0,
        "grace_s": 30.0,
        "stop": stop or asyncio.Event(),
    }
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


def test_requests_proceed_while_others_are_overdue() -> None:
    """A schedule that is never ahead of the clock does not block the answers."""

    def late(load: LoadGenerator) -> Iterator[float]:
        for _ in range(100_000):
            if len(load.records) >= 20:
                return
            yield 0.0

    load = loaded(lambda load: load.run_open_loop(late(load), 0.001, 2), ReferenceServer().answer)
    assert len(load.records) >= 20


def test_a_refused_user_pauses_before_the_next_request() -> None:
    load = loaded(lambda load: load.run_closed_loop(2, 0.25), lambda _: error_reply(429, "later"))
    assert {record.outcome for record in load.records} == {RequestOutcome.REFUSED}
    assert len(load.records) <= 2 * 3  # at 0, 0.1 and 0.3 seconds at the earliest


def test_stopping_does_not_wait_for_answers() -> None:
    async def measure() -> LoadGenerator:
        stop, posts = asyncio.Event(), count(1)

        def choose(_: MockHttpRequest) -> MockReply:
            if next(posts) == 3:
                asyncio.get_running_loop().call_later(0.2, stop.set)  # after the step, with no answer
            return FAULT_REPLIES["hang"]

        async with serving(choose) as url:
            load = made(url, stop, grace_s=3600.0, timeout_s=3600.0)
            await asyncio.wait_for(load.run_closed_loop(3, 0.05), 60)
            return load

    load = run(measure())
    assert [record.outcome for record in load.records] == [RequestOutcome.UNFINISHED] * 3
    assert load.seconds == 0.05


@pytest.mark.parametrize("keeps", [True, False])
def test_answers_are_stored_only_for_a_token_counter(keeps: bool) -> None:
    load = loaded(lambda load: load.run_open_loop(iter([0.0]), 0.01, 1), ReferenceServer().answer, keeps_texts=keeps)
    assert len(load.texts) == keeps


def test_a_bug_in_a_user_task_is_raised() -> None:
    with pytest.raises(LookupError, match="nothing to ask"):
        loaded(lambda load: load.run_closed_loop(2, 0.01), ReferenceServer().answer, prompts=FailingPrompts())
