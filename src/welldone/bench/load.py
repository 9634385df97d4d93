"""Load generation of one step: closed loop (users) and open loop (arrival schedule)."""

import asyncio
import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import accumulate, count, repeat
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, Unpack

import msgspec

from welldone.bench.client import BenchReceiver
from welldone.bench.dialects import DIALECTS
from welldone.bench.dialects.base import BenchDialect
from welldone.bench.prompts import PromptRequest, PromptSource
from welldone.bench.report import BenchRecord, ClientLoad, RequestOutcome, StepResult
from welldone.bench.settings import MAX_BURSTINESS, ArrivalProcess, BenchmarkKind, BenchSettings, GoodputBound
from welldone.bench.stats import StepSpec, summarize_step
from welldone.http.address import Address
from welldone.http.client import ConnectionPool, Exchange, RequestOptions, send
from welldone.http.connect import HttpClientError

# Arrival times of an open loop, in seconds from the start of the step.


_MAX_ARRIVALS = 1_000_000  # per file: more than a day at ten requests per second
_LINE_LIMIT_BYTES = 1 << 20  # fits the block hashes of a prompt of a million tokens
_MS_PER_S = 1000.0
_LINE_FORMAT = 'each line must be a number of seconds, or an object with a number as "timestamp"'


def constant_arrivals(rate: float) -> Iterator[float]:
    """Yield evenly spaced times, the first at 0."""
    _check_rate(rate)
    return (number / rate for number in count())


def bursty_arrivals(rate: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Yield times with gamma-distributed gaps, whose variance is `burstiness` times that of a Poisson process.

    With a burstiness of 1 they are those of a Poisson process: independent users. The first arrival follows a gap too.
    """
    _check_rate(rate)
    if not 0 < burstiness <= MAX_BURSTINESS:
        raise ValueError(f"the burstiness must be more than 0 and at most {MAX_BURSTINESS:g}, not {burstiness:g}")
    # A gamma distribution has the mean shape * scale and the variance shape * scale².
    shape, scale = 1 / burstiness, burstiness / rate
    return accumulate(rng.gammavariate(shape, scale) for _ in repeat(None))


def _check_rate(rate: float) -> None:
    if not (rate > 0 and isfinite(rate)):
        raise ValueError(f"a rate must be more than 0 requests per second, not {rate:g}")


class _ArrivalLine(msgspec.Struct):
    """A line of a trace. Only those of Mooncake have the hashes of the prompt's blocks."""

    timestamp: float
    hash_ids: msgspec.Raw = msgspec.Raw()


def read_arrival_times(path: Path) -> list[float]:
    """Read arrival times from a file, sorted and starting at 0: a number per line, or JSON lines with `timestamp`.

    Times are in seconds, with any origin. If a line has `hash_ids`, as the traces of Mooncake do, its `timestamp` is in
    milliseconds, as theirs are.

    Raises:
        ValueError: the file cannot be read, or has another format.
    """
    try:
        with path.open("rb") as file:
            times = sorted(_read_times(path, file))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if not times:
        raise ValueError(f"{path} has no times in it: {_LINE_FORMAT}")
    return [at - times[0] for at in times]


def _read_times(path: Path, file: BinaryIO) -> Iterator[float]:
    decoder = msgspec.json.Decoder(float | _ArrivalLine)
    count = 0
    for number, line in enumerate(iter(partial(file.readline, _LINE_LIMIT_BYTES + 1), b""), 1):
        if len(line) > _LINE_LIMIT_BYTES:
            raise ValueError(f"{path}, line {number}: longer than {_LINE_LIMIT_BYTES} bytes")
        if not line.strip():
            continue
        count += 1
        if count > _MAX_ARRIVALS:
            raise ValueError(f"{path} has more than {_MAX_ARRIVALS} times: use a part of it")
        try:
            value = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError):
            raise ValueError(f"{path}, line {number}: {_LINE_FORMAT}") from None
        yield value if isinstance(value, float) else value.timestamp / (_MS_PER_S if value.hash_ids else 1.0)


