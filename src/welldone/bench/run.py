"""A run of the load test: the first look, the warm-up, the steps, and the report of what there was."""

import asyncio
import os
import platform
import random
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from welldone import __version__
from welldone.bench import load
from welldone.bench.client import BenchTarget, BenchUnreachableError, bench_secrets, post_to_root, probe_targets
from welldone.bench.load import (
    ClosedLoopStep,
    LoadGenerator,
    OpenLoopStep,
    PlannedStep,
    TraceReplayStep,
    merge_rounds,
    read_arrival_times,
)
from welldone.bench.prompts import PromptSource, make_prompt_source
from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.report import BenchReport, MetricComparison, StepResult
from welldone.bench.settings import BenchmarkKind, BenchSettings
from welldone.bench.stats import check_assertions, compare_rounds
from welldone.bench.tokens import BenchTokenCounter, find_token_counter, why_no_counter

COMPARISON_ROUNDS = 4
"""How often two servers are asked in turn within a step: what the machine does besides hits both."""
STOPPED_BY_USER = "it was stopped"
"""Why a run ended early, where somebody said so."""
MAX_SAMPLES = 50_000_000
"""Numbers that a run keeps of its requests, eight bytes each: three hours at five thousand tokens per second."""
_RECORD_SIZE = 60  # numbers that would take as much memory as a record without its times does
_SAMPLES_EXHAUSTED = (
    f"it has measured {MAX_SAMPLES:,} chunks, and more are not kept: a shorter --duration, or fewer steps, fit"
)
_NO_SWEEP_RATE = "no answer of the throughput step ended well, so there is no rate to go on from"
_TIMEOUT_HINT = "a longer --grace, or shorter answers (--decode-options num_tokens=50), may do"
_SECRET_FIELDS = ("key", "against_key", "headers")


class BenchProgress(msgspec.Struct):
    """What a run is at, for who watches. It is changed in place."""

    title: str = ""
    """The model and the server."""
    step: str = ""
    """The one that runs."""
    number: int = 0
    total: int = 0
    seconds: float = 0.0
    """How long the step takes."""
    load: Any = None
    """The `Load` that runs; its counts and records may be looked at."""
    steps: list[StepResult] = msgspec.field(default_factory=list)
    """Those that are over."""


