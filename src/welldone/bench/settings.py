"""What a load test is told: whom to ask, how much, and what counts as good."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class BenchmarkKind(StrEnum):
    """How the load is made."""

    QUICK = "quick"
    """One user, then as many as the default server answers at once, with short answers: a first look."""
    SWEEP = "sweep"
    """As much as the server takes, and then at rising rates up to a little more than that."""
    THROUGHPUT = "throughput"
    """As much as it takes: each user asks again as soon as it was answered."""
    RATE = "rate"
    """At given rates, whatever the server does."""
    CONCURRENCY = "concurrency"
    """By given numbers of users, each of whom asks again as soon as it was answered."""
    REPLAY = "replay"
    """At the times that a file tells."""


class ArrivalProcess(StrEnum):
    """How requests follow each other at a rate."""

    CONSTANT = "constant"
    POISSON = "poisson"
    BURSTY = "bursty"


class LengthSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens: drawn from a normal distribution, and held between two bounds."""

    num_tokens: int
    min_tokens: int
    max_tokens: int
    variance: int = 0
    """The standard deviation, in spite of its name: so does inference-benchmarker."""


class GoodputBound(msgspec.Struct, frozen=True):
    """What a good request may take at most: `ttft:500`."""

    metric: str
    """ttft, itl or e2e."""
    limit_s: float


class Assertion(msgspec.Struct, frozen=True):
    """What must hold of a result, else the exit code is 1: `ttft.p99<800ms`."""

    text: str
    metric: str
    statistic: str
    is_below: bool
    limit: float
    """In the metric's own unit: seconds, tokens/s, requests/s, or a share."""


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a user can say."""

    url: str
    """Up to and with /v1."""
    against: str | None = None
    """Another server, asked in turn with the first."""
    endpoint: str = "chat"
    """What is asked: chat, responses or messages."""
    model: str | None = None
    """None: the first that the server lists."""
    key: str | None = None
    against_key: str | None = None
    """Where it is not on the same host, it gets neither the key nor the headers of the first."""
    ca_file: str | None = None
    is_verified: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    extra: Mapping[str, Any] = {}
    """Members for the body of every request."""
    kind: BenchmarkKind = BenchmarkKind.SWEEP
    max_vus: int = 128
    """Users at once; with a rate the most requests that may be under way."""
    duration_s: float = 120.0
    """Of each step."""
    warmup_s: float = 30.0
    rates: tuple[float, ...] = ()
    """Requests per second."""
    num_rates: int = 10
    """Steps of a sweep."""
    levels: tuple[int, ...] = ()
    """Numbers of users, for `concurrency`."""
    replay: Path | None = None
    arrivals: ArrivalProcess = ArrivalProcess.CONSTANT
    burstiness: float = 4.0
    """How much more than at random requests come together, where they are bursty: 1 is poisson."""
    profile: str | None = None
    prompt: LengthSpec | None = None
    decode: LengthSpec | None = None
    dataset: Path | None = None
    tokenizer: str | None = None
    timeout_s: float = 300.0
    """For one answer."""
    grace_s: float = 30.0
    """How long answers that are under way at the end of a step may take to end."""
    goodput: tuple[GoodputBound, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    meta: Mapping[str, str] = {}
    run_id: str = ""
    seed: int = 0
