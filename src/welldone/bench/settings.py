"""Settings of a load test: servers, load, prompts, and what counts as good."""

import random
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

MAX_BURSTINESS = 1000.0
"""Bursts of about as many requests: few servers have more users."""


class BenchmarkKind(StrEnum):
    """Kind of a load test."""

    QUICK = "quick"
    """One user, then as many as the default server answers concurrently, with short answers."""
    SWEEP = "sweep"
    """Maximum throughput, then rising rates up to slightly more than that."""
    THROUGHPUT = "throughput"
    """Maximum throughput: each user sends the next request when the last one is answered."""
    RATE = "rate"
    """Given rates, regardless of the server."""
    CONCURRENCY = "concurrency"
    """Given numbers of users, who each send the next request when the last one is answered."""
    REPLAY = "replay"
    """Arrival times from a file."""


class ArrivalProcess(StrEnum):
    """Distribution of arrivals at a rate."""

    CONSTANT = "constant"
    POISSON = "poisson"
    BURSTY = "bursty"


class LengthSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tokens: a normal distribution, clipped to bounds."""

    num_tokens: int
    min_tokens: int
    max_tokens: int
    variance: int = 0
    """The standard deviation, despite its name, as in inference-benchmarker."""


class GoodputBound(msgspec.Struct, frozen=True):
    """Limit of a good request: `ttft:500`."""

    metric: str
    """ttft, itl or e2e."""
    limit_s: float


class Assertion(msgspec.Struct, frozen=True):
    """Condition on a result, whose failure sets the exit code 1: `ttft.p99<800ms`."""

    text: str
    metric: str
    statistic: str
    is_below: bool
    limit: float
    """In the unit of the metric: seconds, tokens/s, requests/s, or a share."""


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a run."""

    url: str
    """Including /v1."""
    against: str | None = None
    """A second server, measured in alternation with the first."""
    endpoint: str = "chat"
    """The API: chat, responses or messages."""
    model: str | None = None
    """None: the first that the server lists."""
    key: str | None = None
    against_key: str | None = None
    """A server on another host gets neither the key nor the headers of the first."""
    ca_file: str | None = None
    is_verified: bool = True
    headers: tuple[tuple[str, str], ...] = ()
    extra: Mapping[str, Any] = {}
    """Additional fields of every request body."""
    kind: BenchmarkKind = BenchmarkKind.SWEEP
    max_vus: int = 128
    """Concurrent users; with a rate, the limit of requests in flight."""
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
    """Variance of the gaps relative to a Poisson process, for bursty arrivals: 1 equals poisson."""
    profile: str | None = None
    prompt: LengthSpec | None = None
    decode: LengthSpec | None = None
    dataset: Path | None = None
    tokenizer: str | None = None
    timeout_s: float = 300.0
    """Limit for one answer."""
    grace_s: float = 30.0
    """Time for requests in flight to finish when a step ends."""
    goodput: tuple[GoodputBound, ...] = ()
    assertions: tuple[Assertion, ...] = ()
    meta: Mapping[str, str] = {}
    run_id: str = ""
    seed: int = 0


# Lengths of prompts and answers, in the syntax of inference-benchmarker.

MAX_TEXT_TOKENS = 10_000_000
"""Per text; ten times the longest contexts today."""
_LENGTH_FIELDS = ("num_tokens", "min_tokens", "max_tokens", "variance")
_SPREADS = 3  # standard deviations: hold nearly all draws of a normal distribution
_LENGTH_EXAMPLE = "num_tokens=200,max_tokens=220,min_tokens=180,variance=10"


def parse_length(text: str) -> LengthSpec:
    """Parse `num_tokens=200,max_tokens=220,min_tokens=180,variance=10`; raises `ValueError`.

    Missing bounds default to three deviations from the middle, a missing number to the middle of the bounds.
    """
    numbers = dict(_parse_pair(item) for item in text.split(","))
    if "num_tokens" not in numbers and not {"min_tokens", "max_tokens"} <= numbers.keys():
        raise ValueError(f"{text!r} has no num_tokens; write {_LENGTH_EXAMPLE}")
    variance = numbers.get("variance", 0)
    number = numbers["num_tokens"] if "num_tokens" in numbers else (numbers["min_tokens"] + numbers["max_tokens"]) // 2
    least = numbers.get("min_tokens", max(1, min(number, numbers.get("max_tokens", number)) - _SPREADS * variance))
    most = numbers.get("max_tokens", max(number, least) + _SPREADS * variance)
    if min(number, least, most) < 1:
        raise ValueError(f"{text!r} allows no tokens; the minimum is 1")
    if least > most:
        raise ValueError(f"in {text!r} min_tokens is above max_tokens")
    return LengthSpec(num_tokens=number, min_tokens=least, max_tokens=most, variance=variance)


def _parse_pair(item: str) -> tuple[str, int]:
    name, _, number = (word.strip() for word in item.partition("="))
    if name not in _LENGTH_FIELDS:
        raise ValueError(f"{name!r} is not one of {', '.join(_LENGTH_FIELDS)}; write {_LENGTH_EXAMPLE}")
    if not (number.isascii() and number.isdigit() and len(number) <= len(str(MAX_TEXT_TOKENS))):
        raise ValueError(f"{name} is {number!r}, which is not a number of tokens; write {_LENGTH_EXAMPLE}")
    if int(number) > MAX_TEXT_TOKENS:
        raise ValueError(f"{name} is {number}; the maximum is {MAX_TEXT_TOKENS:,}")
    return name, int(number)


def draw_length(length: LengthSpec, rng: random.Random) -> int:
    """Draw a number of tokens from the clipped normal distribution."""
    number = rng.gauss(length.num_tokens, length.variance) if length.variance else length.num_tokens
    return min(max(round(number), length.min_tokens), length.max_tokens)
