"""What a load test is told: whom to ask, how much, and what counts as good."""

import random
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


# How many tokens a prompt or an answer has: as inference-benchmarker writes it, and a draw of one.


MAX_TEXT_TOKENS = 10_000_000
"""Of one text; the longest contexts of today take a tenth of it."""
_LENGTH_FIELDS = ("num_tokens", "min_tokens", "max_tokens", "variance")
_SPREADS = 3  # standard deviations: nearly all draws of a normal distribution lie within
_LENGTH_EXAMPLE = "num_tokens=200,max_tokens=220,min_tokens=180,variance=10"


def parse_length(text: str) -> LengthSpec:
    """What `num_tokens=200,max_tokens=220,min_tokens=180,variance=10` means; `ValueError` where it means nothing.

    Bounds that are not given lie three deviations away; a number that is not given lies between the bounds.
    """
    given = dict(_parse_pair(item) for item in text.split(","))
    if "num_tokens" not in given and not {"min_tokens", "max_tokens"} <= given.keys():
        raise ValueError(f"{text!r} has no num_tokens; write {_LENGTH_EXAMPLE}")
    variance = given.get("variance", 0)
    number = given["num_tokens"] if "num_tokens" in given else (given["min_tokens"] + given["max_tokens"]) // 2
    least = given.get("min_tokens", max(1, min(number, given.get("max_tokens", number)) - _SPREADS * variance))
    most = given.get("max_tokens", max(number, least) + _SPREADS * variance)
    if min(number, least, most) < 1:
        raise ValueError(f"{text!r} asks for no tokens at all; 1 is the least")
    if least > most:
        raise ValueError(f"in {text!r} min_tokens is above max_tokens")
    return LengthSpec(num_tokens=number, min_tokens=least, max_tokens=most, variance=variance)


def _parse_pair(item: str) -> tuple[str, int]:
    name, _, number = (part.strip() for part in item.partition("="))
    if name not in _LENGTH_FIELDS:
        raise ValueError(f"{name!r} is none of {', '.join(_LENGTH_FIELDS)}; write {_LENGTH_EXAMPLE}")
    if not (number.isascii() and number.isdigit() and len(number) <= len(str(MAX_TEXT_TOKENS))):
        raise ValueError(f"{name} is {number!r}, which is no number of tokens; write {_LENGTH_EXAMPLE}")
    if int(number) > MAX_TEXT_TOKENS:
        raise ValueError(f"{name} is {number}; {MAX_TEXT_TOKENS:,} is the most")
    return name, int(number)


def draw_length(length: LengthSpec, rng: random.Random) -> int:
    """One number of tokens: normal around the middle, and never beyond the bounds."""
    number = rng.gauss(length.num_tokens, length.variance) if length.variance else length.num_tokens
    return min(max(round(number), length.min_tokens), length.max_tokens)
