"""Makes the load of one step: users who ask again when they were answered, or requests at their times."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import Any

import msgspec

from welldone.bench.dialects import DIALECTS, BenchDialect
from welldone.bench.listener import BenchReceiver
from welldone.bench.prompts import PromptSource, PromptRequest
from welldone.bench.record import RequestOutcome, BenchRecord
from welldone.bench.report import ClientLoad
from welldone.net.address import Address
from welldone.net.outbound import Exchange, HttpClientError
from welldone.net.pool import ConnectionPool

_LATE_START_S = 0.005
"""A start that is later than this is late: the timers of an event loop are right within some milliseconds."""
_BUSY_CPU_SHARE = 0.8
"""Of a core: beyond it this tool's own work shows in the times."""
_LATE_SHARE = 0.05
_LATE_ALLOWED = 5
"""So many late starts, or such a share of all, may have another cause than this tool."""
_BACKOFF_S = (0.1, 2.0)
"""How long a user waits after a request that did not end well, at first and at most: who is refused at once would ask
some thousand times a second, and neither server nor tool would do anything else."""


class LoadCounters(msgspec.Struct):
    """How a step is doing, for who watches."""

    in_flight: int = 0
    skipped: int = 0
    due: int = 0
    late: int = 0
    max_delay_s: float = 0.0