_LATE_START_S = 0.005
"""Later starts count as late: the timers of an event loop are accurate to a few milliseconds."""
_BUSY_CPU_SHARE = 0.8
"""CPU share of one core above which the client's own work distorts the times."""
_LATE_SHARE = 0.05
_LATE_ALLOWED = 5
"""Up to this number, or this share, late starts may have other causes than this client."""
_BACKOFF_S = (0.1, 2.0)
"""First and longest pause of a user after a failed request. Without it, a user who is refused at once would send
thousands of requests per second."""


class LoadCounters(msgspec.Struct):
    """Counters of a step, for the live view."""

    in_flight: int = 0
    skipped: int = 0
    due: int = 0
    late: int = 0
    max_delay_s: float = 0.0


@dataclass(eq=False)
class LoadGenerator:
    """Generates the load of one step on one server. Times are relative to its start."""

    address: Address
    prompts: PromptSource
    common_fields: dict[str, Any]
    _: KW_ONLY
    timeout_s: float
    grace_s: float
    stop: asyncio.Event
    dialect: BenchDialect = DIALECTS["chat"]
    target: int = 0
    keeps_texts: bool = True
    on_end: Callable[[BenchRecord], None] = lambda _: None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.records: list[BenchRecord] = []
        self.counts: LoadCounters = LoadCounters()
        self.seconds: float = 0.0
        """Duration of the step: shorter than planned if it was stopped."""
        self.is_complete: bool = False
        """Whether it ran for the planned duration."""
        self.tokens_by: set[str] = set()
        """Sources of the token counts, once tokens are counted."""
        self.texts: list[tuple[BenchRecord, str]] = []
        """Answers whose tokens are counted after the step; empty without a counter."""
        self._begun = self.clock()
        self._pool = ConnectionPool(idle_per_address=4096)
        self._cpu_begun = self._cpu_used = 0.0

    def now(self) -> float:
        """Return the seconds since the step started."""
        return self.clock() - self._begun

    @property
    def cpu(self) -> float:
        """CPU share of one core that this client used during the step."""
        return self._cpu_used / self.seconds if self.seconds else 0.0

    @property
    def is_bottleneck(self) -> bool:
        """Whether this client was too busy, or too late, for its times to be those of the server."""
        return self.cpu > _BUSY_CPU_SHARE or self.counts.late > max(_LATE_ALLOWED, _LATE_SHARE * len(self.records))

    async def run_closed_loop(self, users: int, seconds: float) -> None:
        """Run users who each send the next request when the last one is answered."""
        with self._measuring():
            working = [asyncio.create_task(self._run_user(seconds)) for _ in range(users)]
            await self._finish_at(seconds)
            await self._drain(working)

    async def run_open_loop(
        self, schedule: Iterator[float], seconds: float, max_in_flight: int, *, wait_for_last_answer: bool = False
    ) -> None:
        """Send requests at their times, regardless of the server; skip and count those beyond `max_in_flight`.

        The step ends after so many seconds, or with the last answer if `wait_for_last_answer`.
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
                task = asyncio.create_task(self._send_request(self.prompts.next(), due_s))
                working.add(task)
                task.add_done_callback(working.discard)
            await self._finish_at(seconds)
            await self._drain(list(working))
            if wait_for_last_answer:
                self._note_end(self.now())

    @contextmanager
    def _measuring(self) -> Iterator[None]:
        """Run the step without garbage collection, whose pauses would be measured; few reference cycles arise."""
        gc.collect()
        gc.disable()
        self._cpu_begun = time.process_time()
        self._begun = self.clock()
        try:
            yield
        finally:
            gc.enable()

    async def _finish_at(self, seconds: float) -> None:
        self.is_complete = await self._wait_until(seconds)
        self._note_end(seconds if self.is_complete else min(seconds, self.now()))

    def _note_end(self, seconds: float) -> None:
        self.seconds = seconds
        self._cpu_used = time.process_time() - self._cpu_begun

    async def _wait_until(self, until_s: float) -> bool:
        """Wait for a time of the step; return False if the step was stopped before."""
        left_s = until_s - self.now()
        if left_s <= 0:
            await asyncio.sleep(0)  # even a late task lets others run
        elif not self.stop.is_set():
            try:
                async with asyncio.timeout(left_s):
                    await self.stop.wait()
            except TimeoutError:
                return True
        return not self.stop.is_set()

    async def _drain(self, working: Sequence[asyncio.Task[Any]]) -> None:
        """Let requests in flight finish within the grace period, unless the step is stopped; then cancel them."""
        stopped = asyncio.create_task(self.stop.wait())
        ended = asyncio.gather(*working, return_exceptions=True)
        await asyncio.wait((stopped, ended), timeout=self.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, *working):
            task.cancel()
        await asyncio.gather(stopped, ended, return_exceptions=True)
        await self._pool.close()
        for failed in ended.result():
            if isinstance(failed, Exception):  # a bug: without this user the load is not the planned one
                raise failed

    async def _run_user(self, seconds: float) -> None:
        pause_s, longest_s = _BACKOFF_S
        while self.now() < seconds and not self.stop.is_set():
            self.counts.due += 1
            record = await self._send_request(self.prompts.next(), self.now())
            if record.outcome is RequestOutcome.OK:
                pause_s = _BACKOFF_S[0]
                continue
            await self._wait_until(self.now() + pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _send_request(self, turn: PromptRequest, due_s: float) -> BenchRecord:
        body = self.dialect.body(self.common_fields, turn.messages, turn.max_tokens)
        data = msgspec.json.encode(body)
        record = BenchRecord(self.target, due_s, self.now(), turn.prompt_tokens, turn.max_tokens)
        late_s = record.sent_s - due_s
        if late_s > _LATE_START_S:
            self.counts.late += 1
            self.counts.max_delay_s = max(self.counts.max_delay_s, late_s)
        listener = self._make_receiver(record, body)
        self.counts.in_flight += 1
        try:
            listener = await self._receive(listener, data, body)
        finally:
            listener.settle(RequestOutcome.UNFINISHED)
            self.counts.in_flight -= 1
            self.records.append(record)
            self.on_end(record)
        if self.keeps_texts:
            self.texts.append((record, listener.timer.all_text))
        if record.outcome is RequestOutcome.OK:
            self.prompts.add_answer(turn, listener.timer.answer)
        return record

    def _make_receiver(self, record: BenchRecord, body: dict[str, Any]) -> BenchReceiver:
        return BenchReceiver(record, self.now, self.dialect.stream_timer(record, body))

    async def _receive(self, receiver: BenchReceiver, data: bytes, body: dict[str, Any]) -> BenchReceiver:
        exchange: Exchange | None = None
        options: RequestOptions = {"body": data, "accept": "text/event-stream"}
        try:
            async with asyncio.timeout(self.timeout_s):
                for is_fresh in (False, True):
                    exchange = await send(
                        self.address, "POST", self.dialect.path, receiver, pool=self._pool, is_fresh=is_fresh, **options
                    )
                    await receiver.done
                    if is_fresh or not receiver.is_stale:
                        break
                    receiver = self._make_receiver(receiver.record, body)  # the server had closed the idle connection
        except TimeoutError:
            receiver.settle(RequestOutcome.TIMED_OUT, f"not complete within {self.timeout_s:g} s")
        except HttpClientError as error:
            receiver.settle(RequestOutcome.UNREACHABLE, str(error))
        finally:
            if exchange is not None:
                exchange.close()
        return receiver


# The steps of each kind of run.


SWEEP_HEADROOM = 1.2
"""A sweep goes slightly beyond the rate of the throughput step, to show where the server saturates."""


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step to run: a closed loop of users, or requests at a rate or at given times, regardless of the server."""

    id: str
    users: int | None = None
    """Users who each send the next request when the last one is answered."""
    rate: float | None = None
    times: tuple[float, ...] = ()


