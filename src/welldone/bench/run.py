"""A load test: probe of the server, warm-up, steps, report."""

import asyncio
import os
import platform
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from welldone import __version__
from welldone.bench import load
from welldone.bench.client import (
    BenchTarget,
    BenchUnreachableError,
    bench_secrets,
    find_slots,
    post_to_root,
    probe_targets,
)
from welldone.bench.load import LoadGenerator, PlannedStep
from welldone.bench.prompts import PromptSource, make_prompt_source
from welldone.bench.report import BenchRecord, BenchReport, MetricComparison, RequestOutcome, StepResult
from welldone.bench.settings import BenchmarkKind, BenchSettings
from welldone.bench.stats import check_assertions, compare_rounds
from welldone.bench.tokens import BenchTokenCounter, find_token_counter, why_no_counter

COMPARISON_ROUNDS = 4
"""Alternations between two servers within a step: disturbances on the machine affect both."""
STOPPED_BY_USER = "it was stopped"
"""Reason of a run that a signal ended early."""
MAX_SAMPLES = 50_000_000
"""Numbers recorded per run, of eight bytes each: three hours at five thousand tokens per second."""
_RECORD_SIZE = 60  # the memory of a record without its times, in numbers
_SAMPLES_EXHAUSTED = (
    f"it has recorded {MAX_SAMPLES:,} chunks, which is the limit: use a shorter --duration, or fewer steps"
)
_NO_SWEEP_RATE = "no request of the throughput step succeeded, so there is no rate to start the sweep from"
_TIMEOUT_HINT = "try a longer --grace, or shorter answers (--decode-options num_tokens=50)"
_SECRET_FIELDS = ("key", "against_key", "headers")


class BenchProgress(msgspec.Struct):
    """Progress of a run, for the live view. Changed in place."""

    title: str = ""
    """Model and server."""
    step: str = ""
    """Id of the current step."""
    number: int = 0
    total: int = 0
    seconds: float = 0.0
    """Duration of the current step."""
    load: Any = None
    """The current `LoadGenerator`; its counts and records may be read."""
    steps: list[StepResult] = msgspec.field(default_factory=list)
    """Finished steps."""


async def run_bench(
    settings: BenchSettings,
    *,
    stop: asyncio.Event | None = None,
    progress: BenchProgress | None = None,
    on_start: Callable[[BenchSettings], None] = lambda _: None,
) -> BenchReport:
    """Run the load test and return its report. Setting `stop` ends it with the results so far.

    A quick run has as many users as the server has slots. `on_start` is called with the settings of the run, once the
    server has answered.

    Raises:
        BenchUnreachableError: the server gives no answer that can be measured.
        ValueError: the URL, the key, a file or a tokenizer cannot be used.
    """
    progress = progress or BenchProgress()
    steps = load.first_steps(settings)
    began = _utc_now()
    targets = await probe_targets(settings)
    if settings.kind is BenchmarkKind.QUICK and (slots := await find_slots(targets[0])) is not None:
        levels = tuple(sorted({1, min(slots, settings.max_vus)}))
        settings = msgspec.structs.replace(settings, levels=levels)
        steps = load.first_steps(settings)
    progress.title = f"{targets[0].model} at {' and '.join(target.url for target in targets)}"
    if settings.endpoint != "chat":
        progress.title += f", {settings.endpoint}"
    counter = await find_token_counter(settings.tokenizer, partial(post_to_root, targets[0]))
    run = _BenchRun(settings, stop or asyncio.Event(), progress, targets, counter)
    fallback = f"its chunks ({why_no_counter(settings.tokenizer)})" if counter is None else counter.name
    on_start(settings)
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
        tokenizer=f"the server's usage numbers, or else {fallback}",
        is_complete=not run.incomplete_reason,
        incomplete_reason=run.incomplete_reason,
        steps=tuple(progress.steps),
        comparisons=tuple(run.comparisons),
        assertion_results=check_assertions(settings.assertions, progress.steps),
        system=_system_info(),
    )


