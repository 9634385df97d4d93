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
from welldone.bench import plan
from welldone.bench.arrivals import replayed
from welldone.bench.assertions import judge
from welldone.bench.compare import ratios
from welldone.bench.counting import Counter, find_counter, why_none
from welldone.bench.load import Load
from welldone.bench.look import Target, ask_root, look, secrets_of
from welldone.bench.look import UnreachableError as UnreachableError
from welldone.bench.plan import Closed, Open, Planned, Replayed
from welldone.bench.prompts import Prompts, prompts_for
from welldone.bench.record import End, Record
from welldone.bench.report import BenchReport, Compared, Step
from welldone.bench.rounds import together
from welldone.bench.settings import BenchSettings, Kind

ROUNDS = 4
"""How often two servers are asked in turn within a step: what the machine does besides hits both."""
STOPPED = "it was stopped"
"""Why a run ended early, where somebody said so."""
MOST_KEPT = 50_000_000
"""Numbers that a run keeps of its requests, eight bytes each: three hours at five thousand tokens per second."""
_RECORD_SIZE = 60  # numbers that would take as much memory as a record without its times does
_FULL = f"it has measured {MOST_KEPT:,} chunks, and more are not kept: a shorter --duration, or fewer steps, fit"
_NO_RATE = "no answer of the throughput step ended well, so there is no rate to go on from"
_PATIENCE = "a longer --grace, or shorter answers (--decode-options num_tokens=50), may do"
_SECRET = ("key", "against_key", "headers")


class Watch(msgspec.Struct):
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
    steps: list[Step] = msgspec.field(default_factory=list)
    """Those that are over."""