WARMUP_STEP = PlannedStep(id="warmup", users=1)
REPLAY_TAIL_S = 0.001
"""A replay lasts this much longer than its last arrival: a request due at the very end would not be sent."""


def first_steps(settings: BenchSettings) -> list[PlannedStep]:
    """Return the steps that are known before the run; raises `ValueError` if a file of times cannot be used."""
    match settings.kind:
        case BenchmarkKind.SWEEP | BenchmarkKind.THROUGHPUT:
            return [PlannedStep(id="throughput", users=settings.max_vus)]
        case BenchmarkKind.RATE:
            return rate_steps(settings, settings.rates)
        case BenchmarkKind.QUICK | BenchmarkKind.CONCURRENCY:
            return [PlannedStep(id=f"concurrency@{users}", users=users) for users in settings.levels]
        case BenchmarkKind.REPLAY:
            assert settings.replay is not None
            return [PlannedStep(id="replay", times=tuple(read_arrival_times(settings.replay)))]


def sweep_steps(settings: BenchSettings, max_rate: float) -> list[PlannedStep]:
    """Return the steps of a sweep, from the maximum rate of the server."""
    count = settings.num_rates
    return rate_steps(settings, [step * max_rate * SWEEP_HEADROOM / count for step in range(1, count + 1)])


