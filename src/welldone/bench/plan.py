"""The steps of a run: how each kind of load is made."""

import random
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from welldone.bench import arrivals
from welldone.bench.settings import ArrivalProcess, BenchSettings, BenchmarkKind

SWEEP_HEADROOM = 1.2
"""A sweep goes a little beyond what the server took in the throughput step, so as to show where it breaks down."""


class ClosedLoopStep(msgspec.Struct, frozen=True):
    """Users, each of whom asks again when it was answered."""

    id: str
    users: int


class OpenLoopStep(msgspec.Struct, frozen=True):
    """Requests at a rate, whatever the server does."""

    id: str
    rate: float


class TraceReplayStep(msgspec.Struct, frozen=True):
    """Requests at given times."""

    id: str
    times: tuple[float, ...]


PlannedStep: TypeAlias = ClosedLoopStep | OpenLoopStep | TraceReplayStep

WARMUP_STEP = ClosedLoopStep("warmup", 1)
REPLAY_TAIL_S = 0.001
"""A replay lasts so much longer than its last request takes to be due: what is due at its end would not be made."""


def rate_steps(settings: BenchSettings, rates: tuple[float, ...]) -> list[PlannedStep]:
    """A step for each rate. The names are those of inference-benchmarker, where the arrivals are."""
    return [OpenLoopStep(f"{settings.arrivals}@{rate:.2f}req/s", rate) for rate in rates]


def sweep_rates(settings: BenchSettings, max_rate: float) -> tuple[float, ...]:
    """The rates of a sweep, by the requests per second that the server took at most."""
    count = settings.num_rates
    return tuple(step * max_rate * SWEEP_HEADROOM / count for step in range(1, count + 1))


def arrival_times(step: OpenLoopStep | TraceReplayStep, settings: BenchSettings, rng: random.Random) -> Iterator[float]:
    """When its requests are due."""
    if isinstance(step, TraceReplayStep):
        return iter(step.times)
    match settings.arrivals:
        case ArrivalProcess.CONSTANT:
            return arrivals.constant_arrivals(step.rate)
        case ArrivalProcess.POISSON:
            return arrivals.poisson_arrivals(step.rate, rng)
        case ArrivalProcess.BURSTY:
            return arrivals.bursty_arrivals(step.rate, settings.burstiness, rng)


def concurrency_steps(settings: BenchSettings) -> list[PlannedStep]:
    """A step for each number of users."""
    return [ClosedLoopStep(f"concurrency@{users}", users) for users in settings.levels]


def expected_duration_s(settings: BenchSettings) -> tuple[float, float] | None:
    """How many seconds the run takes, and how many at most; None where a file says it."""
    if settings.kind is BenchmarkKind.REPLAY:
        return None
    steps = len(settings.rates or settings.levels) or 1
    if settings.kind is BenchmarkKind.SWEEP:
        steps = 1 + settings.num_rates
    servers = 1 if settings.against is None else 2
    seconds = servers * (settings.warmup_s + steps * settings.duration_s)
    return seconds, seconds + servers * (bool(settings.warmup_s) + steps) * settings.grace_s


def round_orders(rounds: int) -> list[tuple[int, int]]:
    """In which order two servers are asked in each round: what changes with time is as good or bad for both."""
    return [(0, 1) if number % 2 == 0 else (1, 0) for number in range(rounds)]
