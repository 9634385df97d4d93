"""A run of the load test: the first look, the warm-up, the steps, and the report of what there was."""

import asyncio
import json
import os
import platform
import random
from datetime import UTC, datetime
from typing import Any

import msgspec

from welldone import __version__
from welldone.bench import plan
from welldone.bench.arrivals import replayed
from welldone.bench.assertions import judge
from welldone.bench.compare import ratios
from welldone.bench.counting import find_counter, why_none
from welldone.bench.load import Load
from welldone.bench.plan import Closed, Planned, Replayed
from welldone.bench.prompts import Prompts, prompts_for
from welldone.bench.record import Record
from welldone.bench.report import BenchReport, Compared, Own, Step
from welldone.bench.settings import BenchSettings, Kind
from welldone.bench.stats import step_of
from welldone.engines.listed import read_models
from welldone.net.address import Address, read_url
from welldone.net.outbound import Fetched, OutboundError, fetch

ROUNDS = 4
"""How often two servers are asked in turn within a step: what the machine does besides hits both."""
_LOOK_S = 60.0  # a server that loads its model answers a first request late
_SHOWN = 160
_SECRET = ("key", "headers")


class UnreachableError(Exception):
    """The server cannot be measured. The message is one line that says what to do."""


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
    settings: BenchSettings, *, stop: asyncio.Event | None = None, watch: Watch | None = None
) -> BenchReport:
    """The report. Whoever sets `stop` gets it at once, with what there is.

    Raises:
        UnreachableError: the server gives no answer to measure.
        ValueError: the URL, the key, a file or a tokenizer cannot be used.
    """
    run = _Run(settings, stop or asyncio.Event(), watch or Watch())
    return await run.all()


class _Target(msgspec.Struct, frozen=True):
    url: str
    address: Address
    members: dict[str, Any]


