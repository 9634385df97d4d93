"""The steps of a run: how each kind of load is made."""

import random
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from welldone.bench import arrivals
from welldone.bench.settings import Arrivals, BenchSettings, Kind

SWEEP_BEYOND = 1.2
"""A sweep goes a little beyond what the server took in the throughput step, so as to show where it breaks down."""


class Closed(msgspec.Struct, frozen=True):
    """Users, each of whom asks again when it was answered."""

    id: str
    users: int


class Open(msgspec.Struct, frozen=True):
    """Requests at a rate, whatever the server does."""

    id: str
    rate: float


class Replayed(msgspec.Struct, frozen=True):
    """Requests at given times."""

    id: str
    times: tuple[float, ...]


Planned: TypeAlias = Closed | Open | Replayed

WARMUP = Closed("warmup", 1)
LAST_S = 0.001
"""A replay lasts so much longer than its last request takes to be due: what is due at its end would not be made."""


def rate_steps(settings: BenchSettings, rates: tuple[float, ...]) -> list[Planned]:
    """A step for each rate. The names are those of inference-benchmarker, where the arrivals are."""
    return [Open(f"{settings.arrivals}@{rate:.2f}req/s", rate) for rate in rates]


def sweep_rates(settings: BenchSettings, found: float) -> tuple[float, ...]:
    """The rates of a sweep, by the requests per second that the server took at most."""
    count = settings.num_rates
    return tuple(step * found * SWEEP_BEYOND / count for step in range(1, count + 1))


def schedule(step: Open | Replayed, settings: BenchSettings, rng: random.Random) -> Iterator[float]:
    """When its requests are due."""
    if isinstance(step, Replayed):
        return iter(step.times)
    match settings.arrivals:
        case Arrivals.CONSTANT:
            return arrivals.constant(step.rate)
        case Arrivals.POISSON:
            return arrivals.poisson(step.rate, rng)
        case Arrivals.BURSTY:
            return arrivals.bursty(step.rate, settings.burstiness, rng)


def users_of(settings: BenchSettings) -> list[Planned]:
    """A step for each number of users."""
    return [Closed(f"concurrency@{users}", users) for users in settings.levels]


def expected_s(settings: BenchSettings) -> tuple[float, float] | None:
    """How many seconds the run takes, and how many at most; None where a file says it."""
    if settings.kind is Kind.REPLAY:
        return None
    steps = len(settings.rates or settings.levels) or 1
    if settings.kind is Kind.SWEEP:
        steps = 1 + settings.num_rates
    servers = 1 if settings.against is None else 2
    seconds = servers * (settings.warmup_s + steps * settings.duration_s)
    return seconds, seconds + servers * (bool(settings.warmup_s) + steps) * settings.grace_s


def turns(rounds: int) -> list[tuple[int, int]]:
    """In which order two servers are asked in each round: what changes with time is as good or bad for both."""
    return [(0, 1) if number % 2 == 0 else (1, 0) for number in range(rounds)]