class LoadGenerator:
    """One step on one server. Its times begin with `begin`."""

    def __init__(
        self,
        address: Address,
        prompts: PromptSource,
        common_fields: dict[str, Any],
        *,
        timeout_s: float,
        grace_s: float,
        stop: asyncio.Event,
        dialect: BenchDialect = DIALECTS["chat"],
        target: int = 0,
        keeps_texts: bool = True,
        on_end: Callable[[BenchRecord], None] = lambda _: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.records: list[BenchRecord] = []
        self.counts = LoadCounters()
        self.seconds = 0.0
        """How long the step was: less than asked where it was stopped."""
        self.is_complete = False
        """Whether it was as long as asked."""
        self.tokens_by: set[str] = set()
        """Who counted the tokens of its answers, once they are."""
        self._address = address
        self._prompts = prompts
        self._common_fields = common_fields
        self._dialect = dialect
        self._timeout_s = timeout_s
        self._grace_s = grace_s
        self._stop = stop
        self._target = target
        self._keeps_texts = keeps_texts
        self._on_end = on_end
        self._clock = clock
        self._begun = clock()
        self._pool = ConnectionPool(idle_per_address=4096)
        self._cpu_begun = self._cpu_used = 0.0
        self.texts: list[tuple[BenchRecord, str]] = []
        """The answers, to be counted when the step is over; none where nobody counts."""

    def now(self) -> float:
        """Seconds since the step began."""
        return self._clock() - self._begun

    @property
    def client_load(self) -> ClientLoad:
        """What this tool did."""
        counts = self.counts
        cpu = self._cpu_used / self.seconds if self.seconds else 0.0
        is_late = counts.late > max(_LATE_ALLOWED, _LATE_SHARE * len(self.records))
        return ClientLoad(
            cpu=cpu,
            late_starts=counts.late,
            max_delay_s=counts.max_delay_s,
            is_bottleneck=cpu > _BUSY_CPU_SHARE or is_late,
        )

    # The two ways.

    async def run_closed_loop(self, users: int, seconds: float) -> None:
        """So many users, each of whom asks again when it was answered."""
        with self._measuring():
            working = [asyncio.create_task(self._run_user(seconds)) for _ in range(users)]
            await self._finish_at(seconds)
            await self._drain(working)

    async def run_open_loop(
        self, schedule: Iterator[float], seconds: float, max_in_flight: int, *, wait_for_last_answer: bool = False
    ) -> None:
        """Requests at their times, whatever the server does; those beyond `most` at once are skipped and counted.

        The step ends after so many seconds, or, where it is asked for, with the last answer.
        """
        with self._measuring():
            working: set[asyncio.Task[BenchRecord]] = set()
            for due_s in schedule:
                if due_s >= seconds or not await self._wait_until(due_s):
                    break
                self.counts.due += 1
                if len(working) >= max_in_flight:
                    self.counts.skipped += 1
                    continue
                task = asyncio.create_task(self._send_request(self._prompts.next(), due_s))
                working.add(task)
                task.add_done_callback(working.discard)
            await self._finish_at(seconds)
            await self._drain(list(working))
            if wait_for_last_answer:
                self._note_end(self.now())

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """The step, without the collector: it stops all for a while, and there are no rings here to collect."""
        gc.collect()
        gc.disable()
        self._cpu_begun = _process_cpu_s()
        self._begun = self._clock()
        try:
            yield
        finally:
            gc.enable()

    async def _finish_at(self, seconds: float) -> None:
        self.is_complete = await self._wait_until(seconds)
        self._note_end(seconds if self.is_complete else min(seconds, self.now()))

    def _note_end(self, seconds: float) -> None:
        self.seconds = seconds
        self._cpu_used = _process_cpu_s() - self._cpu_begun

    async def _wait_until(self, until_s: float) -> bool:
        """Wait for a time of the step; False where it was stopped before."""
        left_s = until_s - self.now()
        if left_s <= 0:
            await asyncio.sleep(0)  # who is late lets the others go on all the same
        elif not self._stop.is_set():
            try:
                async with asyncio.timeout(left_s):
                    await self._stop.wait()
            except TimeoutError:
                return True
        return not self._stop.is_set()

    def _note_start(self, record: BenchRecord) -> None:
        late_s = record.sent_s - record.due_s
        if late_s > _LATE_START_S:
            self.counts.late += 1
            self.counts.max_delay_s = max(self.counts.max_delay_s, late_s)

    async def _drain(self, working: Sequence[asyncio.Task[Any]]) -> None:
        """Let those who are under way end, for a while and as long as nobody stops; then leave them."""
        stopped = asyncio.create_task(self._stop.wait())
        ended = asyncio.gather(*working, return_exceptions=True)
        await asyncio.wait((stopped, ended), timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, *working):
            task.cancel()
        await asyncio.gather(stopped, ended, return_exceptions=True)
        await self._pool.close()
        for failed in ended.result():
            if isinstance(failed, Exception):  # a mistake of ours: a load with fewer users is not the one asked for
                raise failed

    async def _run_user(self, seconds: float) -> None:
        pause_s, longest_s = _BACKOFF_S
        while self.now() < seconds and not self._stop.is_set():
            self.counts.due += 1
            record = await self._send_request(self._prompts.next(), self.now())
            if record.outcome is RequestOutcome.OK:
                pause_s = _BACKOFF_S[0]
                continue
            await self._wait_until(self.now() + pause_s)
            pause_s = min(2 * pause_s, longest_s)

    # One request.

    async def _send_request(self, turn: PromptRequest, due_s: float) -> BenchRecord:
        body = self._dialect.body(self._common_fields, turn.messages, turn.max_tokens)
        data = msgspec.json.encode(body)
        record = BenchRecord(self._target, due_s, self.now(), turn.prompt_tokens, turn.max_tokens)
        self._note_start(record)
        listener = self._make_receiver(record, body)
        self.counts.in_flight += 1
        try:
            listener = await self._receive(listener, data, body)
        finally:
            listener.settle(RequestOutcome.UNFINISHED)
            self.counts.in_flight -= 1
            self.records.append(record)
            self._on_end(record)
        if self._keeps_texts:
            self.texts.append((record, listener.timer.all_text))
        if record.outcome is RequestOutcome.OK:
            self._prompts.add_answer(turn, listener.timer.answer)
        return record

    def _make_receiver(self, record: BenchRecord, body: dict[str, Any]) -> BenchReceiver:
        return BenchReceiver(record, self.now, self._dialect.stream_timer(record, body))

    async def _receive(self, receiver: BenchReceiver, data: bytes, body: dict[str, Any]) -> BenchReceiver:
        exchange: Exchange | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange = await self._send(receiver, data)
                await receiver.done
                if receiver.is_stale:  # the server had closed the connection while nobody used it
                    receiver = self._make_receiver(receiver.record, body)
                    exchange = await self._send(receiver, data, is_fresh=True)
                    await receiver.done
        except TimeoutError:
            receiver.settle(RequestOutcome.TIMED_OUT, f"no end within {self._timeout_s:g} s")
        except HttpClientError as error:
            receiver.settle(RequestOutcome.UNREACHABLE, str(error))
        finally:
            if exchange is not None:
                exchange.close()
        return receiver

    async def _send(self, receiver: BenchReceiver, data: bytes, *, is_fresh: bool = False) -> Exchange:
        sse = "text/event-stream"
        return await self._pool.send(
            self._address, "POST", self._dialect.path, receiver, body=data, accept=sse, is_fresh=is_fresh
        )


def _process_cpu_s() -> float:
    """What this process has worked so far."""
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