class _Run:
    def __init__(self, settings: BenchSettings, stop: asyncio.Event, watch: Watch) -> None:
        self._settings = settings
        self._stop = stop
        self._watch = watch
        self._rng = random.Random(settings.seed)
        self._compared: list[Compared] = []
        self._why = ""

    async def all(self) -> BenchReport:
        settings, watch = self._settings, self._watch
        began = _date()
        urls = [settings.url, *([settings.against] if settings.against else [])]
        self._targets = [await self._look(url) for url in urls]
        watch.title = f"{self._targets[0].members['model']} at {' and '.join(urls)}"
        self._counter = await find_counter(settings.tokenizer, self._ask_server)
        self._prompts: Prompts = prompts_for(settings, self._counter, self._rng)
        await self._measure_all()
        return BenchReport(
            tool=__version__,
            began=began,
            ended=_date(),
            url=settings.url,
            against=settings.against,
            model=self._targets[0].members["model"],
            kind=settings.kind.value,
            config=public(settings),
            tokenizer=self._tokenizer,
            is_whole=not self._why,
            why=self._why,
            steps=tuple(watch.steps),
            compared=tuple(self._compared),
            checked=judge(settings.assertions, watch.steps),
            system=_system(),
        )

    @property
    def _tokenizer(self) -> str:
        if self._counter is not None:
            return self._counter.name
        return f"the server's usage numbers, or else its chunks ({why_none(self._settings.tokenizer)})"

    # ---- the first look

    async def _look(self, url: str) -> _Target:
        settings = self._settings
        address = read_url(
            url, key=settings.key, ca_file=settings.ca_file, is_verified=settings.is_verified, headers=settings.headers
        )
        model = settings.model or await self._first_model(url, address)
        members: dict[str, Any] = {
            "model": model,
            "temperature": 0.0,
            "stream_options": {"include_usage": True},
            **settings.extra,
        }
        reply = await self._try(url, address, members)
        if reply.status == 400 and "stream_options" in members:  # some do not know it: then nobody counts tokens
            members = {name: value for name, value in members.items() if name != "stream_options"}
            reply = await self._try(url, address, members)
        if reply.status != 200:
            raise UnreachableError(f"{url} does not answer for {model!r} ({_complaint(reply)})")
        return _Target(url, address, members)

    async def _first_model(self, url: str, address: Address) -> str:
        reply = await self._fetch(url, address, "GET", "/models", b"")
        models = read_models(reply.body) if reply.status == 200 else ()
        if not models:
            raise UnreachableError(f"{url} lists no models ({_complaint(reply)}): name one with --model-name")
        return models[0].id

    async def _try(self, url: str, address: Address, members: dict[str, Any]) -> Fetched:
        asked = [{"role": "user", "content": "Say hello."}]
        body = {**members, "messages": asked, "stream": True, "max_tokens": 1}
        return await self._fetch(url, address, "POST", "/chat/completions", msgspec.json.encode(body))

    async def _fetch(self, url: str, address: Address, method: str, path: str, body: bytes) -> Fetched:
        try:
            return await fetch(address, method, path, within_s=_LOOK_S, body=body)
        except OutboundError as error:
            raise UnreachableError(f"{url}: {error}; is the server running there?") from None

    async def _ask_server(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """What the server says at a path of its root; None where it has no such thing."""
        address = self._targets[0].address
        root = msgspec.structs.replace(address, prefix=address.prefix.removesuffix("/v1"))
        try:
            asked = {"model": self._targets[0].members["model"], **body}
            reply = await fetch(root, "POST", path, within_s=_LOOK_S, body=msgspec.json.encode(asked))
            value = json.loads(reply.body) if reply.status == 200 else None
        except (OutboundError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    # ---- the steps

    async def _measure_all(self) -> None:
        settings, watch = self._settings, self._watch
        watch.total = 1 + self._count()
        await self._measure(plan.WARMUP, settings.warmup_s)
        if not any(step.ok for step in watch.steps) and not self._stop.is_set():
            reasons = next((reason for step in watch.steps for reason in step.reasons), "no answer in time")
            raise UnreachableError(f"{settings.url} gave no whole answer in the warm-up: {reasons}")
        for step in self._first_steps():
            await self._measure(step, settings.duration_s)
        if settings.kind is Kind.SWEEP and not self._stop.is_set():
            found = watch.steps[-1].request_rate
            for step in plan.rate_steps(settings, plan.sweep_rates(settings, found) if found else ()):
                await self._measure(step, settings.duration_s)
        if self._stop.is_set():
            self._why = "it was stopped"

    def _count(self) -> int:
        settings = self._settings
        return {
            Kind.SWEEP: 1 + settings.num_rates,
            Kind.THROUGHPUT: 1,
            Kind.RATE: len(settings.rates),
            Kind.CONCURRENCY: len(settings.levels),
            Kind.REPLAY: 1,
        }[settings.kind]

    def _first_steps(self) -> list[Planned]:
        settings = self._settings
        match settings.kind:
            case Kind.SWEEP | Kind.THROUGHPUT:
                return [Closed("throughput", settings.max_vus)]
            case Kind.RATE:
                return plan.rate_steps(settings, settings.rates)
            case Kind.CONCURRENCY:
                return plan.users_of(settings)
            case Kind.REPLAY:
                assert settings.replay is not None
                return [Replayed("replay", tuple(replayed(settings.replay)))]

    async def _measure(self, step: Planned, seconds: float) -> None:
        if self._stop.is_set() or seconds <= 0:
            return
        watch = self._watch
        if isinstance(step, Replayed) and step.times:
            seconds = max(seconds, step.times[-1] + 0.001)
        watch.step, watch.number, watch.seconds = step.id, watch.number + 1, seconds * len(self._targets)
        if len(self._targets) == 1:
            watch.steps.append(self._step(step, self._targets[0], [await self._load(step, 0, seconds)]))
            return
        # A trace cannot be cut: what comes late in it would never be played.
        rounds = 1 if step is plan.WARMUP or isinstance(step, Replayed) else ROUNDS
        loads: tuple[list[Load], list[Load]] = ([], [])
        for part_s in plan.rounds_of(seconds, rounds):
            for number in range(2):
                loads[number].append(await self._load(step, number, part_s))
        first, second = (
            [self._step(step, target, [load]) for load in found]
            for target, found in zip(self._targets, loads, strict=True)
        )
        for target, found, parts in zip(self._targets, loads, (first, second), strict=True):
            watch.steps.append(joined(self._step(step, target, found), parts))
        if step is not plan.WARMUP:
            self._compared += ratios(list(zip(first, second, strict=True)))

    async def _load(self, step: Planned, number: int, seconds: float) -> Load:
        settings, target = self._settings, self._targets[number]
        load = Load(
            target.address,
            self._prompts,
            target.members,
            timeout_s=settings.timeout_s,
            grace_s=settings.grace_s,
            stop=self._stop,
            target=number,
        )
        self._watch.load = load
        if isinstance(step, Closed):
            await load.closed(step.users, seconds)
        else:
            await load.open(plan.schedule(step, settings, self._rng), seconds, settings.max_vus)
        self._count_tokens(load)
        return load

    def _count_tokens(self, load: Load) -> None:
        """Count what the server did not, now that nothing is measured."""
        for record, text in load.texts:
            if self._counter is not None:
                record.counted = self._counter.count(text)
            if record.tokens is None:
                record.tokens = record.counted if record.counted is not None else len(record.times)
        load.texts.clear()

    def _step(self, step: Planned, target: _Target, loads: list[Load]) -> Step:
        """What the loads of one step came to, one after the other."""
        records: list[Record] = []
        seconds = 0.0
        for load in loads:
            records += load.records if not seconds else [shifted(record, seconds) for record in load.records]
            seconds += load.seconds
        owns = [load.own for load in loads]
        return step_of(
            records,
            id=step.id,
            target=target.url,
            is_open=not isinstance(step, Closed),
            max_vus=step.users if isinstance(step, Closed) else self._settings.max_vus,
            rate=step.rate if isinstance(step, plan.Open) else None,
            seconds=seconds,
            due=sum(load.counts.due for load in loads),
            skipped=sum(load.counts.skipped for load in loads),
            tokens_by=self._tokens_by(target),
            own=Own(
                cpu=sum(own.cpu for own in owns) / len(owns),
                late_starts=sum(own.late_starts for own in owns),
                latest_s=max(own.latest_s for own in owns),
                is_bottleneck=any(own.is_bottleneck for own in owns),
            ),
            goodput=self._settings.goodput,
        )

    def _tokens_by(self, target: _Target) -> str:
        if "stream_options" in target.members:
            return "usage"
        return "chunks" if self._counter is None else "tokenizer"


def joined(whole: Step, rounds: list[Step]) -> Step:
    """A step of several rounds, with the rates of these: what came after the end of one belongs to none."""
    seconds = sum(one.seconds for one in rounds)
    if not seconds:
        return whole
    return msgspec.structs.replace(
        whole,
        request_rate=sum(one.request_rate * one.seconds for one in rounds) / seconds,
        token_rate=sum(one.token_rate * one.seconds for one in rounds) / seconds,
    )


def shifted(record: Record, seconds: float) -> Record:
    """The same record, in a step that began so much earlier."""

    def later(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return msgspec.structs.replace(
        record,
        due_s=record.due_s + seconds,
        begun_s=record.begun_s + seconds,
        head_s=later(record.head_s),
        role_s=later(record.role_s),
        reasoning_s=later(record.reasoning_s),
        content_s=later(record.content_s),
        tool_s=later(record.tool_s),
        times=type(record.times)("d", [at + seconds for at in record.times]),
        ended_s=record.ended_s + seconds,
    )


def public(settings: BenchSettings) -> dict[str, object]:
    """The settings as JSON has them, without what may be secret."""
    values: dict[str, object] = msgspec.to_builtins(settings, enc_hook=str)
    return {name: value for name, value in values.items() if name not in _SECRET}


def _complaint(reply: Fetched) -> str:
    text = " ".join(reply.body[:1000].decode("utf-8", "replace").split())
    return f"{reply.status}: " + "".join(char if char.isprintable() else "?" for char in text[:_SHOWN])


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
