"""The request queue: never more running requests than slots, and no slot is lost."""

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
    """Run a coroutine, with a timeout."""

    async def limited() -> Result:
        async with asyncio.timeout(LONG_S):
            return await main

    return asyncio.run(limited())


async def _settle() -> None:
    """Let all ready tasks run; no wake-up takes more than four loop iterations."""
    for _ in range(4):
        await asyncio.sleep(0)


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_request_with_a_free_slot_starts_at_once() -> None:
    async def main() -> None:
        queue = RequestQueue(2, 0, LONG_S)
        assert await queue.acquire() == 0.0
        assert await queue.acquire() == 0.0
        assert (queue.running, queue.waiting, queue.admitted) == (2, 0, 2)
        queue.release(1.0)
        queue.release(1.0)
        assert queue.running == 0

    run(main())


def test_queued_requests_start_in_fifo_order() -> None:
    async def main() -> list[int]:
        clock = Clock()
        queue = RequestQueue(1, 8, LONG_S, clock)
        entered: list[int] = []

        async def ask(number: int) -> float:
            waited_s = await queue.acquire()
            entered.append(number)
            queue.release(1.0)
            return waited_s

        await queue.acquire()
        tasks = [asyncio.create_task(ask(number)) for number in range(8)]
        await _settle()
        assert queue.waiting == 8
        clock.now = 2.5
        queue.release(1.0)
        assert await asyncio.gather(*tasks) == [2.5] * 8
        assert queue.mean_wait_s == 2.5 * 8 / 9
        return entered

    assert run(main()) == list(range(8))


def test_a_new_request_does_not_overtake_the_queue() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 2, LONG_S)
        await queue.acquire()
        first = asyncio.create_task(queue.acquire())
        await _settle()
        queue.release(1.0)
        late = asyncio.create_task(queue.acquire())
        await first
        await _settle()
        assert not late.done()
        queue.release(1.0)
        await late

    run(main())


def test_a_full_queue_rejects_with_429_and_retry_after() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 1, LONG_S)
        await queue.acquire()
        queue.release(10.0)
        await queue.acquire()
        waiting = asyncio.create_task(queue.acquire())
        await _settle()
        with pytest.raises(ApiError) as caught:
            await queue.acquire()
        assert (caught.value.status, caught.value.code, caught.value.retry_after_s) == (429, "queue_full", 20)
        assert (queue.running, queue.waiting) == (1, 1)
        queue.release(1.0)
        await waiting

    run(main())


def test_a_request_that_waits_too_long_gets_503() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 4, 0.01)
        await queue.acquire()
        with pytest.raises(ApiError) as caught:
            await queue.acquire()
        assert (caught.value.status, caught.value.code) == (503, "queue_timeout")
        assert caught.value.retry_after_s == 1
        assert (queue.waiting, queue.running) == (0, 1)
        queue.release(1.0)
        await queue.acquire()

    run(main())


def test_a_slot_granted_at_the_timeout_is_used() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 1, 0.0)
        await queue.acquire()
        waiting = asyncio.create_task(queue.acquire())
        await asyncio.sleep(0)  # it is queued, and times out in the next iteration
        queue.release(1.0)
        await waiting
        assert queue.running == 1

    run(main())


def test_a_cancelled_request_leaves_the_queue() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 2, LONG_S)
        await queue.acquire()
        gone, next_one = (asyncio.create_task(queue.acquire()) for _ in range(2))
        await _settle()
        gone.cancel()
        queue.release(1.0)  # before the cancelled task has run
        await next_one
        assert gone.cancelled() or gone.cancelling()
        await _settle()
        assert (queue.running, queue.waiting) == (1, 0)

    run(main())


def test_a_request_cancelled_when_its_slot_is_granted_passes_it_on() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 2, LONG_S)
        await queue.acquire()
        gone, next_one = (asyncio.create_task(queue.acquire()) for _ in range(2))
        await _settle()
        queue.release(1.0)
        gone.cancel()
        await next_one
        assert gone.cancelled()
        assert (queue.running, queue.waiting, queue.admitted) == (1, 0, 2)

    run(main())


