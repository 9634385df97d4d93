"""The report of a load test: what was asked for, and what each step came to. Screens and files are drawn from it."""

from collections.abc import Mapping

import msgspec

from welldone.bench.record import BenchRecord

REPORT_VERSION = 1
"""Of our JSON form."""


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of some times, in seconds."""

    count: int
    mean: float | None
    minimum: float | None
    maximum: float | None
    percentiles: Mapping[str, float]
    """By name, `p50` to `p99.9`: only those with at least ten samples beyond them."""
    all_percentiles: Mapping[str, float] = {}
    """The same however few samples there are, for the form of inference-benchmarker, whose readers want them all."""


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What this tool itself did: a client that is busy measures itself."""

    cpu: float
    """Of one core, over the step."""
    late_starts: int
    """Requests that began more than 5 ms after they were due, though a place was free."""
    max_delay_s: float
    """The latest of them."""
    is_bottleneck: bool


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One step, on one server."""

    id: str
    """`warmup`, `throughput`, `constant@1.20req/s`, `concurrency@8`, `replay`."""
    target: str
    """The server's URL."""
    is_open: bool
    """Whether requests came at their times whatever the server did (open), or one after the other (closed)."""
    max_vus: int
    rate: float | None
    """That was asked for."""
    seconds: float
    """How long the step was measured."""
    due: int
    """Requests that should have been made."""
    skipped: int
    """Those that were not, since `max_vus` were under way."""
    outcomes: Mapping[str, int]
    """How many ended how: ok, refused, failed, cut, broken, timed out, unreachable, unfinished."""
    reasons: Mapping[str, int]
    """Why those ended that are not ok, in words, the most frequent first; bounded."""
    invalid_streams: int
    """Streams that broke a rule."""
    rules: Mapping[str, int]
    """In how many streams each rule was broken."""
    good: int | None
    """Requests within all bounds of --goodput; None where there are none."""
    request_rate: float
    """Requests that ended well, per second of the step. One that ended later counts by its share within."""
    token_rate: float
    """Tokens that came within the step, of all answers, per second."""
    prompt_tokens: float | None
    """Of a request, on average."""
    decoded_tokens: float | None
    total_tokens: int
    total_prompt_tokens: int
    tokens_by: str
    """Who counted the tokens: `usage`, `tokenizer`, `chunks`."""
    times: Mapping[str, Distribution]
    """By name: head, role, ttft (the first token of any kind), reasoning, content, tool, itl (of each request the mean
    between tokens), gap (between chunks, of all requests), stall (the longest gap of each request), e2e, and rate
    (tokens/s of each request; no time)."""
    client: ClientLoad
    records: tuple[BenchRecord, ...] = ()
    """The requests, for plots and for our JSON form."""

    @property
    def requests(self) -> int:
        """How many were made."""
        return sum(self.outcomes.values())

    @property
    def ok(self) -> int:
        return self.outcomes.get("ok", 0)


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A number on two servers, measured in turn."""

    metric: str
    """`ttft.p50`, `token_rate`, …"""
    first: float
    second: float
    ratio: float
    """The first by the second."""
    low: float
    high: float
    """Between which the ratio lies, as far as the rounds tell."""


class AssertionResult(msgspec.Struct, frozen=True, kw_only=True):
    """An assertion, and whether it holds."""

    text: str
    step: str
    value: float | None
    """None: there are too few samples to say, and that is no pass."""
    passed: bool


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that there is to say about a run."""

    version: int = REPORT_VERSION
    tool: str
    began: str
    """ISO 8601 in UTC."""
    ended: str
    url: str
    against: str | None
    endpoint: str = "chat"
    """What was asked: chat, responses or messages."""
    model: str
    kind: str
    config: Mapping[str, object]
    """The settings, without secrets."""
    tokenizer: str
    """What counted the tokens, in words."""
    is_complete: bool
    """False where it was ended early."""
    incomplete_reason: str = ""
    """Why it was."""
    steps: tuple[StepResult, ...]
    comparisons: tuple[MetricComparison, ...] = ()
    assertion_results: tuple[AssertionResult, ...] = ()
    system: Mapping[str, object] = {}
    """The machine of this tool: cores, memory, system."""