async def bench(
    settings: BenchSettings,
    *,
    stop: asyncio.Event | None = None,
    watch: Watch | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> BenchReport:
    """The report. Whoever sets `stop` gets it at once, with what there is. `on_start`: the server is there.

    Raises:
        UnreachableError: the server gives no answer to measure.
        ValueError: the URL, the key, a file or a tokenizer cannot be used.
    """
    watch = watch or Watch()
    steps = _first_steps(settings)
    began = _date()
    targets = await look(settings)
    watch.title = f"{targets[0].model} at {' and '.join(target.url for target in targets)}"
    if settings.endpoint != "chat":
        watch.title += f", {settings.endpoint}"
    counter = await find_counter(settings.tokenizer, partial(ask_root, targets[0]))
    run = _Run(settings, stop or asyncio.Event(), watch, targets, counter)
    on_start()
    await run.measure_all(steps)
    return BenchReport(
        tool=__version__,
        began=began,
        ended=_date(),
        url=settings.url,
        against=settings.against,
        endpoint=settings.endpoint,
        model=targets[0].model,
        kind=settings.kind.value,
        config=public(settings),
        tokenizer=f"the server's usage numbers, or else {_other_counter(settings, counter)}",
        is_whole=not run.why,
        why=run.why,
        steps=tuple(watch.steps),
        compared=tuple(run.compared),
        checked=judge(settings.assertions, watch.steps),
        system=_system(),
    )


def _first_steps(settings: BenchSettings) -> list[Planned]:
    match settings.kind:
        case Kind.SWEEP | Kind.THROUGHPUT:
            return [Closed("throughput", settings.max_vus)]
        case Kind.RATE:
            return plan.rate_steps(settings, settings.rates)
        case Kind.QUICK | Kind.CONCURRENCY:
            return plan.users_of(settings)
        case Kind.REPLAY:
            assert settings.replay is not None
            return [Replayed("replay", tuple(replayed(settings.replay)))]


def _other_counter(settings: BenchSettings, counter: Counter | None) -> str:
    return f"its chunks ({why_none(settings.tokenizer)})" if counter is None else counter.name


class _Run:
    """The steps of a run, one after the other."""

    def __init__(
        self, settings: BenchSettings, stop: asyncio.Event, watch: Watch, targets: list[Target], counter: Counter | None
    ) -> None:
        self.why = ""
        """Why it ended early, if it did."""
        self.compared: list[Compared] = []
        self._settings = settings
        self._stop = stop
        self._watch = watch
        self._targets = targets
        self._counter = counter
        self._rng = random.Random(settings.seed)
        self._prompts: Prompts = prompts_for(settings, counter, self._rng)
        self._secrets = secrets_of(settings)
        self._kept = 0

    async def measure_all(self, steps: list[Planned]) -> None:
        settings, watch = self._settings, self._watch
        is_sweep = settings.kind is Kind.SWEEP
        watch.total = bool(settings.warmup_s) + len(steps) + is_sweep * settings.num_rates
        if settings.warmup_s:
            await self._measure(plan.WARMUP, settings.warmup_s)
            self._check_warmup()
        for step in steps:
            await self._measure(step, settings.duration_s)
        if is_sweep and not self._stop.is_set():
            await self._sweep()
        if self._stop.is_set():
            self.why = self.why or STOPPED

    def _check_warmup(self) -> None:
        for step in self._watch.steps:
            if not step.ok and not self._stop.is_set():
                reason = next(iter(step.reasons), End.UNFINISHED)
                if reason == End.UNFINISHED:
                    reason = f"it was still under way after {step.seconds + self._settings.grace_s:g} s; {_PATIENCE}"
                raise UnreachableError(f"{step.target} gave no whole answer in the warm-up: {reason}")

    async def _sweep(self) -> None:
        """Rising rates. Of two servers both get those of the first."""
        settings = self._settings
        found = self._watch.steps[-len(self._targets)].request_rate
        if not found:
            self.why = _NO_RATE
            return
        for step in plan.rate_steps(settings, plan.sweep_rates(settings, found)):
            await self._measure(step, settings.duration_s)

    async def _measure(self, step: Planned, seconds: float) -> None:
        if self._stop.is_set():
            return
        watch = self._watch
        if isinstance(step, Replayed):
            seconds = step.times[-1] + plan.LAST_S
        watch.step, watch.number, watch.seconds = step.id, watch.number + 1, seconds * len(self._targets)
        if len(self._targets) == 1:
            watch.steps.append(self._step(step, 0, [await self._load(step, 0, seconds)]))
            return
        # A trace cannot be cut: what comes late in it would never be played.
        rounds = 1 if step is plan.WARMUP or isinstance(step, Replayed) else ROUNDS
        loads: tuple[list[Load], list[Load]] = ([], [])
        for order in plan.turns(rounds):
            for number in order:
                loads[number].append(await self._load(step, number, seconds / rounds))
        watch.steps += [self._step(step, number, loads[number]) for number in (0, 1)]
        if step is not plan.WARMUP:
            self._compare(step, loads)

    def _compare(self, step: Planned, loads: tuple[list[Load], list[Load]]) -> None:
        """Round by round; one that was stopped tells nothing."""
        whole = [pair for pair in zip(*loads, strict=True) if all(load.is_whole for load in pair)]
        pairs = [(self._step(step, 0, [first]), self._step(step, 1, [second])) for first, second in whole]
        self.compared += ratios(pairs)

    async def _load(self, step: Planned, number: int, seconds: float) -> Load:
        settings, target = self._settings, self._targets[number]
        load = Load(
            target.address,
            self._prompts,
            target.members,
            timeout_s=settings.timeout_s,
            grace_s=settings.grace_s,
            stop=self._stop,
            dialect=target.dialect,
            target=number,
            keeps_texts=self._counter is not None,
            on_end=self._note,
        )
        self._watch.load = load
        if isinstance(step, Closed):
            await load.closed(step.users, seconds)
        else:
            schedule = plan.schedule(step, settings, self._rng)
            await load.open(schedule, seconds, settings.max_vus, is_until_answered=isinstance(step, Replayed))
        self._count_tokens(load)
        return load

    def _note(self, record: Record) -> None:
        """A request has ended: nothing secret stays in it, and there is an end to what is kept."""
        record.why = self._secrets.clean(record.why)
        record.finish = self._secrets.clean(record.finish)
        self._kept += _RECORD_SIZE + len(record.times)
        if self._kept > MOST_KEPT and not self._stop.is_set():
            self.why = _FULL
            self._stop.set()

    def _count_tokens(self, load: Load) -> None:
        """Count what the server did not, now that nothing is measured."""
        if self._counter is not None:
            for record, text in load.texts:
                record.counted = self._counter.count(text)
        load.texts.clear()
        for record in load.records:
            if record.tokens is not None:
                by = "usage"
            elif record.counted is not None:
                by, record.tokens = "tokenizer", record.counted
            else:
                by, record.tokens = "chunks", len(record.times)
            if record.end is End.OK:
                load.tokens_by.add(by)

    def _step(self, step: Planned, number: int, loads: list[Load]) -> Step:
        settings = self._settings
        return together(
            loads,
            id=step.id,
            target=self._targets[number].url,
            is_open=not isinstance(step, Closed),
            max_vus=step.users if isinstance(step, Closed) else settings.max_vus,
            rate=step.rate if isinstance(step, Open) else None,
            goodput=settings.goodput,
        )


def public(settings: BenchSettings) -> dict[str, object]:
    """The settings as JSON has them, without what may be secret."""
    values: dict[str, object] = msgspec.to_builtins(settings, enc_hook=str)
    return {name: value for name, value in values.items() if name not in _SECRET}


def _date() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _system() -> dict[str, object]:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": [platform.machine()] * (os.cpu_count() or 1),
        "memory": f"{pages / 2**30:.2f} GB",
        "os_name": platform.system(),
        "os_version": platform.release(),
        "kernel": platform.version(),
        "hostname": platform.node(),
    }
