"""The door of a model: never more inside than there are places, and never a place lost."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue

Result = TypeVar("Result")
LONG_S = 60.0


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run it, and fail where it hangs."""

    async def limited() -> Result:
        async with asyncio.timeout(LONG_S):
            return await main

    return asyncio.run(limited())


async def _settle() -> None:
    """Let every task that can run do so; four steps are more than any wake-up takes."""
    for _ in range(4):
        await asyncio.sleep(0)


class Clock:
    """Time that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_finds_a_free_place_enters_at_once() -> None:
    async def main() -> None:
        gate = RequestQueue(2, 0, LONG_S)
        assert await gate.acquire() == 0.0
        assert await gate.acquire() == 0.0
        assert (gate.running, gate.waiting, gate.admitted) == (2, 0, 2)
        gate.release(1.0)
        gate.release(1.0)
        assert gate.running == 0

    run(main())


def test_those_who_wait_enter_in_the_order_in_which_they_came() -> None:
    async def main() -> list[int]:
        clock = Clock()
        gate = RequestQueue(1, 8, LONG_S, clock)
        entered: list[int] = []

        async def ask(number: int) -> float:
            waited_s = await gate.acquire()
            entered.append(number)
            gate.release(1.0)
            return waited_s

        await gate.acquire()
        tasks = [asyncio.create_task(ask(number)) for number in range(8)]
        await _settle()
        assert gate.waiting == 8
        clock.now = 2.5
        gate.release(1.0)
        assert await asyncio.gather(*tasks) == [2.5] * 8
        assert gate.mean_wait_s == 2.5 * 8 / 9
        return entered

    assert run(main()) == list(range(8))


def test_who_comes_as_a_place_becomes_free_does_not_overtake_the_queue() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 2, LONG_S)
        await gate.acquire()
        first = asyncio.create_task(gate.acquire())
        await _settle()
        gate.release(1.0)
        late = asyncio.create_task(gate.acquire())
        await first
        await _settle()
        assert not late.done()
        gate.release(1.0)
        await late

    run(main())


def test_a_full_queue_refuses_with_429_and_says_when_to_come_again() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 1, LONG_S)
        await gate.acquire()
        gate.release(10.0)
        await gate.acquire()
        waiting = asyncio.create_task(gate.acquire())
        await _settle()
        with pytest.raises(ApiError) as caught:
            await gate.acquire()
        assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (429, "queue_full", 20)
        assert (gate.rejected, gate.running, gate.waiting) == (1, 1, 1)
        gate.release(1.0)
        await waiting

    run(main())


def test_who_waits_too_long_gets_503_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 4, 0.01)
        await gate.acquire()
        with pytest.raises(ApiError) as caught:
            await gate.acquire()
        assert (caught.value.status, caught.value.code) == (503, "queue_timeout")
        assert caught.value.retry_after_s == 1
        assert (gate.timed_out, gate.waiting, gate.running) == (1, 0, 1)
        gate.release(1.0)
        await gate.acquire()

    run(main())


def test_a_turn_that_comes_with_the_end_of_the_wait_is_taken() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 1, 0.0)
        await gate.acquire()
        waiting = asyncio.create_task(gate.acquire())
        await asyncio.sleep(0)  # it waits, and its time is up in the next step
        gate.release(1.0)
        await waiting
        assert (gate.running, gate.timed_out) == (1, 0)

    run(main())


def test_who_is_cancelled_while_waiting_gives_up_the_turn() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 2, LONG_S)
        await gate.acquire()
        gone, next_one = (asyncio.create_task(gate.acquire()) for _ in range(2))
        await _settle()
        gone.cancel()
        gate.release(1.0)  # before the cancelled task has run
        await next_one
        assert gone.cancelled() or gone.cancelling()
        await _settle()
        assert (gate.running, gate.waiting) == (1, 0)

    run(main())


def test_who_is_cancelled_just_as_the_turn_comes_hands_the_place_on() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 2, LONG_S)
        await gate.acquire()
        gone, next_one = (asyncio.create_task(gate.acquire()) for _ in range(2))
        await _settle()
        gate.release(1.0)
        gone.cancel()
        await next_one
        assert gone.cancelled()
        assert (gate.running, gate.waiting, gate.admitted) == (1, 0, 2)

    run(main())


def test_more_places_let_in_those_who_wait_and_fewer_turn_nobody_out() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 4, LONG_S)
        tasks = [asyncio.create_task(gate.acquire()) for _ in range(4)]
        await _settle()
        gate.resize(3)
        await _settle()
        assert (gate.running, gate.waiting) == (3, 1)
        gate.resize(0)
        assert (gate.slots, gate.running) == (1, 3)
        gate.release(1.0)
        gate.release(1.0)
        await _settle()
        assert (gate.running, gate.waiting) == (1, 1)
        gate.release(1.0)
        await asyncio.gather(*tasks)
        assert gate.running == 1

    run(main())


@table(("took_s", "slots", "seconds"), [([], 1, 1), ([0.01], 1, 1), ([8.0], 4, 2), ([9.0], 4, 3), ([10_000.0], 1, 120)])
def test_the_time_to_come_again_is_measured_and_has_bounds(took_s: list[float], slots: int, seconds: int) -> None:
    async def main() -> int:
        gate = RequestQueue(slots, 4, LONG_S)
        for each in took_s:
            await gate.acquire()
            gate.release(each)
        return gate.retry_after_s()

    assert run(main()) == seconds


def test_the_mean_follows_what_requests_take_now() -> None:
    async def main() -> None:
        gate = RequestQueue(1, 0, LONG_S)
        for took_s in [100.0] + [2.0] * 40:
            await gate.acquire()
            gate.release(took_s)
        assert gate.retry_after_s() == 3  # 2.01 s, in whole seconds

    run(main())


@pytest.mark.parametrize("error", [None, KeyError, asyncio.CancelledError])
def test_a_place_is_held_for_a_block_however_it_ends(error: type[BaseException] | None) -> None:
    async def main() -> None:
        clock = Clock()
        gate = RequestQueue(1, 0, LONG_S, clock)
        with contextlib.suppress(KeyError, asyncio.CancelledError):
            async with gate.slot() as waited_s:
                assert (waited_s, gate.running) == (0.0, 1)
                clock.now += 7.0
                if error is not None:
                    raise error
        assert gate.running == 0
        assert gate.retry_after_s() == 7

    run(main())


def test_to_leave_without_having_entered_is_our_mistake() -> None:
    with pytest.raises(RuntimeError):
        RequestQueue(1, 1, LONG_S).release(1.0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "leave", "cancel", "resize", "step", "settle"]), st.integers(0, 7)),
    max_size=60,
)


class Crowd:
    """Clients that ask, leave and give up in any order."""

    def __init__(self, gate: RequestQueue, slots: int) -> None:
        self.gate = gate
        self.inside = 0
        self.most = slots
        self.tasks: list[asyncio.Task[None]] = []
        self.exits: list[asyncio.Event] = []

    async def ask(self) -> None:
        try:
            await self.gate.acquire()
        except ApiError:
            return
        self.inside += 1
        exits = asyncio.Event()
        self.exits.append(exits)
        assert self.inside <= self.gate.running
        try:
            await exits.wait()
        finally:
            self.inside -= 1
            self.gate.release(1.0)

    async def step(self, what: str, number: int) -> None:
        match what:
            case "ask":
                self.tasks.append(asyncio.create_task(self.ask()))
            case "leave" if self.exits:
                self.exits.pop(number % len(self.exits)).set()
            case "cancel" if self.tasks:
                self.tasks[number % len(self.tasks)].cancel()
            case "resize":
                self.gate.resize(1 + number % 4)
                self.most = max(self.most, 1 + number % 4)
            case "step":
                await asyncio.sleep(0)
            case _:
                await _settle()

    async def go(self) -> None:
        while not all(task.done() for task in self.tasks):
            for exits in self.exits:
                exits.set()
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks, return_exceptions=True)


@given(STEPS, st.integers(1, 3), st.integers(0, 4), st.sampled_from([0.0, LONG_S]))
def test_never_more_inside_than_places_and_never_a_place_lost(
    steps: list[tuple[str, int]], slots: int, queue: int, wait_s: float
) -> None:
    async def main() -> None:
        gate = RequestQueue(slots, queue, wait_s)
        crowd = Crowd(gate, slots)
        for what, number in steps:
            await crowd.step(what, number)
            assert gate.running <= crowd.most
            assert gate.waiting <= queue
            assert gate.waiting == 0 or gate.running >= gate.slots
        await crowd.go()
        assert (gate.running, gate.waiting, crowd.inside) == (0, 0, 0)
        for task in crowd.tasks:
            assert task.cancelled() or task.exception() is None
        await asyncio.gather(*(gate.acquire() for _ in range(gate.slots)))
        assert gate.running == gate.slots

    run(main())