def test_resizing_admits_queued_requests_and_interrupts_none() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 4, LONG_S)
        tasks = [asyncio.create_task(queue.acquire()) for _ in range(4)]
        await _settle()
        queue.resize(3)
        await _settle()
        assert (queue.running, queue.waiting) == (3, 1)
        queue.resize(0)
        assert (queue.slots, queue.running) == (1, 3)
        queue.release(1.0)
        queue.release(1.0)
        await _settle()
        assert (queue.running, queue.waiting) == (1, 1)
        queue.release(1.0)
        await asyncio.gather(*tasks)
        assert queue.running == 1

    run(main())


@table(("took_s", "slots", "seconds"), [([], 1, 1), ([0.01], 1, 1), ([8.0], 4, 2), ([9.0], 4, 3), ([10_000.0], 1, 120)])
def test_retry_after_follows_the_durations_within_bounds(took_s: list[float], slots: int, seconds: int) -> None:
    async def main() -> int:
        queue = RequestQueue(slots, 4, LONG_S)
        for each in took_s:
            await queue.acquire()
            queue.release(each)
        return queue.retry_after_s()

    assert run(main()) == seconds


def test_the_mean_duration_follows_recent_requests() -> None:
    async def main() -> None:
        queue = RequestQueue(1, 0, LONG_S)
        for took_s in [100.0] + [2.0] * 40:
            await queue.acquire()
            queue.release(took_s)
        assert queue.retry_after_s() == 3  # 2.01 s, in whole seconds

    run(main())


@pytest.mark.parametrize("error", [None, KeyError, asyncio.CancelledError])
def test_a_slot_is_released_however_the_block_ends(error: type[BaseException] | None) -> None:
    async def main() -> None:
        clock = Clock()
        queue = RequestQueue(1, 0, LONG_S, clock)
        with contextlib.suppress(KeyError, asyncio.CancelledError):
            async with queue.slot() as waited_s:
                assert (waited_s, queue.running) == (0.0, 1)
                clock.now += 7.0
                if error is not None:
                    raise error
        assert queue.running == 0
        assert queue.retry_after_s() == 7

    run(main())


def test_releasing_a_slot_that_was_not_acquired_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        RequestQueue(1, 1, LONG_S).release(1.0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["request", "request", "leave", "cancel", "resize", "step", "settle"]), st.integers(0, 7)
    ),
    max_size=60,
)


class Clients:
    """Clients that acquire, release and cancel in any order."""

    def __init__(self, queue: RequestQueue, slots: int) -> None:
        self.queue = queue
        self.running = 0
        self.max_slots = slots
        self.tasks: list[asyncio.Task[None]] = []
        self.exits: list[asyncio.Event] = []

    async def request(self) -> None:
        try:
            await self.queue.acquire()
        except ApiError:
            return
        self.running += 1
        exits = asyncio.Event()
        self.exits.append(exits)
        assert self.running <= self.queue.running
        try:
            await exits.wait()
        finally:
            self.running -= 1
            self.queue.release(1.0)

    async def step(self, action: str, number: int) -> None:
        match action:
            case "request":
                self.tasks.append(asyncio.create_task(self.request()))
            case "leave" if self.exits:
                self.exits.pop(number % len(self.exits)).set()
            case "cancel" if self.tasks:
                self.tasks[number % len(self.tasks)].cancel()
            case "resize":
                self.queue.resize(1 + number % 4)
                self.max_slots = max(self.max_slots, 1 + number % 4)
            case "step":
                await asyncio.sleep(0)
            case _:
                await _settle()

    async def finish(self) -> None:
        while not all(task.done() for task in self.tasks):
            for exits in self.exits:
                exits.set()
            await asyncio.sleep(0)
        await asyncio.gather(*self.tasks, return_exceptions=True)


@given(STEPS, st.integers(1, 3), st.integers(0, 4), st.sampled_from([0.0, LONG_S]))
def test_slots_are_neither_exceeded_nor_lost(
    steps: list[tuple[str, int]], slots: int, max_waiting: int, wait_s: float
) -> None:
    async def main() -> None:
        queue = RequestQueue(slots, max_waiting, wait_s)
        clients = Clients(queue, slots)
        for action, number in steps:
            await clients.step(action, number)
            assert queue.running <= clients.max_slots
            assert queue.waiting <= max_waiting
            assert queue.waiting == 0 or queue.running >= queue.slots
        await clients.finish()
        assert (queue.running, queue.waiting, clients.running) == (0, 0, 0)
        for task in clients.tasks:
            assert task.cancelled() or task.exception() is None
        await asyncio.gather(*(queue.acquire() for _ in range(queue.slots)))
        assert queue.running == queue.slots

    run(main())