async def run_bench(
    settings: BenchSettings,
    *,
    stop: asyncio.Event | None = None,
    progress: BenchProgress | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> BenchReport:
    """The report. Whoever sets `stop` gets it at once, with what there is. `on_start`: the server is there.

    Raises:
        UnreachableError: the server gives no answer to measure.
        ValueError: the URL, the key, a file or a tokenizer cannot be used.
    """
    progress = progress or BenchProgress()
    steps = _first_steps(settings)
    began = _utc_now()
    targets = await probe_targets(settings)
    progress.title = f"{targets[0].model} at {' and '.join(target.url for target in targets)}"
    if settings.endpoint != "chat":
        progress.title += f", {settings.endpoint}"
    counter = await find_token_counter(settings.tokenizer, partial(post_to_root, targets[0]))
    run = _BenchRun(settings, stop or asyncio.Event(), progress, targets, counter)
    on_start()
    await run.measure_all(steps)
    return BenchReport(
        tool=__version__,
        began=began,
        ended=_utc_now(),
        url=settings.url,
        against=settings.against,
        endpoint=settings.endpoint,
        model=targets[0].model,
        kind=settings.kind.value,
        config=public_settings(settings),
        tokenizer=f"the server's usage numbers, or else {_fallback_counter(settings, counter)}",
        is_complete=not run.incomplete_reason,
        incomplete_reason=run.incomplete_reason,
        steps=tuple(progress.steps),
        comparisons=tuple(run.comparisons),
        assertion_results=check_assertions(settings.assertions, progress.steps),
        system=_system_info(),
    )


def _first_steps(settings: BenchSettings) -> list[PlannedStep]:
    match settings.kind:
        case BenchmarkKind.SWEEP | BenchmarkKind.THROUGHPUT:
            return [ClosedLoopStep("throughput", settings.max_vus)]
        case BenchmarkKind.RATE:
            return load.rate_steps(settings, settings.rates)
        case BenchmarkKind.QUICK | BenchmarkKind.CONCURRENCY:
            return load.concurrency_steps(settings)
        case BenchmarkKind.REPLAY:
            assert settings.replay is not None
            return [TraceReplayStep("replay", tuple(read_arrival_times(settings.replay)))]


def _fallback_counter(settings: BenchSettings, counter: BenchTokenCounter | None) -> str:
    return f"its chunks ({why_no_counter(settings.tokenizer)})" if counter is None else counter.name


class _BenchRun:
    """The steps of a run, one after the other."""

    def __init__(
        self,
        settings: BenchSettings,
        stop: asyncio.Event,
        progress: BenchProgress,
        targets: list[BenchTarget],
        counter: BenchTokenCounter | None,
    ) -> None:
        self.incomplete_reason = ""
        """Why it ended early, if it did."""
        self.comparisons: list[MetricComparison] = []
        self._settings = settings
        self._stop = stop
        self._progress = progress
        self._targets = targets
        self._counter = counter
        self._rng = random.Random(settings.seed)
        self._prompts: PromptSource = make_prompt_source(settings, counter, self._rng)
        self._secrets = bench_secrets(settings)
        self._sample_count = 0

    async def measure_all(self, steps: list[PlannedStep]) -> None:
        settings, watch = self._settings, self._progress
        is_sweep = settings.kind is BenchmarkKind.SWEEP
        watch.total = bool(settings.warmup_s) + len(steps) + is_sweep * settings.num_rates
        if settings.warmup_s:
            await self._measure(load.WARMUP_STEP, settings.warmup_s)
            self._check_warmup()
        for step in steps:
            await self._measure(step, settings.duration_s)
        if is_sweep and not self._stop.is_set():
            await self._sweep()
        if self._stop.is_set():
            self.incomplete_reason = self.incomplete_reason or STOPPED_BY_USER

    def _check_warmup(self) -> None:
        for step in self._progress.steps:
            if not step.ok and not self._stop.is_set():
                reason = next(iter(step.reasons), RequestOutcome.UNFINISHED)
                if reason == RequestOutcome.UNFINISHED:
                    reason = (
                        f"it was still under way after {step.seconds + self._settings.grace_s:g} s; {_TIMEOUT_HINT}"
                    )
                raise BenchUnreachableError(f"{step.target} gave no whole answer in the warm-up: {reason}")

    async def _sweep(self) -> None:
        """Rising rates. Of two servers both get those of the first."""
        settings = self._settings
        found = self._progress.steps[-len(self._targets)].request_rate
        if not found:
            self.incomplete_reason = _NO_SWEEP_RATE
            return
        for step in load.rate_steps(settings, load.sweep_rates(settings, found)):
            await self._measure(step, settings.duration_s)

    async def _measure(self, step: PlannedStep, seconds: float) -> None:
        if self._stop.is_set():
            return
        watch = self._progress
        if isinstance(step, TraceReplayStep):
            seconds = step.times[-1] + load.REPLAY_TAIL_S
        watch.step, watch.number, watch.seconds = step.id, watch.number + 1, seconds * len(self._targets)
        if len(self._targets) == 1:
            watch.steps.append(self._step_result(step, 0, [await self._generate_load(step, 0, seconds)]))
            return
        # A trace cannot be cut: what comes late in it would never be played.
        rounds = 1 if step is load.WARMUP_STEP or isinstance(step, TraceReplayStep) else COMPARISON_ROUNDS
        loads: tuple[list[LoadGenerator], list[LoadGenerator]] = ([], [])
        for order in load.round_orders(rounds):
            for number in order:
                loads[number].append(await self._generate_load(step, number, seconds / rounds))
        watch.steps += [self._step_result(step, number, loads[number]) for number in (0, 1)]
        if step is not load.WARMUP_STEP:
            self._compare(step, loads)

    def _compare(self, step: PlannedStep, loads: tuple[list[LoadGenerator], list[LoadGenerator]]) -> None:
        """Round by round; one that was stopped tells nothing."""
        whole = [pair for pair in zip(*loads, strict=True) if all(load.is_complete for load in pair)]
        pairs = [(self._step_result(step, 0, [first]), self._step_result(step, 1, [second])) for first, second in whole]
        self.comparisons += compare_rounds(pairs)

    async def _generate_load(self, step: PlannedStep, number: int, seconds: float) -> LoadGenerator:
        settings, target = self._settings, self._targets[number]
        load = LoadGenerator(
            target.address,
            self._prompts,
            target.common_fields,
            timeout_s=settings.timeout_s,
            grace_s=settings.grace_s,
            stop=self._stop,
            dialect=target.dialect,
            target=number,
            keeps_texts=self._counter is not None,
            on_end=self._on_request_end,
        )
        self._progress.load = load
        if isinstance(step, ClosedLoopStep):
            await load.run_closed_loop(step.users, seconds)
        else:
            schedule = load.arrival_times(step, settings, self._rng)
            await load.run_open_loop(
                schedule, seconds, settings.max_vus, wait_for_last_answer=isinstance(step, TraceReplayStep)
            )
        self._count_tokens(load)
        return load

    def _on_request_end(self, record: BenchRecord) -> None:
        """A request has ended: nothing secret stays in it, and there is an end to what is kept."""
        record.error = self._secrets.redact(record.error)
        record.finish_reason = self._secrets.redact(record.finish_reason)
        self._sample_count += _RECORD_SIZE + len(record.times)
        if self._sample_count > MAX_SAMPLES and not self._stop.is_set():
            self.incomplete_reason = _SAMPLES_EXHAUSTED
            self._stop.set()

    def _count_tokens(self, load: LoadGenerator) -> None:
        """Count what the server did not, now that nothing is measured."""
        if self._counter is not None:
            for record, text in load.texts:
                record.tokenizer_tokens = self._counter.count(text)
        load.texts.clear()
        for record in load.records:
            if record.tokens is not None:
                by = "usage"
            elif record.tokenizer_tokens is not None:
                by, record.tokens = "tokenizer", record.tokenizer_tokens
            else:
                by, record.tokens = "chunks", len(record.times)
            if record.outcome is RequestOutcome.OK:
                load.tokens_by.add(by)

    def _step_result(self, step: PlannedStep, number: int, loads: list[LoadGenerator]) -> StepResult:
        settings = self._settings
        return merge_rounds(
            loads,
            id=step.id,
            target=self._targets[number].url,
            is_open=not isinstance(step, ClosedLoopStep),
            max_vus=step.users if isinstance(step, ClosedLoopStep) else settings.max_vus,
            rate=step.rate if isinstance(step, OpenLoopStep) else None,
            goodput=settings.goodput,
        )


def public_settings(settings: BenchSettings) -> dict[str, object]:
    """The settings as JSON has them, without what may be secret."""
    values: dict[str, object] = msgspec.to_builtins(settings, enc_hook=str)
    return {name: value for name, value in values.items() if name not in _SECRET_FIELDS}


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _system_info() -> dict[str, object]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": [platform.machine()] * (os.cpu_count() or 1),
        "memory": f"{pages / 2**30:.2f} GB",
        "os_name": platform.system(),
        "os_version": platform.release(),
        "kernel": platform.version(),
        "hostname": platform.node(),
    }