def rate_steps(settings: BenchSettings, rates: Iterable[float]) -> list[PlannedStep]:
    """Return a step per rate, with the names of inference-benchmarker."""
    return [PlannedStep(id=f"{settings.arrivals}@{rate:.2f}req/s", rate=rate) for rate in rates]


def arrival_times(step: PlannedStep, settings: BenchSettings, rng: random.Random) -> Iterator[float]:
    """Return the times at which requests are due."""
    if step.rate is None:
        return iter(step.times)
    if settings.arrivals is ArrivalProcess.CONSTANT:
        return constant_arrivals(step.rate)
    return bursty_arrivals(step.rate, settings.burstiness if settings.arrivals is ArrivalProcess.BURSTY else 1.0, rng)


def expected_duration_s(settings: BenchSettings) -> tuple[float, float] | None:
    """Return the expected and the longest duration of a run; None if a file determines it."""
    if settings.kind is BenchmarkKind.REPLAY:
        return None
    steps = len(settings.rates or settings.levels) or 1
    if settings.kind is BenchmarkKind.SWEEP:
        steps = 1 + settings.num_rates
    servers = 1 if settings.against is None else 2
    seconds = servers * (settings.warmup_s + steps * settings.duration_s)
    return seconds, seconds + servers * (bool(settings.warmup_s) + steps) * settings.grace_s


# A step in rounds: the requests of all rounds in sequence, with the rates of each round.


_MOMENTS = ("due_s", "sent_s", "head_s", "role_s", "reasoning_s", "content_s", "tool_s", "ended_s")


def merge_rounds(
    loads: Sequence[LoadGenerator], goodput: Sequence[GoodputBound], **spec: Unpack[StepSpec]
) -> StepResult:
    """Merge the rounds of a step into one result."""
    records: list[BenchRecord] = []
    seconds = 0.0
    for load in loads:
        records += load.records if not seconds else [shift_record(record, seconds) for record in load.records]
        seconds += load.seconds
    client = ClientLoad(
        cpu=sum(load.cpu for load in loads) / len(loads),
        late_starts=sum(load.counts.late for load in loads),
        max_delay_s=max(load.counts.max_delay_s for load in loads),
        is_bottleneck=any(load.is_bottleneck for load in loads),
    )
    step = summarize_step(
        records,
        seconds=seconds,
        due=sum(load.counts.due for load in loads),
        skipped=sum(load.counts.skipped for load in loads),
        tokens_by=" and ".join(sorted({by for load in loads for by in load.tokens_by}, reverse=True)) or "chunks",
        client=client,
        goodput=goodput,
        **spec,
    )
    if len(loads) == 1:
        return step
    # The mean of the rounds' rates: requests that finish after a round belong to none, though to the next's time.
    rounds = [merge_rounds([load], goodput, **spec) for load in loads]
    request_rate = sum(result.request_rate * result.seconds for result in rounds) / (seconds or 1.0)
    token_rate = sum(result.token_rate * result.seconds for result in rounds) / (seconds or 1.0)
    return msgspec.structs.replace(step, request_rate=request_rate, token_rate=token_rate)


def shift_record(record: BenchRecord, seconds: float) -> BenchRecord:
    """Return the record with times relative to a step that started earlier."""
    times = type(record.times)("d", [at + seconds for at in record.times])
    moments = {name: at + seconds for name in _MOMENTS if (at := getattr(record, name)) is not None}
    return msgspec.structs.replace(record, times=times, **moments)