@dataclass
class _BenchRun:
    """Runs the steps in sequence."""

    settings: BenchSettings
    stop: asyncio.Event
    progress: BenchProgress
    targets: list[BenchTarget]
    counter: BenchTokenCounter | None

    def __post_init__(self) -> None:
        self.incomplete_reason = ""
        """Why the run ended early, if it did."""
        self.comparisons: list[MetricComparison] = []
        self._rng = random.Random(self.settings.seed)
        self._prompts: PromptSource = make_prompt_source(self.settings, self.counter, self._rng)
        self._secrets = bench_secrets(self.settings)
        self._sample_count = 0

    async def measure_all(self, steps: list[PlannedStep]) -> None:
        settings, watch = self.settings, self.progress
        is_sweep = settings.kind is BenchmarkKind.SWEEP
        watch.total = bool(settings.warmup_s) + len(steps) + is_sweep * settings.num_rates
        if settings.warmup_s:
            await self._measure(load.WARMUP_STEP, settings.warmup_s)
            self._check_warmup()
        for step in steps:
            await self._measure(step, settings.duration_s)
        if is_sweep and not self.stop.is_set():
            await self._sweep()
        if self.stop.is_set():
            self.incomplete_reason = self.incomplete_reason or STOPPED_BY_USER

    def _check_warmup(self) -> None:
        for step in self.progress.steps:
            if not step.ok and not self.stop.is_set():
                reason = next(iter(step.reasons), RequestOutcome.UNFINISHED)
                if reason == RequestOutcome.UNFINISHED:
                    waited_s = step.seconds + self.settings.grace_s
                    reason = f"it was still in flight after {waited_s:g} s; {_TIMEOUT_HINT}"
                raise BenchUnreachableError(f"{step.target} completed no answer in the warm-up: {reason}")

    async def _sweep(self) -> None:
        """Measure rising rates. With two servers, both get the rates of the first."""
        settings = self.settings
        max_rate = self.progress.steps[-len(self.targets)].request_rate
        if not max_rate:
            self.incomplete_reason = _NO_SWEEP_RATE
            return
        for step in load.sweep_steps(settings, max_rate):
            await self._measure(step, settings.duration_s)

    async def _measure(self, step: PlannedStep, seconds: float) -> None:
        if self.stop.is_set():
            return
        watch = self.progress
        if step.times:
            seconds = step.times[-1] + load.REPLAY_TAIL_S
        watch.step, watch.number, watch.seconds = step.id, watch.number + 1, seconds * len(self.targets)
        if len(self.targets) == 1:
            watch.steps.append(self._step_result(step, 0, [await self._generate_load(step, 0, seconds)]))
            return
        # A replay cannot be split into rounds: arrivals late in the file would never be reached.
        rounds = 1 if step is load.WARMUP_STEP or step.times else COMPARISON_ROUNDS
        loads: tuple[list[LoadGenerator], list[LoadGenerator]] = ([], [])
        for order in range(rounds):
            for number in (0, 1) if order % 2 == 0 else (1, 0):  # balanced, so that drifts affect both
                loads[number].append(await self._generate_load(step, number, seconds / rounds))
        watch.steps += [self._step_result(step, number, loads[number]) for number in (0, 1)]
        if step is not load.WARMUP_STEP:
            self._compare(step, loads)

    def _compare(self, step: PlannedStep, loads: tuple[list[LoadGenerator], list[LoadGenerator]]) -> None:
        """Compare the servers round by round, without a round that was stopped."""
        whole = [pair for pair in zip(*loads, strict=True) if all(generator.is_complete for generator in pair)]
        pairs = [(self._step_result(step, 0, [first]), self._step_result(step, 1, [second])) for first, second in whole]
        self.comparisons += compare_rounds(pairs)

    async def _generate_load(self, step: PlannedStep, number: int, seconds: float) -> LoadGenerator:
        settings, target = self.settings, self.targets[number]
        generator = LoadGenerator(
            target.address,
            self._prompts,
            target.common_fields,
            timeout_s=settings.timeout_s,
            grace_s=settings.grace_s,
            stop=self.stop,
            dialect=target.dialect,
            target=number,
            keeps_texts=self.counter is not None,
            on_end=self._on_request_end,
        )
        self.progress.load = generator
        if step.users is not None:
            await generator.run_closed_loop(step.users, seconds)
        else:
            schedule, is_replay = load.arrival_times(step, settings, self._rng), bool(step.times)
            await generator.run_open_loop(schedule, seconds, settings.max_vus, wait_for_last_answer=is_replay)
        self._count_tokens(generator)
        return generator

    def _on_request_end(self, record: BenchRecord) -> None:
        """Redact secrets in a finished record, and stop the run at the limit of recorded numbers."""
        record.error = self._secrets.redact(record.error)
        record.finish_reason = self._secrets.redact(record.finish_reason)
        self._sample_count += _RECORD_SIZE + len(record.times)
        if self._sample_count > MAX_SAMPLES and not self.stop.is_set():
            self.incomplete_reason = _SAMPLES_EXHAUSTED
            self.stop.set()

    def _count_tokens(self, generator: LoadGenerator) -> None:
        """Count the tokens that the server did not report, after the measurement."""
        if self.counter is not None:
            for record, text in generator.texts:
                record.tokenizer_tokens = self.counter.count(text)
        generator.texts.clear()
        for record in generator.records:
            if record.tokens is not None:
                by = "usage"
            elif record.tokenizer_tokens is not None:
                by, record.tokens = "tokenizer", record.tokenizer_tokens
            else:
                by, record.tokens = "chunks", len(record.times)
            if record.outcome is RequestOutcome.OK:
                generator.tokens_by.add(by)

    def _step_result(self, step: PlannedStep, number: int, loads: list[LoadGenerator]) -> StepResult:
        return load.merge_rounds(
            loads,
            self.settings.goodput,
            id=step.id,
            target=self.targets[number].url,
            is_open=step.users is None,
            max_vus=step.users or self.settings.max_vus,
            rate=step.rate,
        )


def public_settings(settings: BenchSettings) -> dict[str, object]:
    """Return the settings as JSON values, without secrets."""
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
